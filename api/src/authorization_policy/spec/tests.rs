use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::{Code, proto::dubbo::v1alpha1 as old};

fn parse(value: Value) -> Arc<dyn RuleSpec> {
    AuthorizationPolicySpec::parse(value).expect("valid")
}

fn errors(value: Value) -> Vec<FieldError> {
    AuthorizationPolicySpec::parse(value).expect_err("refused")
}

fn full() -> Value {
    json!({ "action": "DENY", "matchType": "allMatch", "samples": 12.5, "order": -3, "rules": [
        { "from": { "namespaces": ["a"], "notPrincipals": ["spiffe://td/ns/a/sa/x"] },
          "to": { "namespaces": ["b"], "extends": [{ "key": "app", "value": "web" }] },
          "when": [{ "key": "request.headers[X-Team]",
                     "values": [{ "type": "regex", "value": "a|b" }],
                     "notValues": [{ "type": "equals", "value": "b" }] }] },
        {}, { "to": { "namespaces": ["c"] } },
    ] })
}

#[test]
fn round_trips() {
    for value in [json!({ "action": "ALLOW" }), json!({ "action": "ADUIT", "rules": [] }), full()] {
        let spec = parse(value);
        let again = parse(spec.to_json());
        assert_eq!(spec.to_json(), again.to_json());
        assert_eq!(spec.encode(), again.encode());
        assert_eq!(spec.priority(), again.priority());
    }
}

#[test]
fn spellings_and_defaults() {
    for action in ["AUDIT", "ADUIT", "ADULT"] {
        assert_eq!(parse(json!({ "action": action })).to_json()["action"], "AUDIT");
    }
    let wanted =
        json!({ "action": "ALLOW", "matchType": "anyMatch", "samples": 100.0, "order": 0 });
    assert_eq!(parse(json!({ "action": "ALLOW", "samples": null })).to_json(), wanted);
    assert_eq!(parse(json!({ "action": "ALLOW", "order": 5 })).priority(), -5, "smaller first");
    let message = wire::AuthorizationPolicy::decode(parse(wanted).encode()).expect("a message");
    assert!(message.everything && message.rules.is_empty() && !message.match_all);
}

#[test]
fn refusals_name_place_and_reason() {
    let rule = |rule: Value| json!({ "action": "DENY", "rules": [{}, rule] });
    let when = |when: Value| json!({ "action": "DENY", "rules": [{ "when": [when] }] });
    let value = |value: Value| when(json!({ "key": "method", "values": [value] }));
    let cases = [
        (json!({}), "spec.action", "ALLOW, DENY or AUDIT"),
        (json!({ "action": "allow" }), "spec.action", "ALLOW, DENY or AUDIT"),
        (json!({ "action": "DENY", "samples": 100.5 }), "spec.samples", "0 to 100"),
        (json!({ "action": "DENY", "samples": -1 }), "spec.samples", "0 to 100"),
        (json!({ "action": "DENY", "samples": "5" }), "spec.samples", "0 to 100"),
        (json!({ "action": "DENY", "order": 1.5 }), "spec.order", "smaller goes first"),
        (json!({ "action": "DENY", "order": i32::MIN }), "spec.order", "smaller goes first"),
        (json!({ "action": "DENY", "matchType": "any" }), "spec.matchType", "anyMatch or allMatch"),
        (json!({ "action": "DENY", "rule": [] }), "spec.rule", "did you mean rules?"),
        (rule(json!({ "form": {} })), "spec.rules[1].form", "did you mean from?"),
        (rule(json!({ "from": [] })), "spec.rules[1].from", "write namespaces"),
        (
            rule(json!({ "from": { "extends": [{ "key": "a", "value": "b" }] } })),
            "spec.rules[1].from.extends",
            "select callers by principals",
        ),
        (
            rule(json!({ "from": { "notExtends": [{ "key": "a", "value": "b" }] } })),
            "spec.rules[1].from.notExtends",
            "select callers by principals",
        ),
        (rule(json!({ "to": { "ipBlocks": ["x"] } })), "spec.rules[1].to.ipBlocks[0]", "10.1.0.0"),
        (rule(json!({ "when": {} })), "spec.rules[1].when", "write a list"),
        (when(json!({ "values": [] })), "spec.rules[0].when[0].key", "name an attribute"),
        (when(json!({ "key": "method" })), "spec.rules[0].when[0].values", "values or notValues"),
        (
            when(json!({ "key": "headers[x]", "values": [] })),
            "spec.rules[0].when[0].key",
            "did you mean request.headers[name]?",
        ),
        (value(json!({ "value": "x" })), "spec.rules[0].when[0].values[0].type", "equals or regex"),
        (value(json!({ "type": "equals" })), "spec.rules[0].when[0].values[0].value", "compared"),
        (
            value(json!({ "type": "prefix", "value": "x" })),
            "spec.rules[0].when[0].values[0].type",
            "equals or regex",
        ),
        (
            value(json!({ "type": "regex", "value": "(" })),
            "spec.rules[0].when[0].values[0].value",
            "regex",
        ),
    ];
    for (value, path, hint) in cases {
        let errors = errors(value);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].path, path);
        assert!(errors[0].hint.contains(hint), "{:?}", errors[0]);
    }
    let ognl = errors(value(json!({ "type": "ognl", "value": "1 == 1" })));
    assert_eq!((ognl.len(), ognl[0].code), (1, Code::FieldInvalid));
    assert!(ognl[0].message.contains("ognl is not evaluated"), "{}", ognl[0]);
    let proof = errors(rule(json!({ "from": { "extends": [{}] } })));
    assert!(proof[0].message.contains("no proof of its caller's labels"), "{}", proof[0]);
}

