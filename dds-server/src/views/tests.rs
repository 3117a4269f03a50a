use rulecast_api::SpiffeId;

use super::*;
use crate::{
    scope::Labels,
    store::{
        Event,
        conformance::{KIND, KINDS, ProbeSpec, stored},
    },
};

mod mappings;
mod ownership;
mod security;

const DEADLINE: Duration = Duration::from_secs(10);

fn scope(namespace: &str, services: Option<&[&str]>) -> Scope {
    let id = SpiffeId::application("td", namespace, "app").expect("identity");
    let parse = |s: &&str| s.parse().expect("service key");
    Scope::new(&id, services.map(|s| s.iter().map(parse).collect()))
}

fn list(index: &Index, rules: &[Stored], revision: i64) {
    let mut events = vec![Event::Listing];
    events.extend(rules.iter().cloned().map(Event::Upsert));
    events.push(Event::Listed { revision });
    index.apply(events);
}

fn probe(value: u32, labels: &[(&str, &str)]) -> ProbeSpec {
    let labels = labels.iter().map(|&(name, value)| (name.into(), value.into())).collect();
    ProbeSpec { key: "com.A".into(), application: false, enabled: true, value, labels }
}

fn views(index: &Index) -> Views {
    let owners = Owners::new([("com.A", "shop")]);
    Views::new(index.clone(), owners, Root::default(), Debounce::default())
}

fn keys(view: &View) -> Vec<&str> {
    view.items.iter().map(|item| item.key.as_str()).collect()
}

/// The same as the views, made from nothing.
fn anew(index: &Index, scope: &Scope) -> Arc<View> {
    views(index).subscribe(scope, KIND).current().expect("listed")
}

async fn next(subscription: &mut Subscription) -> Arc<View> {
    tokio::time::timeout(DEADLINE, subscription.changed()).await.expect("a change").expect("listed")
}

#[test]
fn nothing_is_shown_before_the_first_list() {
    let index = Index::new(KINDS, "l".into());
    let views = views(&index);
    let mut early = views.subscribe(&scope("any", None), KIND);
    assert!(early.current().is_none());
    index.apply(vec![Event::Upsert(stored("a", "shop", "com.A", 1, 1))]);
    views.refresh();
    assert!(early.current().is_none());
    list(&index, &[], 3);
    views.refresh();
    let view = early.current().expect("an empty view is a view");
    assert_eq!((view.items.len(), view.revision, &*view.lineage), (0, 3, "l"));
}

