//! The client.

use std::{fs, time::Duration};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, ObjectMeta, PostParams, WatchParams},
};
use rulecast_kube_tests::{Cluster, Proxy};
use tokio::time::timeout;

use crate::{connect, eventually};

/// In this time a dead connection must be noticed.
const NOTICED: Duration = Duration::from_secs(30);
/// In this time changed files must be followed.
const FOLLOWED: Duration = Duration::from_secs(15);

fn named(name: &str) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    ConfigMap { metadata, ..ConfigMap::default() }
}

async fn lists(api: &Api<ConfigMap>) -> bool {
    api.list(&ListParams::default()).await.is_ok()
}

#[tokio::test]
async fn requests_share_a_connection_and_say_who_asks() {
    let cluster = Cluster::shared().await.expect("server");
    let proxy = Proxy::start(cluster.addr()).await.expect("proxy");
    let client = connect(&cluster.kubeconfig_via(&proxy)).await;
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let all = (0..50).map(|_| lists(&api));
    assert!(futures_util::future::join_all(all).await.into_iter().all(|ok| ok));
    assert!(lists(&api).await);
    // The first requests may each have begun to connect before it was known to be HTTP/2.
    assert!(proxy.open() <= 2, "{} connections", proxy.open());

    let namespace = cluster.namespace("agent").await.expect("namespace");
    let api: Api<ConfigMap> = Api::namespaced(connect(&cluster.kubeconfig()).await, &namespace);
    // Nobody manages what has no fields.
    let data = Some([("key".to_owned(), "value".to_owned())].into());
    let object = ConfigMap { data, ..named("mine") };
    let made = api.create(&PostParams::default(), &object).await.expect("created");
    // The server takes the manager's name from the user agent, up to the first slash.
    let managers = made.metadata.managed_fields.unwrap_or_default();
    assert_eq!(managers[0].manager.as_deref(), Some("rulecast"));
}

#[tokio::test]
async fn a_stalled_connection_is_noticed_and_the_next_one_works() {
    let cluster = Cluster::shared().await.expect("server");
    let namespace = cluster.namespace("stall").await.expect("namespace");
    let proxy = Proxy::start(cluster.addr()).await.expect("proxy");
    let client = connect(&cluster.kubeconfig_via(&proxy)).await;
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let version = api.list(&ListParams::default()).await.expect("a list").metadata.resource_version;
    let version = version.expect("a version");
    let watch = api.watch(&WatchParams::default(), &version).await.expect("a watch");
    let mut watch = watch.boxed();
    api.create(&PostParams::default(), &named("first")).await.expect("created");
    let event = timeout(NOTICED, watch.next()).await.expect("an event").expect("one more");
    event.expect("a good one");

    proxy.stall(true);
    let (watch_end, list_end) = tokio::join!(
        timeout(NOTICED, async { while let Some(Ok(_)) = watch.next().await {} }),
        timeout(NOTICED, lists(&api)),
    );
    watch_end.expect("the watch ends");
    assert!(!list_end.expect("the list ends"), "nothing came through");
    // A new connection comes no further.
    let list = timeout(NOTICED, lists(&api)).await;
    assert!(!list.expect("the list ends"), "nothing came through");

    proxy.stall(false);
    eventually("works again", NOTICED, || lists(&api)).await;
    let watch = api.watch(&WatchParams::default(), &version).await.expect("a watch");
    let event = timeout(NOTICED, watch.boxed().next()).await.expect("an event");
    event.expect("one more").expect("a good one");
}

#[tokio::test]
async fn a_cut_connection_ends_the_watch_at_once_and_the_next_request_works() {
    let cluster = Cluster::shared().await.expect("server");
    let proxy = Proxy::start(cluster.addr()).await.expect("proxy");
    let client = connect(&cluster.kubeconfig_via(&proxy)).await;
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let version = api.list(&ListParams::default()).await.expect("a list").metadata.resource_version;
    let version = version.expect("a version");
    let mut watch = api.watch(&WatchParams::default(), &version).await.expect("a watch").boxed();
    proxy.cut();
    let end =
        timeout(Duration::from_secs(5), async { while let Some(Ok(_)) = watch.next().await {} });
    end.await.expect("the watch ends");
    eventually("works again", Duration::from_secs(5), || lists(&api)).await;
}

#[tokio::test]
async fn a_server_that_refuses_connections_is_an_error_at_once() {
    let cluster = Cluster::shared().await.expect("server");
    let proxy = Proxy::start(cluster.addr()).await.expect("proxy");
    proxy.refuse(true);
    let client = connect(&cluster.kubeconfig_via(&proxy)).await;
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let answer = timeout(Duration::from_secs(5), api.list(&ListParams::default())).await;
    answer.expect("an answer at once").expect_err("nobody is there");
    proxy.refuse(false);
    assert!(lists(&api).await, "the same client works when the server is there");
}

/// An error by its HTTP status.
fn status(answer: kube::Result<impl Sized>) -> u16 {
    match answer {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("an answer, not {error}"),
    }
}

