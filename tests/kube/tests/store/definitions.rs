//! What becomes of rules with the CRD of their kind.

use std::time::Duration;

use kube::{Api, api::ListParams};
use rulecast_api::{Code, Kinds};
use rulecast_dds::store::Event;
use rulecast_kube_tests::Cluster;
use serde_json::json;

use crate::site::{Followed, Schema, Site, eventually, holds, problems_of, values};

/// A few seconds.
const SOON: Duration = Duration::from_secs(5);

fn kinds(sites: [&Site; 2]) -> Kinds {
    Box::leak(Box::new(sites.map(|site| site.kind)))
}

#[tokio::test]
async fn a_kind_that_is_installed_later_is_picked_up_and_until_then_nothing_is_served() {
    let cluster = Cluster::shared().await.expect("server");
    let there = Site::new(&cluster, "there").await;
    let later = Site::bare(&cluster, "later").await;
    there.rule("a", 1).await;
    let followed = Followed::open(cluster.client(), kinds([&there, &later]));
    followed.until("the store is down", |now| now.down.is_some()).await;
    let now = followed.now();
    assert!(!now.listed && now.is_empty(), "half of the kinds are no list");
    let problem = now.down.clone().expect("down");
    assert_eq!(problem.code, Code::StoreKindMissing);
    let text = problem.to_string();
    assert!(text.contains(&later.crd_name()) && text.contains("kubectl apply"), "{text}");
    // The other kind was read long ago, and still nothing is served.
    there.set("a", 2).await;
    assert!(!followed.now().listed);

    later.define(Schema::Strict).await;
    later.rule("b", 1).await;
    followed
        .until_within(SOON, "both kinds", |now| {
            now.listed && now.down.is_none() && values(now).len() == 2
        })
        .await;
    // One complete list, and all of it later changes.
    let lists = followed.told().iter().filter(|e| matches!(e, Event::Listed { .. })).count();
    assert_eq!(lists, 1);
}

#[tokio::test]
async fn a_kind_that_is_removed_keeps_its_rules_in_force() {
    let cluster = Cluster::shared().await.expect("server");
    let stays = Site::new(&cluster, "stays").await;
    let goes = Site::new(&cluster, "goes").await;
    stays.rule("s", 1).await;
    goes.rule("a", 1).await;
    goes.rule("b", 2).await;
    let followed = Followed::open(cluster.client(), kinds([&stays, &goes])).listed().await;
    let rules = followed.now().kind(goes.kind).clone();
    assert_eq!(rules.len(), 2);
    followed.told();

    goes.undefine().await;
    followed.until("the store is down", |now| now.down.is_some()).await;
    let text = followed.now().down.clone().expect("down").to_string();
    assert!(text.contains(&goes.crd_name()), "{text}");
    let objects: Api<kube::api::DynamicObject> = goes.api();
    eventually("the kind is gone", async || {
        matches!(objects.list(&ListParams::default()).await, Err(kube::Error::Api(e)) if e.code == 404)
    })
    .await;
    // The other kind goes on, and says nothing about this one.
    stays.set("s", 2).await;
    followed
        .until("the other kind", |now| {
            now.kind(stays.kind)
                .values()
                .any(|r| rulecast_dds::store::conformance::value(r) == Some(2))
        })
        .await;
    let now = followed.now();
    assert_eq!(now.kind(goes.kind).len(), 2, "the objects were deleted with their CRD");
    assert!(now.down.is_some());
    let removed = |event: &Event| matches!(event, Event::Remove { .. });
    assert!(!followed.told().iter().any(removed));

    // It comes back without them: that is believed only when it lasts.
    goes.define(Schema::Strict).await;
    followed.until_within(SOON, "the store is up", |now| now.down.is_none()).await;
    assert_eq!(followed.now().kind(goes.kind).len(), 2);
    goes.rule("a", 1).await;
    followed.until("what is gone", |now| now.kind(goes.kind).len() == 1).await;
    let told = followed.told();
    let gone: Vec<_> = told
        .iter()
        .filter_map(|event| match event {
            Event::Remove { id, .. } => Some(id.name.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(gone, ["b"], "the rule that was written again was never away");
}

#[tokio::test]
async fn objects_from_before_the_schema_cost_no_other_rule() {
    let cluster = Cluster::shared().await.expect("server");
    let site = Site::bare(&cluster, "before").await;
    site.define(Schema::Loose).await;
    site.rule("good", 1).await;
    site.create("a-text", json!("what is this")).await;
    site.create("a-list", json!([1, 2])).await;
    site.create("a-null", json!(null)).await;
    site.create("wrong", json!({ "key": 7, "value": -1 })).await;

    let check = |now: &rulecast_dds::index::Snapshot| {
        for name in ["a-text", "a-list", "a-null", "wrong"] {
            assert_eq!(problems_of(now, name).len(), 1, "{name}: {:?}", now.problems);
        }
    };
    let loose = site.open_plainly().listed().await;
    assert!(holds(&loose.now(), &[("good", 1)]));
    check(&loose.now());

    site.define(Schema::Strict).await;
    eventually("the schema is in force", async || {
        let bad = site.object("bad", json!({ "key": "com.A", "value": -1 }));
        site.api()
            .create(&kube::api::PostParams { dry_run: true, ..Default::default() }, &bad)
            .await
            .is_err()
    })
    .await;
    let strict = site.open_plainly().listed().await;
    check(&strict.now());
    assert!(holds(&strict.now(), &[("good", 1)]), "{:?}", values(&strict.now()));
    // Both go on.
    site.set("good", 2).await;
    site.rule("new", 3).await;
    let wanted = |now: &rulecast_dds::index::Snapshot| {
        let values = values(now);
        values.contains(&("good".into(), 2)) && values.contains(&("new".into(), 3))
    };
    loose.until("the store from before", wanted).await;
    strict.until("the new store", wanted).await;
    for name in ["a-text", "a-list", "a-null", "wrong"] {
        site.remove(name).await;
    }
    strict.until("no problem is left", |now| now.problems.is_empty()).await;
}
