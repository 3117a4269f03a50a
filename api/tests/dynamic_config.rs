//! The schema of DynamicConfig, against its parser: what parses is stored, with the same meaning.

#[path = "crds/schema.rs"]
mod schema;

use proptest::prelude::*;
use rulecast_api::{Kind, crd, kind::RuleSpec};
use serde_json::{Value, json};

fn spec_schema() -> Value {
    let mut definition = crd::definition(Kind::DYNAMIC_CONFIG).expect("a kind of Kubernetes");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].take()
}

fn parse(spec: &Value) -> Option<std::sync::Arc<dyn RuleSpec>> {
    (Kind::DYNAMIC_CONFIG.parse)(spec.clone()).ok()
}

/// One of these values, now and then something else.
fn one(of: Vec<Value>) -> BoxedStrategy<Value> {
    let other = vec![Value::Null, json!(1), json!(true), json!("x"), json!([]), json!({})];
    prop_oneof![12 => prop::sample::select(of), 1 => prop::sample::select(other)].boxed()
}

fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| prop::option::weighted(0.8, value.prop_map(move |v| (name, v))))
        .collect();
    let collect = |fields: Vec<Option<(&str, Value)>>| -> Value {
        fields.into_iter().flatten().map(|(name, value)| (name.to_owned(), value)).collect()
    };
    fields.prop_map(collect).boxed()
}

fn configs() -> BoxedStrategy<Value> {
    let text = || one(vec![json!({ "exact": "a" }), json!({ "empty": "" }), json!({})]);
    let oneof = || {
        let list = prop::collection::vec(text(), 0..3).prop_map(Value::from).boxed();
        object(vec![("oneof", list)])
    };
    let names =
        || one(vec![json!(["*"]), json!(["a", "b"]), json!([]), json!([""]), json!(["a b"])]);
    let address = one(vec![json!({ "cidr": "10.0.0.0/8" }), json!({ "cird": "1.2.3.*" })]);
    let param = one(vec![json!([{ "key": "a", "value": { "prefix": "b" } }]), json!([])]);
    let matches = object(vec![
        ("address", address),
        ("service", oneof()),
        ("app", oneof()),
        ("param", param),
    ]);
    let config = object(vec![
        ("side", one(vec![json!("consumer"), json!("provider")])),
        ("parameters", one(vec![json!({ "timeout": "1" }), json!({ "a": "", "b": "c" })])),
        ("enabled", one(vec![json!(true), json!(false)])),
        ("type", one(vec![json!("general"), json!("weight"), json!("")])),
        ("match", prop_oneof![matches, Just(Value::Null)].boxed()),
        ("addresses", names()),
        ("services", prop_oneof![1 => names(), 3 => Just(Value::Null)].boxed()),
    ]);
    prop::collection::vec(config, 0..3).prop_map(Value::from).boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_parses_is_stored_and_keeps_its_meaning(configs in configs(), enabled: bool) {
        let spec = json!({ "configVersion": "v3.0", "scope": "service", "key": "com.Foo",
                           "enabled": enabled, "configs": configs });
        if let Some(written) = parse(&spec) {
            let schema = spec_schema();
            let stored = schema::stored(&schema, &spec);
            prop_assert_eq!(schema::check(&schema, &stored, "spec"), Vec::<String>::new());
            prop_assert_eq!(schema::rules(&schema, &stored), Vec::<String>::new());
            let stored = parse(&stored).expect("valid also with defaults");
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
    for config in [
        json!({ "parameters": {} }),
        json!({ "side": "consumer" }),
        json!({ "parameters": { "timeout": 1000 } }),
        json!({ "parameters": { "a": "b" }, "side": "server" }),
        json!({ "parameters": { "a": "b" }, "match": { "service": { "oneof": [] } } }),
        json!({ "parameters": { "a": "b" }, "addresses": [""] }),
    ] {
        let spec = json!({ "configVersion": "v3.0", "scope": "service", "key": "com.Foo",
                           "configs": [config] });
        assert_ne!(schema::check(&schema, &spec, "spec"), Vec::<String>::new(), "{spec}");
        assert!(parse(&spec).is_none(), "{spec}");
    }
}
