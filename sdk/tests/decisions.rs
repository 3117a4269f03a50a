//! What rules speak of, in which order, and what is said about them.

use rulecast_api::{
    condition_route::{ConditionRouteSpec, ConfigVersion},
    kind::RuleSpec,
    proto::rules::v1::{Enforcement, Rule, Target, target::Scope},
};
use rulecast_sdk::{
    decision::{Decision, Effect, Policies, Request, RuleSet},
    endpoints::{Endpoint, EndpointSet, Params},
};
use serde_json::{Value, json};

const TYPE: &str = "dubbo.apache.org/v1alpha1/ConditionRoute";

fn rule(name: &str, version: ConfigVersion, spec: Value) -> Rule {
    let spec = ConditionRouteSpec::parse_lenient(&spec, version).expect("valid");
    Rule {
        key: format!("{name}/default"),
        target: spec.target(),
        priority: spec.priority(),
        spec: spec.encode().to_vec().into(),
        ..Default::default()
    }
}

fn old(name: &str, condition: &str) -> Rule {
    rule(name, ConfigVersion::V3_0, json!({ "force": true, "conditions": [condition] }))
}

fn endpoints() -> EndpointSet {
    let all = (1..=6).map(|port| {
        Endpoint::new("10.0.0.1", port)
            .with("region", if port % 2 == 0 { "hz" } else { "bj" })
            .with("application", "orders")
    });
    EndpointSet::new(all).expect("a set")
}

fn consumer() -> Params {
    [("application", "shop"), ("region", "hz")].into_iter().collect()
}

fn route(rules: &[Rule]) -> Decision {
    let consumer = consumer();
    let request = Request::new("com.Foo", &consumer).method("get");
    let policies = Policies::builtin().expect("loads");
    policies.route(&RuleSet::new(None, rules), &request, &endpoints())
}

fn target(rule: Rule, scope: Scope, key: &str) -> Rule {
    Rule { target: Some(Target { scope: scope.into(), key: key.into() }), ..rule }
}

#[test]
fn rules_apply_to_their_targets() {
    let keep = || old("a", "=> region=$region");
    assert_eq!(route(&[keep()]).endpoints, [1, 3, 5]);
    for (scope, key, applies) in [
        (Scope::Service, "com.Foo", true),
        (Scope::Service, "com.Foo:1.0", false),
        (Scope::Application, "shop", true),
        (Scope::Application, "orders", true),
        (Scope::Application, "com.Foo", false),
        (Scope::Unspecified, "com.Foo", false),
    ] {
        let decision = route(&[target(keep(), scope, key)]);
        assert_eq!(decision.rules.len(), usize::from(applies), "{scope:?} {key}");
        assert_eq!(decision.endpoints.len(), if applies { 3 } else { 6 });
    }
    // Twice named is once applied.
    let both =
        [target(keep(), Scope::Application, "shop"), target(keep(), Scope::Service, "com.Foo")];
    assert_eq!(route(&both).rules.len(), 2);
}

#[test]
fn the_order_is_tier_priority_key() {
    let at = |name: &str, tier, priority| Rule { tier, priority, ..old(name, "=> port=*") };
    let rules = [at("d", 1, 0), at("c", 1, 0), at("b", 1, 5), at("a", 2, 9), at("z", 0, -9)];
    let decision = route(&rules);
    let keys: Vec<_> = decision.rules.iter().map(|r| &*r.key).collect();
    assert_eq!(keys, ["z/default", "b/default", "c/default", "d/default", "a/default"]);
}

#[test]
fn rules_chain_and_shadows_do_not() {
    let shadow = Rule { enforcement: Enforcement::Shadow.into(), ..old("b", "=> port=2") };
    let decision = route(&[old("a", "=> region=hz"), shadow, old("c", "method=get => port!=4")]);
    assert_eq!(decision.endpoints, [1, 5]);
    let effects: Vec<_> = decision.rules.iter().map(|r| (r.effect, r.remaining)).collect();
    assert_eq!(effects, [(Effect::Applied, 3), (Effect::WouldApply, 1), (Effect::Applied, 2)]);
    assert_eq!(decision.draw, None);
    let skipped = route(&[old("a", "method=put => false")]);
    assert_eq!((skipped.rules[0].effect, skipped.endpoints.len()), (Effect::Skipped, 6));
}

