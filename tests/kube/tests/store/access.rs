//! Who may read, and as whom.

use rulecast_api::Code;
use rulecast_dds::{
    index::Snapshot,
    store::{Expected, Store as _, StoreError, conformance::resource_of},
};
use rulecast_kube_tests::{Cluster, Proxy};
use serde_json::json;

use crate::{
    gaps::connect,
    site::{Site, eventually, holds},
};

/// The rights that docs/kubernetes.md lists for reading rules and writing their status.
async fn allow(site: &Site, account: &str) {
    let (group, _) = site.kind.api_version.split_once('/').expect("a version");
    let name = format!("{}-{account}", site.namespace);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": name },
        "rules": [
            { "apiGroups": [group], "resources": ["probes"], "verbs": ["list", "watch"] },
            { "apiGroups": [group], "resources": ["probes/status"], "verbs": ["patch"] },
            { "apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"],
              "resourceNames": ["kube-system"] },
            { "apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
              "verbs": ["get"], "resourceNames": [site.crd_name()] },
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [
            { "kind": "ServiceAccount", "name": account, "namespace": site.namespace.name() },
        ],
    });
    for object in [role, binding] {
        let applied = site.cluster.kubectl_with(&["apply", "-f", "-"], &object.to_string()).await;
        let applied = applied.expect("kubectl");
        assert!(applied.status.success(), "{applied:?}");
    }
}

#[tokio::test]
async fn what_is_forbidden_is_told_and_begins_to_work_once_it_is_allowed() {
    let cluster = Cluster::shared().await.expect("server");
    let site = Site::new(&cluster, "rbac").await;
    site.rule("a", 1).await;
    let kubeconfig = cluster.kubeconfig_for(&site.namespace, "plane").await.expect("account");
    let followed = site.open(connect(&kubeconfig).await);
    let told = |now: &Snapshot, text: &str| {
        let down = now.down.as_ref().filter(|problem| problem.code == Code::StoreForbidden);
        down.is_some_and(|problem| problem.to_string().contains(text))
    };
    followed
        .until("what is forbidden", |now| told(now, "get namespaces kube-system is forbidden"))
        .await;
    assert!(!followed.now().listed);

    allow(&site, "plane").await;
    let followed = followed.listed().await;
    assert!(holds(&followed.now(), &[("a", 1)]));
    // All that a plane does works with these rights, a removal too.
    let status = json!({ "matched": 1 });
    followed.store.write_status(site.id("a"), status.clone()).await.expect("status");
    assert_eq!(followed.store.read_status(site.id("a")).await.expect("read"), Some(status));
    site.rule("b", 1).await;
    site.remove("a").await;
    followed.until("the changes", |now| holds(now, &[("b", 1)])).await;

    // Writes of rules are not among them.
    let rule = resource_of(site.kind, "b", &site.namespace, "com.A", 2);
    let refused = followed.store.put(rule, Expected::Any).await.expect_err("forbidden");
    assert_eq!(refused.code(), Code::StoreForbidden);
    let StoreError::Forbidden { verb, resource, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*verb, "get");
    assert_eq!(*resource, format!("{} {}/b", site.crd_name(), site.namespace));
    let refused = followed.store.delete(site.id("b"), Expected::Any).await;
    assert_eq!(refused.expect_err("forbidden").code(), Code::StoreForbidden);
}

#[tokio::test]
async fn a_token_that_is_replaced_on_disk_is_followed() {
    let cluster = Cluster::shared().await.expect("server");
    let site = Site::new(&cluster, "token").await;
    let proxy = Proxy::start(cluster.addr()).await.expect("proxy");
    site.rule("a", 1).await;
    let kubeconfig = cluster.kubeconfig_for(&site.namespace, "plane").await.expect("account");
    allow(&site, "plane").await;
    let via = cluster.kubeconfig_through(&kubeconfig, &proxy);
    let followed = site.open(connect(&via).await).listed().await;

    // An account made anew: tokens of the old one are no good any more.
    let account = ["serviceaccount", "plane", "--namespace", &site.namespace];
    for verb in ["delete", "create"] {
        let done = cluster.kubectl(&[&[verb][..], &account].concat()).await.expect("kubectl");
        assert!(done.status.success(), "{done:?}");
    }
    // The server remembers a good token for some seconds.
    eventually("the old token is refused", async || {
        proxy.cut();
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        followed.now().down.as_ref().is_some_and(|problem| problem.code == Code::StoreForbidden)
    })
    .await;
    site.set("a", 2).await;
    assert!(holds(&followed.now(), &[("a", 1)]));
    cluster.renew_token(&kubeconfig, &site.namespace, "plane").await.expect("renewed");
    followed.until("the new token", |now| now.down.is_none() && holds(now, &[("a", 2)])).await;
}

#[tokio::test]
async fn a_write_that_the_schema_refuses_says_why() {
    let site = Site::new(&Cluster::shared().await.expect("server"), "refused").await;
    let followed = site.open_plainly().listed().await;
    let mut rule = resource_of(site.kind, "a", &site.namespace, "com.A", 1);
    rule.labels.insert("no label".into(), "x".into());
    let refused = followed.store.put(rule, Expected::Any).await.expect_err("a bad label");
    let StoreError::Invalid { id, reason } = &refused else { panic!("{refused}") };
    assert!(*id == site.id("a") && reason.contains("no label"), "{reason}");
    let nobody = followed.store.write_status(site.id("a"), json!({ "matched": 1 })).await;
    assert_eq!(nobody.expect_err("there is none").code(), Code::StoreConflict);
}
