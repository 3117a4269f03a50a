//! The schemas of AuthenticationPolicy, AuthorizationPolicy and RateLimit, against the parser and real rules:
//! what parses is stored, with the same meaning; what the schema refuses the parser refuses too.

#[path = "crds/schema.rs"]
mod schema;

use proptest::prelude::*;
use rulecast_api::{Kind, crd};
use serde_json::{Value, json};

const AUTHENTICATION: Kind = Kind::AUTHENTICATION_POLICY;
const AUTHORIZATION: Kind = Kind::AUTHORIZATION_POLICY;
const LIMIT: Kind = Kind::RATE_LIMIT;

fn spec_schema(kind: Kind) -> Value {
    let mut definition = crd::definition(kind).expect("a kind of Kubernetes");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].take()
}

/// Now and then something else than what is meant.
fn mostly(strategy: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Value> {
    prop_oneof![
        60 => strategy.boxed(),
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => Just(json!("x")),
        1 => Just(json!([])),
        1 => Just(json!({})),
    ]
    .boxed()
}

fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| {
            prop::option::weighted(0.8, mostly(value).prop_map(move |v| (name, v)))
        })
        .collect();
    fields
        .prop_map(|fields| {
            fields.into_iter().flatten().map(|(name, value)| (name.to_owned(), value)).collect()
        })
        .boxed()
}

fn list(item: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    prop::collection::vec(mostly(item), 0..3).prop_map(Value::from).boxed()
}

fn one(of: &'static [&'static str]) -> BoxedStrategy<Value> {
    prop::sample::select(of).prop_map(Value::from).boxed()
}

fn selector(extends: bool) -> BoxedStrategy<Value> {
    let names = || list(one(&["a", "b", "", "a*", "a b", "é"]));
    let ids = || list(one(&["spiffe://td/ns/a/sa/b", "td/ns/a/app/b", "", "x", "https://x/y"]));
    let blocks = || list(one(&["10.0.0.0/8", "10.0.*.1", "::1", "x", "", "10.0.0.1:80", "*"]));
    let pair = object(vec![("key", one(&["app", ""])), ("value", one(&["web", ""]))]);
    let pairs = || if extends { list(pair.clone()) } else { Just(json!([])).boxed() };
    object(vec![
        ("namespaces", names()),
        ("notNamespaces", names()),
        ("ipBlocks", blocks()),
        ("notIpBlocks", blocks()),
        ("principals", ids()),
        ("notPrincipals", ids()),
        ("extends", pairs()),
        ("notExtends", pairs()),
    ])
}

fn authentication() -> BoxedStrategy<Value> {
    let action = || one(&["NONE", "DISABLED", "PERMISSIVE", "STRICT", "strict"]);
    let port = (-1..=65536_i64).prop_map(Value::from);
    let port = prop_oneof![port, (0..3_i64).prop_map(Value::from)].boxed();
    let ports = || list(object(vec![("port", port.clone()), ("action", action())]));
    let field = prop::sample::select(vec!["portLevel", "PortLevel"]);
    (mostly(action()), list(selector(true)), field, ports())
        .prop_map(|(action, selector, field, ports)| {
            json!({ "action": action, "selector": selector, field: ports })
        })
        .boxed()
}

fn conditions() -> BoxedStrategy<Value> {
    let value = object(vec![
        ("type", one(&["equals", "equals", "regex", "ognl"])),
        ("value", one(&["", "a", "a|b", "(", "é"])),
    ]);
    let key = one(&["method", "request.headers[A]", "extension[b]", "source.ip", "ip", ""]);
    list(object(vec![("key", key), ("values", list(value.clone())), ("notValues", list(value))]))
}

fn limit() -> BoxedStrategy<Value> {
    let count = || prop_oneof![0..9_i64, Just(4_294_967_295), Just(4_294_967_296)];
    let keys = ["path", "request.headers[A]", "extension[b]", "request.id", "user", ""];
    let per = prop_oneof![
        prop::sample::select(vec!["1s", "500ms", "1m 30s", "2h", "1day", "25h", "1us", "1", ""])
            .prop_map(str::to_owned),
        (60..70_usize).prop_map(|n| format!("{}1s", "0".repeat(n - 2))),
    ];
    object(vec![
        ("enabled", any::<bool>().prop_map(Value::from).boxed()),
        ("selector", list(selector(true))),
        ("match", conditions()),
        ("keys", list(prop::sample::select(keys.to_vec()).prop_map(Value::from).boxed())),
        ("requests", count().prop_map(Value::from).boxed()),
        ("per", per.prop_map(Value::from).boxed()),
        ("burst", count().prop_map(Value::from).boxed()),
    ])
}

