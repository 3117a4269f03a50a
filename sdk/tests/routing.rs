//! TagRoute and AffinityRoute: native and sandboxed decisions are the same, agree with a second
//! reading of the rules, and the largest rules that are accepted stay within the sandbox's limits.

use proptest::prelude::*;
use rulecast_affinity_route::AffinityRoute;
use rulecast_api::{
    kind::{KINDS, Kind},
    proto::rules::v1::{Enforcement, Rule, Target, target::Scope},
};
use rulecast_condition_route::ConditionRoute;
use rulecast_policy::Native;
use rulecast_sdk::{
    decision::{Policies, Request, RuleSet},
    endpoints::{Endpoint, EndpointSet},
    vector,
};
use rulecast_tag_route::TagRoute;
use serde_json::{Value, json};

const TAG_ROUTE: &str = "dubbo.apache.org/v1alpha1/TagRoute";
const AFFINITY_ROUTE: &str = "dubbo.apache.org/v1alpha1/AffinityRoute";

fn native() -> Policies {
    thread_local! {
        static NATIVE: Policies =
            Policies::native(|| Box::new(Native::new(ConditionRoute::default())))
                .with_native(TAG_ROUTE, || Box::new(Native::new(TagRoute::default())))
                .with_native(AFFINITY_ROUTE, || Box::new(Native::new(AffinityRoute::default())));
    }
    NATIVE.with(Clone::clone)
}

fn one_of(values: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(values).prop_map(str::to_owned)
}

/// Absent, or one of these.
fn maybe(values: &'static [&'static str]) -> impl Strategy<Value = Value> {
    prop::option::of(prop::sample::select(values)).prop_map(|value| json!(value))
}

const TAGS: &[&str] = &["a", "b", "a|b", "c"];

fn matcher() -> impl Strategy<Value = Value> {
    let how = one_of(&["exact", "prefix", "regex", "wildcard", "empty", "noempty"]);
    let value = one_of(&["", "a", "ab", "a.*", "*", "[ab]+"]);
    (how, value).prop_map(|(how, value)| json!({ how: value }))
}

fn tag(name: &'static str) -> impl Strategy<Value = Value> {
    let address = one_of(&[
        "10.0.0.1",
        "10.0.0.2:1",
        "10.0.0.*:2",
        "10.0.0.1-2",
        "10.0.0.2/31",
        "0.0.0.0:2",
        "10.0.0.9",
        "*",
        "::1",
    ]);
    let entry = (one_of(&["env", "host", "x"]), matcher())
        .prop_map(|(key, value)| json!({ "key": key, "value": value }));
    (prop::collection::vec(address, 0..3), prop::collection::vec(entry, 0..3))
        .prop_map(move |(a, m)| json!({ "name": name, "addresses": a, "match": m }))
}

fn tag_case() -> impl Strategy<Value = Value> {
    let provider =
        (one_of(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "::1", "name"]), 1..3u16, maybe(&["a", "b", "a|b", ""]), maybe(&["", "a", "ab"]))
            .prop_map(|(host, port, tag, env)| json!({ "host": host, "port": port, "dubbo.tag": tag, "env": env }));
    let tags = prop::sample::subsequence(TAGS, 0..4)
        .prop_flat_map(|names| names.into_iter().map(tag).collect::<Vec<_>>());
    let rule = prop::option::weighted(
        0.9,
        (any::<bool>(), tags).prop_map(|(force, tags)| json!({ "force": force, "tags": tags })),
    );
    let said = || maybe(&["", "a", "b", "a|b", "a|b|c", "b|a", "d", "|", "a|"]);
    let must = || maybe(&["true", "false", "", "True"]);
    ((rule, said(), said(), must(), must()), prop::collection::vec(provider, 0..80)).prop_map(
        |((rule, tag, consumer, must, consumer_must), providers)| {
            let attachments: serde_json::Map<String, Value> =
                [("dubbo.tag", tag), ("dubbo.force.tag", must)]
                    .into_iter()
                    .filter(|(_, value)| !value.is_null())
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect();
            json!({
                "kind": "tag", "rule": rule, "providers": providers,
                "consumer": { "dubbo.tag": consumer, "dubbo.force.tag": consumer_must },
                "invocation": { "attachments": attachments },
            })
        },
    )
}

