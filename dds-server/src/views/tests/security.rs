//! Policies about servers' security: whom they reach, and what of them.

use std::net::IpAddr;

use proptest::prelude::*;
use prost::Message as _;
use rulecast_api::{
    kind::KINDS,
    manifest::{self, Format},
    proto::rules::v1::{AuthenticationPolicy, AuthorizationPolicy, TlsMode},
};
use serde_json::{Value, json};

use super::*;
use crate::scope::Traits;

const AUTHENTICATION: Kind = Kind::AUTHENTICATION_POLICY;
const AUTHORIZATION: Kind = Kind::AUTHORIZATION_POLICY;
const LIMIT: Kind = Kind::RATE_LIMIT;

fn policy(kind: Kind, name: &str, namespace: &str, revision: i64, spec: &Value) -> Stored {
    let document = json!({
        "apiVersion": kind.api_version, "kind": kind.name,
        "metadata": { "name": name, "namespace": namespace }, "spec": spec,
    });
    let read = manifest::parse(KINDS, document.to_string().as_bytes(), Format::Json);
    let outcome = read.documents.into_iter().next().expect("a document").outcome;
    let resource = outcome.expect("a good rule");
    Stored {
        revision,
        digest: crate::store::digest(&resource),
        resource,
        ..stored(name, namespace, "com.A", 1, revision)
    }
}

/// Views of these policies.
fn of(policies: &[Stored]) -> (Index, Views) {
    let index = Index::new(KINDS, "l".into());
    list(&index, policies, 1);
    let views = views(&index);
    (index, views)
}

fn pod(namespace: &str, labels: &[(&str, &str)], address: &str) -> Scope {
    let id = format!("spiffe://td/ns/{namespace}/sa/web").parse().expect("identity");
    let mut scope = Scope::new(&id, None);
    let known = Some(address).filter(|address| !address.is_empty());
    let addresses: Vec<IpAddr> = known.iter().map(|a| a.parse().expect("one")).collect();
    scope.subject.pod = Traits {
        labels: Labels::new(labels.iter().copied()),
        annotations: Labels::of_annotations([("team", labels.first().map_or("none", |l| l.1))]),
        addresses: addresses.into(),
    };
    scope
}

fn rules(views: &Views, scope: &Scope, kind: Kind) -> Vec<Rule> {
    let view = views.subscribe(scope, kind).current().expect("listed");
    let decode = |item: &Arc<Item>| Rule::decode(item.bytes.clone()).expect("a rule");
    view.items.iter().map(decode).collect()
}

/// How often each text stands in what a client gets, on both wires.
fn told(views: &Views, scope: &Scope, words: &[&str]) -> Vec<bool> {
    let mut all = Vec::new();
    for kind in [AUTHENTICATION, AUTHORIZATION] {
        let view = views.subscribe(scope, kind).current().expect("listed");
        for item in &view.items {
            all.extend_from_slice(&item.bytes);
            all.extend_from_slice(item.compat.as_deref().expect("that wire can say it"));
        }
    }
    let all = String::from_utf8_lossy(&all).into_owned();
    words.iter().map(|word| all.contains(word)).collect()
}

#[test]
fn servers_get_their_policies_without_what_the_plane_looked_at() {
    let selector = json!([{ "namespaces": ["a", "b"], "notPrincipals": ["td/ns/b/sa/secret"] }]);
    let strict = json!({ "action": "STRICT", "selector": selector });
    let rule = |who: &str, to: &str| json!({ "from": { "namespaces": [who] }, "to": { "namespaces": [to] } });
    let some = json!({ "action": "ALLOW", "rules": [rule("for-a", "a"), rule("for-b", "b")] });
    let (_, views) = of(&[
        policy(AUTHENTICATION, "root", "rulecast-system", 1, &strict),
        policy(AUTHENTICATION, "own", "a", 2, &strict),
        policy(AUTHORIZATION, "some", "rulecast-system", 3, &some),
        policy(AUTHORIZATION, "all", "a", 4, &json!({ "action": "DENY" })),
    ]);
    let (a, b, c) = (pod("a", &[], ""), pod("b", &[], ""), pod("c", &[], ""));
    let of_a = rules(&views, &a, AUTHENTICATION);
    let seen: Vec<(&str, u32)> = of_a.iter().map(|r| (r.key.as_str(), r.tier)).collect();
    assert_eq!(seen, [("own/a", 2), ("root/rulecast-system", 0)]);
    let message = AuthenticationPolicy::decode(of_a[0].spec.clone()).expect("a message");
    assert_eq!(message.mode(), TlsMode::Strict);
    assert_eq!(rules(&views, &b, AUTHENTICATION).len(), 1);
    assert!(rules(&views, &c, AUTHENTICATION).is_empty());

    let of_a = rules(&views, &a, AUTHORIZATION);
    let keys: Vec<_> = of_a.iter().map(|r| (r.key.as_str(), r.tier)).collect();
    assert_eq!(keys, [("all/a", 2), ("some/rulecast-system", 0)]);
    let message = |rule: &Rule| AuthorizationPolicy::decode(rule.spec.clone()).expect("a message");
    assert!(message(&of_a[0]).everything);
    assert!(!message(&of_a[1]).everything && message(&of_a[1]).rules.len() == 1);
    assert!(rules(&views, &c, AUTHORIZATION).is_empty(), "no rule of it is for c");
    // What others are told of, and what selects, is not on the wire.
    let words = ["for-a", "for-b", "secret", "own/a"];
    assert_eq!(told(&views, &a, &words), [true, false, false, true]);
    assert_eq!(told(&views, &b, &words), [false, true, false, false]);
    assert_eq!(told(&views, &c, &words), [false; 4]);
}

