//! What becomes of objects while all goes well.

use rulecast_api::Code;
use rulecast_dds::store::{Event, KubernetesStore, KubernetesStoreConfig, Store as _, conformance};
use rulecast_kube_tests::Cluster;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::site::{Schema, Site, eventually, holds, problems_of, version};

#[tokio::test]
async fn the_store_is_as_every_store_must_be() {
    let cluster = Cluster::shared().await.expect("server");
    let site = Site::new(&cluster, "conformance").await;
    let other = cluster.namespace("conformance-other").await.expect("namespace");
    let kinds: rulecast_api::Kinds = Box::leak(Box::new([site.kind]));
    let stop = CancellationToken::new();
    let open = async || {
        let config = KubernetesStoreConfig::new(cluster.client(), kinds);
        let (store, run) = KubernetesStore::open(config, &stop);
        tokio::spawn(run);
        store
    };
    conformance::run_with(site.kind, [site.namespace.name(), other.name()], open).await;
}

#[tokio::test]
async fn only_content_is_told() {
    let site = Site::new(&Cluster::shared().await.expect("server"), "content").await;
    let made = site.rule("a", 1).await;
    let followed = site.open_plainly().listed().await;
    assert!(holds(&followed.now(), &[("a", 1)]));
    let first = followed.now().get(&site.id("a")).expect("a rule").clone();
    assert_eq!((first.version.uid.to_string(), first.version.generation), version(&made));
    assert_eq!(first.origin.to_string(), format!("probe/a in {}", site.namespace));
    followed.told();

    // The status, and what else belongs to nobody's rule.
    let status = json!({ "matched": 3 });
    site.set_status("a", status.clone()).await;
    site.merge("a", json!({ "metadata": { "finalizers": ["example.test/x"] } })).await;
    let noted = json!({ "kubectl.kubernetes.io/last-applied-configuration": "{}" });
    site.merge("a", json!({ "metadata": { "annotations": noted } })).await;
    site.merge("a", json!({ "metadata": { "finalizers": null } })).await;
    // The next change shows that those before it were seen.
    site.rule("b", 2).await;
    followed.until("the next rule", |now| holds(now, &[("a", 1), ("b", 2)])).await;
    assert_eq!(followed.store.read_status(site.id("a")).await.expect("read"), Some(status));
    let told = followed.told();
    let upserts: Vec<_> = told
        .iter()
        .map(|event| match event {
            Event::Upsert(stored) => stored.resource.id.name.as_str(),
            other => panic!("told without need: {other:?}"),
        })
        .collect();
    assert_eq!(upserts, ["b"]);

    // Another writing of the same content: it is known, and moves nothing.
    let spec = json!({ "spec": { "enabled": true } });
    let rewritten = version(&site.merge("a", spec).await);
    assert!(rewritten.1 > first.version.generation);
    let id = site.id("a");
    followed
        .until("the new writing", |now| {
            now.get(&id).is_some_and(|rule| rule.version.generation == rewritten.1)
        })
        .await;
    let same = followed.now().get(&id).expect("a rule").clone();
    assert_eq!((same.digest, same.revision), (first.digest, first.revision));

    // Labels are content.
    site.merge("a", json!({ "metadata": { "labels": { "x": "y" } } })).await;
    followed
        .until("the label", |now| now.get(&id).is_some_and(|rule| rule.digest != first.digest))
        .await;
    assert!(followed.now().get(&id).expect("a rule").revision > first.revision);
}

#[tokio::test]
async fn another_store_of_the_same_cluster_has_the_same_lineage_and_an_object_made_anew_is_new() {
    let site = Site::new(&Cluster::shared().await.expect("server"), "anew").await;
    let old = site.rule("a", 1).await;
    let followed = site.open_plainly().listed().await;
    let other = site.open_plainly().listed().await;
    let lineage = followed.now().lineage.clone();
    assert!(!lineage.is_empty() && lineage == other.now().lineage, "{lineage}");
    let system: kube::Api<k8s_openapi::api::core::v1::Namespace> =
        kube::Api::all(site.cluster.client());
    let system = system.get("kube-system").await.expect("it is there");
    assert_eq!(system.metadata.uid.as_deref(), Some(&*lineage));

    site.remove("a").await;
    followed.until("it is gone", |now| now.is_empty()).await;
    let new = site.rule("a", 1).await;
    followed.until("it is back", |now| holds(now, &[("a", 1)])).await;
    let rule = followed.now().get(&site.id("a")).expect("a rule").clone();
    assert_eq!((rule.version.uid.to_string(), rule.version.generation), version(&new));
    assert_ne!(version(&new).0, version(&old).0);
    let at: i64 = new.metadata.resource_version.expect("a version").parse().expect("a number");
    assert_eq!(rule.revision, at);
}

