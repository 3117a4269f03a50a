//! The vectors of AuthenticationPolicy and AuthorizationPolicy, natively and in the sandbox, and
//! both ways on drawn policies and calls.

use std::path::Path;

use proptest::prelude::*;
use rulecast_api::{Kind, proto::rules::v1::Rule};
use rulecast_authentication_policy::AuthenticationPolicy;
use rulecast_authorization_policy::AuthorizationPolicy;
use rulecast_policy::Native;
use rulecast_sdk::{
    decision::{Inbound, Policies, RuleSet},
    vector,
};
use serde_json::{Value, json};

const AUTHENTICATION: Kind = Kind::AUTHENTICATION_POLICY;
const AUTHORIZATION: Kind = Kind::AUTHORIZATION_POLICY;

fn native() -> Policies {
    thread_local! {
        static NATIVE: Policies = Policies::none()
            .with_native(AUTHENTICATION.type_name, || {
                Box::new(Native::new(AuthenticationPolicy::default()))
            })
            .with_native(AUTHORIZATION.type_name, || {
                Box::new(Native::new(AuthorizationPolicy::default()))
            });
    }
    NATIVE.with(Clone::clone)
}

fn sandboxed() -> Policies {
    Policies::builtin().expect("the built-in modules load")
}

#[test]
fn all_vectors_pass_natively_and_in_the_sandbox() {
    for (file, kind) in [("authentication", "authentication"), ("authorization", "authorization")] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors");
        let text = std::fs::read(folder.join(format!("{file}.json"))).expect("the vectors");
        let cases: Vec<Value> = serde_json::from_slice(&text).expect("a list of cases");
        assert!(cases.len() >= 25);
        let mut ids = std::collections::BTreeSet::new();
        for case in &cases {
            assert!(ids.insert(case["id"].as_str().expect("an id")), "{} twice", case["id"]);
            assert_eq!(case["kind"], kind);
            assert!(case["note"].as_str().is_some_and(|note| note.ends_with('.')), "{case}");
            for policies in [native(), sandboxed()] {
                if let Err(why) = vector::run_case(&policies, case) {
                    panic!("{}: {why}", case["id"]);
                }
            }
        }
    }
}

#[test]
fn an_explanation_says_why() {
    let when = json!({ "key": "method", "values": [{ "type": "equals", "value": "GET" }] });
    let allow = json!({ "action": "ALLOW", "rules": [
        { "from": { "namespaces": ["a"] } }, { "from": { "namespaces": ["b"] }, "when": [when] },
    ] });
    let rules = rule_set(AUTHORIZATION, &[allow, json!({ "action": "DENY" })], 0b10);
    let call = Inbound::new().namespace("b").method("PUT");
    for policies in [native(), sandboxed()] {
        let explained = policies.explain_authorize(&rules, &call);
        assert_eq!(explained.decision, policies.authorize(&rules, &call));
        assert_eq!(
            explained.text,
            "denied: no ALLOW policy matches it, p0/default does not\n\
             rule p0/default\n  \
             rule 0 does not hold: source.namespace is \"b\", wanted a\n  \
             rule 1 does not hold: method is \"PUT\", wanted GET\n\
             rule p1/default (shadow)\n  there are no rules, so every call matches\n",
        );
        let text = policies.explain_authorize(&rules, &call.method("GET")).text;
        assert!(text.starts_with("allowed: p0/default allows it; would be denied"), "{text}");
    }
}

fn some(of: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    prop::sample::subsequence(of.to_vec(), 0..2)
}