fn affinity_case() -> impl Strategy<Value = Value> {
    let provider = maybe(&["", "a", "b"]).prop_map(|r| json!({ "host": "h", "region": r }));
    let ratio =
        prop_oneof![(0..=100u32).prop_map(|r| json!(r)), (0.0..100.0).prop_map(|r| json!(r))];
    (ratio, maybe(&["", "a", "b", "c"]), prop::collection::vec(provider, 0..80)).prop_map(
        |(ratio, region, providers)| {
            json!({
                "kind": "affinity", "providers": providers, "consumer": { "region": region },
                "rule": { "affinityAware": { "key": "region", "ratio": ratio } },
            })
        },
    )
}

/// AffinityRoute read a second time, without sets.
fn affinity(case: &Value) -> Vec<usize> {
    let providers = case["providers"].as_array().expect("a list");
    let all = (0..providers.len()).collect();
    let own = &case["consumer"]["region"];
    if own.is_null() || own == "" {
        return all;
    }
    let kept: Vec<usize> =
        (0..providers.len()).filter(|&i| providers[i]["region"] == *own).collect();
    let ratio = case["rule"]["affinityAware"]["ratio"].as_f64().expect("a number");
    if kept.len() as f64 * 100.0 >= ratio * providers.len() as f64 { kept } else { all }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn tags_native_and_sandboxed_agree(case in tag_case()) {
        let sandboxed = Policies::builtin().expect("loads");
        prop_assert_eq!(vector::decide(&native(), &case, 0), vector::decide(&sandboxed, &case, 0));
    }

    #[test]
    fn affinity_is_as_said_both_ways(case in affinity_case()) {
        let sandboxed = Policies::builtin().expect("loads");
        prop_assert_eq!(vector::decide(&native(), &case, 0), Ok(affinity(&case)));
        prop_assert_eq!(vector::decide(&sandboxed, &case, 0), Ok(affinity(&case)));
    }

    /// What holds for every decision by tags.
    #[test]
    fn tags_keep_their_promises(case in tag_case()) {
        let kept = vector::decide(&native(), &case, 0).expect("no fault");
        let attached = &case["invocation"]["attachments"];
        let said = |name: &str| {
            let value = |map: &Value| map[name].as_str().filter(|v| !v.is_empty()).map(str::to_owned);
            value(attached).or_else(|| value(&case["consumer"]))
        };
        let own = |i: usize| case["providers"][i]["dubbo.tag"].as_str().unwrap_or_default();
        let unwritten = case["rule"]["tags"].as_array().is_none_or(Vec::is_empty);
        match said("dubbo.tag") {
            // Nobody who asks for no tag gets one, where no rule says more.
            None if unwritten => prop_assert!(kept.iter().all(|&i| own(i).is_empty())),
            None => {}
            // All that is kept is of one level of the selector, or of no tag.
            Some(tag) if unwritten => {
                let tags: std::collections::BTreeSet<&str> = kept.iter().map(|&i| own(i)).collect();
                prop_assert!(tags.len() <= 1, "{tags:?}");
                let of = tags.first().copied().unwrap_or_default();
                let longer = [of, "|"].concat();
                prop_assert!(tag == of || tag.starts_with(&longer) || of.is_empty());
                let must = said("dubbo.force.tag").is_some_and(|m| m.eq_ignore_ascii_case("true"));
                prop_assert!(!must || !of.is_empty() || kept.is_empty());
            }
            Some(_) => {}
        }
    }
}

/// A rule as the plane would send it.
fn rule(type_name: &str, spec: Value) -> Rule {
    let kind = Kind::by_type(KINDS, type_name).expect("a kind");
    let spec = (kind.parse)(spec).expect("a valid spec");
    // Without a target it speaks of every call.
    Rule { key: "r/default".into(), spec: spec.encode().to_vec().into(), ..Default::default() }
}

#[test]
fn rules_are_of_those_who_serve() {
    let policies = Policies::builtin().expect("loads");
    let tags = json!([{ "name": "gray", "addresses": ["0.0.0.0:1"] }]);
    let mut everything = rule(TAG_ROUTE, json!({ "key": "shop", "tags": tags }));
    everything.target = Some(Target { scope: Scope::Application.into(), key: "shop".into() });
    let rules = RuleSet::default().with(TAG_ROUTE, [everything]);
    let kept = |consumer: &str, provider: &str| {
        let endpoint = Endpoint::new("10.0.0.1", 1).with("application", provider);
        let endpoints = EndpointSet::new([endpoint]).expect("a set");
        let consumer = [("application", consumer)].into_iter().collect();
        policies.route(&rules, &Request::new("s", &consumer), &endpoints).endpoints.len()
    };
    assert_eq!(kept("web", "shop"), 0, "a call without a tag avoids the group");
    assert_eq!(kept("shop", "detail"), 1, "calls of the application are not its to group");
}

