//! Once warm, a decision allocates nothing: counted by an allocator of this program alone.

mod common;

use std::time::Instant;

use common::Scripted;
use prost::Message;
use rulecast_api::{
    affinity_route::AffinityRouteSpec,
    condition_route::{ConditionRouteSpec, ConfigVersion},
    kind::RuleSpec,
    proto::rules::v1::{
        AuthorizationPolicy, AuthorizationRule, RateLimit, Rule, Source, Target,
        authorization_policy::Action, target::Scope,
    },
    tag_route::TagRouteSpec,
};
use rulecast_sdk::{
    Decision, Endpoint, EndpointSet, Inbound, Params, Policies, Request, decision::RuleSet,
};

/// Allocations of the calling thread in this many runs, after some to warm up.
fn allocations(mut run: impl FnMut()) -> u64 {
    (0..10).for_each(|_| run());
    allocation_counter::measure(|| (0..100).for_each(|_| run())).count_total
}

const TAG: &str = "dubbo.apache.org/v1alpha1/TagRoute";
const AFFINITY: &str = "dubbo.apache.org/v1alpha1/AffinityRoute";
const LIMIT: &str = "rulecast.io/v1alpha1/RateLimit";
const AUTHORIZATION: &str = "dubbo.apache.org/v1alpha1/AuthorizationPolicy";

fn rule(name: &str, spec: impl Into<Vec<u8>>) -> Rule {
    Rule { key: format!("{name}/ns"), spec: spec.into().into(), ..Rule::default() }
}

fn condition(condition: &str) -> Vec<u8> {
    let spec = serde_json::json!({ "conditions": [condition] });
    let spec = ConditionRouteSpec::parse_lenient(&spec, ConfigVersion::V3_0).expect("valid");
    spec.encode().to_vec()
}

#[test]
fn the_counter_counts() {
    assert!(allocations(|| drop(std::hint::black_box(vec![1u8]))) >= 100);
}

#[test]
fn routing_allocates_nothing_once_warm() {
    let endpoints = (0..100).map(|i| {
        let region = if i % 2 == 0 { "hz" } else { "bj" };
        Endpoint::new("10.0.0.1", 1000 + i).with("region", region).with("application", "orders")
    });
    let endpoints = EndpointSet::new(endpoints).expect("a set");
    let target = |scope: Scope, key: &str| Some(Target { scope: scope.into(), key: key.into() });
    let by_region = || rule("a", condition("method=get => region=$region"));
    let rules = RuleSet::new(
        None,
        [
            Rule { target: target(Scope::Service, "s"), ..by_region() },
            // Applications' rules are put together for each call.
            Rule {
                target: target(Scope::Application, "shop"),
                ..rule("b", condition("=> port=1*"))
            },
            Rule {
                target: target(Scope::Application, "orders"),
                ..rule("c", condition("=> port=10*"))
            },
        ],
    );
    let rules = rules.with(TAG, [rule("t", "drop:0")]).with(AFFINITY, [rule("f", "drop:2")]);
    let policies = Policies::builtin()
        .expect("loads")
        .with_native(TAG, Scripted::native)
        .with_native(AFFINITY, Scripted::native);
    let consumer: Params = [("application", "shop"), ("region", "hz")].into_iter().collect();
    let request = Request::new("s", &consumer).method("get");
    let mut decision = Decision::default();
    let count = allocations(|| policies.route_into(&rules, &request, &endpoints, &mut decision));
    assert!(decision.faults.is_empty(), "{:?}", decision.faults);
    assert_eq!((decision.endpoints.len(), decision.rules.len()), (48, 5));
    assert_eq!(count, 0);
}

