//! What decisions leave in the counters of their rules.

use std::{thread, time::Instant};

use prost::Message as _;
use rulecast_api::{
    kind::Phase,
    proto::rules::v1::{self as proto, Enforcement, Rule},
};
use rulecast_policy::Native;
use rulecast_rate_limit::RateLimit;

use super::{Outcome, Recorder, RuleMetrics, Verdict};
use crate::{
    decision::{Entry, Inbound, Policies, Request, RuleSet},
    endpoints::{Endpoint, EndpointSet, Params},
};

#[path = "../../tests/common/mod.rs"]
mod common;

use common::Scripted;

const CONDITION: &str = "dubbo.apache.org/v1alpha1/ConditionRoute";
const LIMIT: &str = "rulecast.io/v1alpha1/RateLimit";
const TAG: &str = "dubbo.apache.org/v1alpha1/TagRoute";
const AUTHORIZATION: &str = "dubbo.apache.org/v1alpha1/AuthorizationPolicy";

fn policies() -> Policies {
    [CONDITION, TAG, AUTHORIZATION]
        .iter()
        .fold(Policies::none(), |all, kind| all.with_native(kind, Scripted::native))
}

fn rule(name: &str, spec: &str) -> Rule {
    Rule { key: format!("{name}/ns"), spec: spec.as_bytes().to_vec().into(), ..Rule::default() }
}

fn shadow(name: &str, spec: &str) -> Rule {
    Rule { enforcement: Enforcement::Shadow.into(), ..rule(name, spec) }
}

fn entry<'a>(rules: &'a RuleSet, key: &str) -> &'a Entry {
    rules.entries().map(|(_, entry)| entry).find(|entry| *entry.key == *key).expect("a rule")
}

fn counts(rules: &RuleSet, key: &str) -> Vec<(Verdict, u64)> {
    let entry = entry(rules, key);
    let counts = entry.stats.counts(entry.shadow, None);
    let all = Verdict::ALL.into_iter().map(|verdict| (verdict, counts.get(verdict)));
    all.filter(|(_, count)| *count > 0).collect()
}

fn sample(rules: &RuleSet, key: &str, verdict: Verdict) -> String {
    entry(rules, key).stats.take_samples().remove(&verdict).unwrap_or_default()
}

#[test]
fn a_server_s_rules_are_counted_by_what_they_made_of_the_call() {
    let policies = policies();
    let rules = RuleSet::default().with(
        AUTHORIZATION,
        [
            rule("deny", "deny method put"),
            rule("deny2", "deny method put"),
            rule("get", "allow method get"),
            rule("list", "allow method list"),
            shadow("s-deny", "deny path /secret"),
        ],
    );
    let call = Inbound::new().path("/secret").principal("spiffe://td/ns/a/app/b");
    let secret = policies.authorize(&rules, &call.method("get"));
    assert_eq!(secret.outcome(), Outcome::WouldDeny);
    let open = policies.authorize(&rules, &call.method("get").path("/open"));
    assert_eq!(open.outcome(), Outcome::Allowed);
    assert_eq!(policies.authorize(&rules, &call.method("put")).outcome(), Outcome::Denied);
    assert_eq!(policies.authorize(&rules, &call.method("head")).outcome(), Outcome::Denied);

    // One denies; that the other matched, too, is counted as such.
    assert_eq!(counts(&rules, "deny/ns"), [(Verdict::Denied, 1)]);
    assert_eq!(counts(&rules, "deny2/ns"), [(Verdict::Applied, 1)]);
    assert_eq!(counts(&rules, "get/ns"), [(Verdict::Applied, 2)]);
    assert_eq!(counts(&rules, "list/ns"), []);
    // Two calls are denied anyway.
    assert_eq!(counts(&rules, "s-deny/ns"), [(Verdict::WouldApply, 2), (Verdict::WouldDeny, 1)]);
    let told = sample(&rules, "deny/ns", Verdict::Denied);
    assert_eq!(told, "denied put /secret of spiffe://td/ns/a/app/b");
    let told = sample(&rules, "s-deny/ns", Verdict::WouldDeny);
    assert_eq!(told, "would deny get /secret of spiffe://td/ns/a/app/b");
}