#[tokio::test]
async fn a_refused_token_is_read_again_at_once() {
    let cluster = Cluster::shared().await.expect("server");
    let namespace = cluster.namespace("token").await.expect("namespace");
    let kubeconfig = cluster.kubeconfig_for(&namespace, "reader").await.expect("kubeconfig");
    let token = kubeconfig.with_file_name("token");
    let good = fs::read_to_string(&token).expect("a token");
    fs::write(&token, "expired\n").expect("written");
    let api: Api<ConfigMap> = Api::namespaced(connect(&kubeconfig).await, &namespace);
    let list = async || status(api.list(&ListParams::default()).await);
    assert_eq!(list().await, 401);
    // A token ends with its line in many a file.
    fs::write(&token, format!("{good}\n")).expect("written");
    assert_eq!(list().await, 403, "known, but without rights, by the very next request");
}

#[tokio::test]
async fn a_new_token_is_followed_though_the_old_one_still_serves() {
    let cluster = Cluster::shared().await.expect("server");
    let namespace = cluster.namespace("token").await.expect("namespace");
    let kubeconfig = cluster.kubeconfig_for(&namespace, "one").await.expect("kubeconfig");
    let other = cluster.kubeconfig_for(&namespace, "two").await.expect("kubeconfig");
    let api: Api<ConfigMap> = Api::namespaced(connect(&kubeconfig).await, &namespace);
    let list = async || api.list(&ListParams::default()).await;
    let refused = list().await.expect_err("no rights").to_string();
    assert!(refused.contains(&format!("{}:one", &*namespace)), "{refused}");
    fs::rename(other.with_file_name("token"), kubeconfig.with_file_name("token")).expect("put");
    eventually("goes by the new token", FOLLOWED, || async {
        let refused = list().await.expect_err("no rights").to_string();
        refused.contains(&format!("{}:two", &*namespace))
    })
    .await;

    // A file that is gone or empty changes nothing.
    fs::write(kubeconfig.with_file_name("token"), "").expect("written");
    let refused = list().await.expect_err("no rights").to_string();
    assert!(refused.contains(&format!("{}:two", &*namespace)), "{refused}");
}

#[tokio::test]
async fn a_refused_plugin_is_asked_again() {
    let cluster = Cluster::shared().await.expect("server");
    let namespace = cluster.namespace("plugin").await.expect("namespace");
    let filed = cluster.kubeconfig_for(&namespace, "reader").await.expect("kubeconfig");
    let good = fs::read_to_string(filed.with_file_name("token")).expect("a token");
    let folder = tempfile::tempdir().expect("folder");
    let credential = folder.path().join("credential");
    let put = |token: &str| {
        let text = serde_json::json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": { "token": token },
        });
        fs::write(&credential, text.to_string()).expect("written");
    };
    put("expired");
    let kubeconfig = folder.path().join("kubeconfig");
    let text = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "it" } }],
        "clusters": [{ "name": "it", "cluster": {
            "server": cluster.url(), "certificate-authority": cluster.ca_file(),
        } }],
        "users": [{ "name": "it", "user": { "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "cat", "args": [credential], "interactiveMode": "Never",
        } } }],
    });
    fs::write(&kubeconfig, text.to_string()).expect("written");
    let api: Api<ConfigMap> = Api::namespaced(connect(&kubeconfig).await, &namespace);
    let list = async || status(api.list(&ListParams::default()).await);
    assert_eq!(list().await, 401);
    put(&good);
    eventually("goes by the new token", FOLLOWED, || async { list().await == 403 }).await;
}

#[tokio::test]
async fn private_a_new_authority_of_the_server_is_followed() {
    let cluster = Cluster::start().await.expect("server");
    let proxy = Proxy::start(cluster.addr()).await.expect("proxy");
    let client = connect(&cluster.kubeconfig_via(&proxy)).await;
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    assert!(lists(&api).await);
    let old = fs::read(cluster.ca_file()).expect("the authority");
    cluster.rotate_serving_ca().await.expect("rotated");
    assert_ne!(fs::read(cluster.ca_file()).expect("the authority"), old);
    // The first request that meets the new certificate looks at the file, and goes out again.
    eventually("works again", Duration::from_secs(5), || lists(&api)).await;

    cluster.restart_api_server().await.expect("restarted");
    eventually("works again", Duration::from_secs(5), || lists(&api)).await;
}

#[tokio::test]
async fn a_watch_goes_on_over_a_change_of_the_files() {
    let cluster = Cluster::shared().await.expect("server");
    let namespace = cluster.namespace("goes-on").await.expect("namespace");
    let proxy = Proxy::start(cluster.addr()).await.expect("proxy");
    let kubeconfig = cluster.kubeconfig_via(&proxy);
    let api: Api<ConfigMap> = Api::namespaced(connect(&kubeconfig).await, &namespace);
    let version = api.list(&ListParams::default()).await.expect("a list").metadata.resource_version;
    let version = version.expect("a version");
    let mut watch = api.watch(&WatchParams::default(), &version).await.expect("a watch").boxed();
    let before = proxy.accepted();
    let text = fs::read_to_string(&kubeconfig).expect("a kubeconfig");
    fs::write(&kubeconfig, format!("{text}\n")).expect("written");
    eventually("takes a new connection", FOLLOWED, || async {
        assert!(lists(&api).await);
        proxy.accepted() > before
    })
    .await;
    api.create(&PostParams::default(), &named("late")).await.expect("created");
    let event = timeout(NOTICED, watch.next()).await.expect("an event");
    event.expect("the watch has not ended").expect("a good one");
}