fn rule() -> impl Strategy<Value = Value> {
    let ids = &["td/ns/a/sa/x", "td/ns/b/sa/x"];
    let from = (some(&["a", "b"]), some(&["a"]), some(ids), some(&["10.0.0.*", "10.0.1.0/24"]));
    let from = from.prop_map(|(n, not, p, ip)| {
        json!({ "namespaces": n, "notNamespaces": not, "principals": p, "ipBlocks": ip })
    });
    let value = prop_oneof![
        Just(json!({ "type": "equals", "value": "GET" })),
        Just(json!({ "type": "equals", "value": "" })),
        Just(json!({ "type": "regex", "value": "G.*|P.T" })),
    ];
    let key = prop::sample::select(vec!["method", "path", "request.headers[m]", "extension[m]"]);
    let when =
        (key, prop::collection::vec(value.clone(), 0..3), prop::collection::vec(value, 0..2))
            .prop_map(
                |(key, values, not)| json!({ "key": key, "values": values, "notValues": not }),
            );
    (from, prop::collection::vec(when, 0..2))
        .prop_map(|(from, when)| json!({ "from": from, "when": when }))
}

fn authorization() -> impl Strategy<Value = Value> {
    let action = prop::sample::select(vec!["ALLOW", "DENY", "AUDIT"]);
    let how = prop::sample::select(vec!["anyMatch", "allMatch"]);
    let samples = prop_oneof![3 => Just(100.0), 1 => 0.0..100.0];
    (action, how, samples, -2..2, prop::collection::vec(rule(), 0..3)).prop_map(
        |(action, how, samples, order, rules)| {
            json!({ "action": action, "matchType": how, "samples": samples, "order": order,
                    "rules": rules })
        },
    )
}

fn authentication() -> impl Strategy<Value = Value> {
    let action = || prop::sample::select(vec!["NONE", "DISABLED", "PERMISSIVE", "STRICT"]);
    let ports = prop::collection::btree_map(0..3_u16, action(), 0..3);
    (action(), ports).prop_map(|(action, ports)| {
        let level = |(port, action)| json!({ "port": port, "action": action });
        let ports: Vec<Value> = ports.into_iter().map(level).collect();
        json!({ "action": action, "portLevel": ports })
    })
}

fn rule_set(kind: Kind, specs: &[Value], shadows: u8) -> RuleSet {
    let rules = specs.iter().enumerate().map(|(i, spec)| {
        let spec = (kind.parse)(spec.clone()).expect("a good spec");
        Rule {
            key: format!("p{i}/default"),
            tier: (i % 2) as u32 * 2,
            priority: spec.priority(),
            enforcement: i32::from(shadows >> i & 1),
            spec: spec.encode().to_vec().into(),
            ..Rule::default()
        }
    });
    RuleSet::default().with(kind.type_name, rules)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_ways_authorize_alike(
        specs in prop::collection::vec(authorization(), 0..5),
        shadows: u8,
        who in prop::option::of(prop::sample::select(vec!["a", "b"])),
        method in prop::option::of(prop::sample::select(vec!["GET", "PUT", "POST", ""])),
        id in prop::option::of("[a-c]{0,2}"),
        host in prop::option::of(0..3_u8),
        draw: u64,
    ) {
        let rules = rule_set(AUTHORIZATION, &specs, shadows);
        let principal = who.map(|who| format!("td/ns/{who}/sa/x"));
        let headers = method.map(|method| [("m", method)]);
        let mut call = Inbound::new().draw(draw);
        if let Some((who, principal)) = who.zip(principal.as_deref()) {
            call = call.namespace(who).principal(principal);
        }
        if let Some((method, headers)) = method.zip(headers.as_ref()) {
            call = call.method(method).headers(headers).extensions(headers);
        }
        if let Some(id) = &id {
            call = call.request_id(id);
        }
        if let Some(host) = host {
            call = call.ip([10, 0, host, 1].into());
        }
        let native = native().authorize(&rules, &call);
        let sandboxed = sandboxed().authorize(&rules, &call);
        prop_assert!(native.faults.is_empty());
        prop_assert_eq!(native, sandboxed);
    }

    #[test]
    fn both_ways_authenticate_alike(
        specs in prop::collection::vec(authentication(), 0..5),
        shadows: u8,
        port in 0..4_u16,
    ) {
        let rules = rule_set(AUTHENTICATION, &specs, shadows);
        prop_assert_eq!(native().authenticate(&rules, port), sandboxed().authenticate(&rules, port));
    }
}