#[test]
fn a_draw_repeats_a_decision() {
    let weighted = rule(
        "w",
        ConfigVersion::V3_1,
        json!({ "conditions": [{ "to": [{ "match": "port=1" }, { "match": "port=2", "weight": 300 }] }] }),
    );
    let policies = Policies::builtin().expect("loads");
    let rules = RuleSet::new(None, [&weighted]);
    let (consumer, endpoints) = (consumer(), endpoints());
    let request = Request::new("com.Foo", &consumer);
    for _ in 0..50 {
        let first = policies.route(&rules, &request, &endpoints);
        let again = request.clone().draw(first.draw.expect("a draw"));
        let explained = policies.explain(&rules, &again, &endpoints);
        assert_eq!(explained.decision, first);
        assert!(explained.text.contains(&format!("draw {}", first.draw.expect("a draw"))));
        assert!(explained.text.contains("probability"), "{}", explained.text);
    }
}

#[test]
fn explanations_say_why() {
    let rules =
        RuleSet::new(None, [old("a", "method=put => false"), old("b", "region=hz => port=1,2")]);
    let consumer = consumer();
    let request = Request::new("com.Foo", &consumer).method("get");
    let policies = Policies::builtin().expect("loads");
    let text = policies.explain(&rules, &request, &endpoints()).text;
    for part in [
        "rule a/default: skipped, 6 remain",
        "method is \"get\", wanted method=put",
        "rule b/default: applied, 2 remain",
        "region is \"hz\"",
        "remaining: [0, 1]",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn rules_are_checked_one_by_one() {
    let policies = Policies::builtin().expect("loads");
    assert_eq!(policies.check(TYPE, &old("a", "=> port=1")), Ok(()));
    let wire = |conditions: &[&str]| {
        let message = rulecast_api::proto::rules::v1::ConditionRoute {
            conditions: conditions.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        let spec = prost::Message::encode_to_vec(&message).into();
        Rule { key: "a/b".into(), spec, ..Default::default() }
    };
    let refused = policies.check(TYPE, &wire(&["=> a=b", "a => b=c"])).expect_err("refused");
    assert_eq!((refused.code.as_str(), refused.field.as_str()), ("RC0201", "spec.conditions[1]"));
    assert!(refused.message.contains("at byte 0"), "{refused}");
    let garbage = Rule { key: "a/b".into(), spec: vec![0xff; 9].into(), ..Default::default() };
    assert_eq!(policies.check(TYPE, &garbage).expect_err("refused").code, "RC0601");
    assert_eq!(policies.check("x/v1/Y", &garbage).expect_err("refused").code, "RC0501");
    assert_eq!(policies.check(TYPE, &Rule::default()).expect_err("refused").code, "RC0609");
    // A stored rule that does not parse acts as none, and does not hinder the others.
    let decision = route(&[wire(&["a"]), old("b", "=> port=1")]);
    assert_eq!(decision.endpoints, [0]);
    assert_eq!(decision.faults.len(), 1);
}

#[test]
fn values_above_the_cap_are_a_fault() {
    let rules = RuleSet::new(None, [old("a", "attachments[x]!=y => port=1")]);
    let consumer = consumer();
    let request = Request::new("com.Foo", &consumer).attachment("x", "y".repeat(17_000));
    let policies = Policies::builtin().expect("loads");
    let decision = policies.route(&rules, &request, &endpoints());
    assert_eq!(decision.faults[0].fault.kind.code().as_str(), "RC0608");
    assert_eq!(decision.endpoints.len(), 6);
    let fine = Request::new("com.Foo", &consumer).attachment("x", "y".repeat(16_000));
    assert_eq!(policies.route(&rules, &fine, &endpoints()).endpoints, [0]);
}

#[test]
fn rule_sets_and_endpoints_change_under_load() {
    let policies = Policies::builtin().expect("loads");
    let consumer = consumer();
    let request = Request::new("com.Foo", &consumer).method("get");
    let mut rules = RuleSet::default();
    let stay = old("stay", "=> region=hz");
    for i in 0..2000u32 {
        let port = i % 6 + 1;
        let come = old("come", &format!("=> port={port},{}", i + 100));
        rules = RuleSet::new(Some(&rules), [&stay, &come]);
        let decision = policies.route(&rules, &request, &endpoints());
        assert_eq!(decision.faults, []);
        let expected: Vec<u32> = if port % 2 == 0 { vec![port - 1] } else { vec![] };
        assert_eq!(decision.endpoints, expected);
    }
}

#[test]
fn large_sets_fit() {
    let many = (0..10_000u32).map(|i| {
        Endpoint::new(format!("10.0.{}.{}", i / 256, i % 256), 20880)
            .with("region", if i % 2 == 0 { "hz" } else { "bj" })
    });
    let endpoints = EndpointSet::new(many).expect("a set");
    let policies = Policies::builtin().expect("loads");
    let consumer = consumer();
    let rules = RuleSet::new(None, [old("a", "=> region=$region")]);
    let request = Request::new("com.Foo", &consumer);
    let decision = policies.route(&rules, &request, &endpoints);
    assert_eq!(decision.faults, []);
    assert_eq!(decision.endpoints.len(), 5000);
}