#[test]
fn a_shadow_leaves_calls_to_the_rule_of_nobody() {
    let policies = Policies::builtin().expect("loads");
    let tags = json!([{ "name": "gray", "addresses": ["10.0.0.1"] }]);
    let mut shadow = rule(TAG_ROUTE, json!({ "key": "shop", "force": true, "tags": tags }));
    shadow.enforcement = Enforcement::Shadow.into();
    let endpoints =
        [Endpoint::new("10.0.0.1", 1), Endpoint::new("10.0.0.2", 1).with("dubbo.tag", "gray")];
    let endpoints = EndpointSet::new(endpoints).expect("a set");
    let consumer = Default::default();
    let target = Some(Target { scope: Scope::Application.into(), key: "shop".into() });
    for target in [None, target] {
        shadow.target = target;
        let rules = RuleSet::default().with(TAG_ROUTE, [shadow.clone()]);
        let request = Request::new("s", &consumer).attachment("dubbo.tag", "gray");
        let decision = policies.route(&rules, &request, &endpoints);
        assert_eq!(decision.endpoints, [1], "as without any rule");
        assert!(decision.rules.iter().all(|rule| rule.remaining == 1), "{:?}", decision.rules);
    }
}

/// A TagRoute of as many addresses as a rule may have.
fn many(address: impl Fn(u32) -> String) -> Rule {
    let tag = |t: u32| {
        let addresses: Vec<String> = (0..200).map(|i| address(t * 200 + i)).collect();
        json!({ "name": t.to_string(), "addresses": addresses })
    };
    let tags: Vec<Value> = (0..10).map(tag).collect();
    rule(TAG_ROUTE, json!({ "key": "shop", "tags": tags }))
}

#[test]
fn the_largest_rules_are_taken() {
    let policies = Policies::builtin().expect("loads");
    let host = |i: u32| format!("10.{}.{}.{}", i >> 16 & 255, i >> 8 & 255, i & 255);
    let slow = many(|i| format!("[234e:0-ffff:*:{:x}:0-1:*:3d-ffff:{i:x}]:20880", i % 7));
    assert_eq!(policies.check(TAG_ROUTE, &slow), Ok(()));
    let many = many(|i| format!("{}:20880", host(i)));
    assert_eq!(policies.check(TAG_ROUTE, &many), Ok(()));
    let endpoints = (0..10_000).map(|i| Endpoint::new(host(i), 20880));
    let endpoints = EndpointSet::new(endpoints).expect("a set");
    let rules = RuleSet::default().with(TAG_ROUTE, [many]);
    let consumer = Default::default();
    let request = Request::new("s", &consumer).attachment("dubbo.tag", "7");
    let decision = policies.route(&rules, &request, &endpoints);
    assert_eq!(decision.faults.len(), 0, "{:?}", decision.faults);
    assert_eq!(decision.endpoints, (1400..1600).collect::<Vec<_>>());
}

#[test]
fn the_costliest_expressions_are_taken() {
    let policies = Policies::builtin().expect("loads");
    let kind = Kind::by_type(KINDS, TAG_ROUTE).expect("a kind");
    for part in [r"\w", r"(?i)[a-zäöü]", r"\p{L}", "(a|b|c)", ".", "[^a]", r"\d", r"(?i)\w"] {
        // The most repetitions that are accepted.
        let spec = |n: u32| {
            let entry = json!({ "key": "k", "value": { "regex": format!("({part}){{{n}}}") } });
            json!({ "configVersion": "v3.0", "key": "shop",
                    "tags": [{ "name": "t", "match": [entry] }] })
        };
        let accepted = |n: &u32| (kind.parse)(spec(*n)).is_ok();
        let most = (1..).take_while(accepted).last().expect("one at least");
        let rule = rule(TAG_ROUTE, spec(most));
        assert_eq!(policies.check(TAG_ROUTE, &rule), Ok(()), "{most} times {part}");
    }
}
