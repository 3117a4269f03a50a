use std::collections::BTreeMap;

use serde_json::json;

use super::*;

fn parse(value: Value) -> Arc<dyn RuleSpec> {
    RateLimitSpec::parse(value).expect("valid")
}

fn full() -> Value {
    json!({
        "enabled": false, "requests": 100, "per": "1m 30s", "burst": 7,
        "selector": [{ "namespaces": ["shop"], "extends": [{ "key": "app", "value": "web" }] }],
        "match": [{ "key": "request.headers[X-Team]",
                    "values": [{ "type": "regex", "value": "a|b" }],
                    "notValues": [{ "type": "equals", "value": "b" }] }],
        "keys": ["source.principal", "request.headers[X-Tenant]", "extension[Tier]"],
    })
}

#[test]
fn round_trips() {
    for value in [json!({ "requests": 1 }), full()] {
        let spec = parse(value);
        let again = parse(spec.to_json());
        assert_eq!(spec.to_json(), again.to_json());
        assert_eq!(spec.encode(), again.encode());
        assert_eq!(spec.enabled(), again.enabled());
    }
}

#[test]
fn defaults_are_a_second_and_a_burst_of_as_many() {
    let spec = parse(json!({ "requests": 20, "per": null, "burst": null, "keys": null }));
    let wanted = json!({ "enabled": true, "requests": 20, "per": "1s", "burst": 20 });
    assert_eq!(spec.to_json(), wanted);
    let message = wire::RateLimit::decode(spec.encode()).expect("a message");
    assert_eq!((message.requests, message.period_ms, message.burst), (20, 1000, 20));
    assert!(message.keys.is_empty() && message.when.is_empty());
    assert!(spec.target().is_none() && spec.compat().is_none());
}

#[test]
fn names_of_headers_become_lower_case() {
    let message = wire::RateLimit::decode(parse(full()).encode()).expect("a message");
    let keys = ["source.principal", "request.headers[x-tenant]", "extension[Tier]"];
    assert_eq!(message.keys, keys);
    assert_eq!(message.when[0].key, "request.headers[x-team]");
    assert_eq!(message.period_ms, 90_000);
}

#[test]
fn refusals_name_place_and_reason() {
    let with = |field: &str, value: Value| {
        let mut spec = json!({ "requests": 10 });
        spec[field] = value;
        spec
    };
    let condition = |value: Value| with("match", json!([value]));
    let many: Vec<String> = (0..17).map(|n| format!("extension[{n}]")).collect();
    for (spec, path, words) in [
        (json!({}), "spec.requests", "how many calls"),
        (json!([]), "spec", "enabled, selector, match"),
        (with("requests", json!(0)), "spec.requests", "from 1 to 4294967295"),
        (with("requests", json!("10")), "spec.requests", "a whole number"),
        (with("requests", json!(1.5)), "spec.requests", "a whole number"),
        (with("requests", json!(4_294_967_296_u64)), "spec.requests", "to 4294967295"),
        (with("burst", json!(0)), "spec.burst", "from 1"),
        (with("burst", json!(-1)), "spec.burst", "from 1"),
        (with("per", json!(1)), "spec.per", "500ms, 10s or 1m"),
        (with("per", json!("1")), "spec.per", "500ms, 10s or 1m"),
        (with("per", json!("0s")), "spec.per", "from 1ms to 1day"),
        (with("per", json!("25h")), "spec.per", "is too long"),
        (with("per", json!("1500us")), "spec.per", "whole milliseconds"),
        (with("per", json!("-1s")), "spec.per", "is no time span"),
        (with("enabled", json!("yes")), "spec.enabled", "true or false"),
        (with("keys", json!("method")), "spec.keys", "is no list"),
        (with("keys", json!(many)), "spec.keys", "at most 16"),
        (with("keys", json!([1])), "spec.keys[0]", "name an attribute"),
        (with("keys", json!(["principal"])), "spec.keys[0]", "did you mean source.principal?"),
        (with("keys", json!(["request.headers"])), "spec.keys[0]", "request.headers[name]"),
        (with("keys", json!(["request.id"])), "spec.keys[0]", "a bucket of its own"),
        (with("keys", json!(["path", "path"])), "spec.keys[1]", "stands there twice"),
        (
            with("keys", json!(["request.headers[A]", "request.headers[a]"])),
            "spec.keys[1]",
            "stands there twice",
        ),
        (with("when", json!([])), "spec.when", "known fields"),
        (with("key", json!(["path"])), "spec.key", "did you mean keys?"),
        (condition(json!({ "key": "method" })), "spec.match[0].values", "write values"),
        (condition(json!({ "values": [] })), "spec.match[0].key", "name an attribute"),
        (with("selector", json!({})), "spec.selector", "is no list"),
        (
            with("selector", json!([{ "namespaces": ["*"] }])),
            "spec.selector[0].namespaces[0]",
            "leave the field out",
        ),
    ] {
        let errors = RateLimitSpec::parse(spec.clone()).expect_err(&spec.to_string());
        let [error] = &errors[..] else { panic!("{spec}: {errors:?}") };
        assert_eq!(error.path, path, "{spec}");
        assert!(error.to_string().contains(words), "{spec}: {error}");
    }
}

#[test]
fn all_errors_come_at_once_in_the_order_of_fields() {
    let spec = json!({ "burst": 0, "per": "x", "keys": ["x"], "enabled": 1 });
    let errors = RateLimitSpec::parse(spec).expect_err("refused");
    let paths: Vec<&str> = errors.iter().map(|error| error.path.as_str()).collect();
    let wanted = ["spec.enabled", "spec.keys[0]", "spec.requests", "spec.per", "spec.burst"];
    assert_eq!(paths, wanted);
}

#[test]
fn a_server_gets_the_limits_for_it() {
    let (labels, none) = (BTreeMap::from([("app".into(), "web".into())]), BTreeMap::new());
    let subject = |namespace, labels| Subject {
        namespace,
        workload: "server",
        identity: "td/ns/shop/sa/server",
        labels,
        annotations: &none,
        addresses: &[],
    };
    let spec = parse(full());
    let get = |namespace, labels, within| spec.project(&subject(namespace, labels), within);
    assert_eq!(get("shop", &labels, None), Projection::Whole);
    assert_eq!(get("shop", &labels, Some("shop")), Projection::Whole);
    assert_eq!(get("shop", &none, None), Projection::Nothing);
    assert_eq!(get("other", &labels, None), Projection::Nothing);
    assert_eq!(get("shop", &labels, Some("other")), Projection::Nothing);
    assert!(spec.interest().annotations.contains("app") && !spec.interest().addresses);
}