#[test]
fn servers_get_the_limits_for_them() {
    let limit = |requests: u32, enabled: bool| {
        let selector = json!([{ "namespaces": ["a", "b"] }, { "extends": [{ "key": "app", "value": "web" }] }]);
        json!({ "requests": requests, "enabled": enabled, "selector": selector })
    };
    let (index, views) = of(&[
        policy(LIMIT, "root", "rulecast-system", 1, &limit(1, true)),
        policy(LIMIT, "own", "a", 2, &limit(2, true)),
        policy(LIMIT, "off", "a", 3, &limit(3, false)),
        policy(LIMIT, "all", "a", 4, &json!({ "requests": 4 })),
    ]);
    let seen = |scope: &Scope| -> Vec<(String, u32)> {
        let rules = rules(&views, scope, LIMIT).into_iter();
        rules.map(|rule| (rule.key, rule.tier)).collect()
    };
    let wanted = |names: &[(&str, u32)]| -> Vec<(String, u32)> {
        names.iter().map(|(name, tier)| ((*name).to_owned(), *tier)).collect()
    };
    let (web, db) = (pod("a", &[("app", "web")], ""), pod("a", &[("app", "db")], ""));
    assert_eq!(seen(&web), wanted(&[("all/a", 2), ("own/a", 2), ("root/rulecast-system", 0)]));
    assert_eq!(seen(&db), wanted(&[("all/a", 2)]));
    assert_eq!(seen(&pod("b", &[("app", "web")], "")), wanted(&[("root/rulecast-system", 0)]));
    assert!(seen(&pod("c", &[("app", "web")], "")).is_empty());
    // A change of a number reaches those who have the limit, and nobody else.
    let mut places = [&web, &db].map(|scope| views.subscribe(scope, LIMIT));
    places.iter_mut().for_each(|place| drop(place.current()));
    index.apply(vec![Event::Upsert(policy(LIMIT, "own", "a", 5, &limit(9, true)))]);
    views.refresh();
    let changed = places.map(|p| p.receiver.as_ref().expect("one").has_changed().expect("open"));
    assert_eq!(changed, [true, false]);
}

#[test]
fn a_part_is_encoded_once_and_known_by_its_version() {
    let to = |namespace: &str| json!({ "to": { "namespaces": [namespace] } });
    let spec = json!({ "action": "DENY", "rules": [to("a"), to("b"), to("a")] });
    let (index, views) = of(&[policy(AUTHORIZATION, "p", "rulecast-system", 1, &spec)]);
    let item = |scope: &Scope| {
        let mut place = views.subscribe(scope, AUTHORIZATION);
        let view = place.current().expect("listed");
        (view.items[0].clone(), place)
    };
    let (first, _one) = item(&pod("a", &[], ""));
    let (same, _two) = item(&pod("a", &[("x", "y")], ""));
    let (other, _three) = item(&pod("b", &[], ""));
    assert!(Arc::ptr_eq(&first, &same), "encoded once");
    assert_eq!(first.digest, Digest::of(&first.bytes));
    assert!(first.digest != other.digest && first.version == other.version);
    let id =
        ResourceId { kind: AUTHORIZATION, namespace: "rulecast-system".into(), name: "p".into() };
    assert_eq!(views.item(&id).expect("in force").version, first.version);
    assert!(views.sees(&pod("b", &[], ""), &id) && !views.sees(&pod("c", &[], ""), &id));

    // A change of what only others get is none for those who have theirs.
    let spec = json!({ "action": "DENY", "rules": [to("a"), to("c"), to("a")] });
    let mut place = views.subscribe(&pod("a", &[], ""), AUTHORIZATION);
    place.current();
    index.apply(vec![Event::Upsert(policy(AUTHORIZATION, "p", "rulecast-system", 2, &spec))]);
    views.refresh();
    assert!(!place.receiver.as_ref().expect("one").has_changed().expect("open"));
    assert!(rules(&views, &pod("b", &[], ""), AUTHORIZATION).is_empty());
    assert_eq!(rules(&views, &pod("c", &[], ""), AUTHORIZATION).len(), 1);
}