/// As above, by the modules that are built in.
#[test]
fn routing_by_tags_and_affinity_allocates_nothing_once_warm() {
    let endpoints = (0..100).map(|i| {
        let zone = if i % 4 == 0 { "a" } else { "b" };
        Endpoint::new("10.0.0.1", 1000 + i).with("zone", zone).with("version", i.to_string())
    });
    let endpoints = EndpointSet::new(endpoints).expect("a set");
    let gray = [serde_json::json!({ "key": "version", "value": { "exact": "4" } })];
    let tags =
        serde_json::json!({ "configVersion": "v3.0", "tags": [{ "name": "gray", "match": gray }] });
    let tags = TagRouteSpec::parse_lenient(&tags).expect("valid").encode();
    let zone = serde_json::json!({ "affinityAware": { "key": "zone", "ratio": 10 } });
    let zone = AffinityRouteSpec::parse_lenient(&zone).expect("valid").encode();
    let rules = RuleSet::new(None, [rule("a", condition("=> port=10*"))])
        .with(TAG, [rule("t", tags)])
        .with(AFFINITY, [rule("f", zone)]);
    let policies = Policies::builtin().expect("loads");
    let consumer: Params = [("application", "shop"), ("zone", "a")].into_iter().collect();
    for (tag, left) in [(None, 24), (Some("gray"), 1)] {
        let mut request = Request::new("s", &consumer).method("get");
        if let Some(tag) = tag {
            request = request.attachment("dubbo.tag", tag);
        }
        let mut decision = Decision::default();
        let count =
            allocations(|| policies.route_into(&rules, &request, &endpoints, &mut decision));
        assert!(decision.faults.is_empty(), "{:?}", decision.faults);
        assert_eq!((decision.endpoints.len(), decision.rules.len()), (left, 3));
        assert_eq!(count, 0);
    }
}

#[test]
fn limiting_allocates_nothing_once_warm() {
    let limit = |key: &str, requests| {
        RateLimit {
            keys: vec![key.to_owned()],
            requests,
            period_ms: 1000,
            burst: 1000,
            ..RateLimit::default()
        }
        .encode_to_vec()
    };
    let rules = [rule("a", limit("request.headers[x-user]", 1000)), rule("b", limit("path", 1))];
    let rules = RuleSet::default().with(LIMIT, rules);
    let policies = Policies::builtin().expect("loads");
    let headers = [("x-user", "alice")];
    let call = Inbound::new().path("/a").headers(&headers);
    let now = Instant::now();
    let mut given = None;
    let mut count = || allocations(|| given = Some(policies.admit(&rules, &call, now)));
    assert_eq!(count(), 0);
    (0..10).for_each(|_| {
        count();
    });
    let given = given.expect("decided");
    assert_eq!(given.limited.map(|limited| limited.key), Some("a/ns".into()));
    assert_eq!(allocations(|| drop(policies.admit(&rules, &call, now))), 0, "of a refusal");
}

#[test]
fn two_sets_of_rules_do_not_drive_each_other_out() {
    let rules = |word: &str| RuleSet::default().with(AUTHORIZATION, [rule("a", word)]);
    let sets = [rules("allow method get"), rules("deny method put")];
    let one = Policies::none().with_native(AUTHORIZATION, Scripted::native);
    let call = Inbound::new().method("get");
    let turns = |policies: [&Policies; 2]| {
        allocations(|| {
            for (policies, rules) in policies.into_iter().zip(&sets) {
                assert!(policies.authorize(rules, &call).is_allowed());
            }
        })
    };
    assert!(turns([&one, &one]) > 0, "by one instance, each is given to it again");
    assert_eq!(turns([&one, &one.apart()]), 0);
}

#[test]
fn allowing_allocates_nothing_once_warm() {
    let scripted = [rule("d", "deny method put"), rule("a", "allow request.headers[x-user] alice")];
    let (allow, deny) = (Action::Allow.into(), Action::Deny.into());
    let source = |principal: &str| Source {
        principals: vec![principal.to_owned()],
        ip_blocks: vec!["10.0.0.0/8".to_owned()],
        ..Source::default()
    };
    let from =
        |principal| AuthorizationRule { from: vec![source(principal)], ..Default::default() };
    let policy = |action, principal| {
        let rules = vec![from(principal)];
        AuthorizationPolicy { action, rules, samples: 100.0, ..Default::default() }.encode_to_vec()
    };
    let built_in =
        [rule("d", policy(deny, "td/ns/a/app/c")), rule("a", policy(allow, "td/ns/a/app/b"))];
    let native = Policies::none().with_native(AUTHORIZATION, Scripted::native);
    let headers = [("x-user", "alice")];
    let ip = "10.0.0.1".parse().expect("an address");
    let call = || {
        Inbound::new().method("get").principal("spiffe://td/ns/a/app/b").ip(ip).headers(&headers)
    };
    for (policies, rules) in [(native, scripted), (Policies::builtin().expect("loads"), built_in)] {
        let rules = RuleSet::default().with(AUTHORIZATION, rules);
        let mut given = None;
        let count = allocations(|| given = Some(policies.authorize(&rules, &call())));
        let given = given.expect("decided");
        assert_eq!(given.reason.key(), Some("a/ns"), "{given}");
        assert_eq!(count, 0);
    }
}