fn authorization() -> BoxedStrategy<Value> {
    let rule =
        object(vec![("from", selector(false)), ("to", selector(true)), ("when", conditions())]);
    let samples =
        prop_oneof![(-1.0..101.0).prop_map(Value::from), (0..=100).prop_map(Value::from),];
    let order = prop_oneof![
        (-9..9_i64).prop_map(Value::from),
        (i64::from(i32::MIN) - 1..=i64::from(i32::MIN) + 1).prop_map(Value::from),
    ];
    object(vec![
        ("action", one(&["ALLOW", "DENY", "AUDIT", "ADUIT", "ADULT", "allow"])),
        ("rules", list(rule)),
        ("matchType", one(&["anyMatch", "allMatch"])),
        ("samples", samples.boxed()),
        ("order", order.boxed()),
    ])
}

fn same(kind: Kind, spec: &Value) -> Result<(), TestCaseError> {
    let schema = spec_schema(kind);
    let stored = schema::stored(&schema, spec);
    if let Ok(written) = (kind.parse)(spec.clone()) {
        prop_assert_eq!(schema::check(&schema, &stored, "spec"), Vec::<String>::new());
        prop_assert_eq!(schema::rules(&schema, &stored), Vec::<String>::new());
        let read = (kind.parse)(stored).expect("valid also with defaults");
        prop_assert_eq!(written.to_json(), read.to_json());
        prop_assert_eq!(written.encode(), read.encode());
        let again = (kind.parse)(written.to_json()).expect("valid as written out");
        prop_assert_eq!(written.encode(), again.encode());
        prop_assert_eq!(written.compat(), again.compat());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn authentication_that_parses_is_stored_and_keeps_its_meaning(spec in authentication()) {
        same(AUTHENTICATION, &spec)?;
    }

    #[test]
    fn authorization_that_parses_is_stored_and_keeps_its_meaning(spec in authorization()) {
        same(AUTHORIZATION, &spec)?;
    }

    #[test]
    fn limits_that_parse_are_stored_and_keep_their_meaning(spec in limit()) {
        same(LIMIT, &spec)?;
    }
}

/// What the API server refuses by itself, and where.
#[test]
fn the_schema_refuses_what_it_can() {
    let port = |port: Value| json!({ "action": "NONE", "portLevel": [{ "port": port, "action": "STRICT" }] });
    let rule = |rule: Value| json!({ "action": "DENY", "rules": [rule] });
    let ognl = json!({ "key": "method", "values": [{ "type": "ognl", "value": "x" }] });
    let pair = json!([{ "key": "a", "value": "b" }]);
    for (kind, spec, path) in [
        (AUTHENTICATION, json!({}), "spec"),
        (AUTHENTICATION, json!({ "action": "strict" }), "spec.action"),
        (AUTHENTICATION, port(json!(65536)), "spec.portLevel[0].port"),
        (AUTHENTICATION, port(json!(-1)), "spec.portLevel[0].port"),
        (AUTHENTICATION, port(json!("80")), "spec.portLevel[0].port"),
        (AUTHORIZATION, json!({ "action": "LOG" }), "spec.action"),
        (AUTHORIZATION, json!({ "action": "DENY", "samples": 100.1 }), "spec.samples"),
        (AUTHORIZATION, json!({ "action": "DENY", "order": 0.5 }), "spec.order"),
        (AUTHORIZATION, json!({ "action": "DENY", "matchType": "all" }), "spec.matchType"),
        (AUTHORIZATION, rule(json!({ "when": [ognl] })), "spec.rules[0].when[0].values[0].type"),
        (AUTHORIZATION, rule(json!({ "from": { "extends": pair } })), "spec.rules[0].from.extends"),
        (LIMIT, json!({}), "spec"),
        (LIMIT, json!({ "requests": 0 }), "spec.requests"),
        (LIMIT, json!({ "requests": 1, "burst": 0 }), "spec.burst"),
        (LIMIT, json!({ "requests": 1, "per": 1 }), "spec.per"),
        (LIMIT, json!({ "requests": 1, "keys": [""] }), "spec.keys[0]"),
    ] {
        let schema = spec_schema(kind);
        let broken = schema::check(&schema, &schema::stored(&schema, &spec), "spec");
        assert!(broken.iter().any(|broken| broken.starts_with(path)), "{spec}: {broken:?}");
        assert!((kind.parse)(spec.clone()).is_err(), "{spec}: the schema is stricter");
    }
}
