//! What a private server bears.

use std::{fs, path::Path, time::Duration};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Error,
    api::{PostParams, WatchEvent, WatchParams},
};
use rulecast_kube_tests::Cluster;

use crate::shared::{client, config_map};

fn runs(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

#[tokio::test]
async fn private_server_keeps_its_objects() {
    let cluster = Cluster::start().await.expect("server");
    let namespace = cluster.namespace("kept").await.expect("namespace");
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), &namespace);
    let made = maps.create(&PostParams::default(), &config_map("one", "1")).await.expect("made");
    let before = cluster.process_ids().await.expect("ids");

    cluster.stop_api_server().await.expect("stopped");
    maps.get("one").await.expect_err("nobody answers");
    cluster.start_api_server().await.expect("started");
    assert_eq!(maps.get("one").await.expect("found").metadata.uid, made.metadata.uid);

    cluster.kill_etcd().await.expect("killed");
    let (post, map) = (PostParams::default(), config_map("two", "2"));
    let write = tokio::time::timeout(Duration::from_secs(2), maps.create(&post, &map)).await;
    assert!(!matches!(write, Ok(Ok(_))), "there is nowhere to write to");
    cluster.start_etcd().await.expect("started");
    cluster.ready().await.expect("ready");
    assert_eq!(maps.get("one").await.expect("found").metadata.uid, made.metadata.uid);
    maps.create(&PostParams::default(), &config_map("three", "3")).await.expect("written");

    cluster.restart_api_server().await.expect("restarted");
    maps.get("three").await.expect("found");
    let after = cluster.process_ids().await.expect("ids");
    assert_eq!(after.len(), 2);
    assert!(after.iter().all(|id| !before.contains(id)), "{before:?} {after:?}");
    assert!(before.iter().all(|&id| !runs(id)), "{before:?}");
}

#[tokio::test]
async fn private_server_ends_with_a_test_that_panics() {
    let cluster = Cluster::start().await.expect("server");
    let folder = cluster.folder().to_owned();
    let processes = cluster.process_ids().await.expect("ids");
    assert!(processes.iter().all(|&id| runs(id)));
    let test = tokio::spawn(async move {
        let _namespace = cluster.namespace("panics").await.expect("namespace");
        panic!("as tests do");
    });
    assert!(test.await.expect_err("it panicked").is_panic());
    assert!(processes.iter().all(|&id| !runs(id)), "{processes:?}");
    assert!(!folder.exists());
}

#[tokio::test]
async fn private_server_forgets_history() {
    let cluster = Cluster::start_with(&["--watch-cache=false"]).await.expect("server");
    let namespace = cluster.namespace("history").await.expect("namespace");
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), &namespace);
    let post = PostParams::default();
    let first = maps.create(&post, &config_map("one", "1")).await.expect("made");
    let second = maps.create(&post, &config_map("two", "2")).await.expect("made");
    let version = first.metadata.resource_version.expect("version");

    let watch = async || {
        let params = WatchParams::default().timeout(20);
        let events = maps.watch(&params, &version).await?;
        let mut events = std::pin::pin!(events);
        events.next().await.expect("an event")
    };
    match watch().await {
        Ok(WatchEvent::Added(map)) => assert_eq!(map.metadata.uid, second.metadata.uid),
        other => panic!("{other:?}"),
    }
    cluster.compact_etcd().await.expect("compacted");
    match watch().await {
        Ok(WatchEvent::Error(status)) => assert_eq!(status.code, 410, "{status:?}"),
        Err(Error::Api(status)) => assert_eq!(status.code, 410, "{status:?}"),
        other => panic!("{other:?}"),
    }
    maps.get("one").await.expect("what is now stays");
}

#[tokio::test]
async fn private_server_changes_its_authority() {
    let cluster = Cluster::start().await.expect("server");
    let namespace = cluster.namespace("rotation").await.expect("namespace");
    // One that keeps to the old authority's certificate.
    let old_ca = cluster.folder().join("old.crt");
    fs::write(&old_ca, cluster.ca_pem()).expect("written");
    let kubeconfig = fs::read_to_string(cluster.kubeconfig()).expect("kubeconfig");
    let ca_file = cluster.ca_file().display().to_string();
    let old_kubeconfig = cluster.folder().join("old-kubeconfig");
    let text = kubeconfig.replace(&ca_file, &old_ca.display().to_string());
    assert_ne!(text, kubeconfig);
    fs::write(&old_kubeconfig, text).expect("written");
    let list = async |client| {
        Api::<ConfigMap>::namespaced(client, &namespace).list(&Default::default()).await
    };
    list(client(&old_kubeconfig).await).await.expect("good until now");

    let (old_client, old_pem) = (cluster.client(), cluster.ca_pem());
    cluster.rotate_serving_ca().await.expect("rotated");
    assert_ne!(cluster.ca_pem(), old_pem);
    for client in [old_client, client(&old_kubeconfig).await] {
        let error = list(client).await.expect_err("another authority's");
        assert!(!matches!(error, Error::Api(_)), "refused before a request: {error:?}");
        assert!(format!("{error:?}").contains("UnknownIssuer"), "{error:?}");
    }
    list(cluster.client()).await.expect("the new one's");
    list(client(&cluster.kubeconfig()).await).await.expect("by the same file");
}
