//! The schema of CircuitBreaker, against its parser: what parses is stored, with the same meaning.

#[path = "crds/schema.rs"]
mod schema;

use proptest::prelude::*;
use rulecast_api::{Kind, crd, kind::RuleSpec};
use serde_json::{Value, json};

fn spec_schema() -> Value {
    let mut definition = crd::definition(Kind::CIRCUIT_BREAKER).expect("a kind of Kubernetes");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].take()
}

fn parse(spec: &Value) -> Option<std::sync::Arc<dyn RuleSpec>> {
    (Kind::CIRCUIT_BREAKER.parse)(spec.clone()).ok()
}

/// What the schema and its rules have against a spec.
fn refused(schema: &Value, spec: &Value) -> Vec<String> {
    let stored = schema::stored(schema, spec);
    match schema::check(schema, &stored, "spec") {
        broken if broken.is_empty() => schema::rules(schema, &stored),
        broken => broken,
    }
}

/// A field with one of these values, or now and then without.
fn field(name: &'static str, of: Value) -> BoxedStrategy<Option<(&'static str, Value)>> {
    let of = of.as_array().expect("a list").clone();
    let value = prop_oneof![9 => prop::sample::select(of), 1 => Just(Value::Null)];
    prop::option::weighted(0.7, value.prop_map(move |value| (name, value))).boxed()
}

fn specs() -> impl Strategy<Value = Value> {
    let fields = vec![
        field("enabled", json!([true, false, true, 1])),
        field("priority", json!([0, 5, i32::MIN, i32::MAX, 1_i64 << 40, 0.5])),
        field("window", json!(["1s", "10s", "1h", "1m 30s", "soon", 5])),
        field("minimumCalls", json!([1, 20, 100_000, 100_001, 0, "5"])),
        field("errorPercent", json!([0, 0.0, 0.1, 50, 100, 100.5, -1, true])),
        field("consecutiveErrors", json!([0, 1, 5, 100_000, 100_001, -1])),
        field("openFor", json!(["100ms", "30s", "1day", "1ms", []])),
        field("trialCalls", json!([1, 1000, 1001, 0])),
        field("per", json!(["endpoint", "service", "call"])),
        field("maxEjectedPercent", json!([0, 50, 100, 101])),
    ];
    fields.prop_map(|fields| {
        let mut spec = json!({ "scope": "service", "key": "com.Foo" });
        for (name, value) in fields.into_iter().flatten() {
            spec[name] = value;
        }
        spec
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_parses_is_stored_and_keeps_its_meaning(spec in specs()) {
        if let Some(written) = parse(&spec) {
            let schema = spec_schema();
            prop_assert_eq!(refused(&schema, &spec), Vec::<String>::new());
            let stored = parse(&schema::stored(&schema, &spec)).expect("valid with defaults too");
            prop_assert_eq!(written.to_json(), stored.to_json());
            prop_assert_eq!(written.encode(), stored.encode());
            let again = parse(&written.to_json()).expect("what is written out is valid");
            prop_assert_eq!(written.to_json(), again.to_json());
        }
    }
}

#[test]
fn the_schema_refuses_what_the_parser_refuses_too() {
    let schema = spec_schema();
    for more in [
        json!({}),
        json!({ "errorPercent": 0 }),
        json!({ "errorPercent": 0.0, "consecutiveErrors": 0 }),
        json!({ "errorPercent": 101 }),
        json!({ "consecutiveErrors": 1, "key": "a/b/c" }),
        json!({ "consecutiveErrors": 1, "scope": "method" }),
        json!({ "consecutiveErrors": 1, "per": "method" }),
        json!({ "consecutiveErrors": 1, "trialCalls": 0 }),
        json!({ "consecutiveErrors": 1, "window": 10 }),
    ] {
        let mut spec = json!({ "scope": "service", "key": "com.Foo" });
        for (name, value) in more.as_object().expect("an object") {
            spec[name] = value.clone();
        }
        assert_ne!(refused(&schema, &spec), Vec::<String>::new(), "{spec}");
        assert!(parse(&spec).is_none(), "{spec}");
    }
}