#[test]
fn shadow_rules_that_allow_would_deny_what_none_of_them_allows() {
    let policies = policies();
    let shadows = [shadow("a", "allow method get"), shadow("b", "allow method list")];
    let rules = RuleSet::default().with(AUTHORIZATION, shadows.clone());
    let put = Inbound::new().method("put").path("/orders?token=secret");
    assert_eq!(policies.authorize(&rules, &put).outcome(), Outcome::WouldDeny);
    let get = Inbound::new().method("get");
    assert_eq!(policies.authorize(&rules, &get).outcome(), Outcome::Allowed);
    assert_eq!(counts(&rules, "a/ns"), [(Verdict::WouldApply, 1), (Verdict::WouldDeny, 1)]);
    assert_eq!(counts(&rules, "b/ns"), [(Verdict::WouldDeny, 1)]);
    let told = sample(&rules, "b/ns", Verdict::WouldDeny);
    assert_eq!(told, "would deny put /orders of an unproven caller");

    // Where an enforced rule allows the call, they change nothing.
    let enforced = shadows.into_iter().chain([rule("put", "allow method put")]);
    let rules = RuleSet::default().with(AUTHORIZATION, enforced);
    assert_eq!(policies.authorize(&rules, &put).outcome(), Outcome::Allowed);
    assert_eq!(counts(&rules, "a/ns"), []);
    assert_eq!(counts(&rules, "put/ns"), [(Verdict::Applied, 1)]);
}

#[test]
fn routing_rules_are_counted_by_whether_they_applied() {
    let policies = policies();
    let rules = RuleSet::default()
        .with(CONDITION, [rule("a", "drop:0 method get"), shadow("s", "drop:1 method get")])
        .with(TAG, [rule("t", "drop:2")]);
    let all = EndpointSet::new((0..6).map(|i| Endpoint::new("10.0.0.1", 1000 + i)));
    let (consumer, all) = (Params::default(), all.expect("a set"));
    let request = |method| Request::new("com.example.Orders", &consumer).method(method);
    for method in ["get", "get", "put"] {
        let decision = policies.route(&rules, &request(method), &all);
        assert_eq!(decision.outcome(), Outcome::Routed);
    }
    policies.explain(&rules, &request("get"), &all);
    assert_eq!(counts(&rules, "a/ns"), [(Verdict::Skipped, 1), (Verdict::Applied, 2)]);
    assert_eq!(counts(&rules, "s/ns"), [(Verdict::WouldSkip, 1), (Verdict::WouldApply, 2)]);
    assert_eq!(counts(&rules, "t/ns"), [(Verdict::Applied, 3)]);
    let told = sample(&rules, "s/ns", Verdict::WouldApply);
    assert_eq!(told, "would leave 4 of 6 endpoints to get of com.example.Orders");
}

#[test]
fn limits_are_counted_when_they_are_settled() {
    let policies =
        Policies::none().with_native(LIMIT, || Box::new(Native::new(RateLimit::default())));
    let limit = |name: &str, burst| {
        let spec = proto::RateLimit { requests: 1, period_ms: 1000, burst, ..Default::default() };
        Rule { key: format!("{name}/ns"), spec: spec.encode_to_vec().into(), ..Rule::default() }
    };
    let shadow = Rule { enforcement: Enforcement::Shadow.into(), ..limit("s", 1) };
    let rules = RuleSet::default().with(LIMIT, [limit("a", 9), limit("b", 2), shadow]);
    let call = Inbound::new().method("put").path("/orders");
    let now = Instant::now();
    let outcomes = [(); 3].map(|()| policies.admit(&rules, &call, now).outcome());
    assert_eq!(outcomes, [Outcome::Admitted, Outcome::WouldLimit, Outcome::Limited]);
    policies.explain_admit(&rules, &call, now);
    // What it took for the call that another refused, it gave back.
    assert_eq!(counts(&rules, "a/ns"), [(Verdict::Applied, 2)]);
    assert_eq!(counts(&rules, "b/ns"), [(Verdict::Applied, 2), (Verdict::Limited, 1)]);
    assert_eq!(counts(&rules, "s/ns"), [(Verdict::WouldApply, 1), (Verdict::WouldLimit, 1)]);
    let told = sample(&rules, "s/ns", Verdict::WouldLimit);
    assert_eq!(told, "would limit put /orders of an unproven caller");
    let told = sample(&rules, "b/ns", Verdict::Limited);
    assert_eq!(told, "limited put /orders of an unproven caller");
}