/// A server in a namespace whose pod has these labels.
fn project(spec: &dyn RuleSpec, namespace: &str, labels: &[(&str, &str)]) -> Projection {
    let labels = labels.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
    let identity = format!("td/ns/{namespace}/sa/web");
    let subject = Subject {
        namespace,
        workload: "web",
        identity: &identity,
        labels: &labels,
        annotations: &BTreeMap::new(),
        addresses: &[],
    };
    spec.project(&subject, None)
}

#[test]
fn rules_for_others_are_left_out_one_by_one() {
    let spec = parse(full());
    let Projection::Spec(bytes) = project(&*spec, "c", &[]) else { panic!("two of three") };
    let policy = wire::AuthorizationPolicy::decode(bytes.clone()).expect("a message");
    assert_eq!(policy.rules, vec![wire::AuthorizationRule::default(); 2]);
    assert!(policy.match_all && !policy.everything && policy.samples == 12.5);
    let compat = spec.compat_of(&bytes).expect("that wire can say it");
    let compat = old::AuthorizationPolicySpecToClient::decode(compat).expect("a message");
    assert_eq!((compat.rules.len(), compat.order, &*compat.action), (2, -3.0, "DENY"));

    let Projection::Spec(bytes) = project(&*spec, "b", &[("app", "web")]) else { panic!("two") };
    let policy = wire::AuthorizationPolicy::decode(bytes).expect("a message");
    assert_eq!(policy.rules[0].from[0].not_principals, ["td/ns/a/sa/x"]);
    assert_eq!(policy.rules[0].when[0].key, "request.headers[x-team]");

    let only = parse(json!({ "action": "DENY", "rules": [{ "to": { "namespaces": ["c"] } }] }));
    assert_eq!(project(&*only, "c", &[]), Projection::Whole);
    assert_eq!(project(&*only, "d", &[]), Projection::Nothing);
    assert_eq!(project(&*parse(json!({ "action": "DENY" })), "d", &[]), Projection::Whole);
}

#[test]
fn nothing_of_to_is_delivered() {
    let marked = json!({ "action": "DENY", "rules": [{ "from": { "namespaces": ["seen"] }, "to": {
        "notNamespaces": ["hidden-1"], "notPrincipals": ["hidden-2/x"], "notIpBlocks": ["9.8.7.6"],
        "notExtends": [{ "key": "hidden-3", "value": "hidden-4" }] } }] });
    let spec = parse(marked);
    assert_eq!(project(&*spec, "any", &[]), Projection::Whole);
    for bytes in [spec.encode(), spec.compat().expect("that wire can say it")] {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(
            text.contains("seen") && !text.contains("hidden") && !text.contains("9.8"),
            "{text}"
        );
    }
}
