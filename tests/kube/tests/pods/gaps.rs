//! What the watch of pods does not tell: pods that are too fresh, and what happens while the
//! API server is away.

use rulecast_api::Code;
use rulecast_cluster::ClusterConfig;
use rulecast_kube_tests::{Cluster, Proxy};
use serde_json::json;

use crate::{
    authority::{delete, pod},
    plane::{Plane, label},
};

fn config(kubeconfig: std::path::PathBuf) -> ClusterConfig {
    ClusterConfig { kubeconfig: Some(kubeconfig), context: None }
}

/// What the service account `plane` of a namespace may do with pods, in all namespaces.
async fn allow(cluster: &Cluster, namespace: &str, verbs: &[&str]) {
    let rbac = "rbac.authorization.k8s.io";
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole",
         "metadata": {"name": namespace},
         "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]},
        {"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding",
         "metadata": {"name": namespace},
         "subjects": [{"kind": "ServiceAccount", "name": "plane", "namespace": namespace}],
         "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": namespace}},
    ]});
    let applied = cluster.kubectl_with(&["apply", "-f", "-"], &objects.to_string()).await;
    applied.expect("kubectl").success().expect("roles");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_the_watch_does_not_know_is_asked_about() {
    let cluster = Cluster::shared().await.expect("server");
    let namespace = cluster.namespace("fresh").await.expect("namespace");
    let account = cluster.kubeconfig_for(&namespace, "plane").await.expect("kubeconfig");
    allow(&cluster, &namespace, &["get", "list", "watch"]).await;
    let proxy = Proxy::start(cluster.addr()).await.expect("a proxy");
    let plane = Plane::start(&config(cluster.kubeconfig_through(&account, &proxy))).await;
    let old = pod(&cluster, &namespace, "old", "web", Some("node-a")).await;
    let mut old_stream = plane.stream(&old, &[]);
    assert_eq!(old_stream.rules().await, ["all"]);
    // From here on the plane may not watch any more, and only asks.
    allow(&cluster, &namespace, &["get"]).await;
    proxy.cut();
    plane.informed("a problem", |informed| informed.problem.is_some()).await;
    let fresh = pod(&cluster, &namespace, "fresh", "web", Some("node-a")).await;
    label(&cluster, &fresh, "canary").await;
    let mut stream = plane.stream(&fresh, &[]);
    assert_eq!(stream.rules().await, ["all", "canary"]);
    // A certificate of a pod that has been replaced by another one of its name.
    let replaced = pod(&cluster, &namespace, "replaced", "web", Some("node-a")).await;
    delete(&cluster, &replaced, 0).await;
    pod(&cluster, &namespace, "replaced", "web", Some("node-a")).await;
    let end = plane.stream(&replaced, &[]).end().await;
    assert!(end.message().starts_with(Code::PodGone.as_str()), "{end}");
    // It may watch again: the next list makes up for all that was missed.
    label(&cluster, &old, "stable").await;
    delete(&cluster, &fresh, 0).await;
    assert!(old_stream.is_quiet().await);
    allow(&cluster, &namespace, &["get", "list", "watch"]).await;
    assert_eq!(old_stream.rules().await, ["all", "stable"]);
    let end = stream.end().await;
    assert!(end.message().starts_with(Code::PodGone.as_str()), "{end}");
    assert_eq!(plane.informed("health", |i| i.problem.is_none()).await.problem, None);
}

/// A server whose watches break with 410 when etcd has been compacted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_streams_stay_while_the_api_server_is_away_and_learn_what_they_missed() {
    let cluster = Cluster::start_with(&["--watch-cache=false"]).await.expect("server");
    let namespace = cluster.namespace("away").await.expect("namespace");
    // The accounts that the pods run as.
    cluster.token(&namespace, "web", "any", None, 600).await.expect("an account");
    let proxy = Proxy::start(cluster.addr()).await.expect("a proxy");
    let make = async |name| pod(&cluster, &namespace, name, "web", Some("node-a")).await;
    let (kept, moved, gone) = (make("kept").await, make("moved").await, make("gone").await);
    for pod in [&kept, &moved, &gone] {
        label(&cluster, pod, "stable").await;
    }
    let plane = Plane::start(&config(cluster.kubeconfig_via(&proxy))).await;
    let mut streams = [&kept, &moved, &gone].map(|pod| plane.stream(pod, &[]));
    for stream in &mut streams {
        assert_eq!(stream.rules().await, ["all", "stable"]);
    }
    let [kept_stream, moved_stream, gone_stream] = &mut streams;

    proxy.refuse(true);
    proxy.cut();
    plane.informed("a problem", |informed| informed.problem.is_some()).await;
    label(&cluster, &moved, "canary").await;
    delete(&cluster, &gone, 0).await;
    cluster.compact_etcd().await.expect("compacted");
    for stream in [&mut *kept_stream, &mut *moved_stream, &mut *gone_stream] {
        assert!(stream.is_quiet().await, "what is known stays");
    }
    // Known pods are served; of others nothing is guessed.
    assert_eq!(plane.stream(&kept, &[]).rules().await, ["all", "stable"]);
    let fresh = make("fresh").await;
    let end = plane.stream(&fresh, &[]).end().await;
    assert_eq!(end.code(), tonic::Code::Unavailable, "{end}");
    assert!(end.message().starts_with(Code::PodUnknown.as_str()), "{end}");

    proxy.refuse(false);
    assert_eq!(moved_stream.rules().await, ["all", "canary"]);
    let end = gone_stream.end().await;
    assert!(end.message().starts_with(Code::PodGone.as_str()), "{end}");
    assert_eq!(plane.stream(&fresh, &[]).rules().await, ["all"]);
    assert!(kept_stream.is_quiet().await);

    // A restart alone moves nobody.
    cluster.restart_api_server().await.expect("restarted");
    label(&cluster, &kept, "canary").await;
    assert_eq!(kept_stream.rules().await, ["all", "canary"]);
    assert!(moved_stream.is_quiet().await);
}