#[test]
fn selectors_go_by_the_labels_of_pods_and_declarations_only_narrow() {
    let index = Index::new(KINDS, "l".into());
    let selecting = |name: &str, namespace: &str, revision, labels: &[(&str, &str)]| {
        let mut stored = stored(name, namespace, "com.A", 1, revision);
        stored.resource.spec = Arc::new(probe(1, labels));
        stored.digest = crate::store::digest(&stored.resource);
        stored
    };
    let canary = [("app", "web"), ("track", "canary")];
    list(
        &index,
        &[
            selecting("all", "rulecast-system", 1, &[]),
            selecting("web", "rulecast-system", 2, &[("app", "web")]),
            selecting("canary", "rulecast-system", 3, &canary),
            selecting("elsewhere", "other", 4, &[("app", "web")]),
        ],
        4,
    );
    let views = views(&index);
    let place = |labels: &[(&str, &str)], services| {
        let mut scope = scope("any", services);
        scope.subject.pod = Labels::new(labels.iter().copied()).into();
        views.subscribe(&scope, KIND)
    };
    let seen = |place: &mut Subscription| {
        let view = place.current().expect("listed");
        keys(&view).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let (mut none, mut web) = (place(&[], None), place(&[("app", "web")], None));
    let (mut canary, mut narrow) = (place(&canary, None), place(&canary, Some(&["com.B"])));
    assert_eq!(seen(&mut none), ["all/rulecast-system"]);
    assert_eq!(seen(&mut web), ["all/rulecast-system", "web/rulecast-system"]);
    let all = ["all/rulecast-system", "canary/rulecast-system", "web/rulecast-system"];
    assert_eq!(seen(&mut canary), all);
    assert!(seen(&mut narrow).is_empty(), "declared was another service");
    let other = place(&[("app", "web"), ("pod-template-hash", "x1")], None);
    assert_eq!((other.scope_hash(), views.len()), (web.scope_hash(), 4));

    // Only the selector changes: whoever it newly finds gets the rule, others lose it.
    let changed = selecting("web", "rulecast-system", 5, &[("track", "canary")]);
    index.apply(vec![Event::Upsert(changed)]);
    views.refresh();
    assert_eq!(seen(&mut web), ["all/rulecast-system"]);
    assert_eq!(seen(&mut canary), all);
    index.apply(vec![Event::Upsert(selecting("web", "rulecast-system", 6, &[]))]);
    views.refresh();
    assert_eq!(seen(&mut none), ["all/rulecast-system", "web/rulecast-system"]);
}

#[test]
fn scopes_see_their_rules_with_tiers() {
    let index = Index::new(KINDS, "l".into());
    let mut disabled = stored("off", "rulecast-system", "com.A", 1, 1);
    disabled.resource.spec = Arc::new(ProbeSpec { enabled: false, ..probe(1, &[]) });
    list(
        &index,
        &[
            stored("root", "rulecast-system", "com.A", 1, 1),
            stored("owner", "shop", "com.A", 1, 2),
            stored("own", "caller", "com.A", 1, 3),
            stored("other", "shop", "com.B", 1, 4),
            disabled,
        ],
        9,
    );
    let views = views(&index);
    let seen = |scope: &Scope| {
        let view = views.subscribe(scope, KIND).current().expect("listed");
        keys(&view).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(seen(&scope("any", None)), ["owner/shop", "root/rulecast-system"]);
    assert_eq!(
        seen(&scope("caller", Some(&["com.A"]))),
        ["own/caller", "owner/shop", "root/rulecast-system"]
    );
    assert_eq!(seen(&scope("shop", Some(&["com.B"]))), ["other/shop"]);
    for (name, namespace, tier) in
        [("root", "rulecast-system", 0), ("owner", "shop", 1), ("own", "caller", 2)]
    {
        let id = ResourceId { kind: KIND, namespace: namespace.into(), name: name.into() };
        let item = views.item(&id).expect("an item");
        let rule = <Rule as prost::Message>::decode(item.bytes.clone()).expect("a rule");
        assert_eq!((rule.tier, rule.key), (tier, id.key()));
        assert!(views.sees(&scope("caller", None), &id));
    }
    let off = ResourceId { kind: KIND, namespace: "rulecast-system".into(), name: "off".into() };
    assert!(views.item(&off).is_none() && !views.sees(&scope("caller", None), &off));
}

#[test]
fn one_view_for_a_scope_and_none_for_nobody() {
    let index = Index::new(KINDS, "l".into());
    list(&index, &[stored("a", "shop", "com.A", 1, 1)], 1);
    let views = views(&index);
    let mut first = views.subscribe(&scope("x", None), KIND);
    let mut second = views.subscribe(&scope("x", None), KIND);
    let mut other = views.subscribe(&scope("y", None), KIND);
    assert_eq!(views.len(), 2);
    let view = |s: &mut Subscription| s.current().expect("listed");
    assert!(Arc::ptr_eq(&view(&mut first), &view(&mut second)));
    // Items are encoded once, whoever sees them.
    assert!(Arc::ptr_eq(&view(&mut first).items[0], &view(&mut other).items[0]));
    drop(first);
    assert_eq!(views.len(), 2);
    drop(second);
    assert_eq!(views.len(), 1);
    drop(other);
    assert!(views.is_empty());
}

#[test]
fn only_another_content_is_published() {
    let index = Index::new(KINDS, "l".into());
    let a = stored("a", "shop", "com.A", 1, 1);
    list(&index, std::slice::from_ref(&a), 1);
    let views = views(&index);
    let mut near = views.subscribe(&scope("x", None), KIND);
    let mut far = views.subscribe(&scope("x", Some(&["com.Z"])), KIND);
    let first = near.current().expect("listed");
    far.current();
    let changed =
        |s: &Subscription| s.receiver.as_ref().expect("a receiver").has_changed().expect("open");

    // A new list of the same, another file, a label: the delivered bytes are the same.
    list(&index, std::slice::from_ref(&a), 5);
    let mut labelled = stored("a", "shop", "com.A", 1, 6);
    labelled.resource.labels.insert("team".into(), "x".into());
    labelled.digest = crate::store::digest(&labelled.resource);
    index.apply(vec![Event::Upsert(labelled)]);
    // There and back within one gathering.
    index.apply(vec![Event::Upsert(stored("a", "shop", "com.A", 2, 7))]);
    index.apply(vec![Event::Upsert(stored("a", "shop", "com.A", 1, 8))]);
    views.refresh();
    assert!(!changed(&near) && !changed(&far));

    index.apply(vec![Event::Upsert(stored("a", "shop", "com.A", 2, 9))]);
    views.refresh();
    assert!(changed(&near) && !changed(&far));
    let second = near.current().expect("listed");
    assert_ne!(second.set_digest, first.set_digest);
    assert_eq!(second.revision, 9);
}

#[tokio::test]
async fn changes_are_gathered_and_end_at_the_index() {
    let index = Index::new(KINDS, "l".into());
    list(&index, &[], 0);
    let views = views(&index);
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(views.clone().run(shutdown.clone()));
    let scopes = [scope("x", None), scope("ns1", None), scope("ns2", Some(&["com.A"]))];
    let mut subscriptions: Vec<_> =
        scopes.iter().map(|scope| views.subscribe(scope, KIND)).collect();
    for subscription in &mut subscriptions {
        subscription.current();
    }
    let namespaces = ["ns1", "ns2", "shop", "rulecast-system"];
    let mut random = fastrand::Rng::with_seed(3);
    for revision in 1..=1000_i64 {
        let namespace = namespaces[random.usize(0..4)];
        let name = format!("r{}", random.u32(0..50));
        let target = ["com.A", "com.B"][random.usize(0..2)];
        let rule = stored(&name, namespace, target, random.u32(0..3), revision);
        index.apply(vec![if random.u32(0..3) == 0 {
            Event::Remove { id: rule.resource.id, revision }
        } else {
            Event::Upsert(rule)
        }]);
    }
    for (subscription, scope) in subscriptions.iter_mut().zip(&scopes) {
        let wanted = anew(&index, scope);
        let (mut revision, mut steps) = (0, 0);
        loop {
            let view = next(subscription).await;
            assert!(view.revision > revision, "views go forward");
            (revision, steps) = (view.revision, steps + 1);
            if view.set_digest == wanted.set_digest {
                assert_eq!(view.items, wanted.items);
                break;
            }
        }
        assert!(steps < 100, "{steps} views for a burst");
    }
    shutdown.cancel();
    task.await.expect("ends");
}
