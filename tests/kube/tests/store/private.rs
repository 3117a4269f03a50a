//! What a server of one's own bears: restarts, lost history, storage set back.

use std::{path::Path, time::Duration};

use rulecast_dds::store::Event;
use rulecast_kube_tests::Cluster;

use crate::{
    gaps::connect,
    site::{Site, holds},
};

/// A server that starts on a busy machine.
const START: Duration = Duration::from_secs(60);

#[tokio::test]
async fn private_restarts_and_rotation() {
    let cluster = Cluster::start().await.expect("server");
    let site = Site::new(&cluster, "restart").await;
    site.rule("a", 1).await;
    site.rule("gone", 1).await;
    let followed = site.open(connect(&cluster.kubeconfig()).await).listed().await;
    let lineage = followed.now().lineage.clone();

    // The API server is away, comes back, and something changes at once.
    cluster.stop_api_server().await.expect("stopped");
    followed.until("API server away: down", |now| now.down.is_some()).await;
    assert_eq!(followed.now().len(), 2, "API server away: the rules stay");
    cluster.start_api_server().await.expect("started");
    site.set("a", 2).await;
    site.remove("gone").await;
    followed
        .until_within(START, "API server back", |now| now.down.is_none() && holds(now, &[("a", 2)]))
        .await;

    // etcd restarts under it.
    cluster.kill_etcd().await.expect("killed");
    cluster.start_etcd().await.expect("started");
    cluster.ready().await.expect("ready");
    site.set("a", 3).await;
    followed
        .until_within(START, "etcd back", |now| now.down.is_none() && holds(now, &[("a", 3)]))
        .await;

    // The server's certificate is of another authority.
    followed.told();
    cluster.rotate_serving_ca().await.expect("rotated");
    site.set("a", 4).await;
    followed
        .until_within(START, "new CA", |now| now.down.is_none() && holds(now, &[("a", 4)]))
        .await;
    let now = followed.now();
    assert_eq!(now.lineage, lineage, "nothing was set back");
    let told = followed.told();
    assert!(!told.iter().any(|event| matches!(event, Event::Lineage(_) | Event::Remove { .. })));
}

#[tokio::test]
async fn private_history_is_compacted() {
    // Without the server's own memory, watches read etcd, and history ends where etcd says.
    let cluster = Cluster::start_with(&["--watch-cache=false"]).await.expect("server");
    let site = Site::new(&cluster, "compact").await;
    let proxy = rulecast_kube_tests::Proxy::start(cluster.addr()).await.expect("proxy");
    for (name, value) in [("changed", 1), ("gone", 1), ("same", 1)] {
        site.rule(name, value).await;
    }
    let followed = site.open(connect(&cluster.kubeconfig_via(&proxy)).await).listed().await;
    proxy.refuse(true);
    proxy.cut();
    site.set("changed", 2).await;
    site.remove("gone").await;
    site.rule("new", 1).await;
    cluster.compact_etcd().await.expect("compacted");
    followed.told();
    proxy.refuse(false);
    followed
        .until("after the compaction", |now| holds(now, &[("changed", 2), ("new", 1), ("same", 1)]))
        .await;
    let told = followed.told();
    let changes =
        told.iter().filter(|event| matches!(event, Event::Upsert(_) | Event::Remove { .. }));
    assert_eq!(changes.count(), 3, "{told:?}");
    site.set("same", 2).await;
    followed
        .until("later changes", |now| holds(now, &[("changed", 2), ("new", 1), ("same", 2)]))
        .await;
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("the folder can be read") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("copied");
        }
    }
}

#[tokio::test]
async fn private_storage_is_set_back() {
    let cluster = Cluster::start().await.expect("server");
    let site = Site::new(&cluster, "back").await;
    site.rule("a", 1).await;
    site.rule("same", 1).await;
    let data = cluster.folder().join("etcd");
    let backup = cluster.folder().join("etcd-backup");
    cluster.stop_api_server().await.expect("stopped");
    cluster.kill_etcd().await.expect("killed");
    copy(&data, &backup);
    cluster.start_etcd().await.expect("started");
    cluster.start_api_server().await.expect("started");

    let followed = site.open(connect(&cluster.kubeconfig()).await).listed().await;
    let before = followed.now();
    for value in 2..=150 {
        site.set("a", value).await;
    }
    site.rule("new", 1).await;
    followed
        .until("the last changes", |now| holds(now, &[("a", 150), ("new", 1), ("same", 1)]))
        .await;
    let high = followed.now().revision;

    cluster.stop_api_server().await.expect("stopped");
    cluster.kill_etcd().await.expect("killed");
    std::fs::remove_dir_all(&data).expect("removed");
    copy(&backup, &data);
    cluster.start_etcd().await.expect("started");
    cluster.start_api_server().await.expect("started");
    followed
        .until_within(START, "the backup", |now| {
            now.down.is_none() && holds(now, &[("a", 1), ("same", 1)])
        })
        .await;
    let now = followed.now();
    assert_ne!(now.lineage, before.lineage, "a new history");
    assert!(now.lineage.starts_with(&*before.lineage), "of the same cluster: {}", now.lineage);
    assert!(now.revision < high, "{} {high}", now.revision);
    // And on from there, though the revisions are lower than those seen before.
    site.set("a", 100).await;
    followed.until("later changes", |now| holds(now, &[("a", 100), ("same", 1)])).await;
}