#[tokio::test]
async fn pods_share_views_unless_a_rule_looks_at_what_tells_them_apart() {
    let plain = json!({ "action": "STRICT" });
    let (index, views) = of(&[policy(AUTHENTICATION, "plain", "rulecast-system", 1, &plain)]);
    let scopes = [pod("a", &[], "10.0.0.1"), pod("a", &[], "10.0.0.2"), pod("a", &[], "")];
    let mut places: Vec<_> =
        scopes.iter().map(|scope| views.subscribe(scope, AUTHENTICATION)).collect();
    let mut routing = views.subscribe(&scopes[0], Kind::CONDITION_ROUTE);
    routing.current();
    let first = places[0].current().expect("listed");
    assert!(places.iter_mut().all(|p| Arc::ptr_eq(&p.current().expect("listed"), &first)));
    assert_eq!(views.len(), 2);

    let blocks = json!({ "action": "NONE", "selector": [{ "ipBlocks": ["10.0.0.1"] }] });
    let by_ip = policy(AUTHENTICATION, "by-ip", "a", 2, &blocks);
    index.apply(vec![Event::Upsert(by_ip.clone())]);
    views.refresh();
    let mut seen = Vec::new();
    for place in &mut places {
        let view = next(place).await;
        seen.push(keys(&view).into_iter().map(str::to_owned).collect::<Vec<_>>());
    }
    let plain_key = "plain/rulecast-system".to_owned();
    assert_eq!(
        seen,
        [vec!["by-ip/a".into(), plain_key.clone()], vec![plain_key.clone()], vec![plain_key]]
    );
    assert_eq!(views.len(), 4, "three of the kind, and those of other kinds as before");
    assert!(!routing.receiver.as_ref().expect("one").has_changed().expect("open"));
    // Without being asked it finds its place too.
    let late = views.subscribe(&scopes[1], AUTHENTICATION);
    assert_eq!(late.scope_hash(), places[1].scope_hash());
    drop(late);

    let id = by_ip.resource.id;
    index.apply(vec![Event::Remove { id, revision: 3 }]);
    views.refresh();
    for place in &mut places {
        let view = next(place).await;
        assert_eq!(keys(&view), ["plain/rulecast-system"]);
    }
    assert_eq!(views.len(), 2);
    assert!(places.iter().all(|place| place.scope_hash() == places[0].scope_hash()));
    drop(places);
    assert_eq!(views.len(), 1);
}

/// Any way to say who a policy is for.
fn selectors() -> impl Strategy<Value = Value> {
    let namespaces = prop::sample::subsequence(vec!["a", "b", "rulecast-system"], 0..3);
    let not = prop::sample::subsequence(vec!["a", "c"], 0..2);
    let principals = prop::sample::subsequence(
        vec!["td/ns/b/sa/web", "spiffe://td/ns/b/sa/web", "spiffe://td/ns/a/sa/web"],
        0..3,
    );
    let blocks = prop::sample::subsequence(vec!["10.0.0.2", "*", "10.*.*.*", "::/0"], 0..3);
    let extends = prop::sample::subsequence(vec![("app", "b"), ("team", "b"), ("app", "a")], 0..2);
    (namespaces, not, principals, blocks, extends).prop_map(|(n, not, p, blocks, extends)| {
        let pairs: Vec<Value> =
            extends.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
        json!({ "namespaces": n, "notNamespaces": not, "principals": p, "ipBlocks": blocks,
                "extends": pairs })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// A policy of namespace a never touches namespace b, however it is written; what it says of
    /// its own servers is as a policy of the root would say it.
    #[test]
    fn no_policy_leaves_its_namespace(one in selectors(), two in selectors(), rules in 0..3_usize) {
        let authentication = json!({ "action": "DISABLED", "selector": [one, two] });
        let rules: Vec<Value> = [&one, &two].into_iter().take(rules).map(|to| json!({ "to": to })).collect();
        let authorization = json!({ "action": "DENY", "rules": rules });
        let a = pod("a", &[("app", "a")], "10.0.0.1");
        let b = pod("b", &[("app", "b")], "10.0.0.2");
        let limit = json!({ "requests": 1, "selector": [one, two] });
        for (kind, spec) in
            [(AUTHENTICATION, &authentication), (AUTHORIZATION, &authorization), (LIMIT, &limit)]
        {
            let (_, views) = of(&[policy(kind, "p", "a", 1, spec)]);
            prop_assert!(super::security::rules(&views, &b, kind).is_empty());
            let specs = |namespace: &str| -> Vec<_> {
                let (_, views) = of(&[policy(kind, "p", namespace, 1, spec)]);
                super::security::rules(&views, &a, kind).into_iter().map(|r| r.spec).collect()
            };
            prop_assert_eq!(specs("a"), specs("rulecast-system"));
        }
    }
}