#[test]
fn a_rule_that_fails_is_counted_as_such_and_the_others_as_ever() {
    let policies = policies();
    let rules = [rule("bad", "refuse"), rule("get", "allow method get")];
    let rules = RuleSet::default().with(AUTHORIZATION, rules);
    let call = Inbound::new().method("get");
    for _ in 0..3 {
        assert_eq!(policies.authorize(&rules, &call).outcome(), Outcome::Undecided);
    }
    assert_eq!(counts(&rules, "bad/ns"), [(Verdict::Failed, 3)]);
    assert_eq!(counts(&rules, "get/ns"), [(Verdict::Applied, 3)]);
}

#[test]
fn no_decision_of_any_thread_is_lost_when_rules_change() {
    let policies = policies();
    let before = RuleSet::default().with(AUTHORIZATION, [rule("get", "allow method get")]);
    let spec = [rule("get", "allow method get"), rule("put", "deny method put")];
    let after = before.with(AUTHORIZATION, spec);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let call = Inbound::new().method("get");
                for i in 0..1000 {
                    let rules = if i % 100 < 50 { &before } else { &after };
                    assert!(policies.authorize(rules, &call).is_allowed());
                }
            });
        }
    });
    // The same rule: its counts go on. Another version begins anew.
    assert_eq!(counts(&after, "get/ns"), [(Verdict::Applied, 4000)]);
    let changed = after.with(AUTHORIZATION, [rule("get", "allow method list")]);
    assert_eq!(counts(&changed, "get/ns"), []);
}

#[test]
fn to_count_and_to_measure_allocate_nothing_once_warm() {
    let (policies, recorder) = (policies(), Recorder::default());
    let rules = RuleSet::default().with(AUTHORIZATION, [rule("get", "allow method get")]);
    let call = Inbound::new().method("get");
    let decide = || {
        let decide = || policies.authorize(&rules, &call);
        assert!(recorder.counted(decide, |given| given.outcome()).is_allowed());
    };
    (0..1000).for_each(|_| decide());
    let counted = allocation_counter::measure(|| (0..1000).for_each(|_| decide()));
    assert_eq!(counted.count_total, 0);
    assert!(entry(&rules, "get/ns").stats.latency(Verdict::Applied).count() > 1);
}

#[test]
fn a_rule_s_metrics_name_what_it_was_asked_and_said() {
    let (policies, recorder) = (policies(), Recorder::default());
    let rules = [rule("get", "allow method get"), shadow("put", "deny method put")];
    let rules = RuleSet::default().with(AUTHORIZATION, rules);
    let decide = |method| {
        let call = Inbound::new().method(method);
        recorder.counted(|| policies.authorize(&rules, &call), |given| given.outcome());
    };
    decide("get");
    for (_, entry) in rules.entries() {
        entry.stats.begin(recorder.decisions().of(Phase::Authorize).expect("counted"));
    }
    ["get", "put", "get"].into_iter().for_each(decide);
    let of = |key: &str| {
        let Entry { key, shadow, stats, .. } = entry(&rules, key);
        let decisions = recorder.decisions().of(Phase::Authorize);
        RuleMetrics::of(AUTHORIZATION, key, *shadow, stats, decisions).expect("asked")
    };
    // The call before it was said to begin is among those that it applied to.
    assert_eq!((of("get/ns").count(Verdict::Applied), of("get/ns").calls()), (3, 3));
    let put = of("put/ns");
    assert_eq!((put.calls(), put.count(Verdict::WouldSkip)), (3, 2));
    assert_eq!(put.count(Verdict::WouldApply), 1);
}