#[tokio::test]
async fn a_bad_object_keeps_its_last_good_version_also_over_a_restart() {
    let site = Site::bare(&Cluster::shared().await.expect("server"), "bad").await;
    site.define(Schema::Loose).await;
    let good = site.rule("a", 1).await;
    site.rule("b", 1).await;
    let followed = site.open_plainly().listed().await;
    let bad = version(&site.merge("a", json!({ "spec": { "value": "many" } })).await);
    followed.until("the problem", |now| !now.problems.is_empty()).await;
    let now = followed.now();
    assert!(holds(&now, &[("a", 1), ("b", 1)]), "the last good version stays");
    let rule = now.get(&site.id("a")).expect("a rule");
    assert!(!rule.accepted);
    assert_eq!((rule.version.uid.to_string(), rule.version.generation), bad);
    let [problem] = &now.problems[..] else { panic!("{:?}", now.problems) };
    assert_eq!(problem.field, "spec.value");
    assert!(problem.last_good_in_force);
    let (id, at) = problem.object.as_ref().expect("an object");
    assert_eq!((id, at.uid.to_string(), at.generation), (&site.id("a"), bad.0.clone(), bad.1));
    let text = problem.to_string();
    assert!(text.contains(&format!("probe/a in {}", site.namespace)), "{text}");

    // The others go on.
    site.set("b", 2).await;
    followed.until("the other rule", |now| holds(now, &[("a", 1), ("b", 2)])).await;

    // A store that has never seen it good knows it by its status.
    drop(followed);
    let followed = site.open_plainly().listed().await;
    assert!(holds(&followed.now(), &[("b", 2)]), "nothing is known of a good version");
    assert!(!problems_of(&followed.now(), "a")[0].last_good_in_force);
    let status = |generation, value: serde_json::Value| {
        json!({ "lastAccepted": {
            "generation": generation, "spec": { "key": "com.A", "value": value },
        }})
    };
    site.set_status("a", status(version(&good).1, json!(1))).await;
    followed.until("by the status", |now| holds(now, &[("a", 1), ("b", 2)])).await;
    drop(followed);
    let followed = site.open_plainly().listed().await;
    let now = followed.now();
    assert!(holds(&now, &[("a", 1), ("b", 2)]));
    assert!(!now.get(&site.id("a")).expect("a rule").accepted);
    assert!(problems_of(&now, "a")[0].last_good_in_force);

    // What is known from memory goes before what a status says, which anybody may write.
    site.set_status("a", status(version(&good).1, json!(7))).await;
    site.set("b", 3).await;
    followed.until("the next change", |now| holds(now, &[("a", 1), ("b", 3)])).await;

    // Mended.
    site.merge("a", json!({ "spec": { "value": 4 } })).await;
    followed.until("it is mended", |now| holds(now, &[("a", 4), ("b", 3)])).await;
    let now = followed.now();
    assert!(now.get(&site.id("a")).expect("a rule").accepted);
    assert!(now.problems.is_empty(), "{:?}", now.problems);
}

#[tokio::test]
async fn a_status_is_written_for_the_object_that_was_seen_alone() {
    let site = Site::new(&Cluster::shared().await.expect("server"), "status").await;
    site.rule("a", 1).await;
    let followed = site.open_plainly().listed().await;
    let store = &followed.store;
    store.write_status(site.id("a"), json!({ "matched": 1 })).await.expect("written");
    // Fields of others stay. Until their write is seen, ours is refused.
    site.set_status("a", json!({ "theirs": true })).await;
    let id = site.id("a");
    eventually("theirs is seen", async || {
        store.read_status(id.clone()).await.expect("read")
            == Some(json!({ "matched": 1, "theirs": true }))
    })
    .await;
    store.write_status(site.id("a"), json!({ "matched": 2 })).await.expect("written");
    store.write_status(site.id("a"), json!({ "matched": 3 })).await.expect("at once again");
    let status = site.api().get("a").await.expect("found").data["status"].clone();
    assert_eq!(status, json!({ "matched": 3, "theirs": true }));

    followed.freeze().await;
    site.remove("a").await;
    site.rule("a", 1).await;
    let refused = store.write_status(site.id("a"), json!({ "matched": 4 })).await;
    assert_eq!(refused.expect_err("another object").code(), Code::StoreConflict);
    let object = site.api().get("a").await.expect("found");
    assert!(object.data.get("status").is_none(), "{:?}", object.data);
}
