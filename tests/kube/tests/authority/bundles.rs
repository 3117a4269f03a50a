//! The trust bundle in every namespace.

use std::{collections::BTreeMap, net::SocketAddr};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace, Pod, ResourceQuota},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use rulecast_ca::kubernetes::{BundlesConfig, KubernetesCa, webhook::WebhookConfig};
use serde_json::json;

use crate::site::{Ca, SECRET, Site, TRUST_DOMAIN, pod, pods, until};

const BUNDLE: &str = "rulecast-trust-bundle";

fn maps(site: &Site, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(site.cluster.client(), namespace)
}

async fn bundle(site: &Site, namespace: &str) -> Option<ConfigMap> {
    maps(site, namespace).get_opt(BUNDLE).await.expect("an answer")
}

fn replica(site: &Site, identity: &str) -> KubernetesCa {
    let mut config = site.config();
    config.bundles = Some(site.bundles());
    config.identity = identity.into();
    config
}

/// Waits for a bundle that is as it should be.
async fn good(site: &Site, namespace: &str) -> ConfigMap {
    let root = site.part("root.pem").await;
    until(&format!("the bundle of {namespace}"), async || {
        let map = bundle(site, namespace).await?;
        let data = map.data.clone().unwrap_or_default();
        let right = data.get("ca.crt") == Some(&root)
            && data.get("trust-domain").is_some_and(|domain| domain == TRUST_DOMAIN)
            && map.metadata.labels.as_ref().is_some_and(|labels| {
                labels.get("app.kubernetes.io/managed-by").is_some_and(|who| who == "rulecast")
            });
        right.then_some(map)
    })
    .await
}

#[tokio::test]
async fn every_namespace_gets_it_old_and_new() {
    let site = Site::new().await;
    let old = site.labelled().await;
    let ending = site.labelled().await;
    let namespaces: Api<Namespace> = Api::all(site.cluster.client());
    // Without a controller manager it stays Terminating.
    namespaces.delete(&ending, &DeleteParams::default()).await.expect("deleted");
    let skipped = site.labelled().await;
    let mut config = replica(&site, "replica-0");
    let mut bundles = site.bundles();
    bundles.skip.push(skipped.name().into());
    config.bundles = Some(bundles);
    let ca = Ca::start(config).await;
    let map = good(&site, &old).await;
    let managers: Vec<_> = map.metadata.managed_fields.unwrap_or_default();
    assert!(managers.iter().all(|m| m.manager.as_deref() == Some("rulecast-ca")), "{managers:?}");
    let new = site.labelled().await;
    good(&site, &new).await;
    // What came after them has it: these were passed over.
    for without in [&ending, &skipped, &site.namespace] {
        assert_eq!(bundle(&site, without).await, None, "{}", without.name());
    }
    assert_eq!(ca.metric("rulecast_ca_trust_bundles_failing").await, 0);
    ca.stop().await;
}

#[test]
fn system_namespaces_are_not_for_us() {
    let config = BundlesConfig::default();
    assert_eq!(config.skip, ["kube-system", "kube-public", "kube-node-lease"]);
    assert_eq!(config.selector, None);
}

#[tokio::test]
async fn what_others_do_to_it_is_undone() {
    let site = Site::new().await;
    let namespace = site.labelled().await;
    let ca = Ca::start(replica(&site, "replica-0")).await;
    good(&site, &namespace).await;
    let maps = maps(&site, &namespace);
    let params = PatchParams::default();
    for spoil in [
        json!({"data": {"ca.crt": "-----BEGIN CERTIFICATE-----"}}),
        json!({"data": {"ca.crt": null}}),
        json!({"data": {"trust-domain": "evil.test"}}),
        json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "somebody"}}}),
    ] {
        maps.patch(BUNDLE, &params, &Patch::Merge(&spoil)).await.expect("spoiled");
        good(&site, &namespace).await;
    }
    maps.delete(BUNDLE, &DeleteParams::default()).await.expect("deleted");
    let repaired = good(&site, &namespace).await;

    // What is not ours stays, and is no reason to write.
    let more = json!({"data": {"more": "x"}, "metadata": {"annotations": {"a": "b"}}});
    let marked = maps.patch(BUNDLE, &params, &Patch::Merge(more)).await.expect("marked");
    assert_ne!(marked.metadata.resource_version, repaired.metadata.resource_version);
    // Another one that is written later shows that this one was seen.
    good(&site, &site.labelled().await).await;
    let kept = bundle(&site, &namespace).await.expect("there");
    assert_eq!(kept.metadata.resource_version, marked.metadata.resource_version);
    ca.stop().await;
}

#[tokio::test]
async fn one_namespace_that_fails_stops_no_other() {
    let site = Site::new().await;
    let failing = site.labelled().await;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": failing.name()},
        "spec": {"hard": {"count/configmaps": "0"}},
    });
    let made = site.cluster.kubectl_with(&["create", "-f", "-"], &quota.to_string()).await;
    made.expect("kubectl").success().expect("a quota");
    // There is no controller manager to say what is used.
    let none = json!({"count/configmaps": "0"});
    let status = Patch::Merge(json!({"status": {"hard": none, "used": none}}));
    let quotas: Api<ResourceQuota> = Api::namespaced(site.cluster.client(), &failing);
    quotas.patch_status("none", &PatchParams::default(), &status).await.expect("a status");
    until("the quota in force", async || {
        let mut map = ConfigMap::default();
        map.metadata.generate_name = Some("try-".into());
        maps(&site, &failing).create(&PostParams::default(), &map).await.err()
    })
    .await;
    let mut others = Vec::new();
    for _ in 0..12 {
        others.push(site.labelled().await);
    }
    let ca = Ca::start(replica(&site, "replica-0")).await;
    for other in &others {
        good(&site, other).await;
    }
    until("a failure that is told", async || {
        let told = ca.metric("rulecast_ca_trust_bundles_failing").await;
        (told == 1).then_some(())
    })
    .await;
    assert_eq!(bundle(&site, &failing).await, None);
    assert!(ca.page("/readyz").await.expect("a page").starts_with("HTTP/1.1 200"));

    let delete = ["delete", "resourcequota", "none", "-n", failing.name()];
    site.cluster.kubectl(&delete).await.expect("kubectl").success().expect("deleted");
    good(&site, &failing).await;
    until("the end of the failure", async || {
        (ca.metric("rulecast_ca_trust_bundles_failing").await == 0).then_some(())
    })
    .await;
    ca.stop().await;
}

#[tokio::test]
async fn another_replica_leads_when_the_leader_goes() {
    let site = Site::new().await;
    let namespace = site.labelled().await;
    let mut replicas = BTreeMap::new();
    for name in ["replica-0", "replica-1"] {
        replicas.insert(name.to_owned(), Ca::start(replica(&site, name)).await);
    }
    let before = good(&site, &namespace).await;
    let leases: Api<Lease> = Api::namespaced(site.cluster.client(), &site.namespace);
    let holder = async || {
        let lease = leases.get_opt("rulecast-ca").await.expect("an answer")?;
        lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty())
    };
    let first = until("a leader", &holder).await;
    replicas.remove(&first).expect("one of ours").stop().await;
    let second =
        until("another leader", async || holder().await.filter(|holder| *holder != first)).await;
    assert!(replicas.contains_key(&second));
    good(&site, &site.labelled().await).await;
    // The new leader found it as it should be.
    let after = bundle(&site, &namespace).await.expect("there");
    assert_eq!(after.metadata.resource_version, before.metadata.resource_version);
}

/// A configuration by which the API server calls `ca` for pods of this namespace.
async fn configuration(site: &Site, namespace: &str, listen: SocketAddr) {
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": site.namespace.name()},
        "webhooks": [{
            "name": "inject.rulecast.io",
            "clientConfig": {"url": format!("https://{listen}/inject")},
            "namespaceSelector": {"matchLabels": {"only": namespace}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                       "resources": ["pods"]}],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }],
    });
    let arguments = ["create", "-f", "-"];
    let made = site.cluster.kubectl_with(&arguments, &configuration.to_string()).await;
    made.expect("kubectl").success().expect("a configuration");
    let label = format!("only={namespace}");
    let labelled = site.cluster.kubectl(&["label", "namespace", namespace, &label]).await;
    labelled.expect("kubectl").success().expect("labelled");
}

/// Waits until a pod of the namespace is given the authority's address by our webhook.
async fn injected(site: &Site, namespace: &str) {
    let pod = json!({
        "metadata": {"generateName": "web-", "labels": {"rulecast.io/inject": "true"}},
        "spec": {
            "serviceAccountName": "default",
            "containers": [{"name": "main", "image": "none.invalid/none"}],
        },
    });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    until("trust in a pod", async || {
        let made = pods(&site.cluster, namespace).create(&PostParams::default(), &pod).await;
        let spec = made.ok()?.spec?;
        let env = spec.containers.into_iter().next()?.env?;
        env.into_iter().find(|env| env.name == "RULECAST_CA_ADDRESS")
    })
    .await;
}

#[tokio::test]
async fn another_root_goes_to_namespaces_pods_and_the_webhook() {
    let site = Site::new().await;
    let namespace = site.labelled().await;
    let mut config = replica(&site, "replica-0");
    let mut webhook = WebhookConfig::in_namespace(&site.namespace);
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    webhook.listen = free.local_addr().expect("bound");
    drop(free);
    webhook.hosts = vec!["127.0.0.1".into()];
    webhook.configuration = site.namespace.name().into();
    configuration(&site, &namespace, webhook.listen).await;
    config.webhook = Some(webhook);
    let ca = Ca::start(config).await;
    let before = good(&site, &namespace).await;
    injected(&site, &namespace).await;
    let web = pod(&site.cluster, &site.namespace, "web-0", "web", None).await;
    let token = site.token(&web).await;
    let joined = site.join(&ca, &token).await.expect("joined");

    let other = rulecast_ca::authority::Parts::generate(TRUST_DOMAIN).expect("made");
    let data = json!({"stringData": {
        "root.pem": *other.root,
        "root.key": *other.root_key.expect("a key"),
        "intermediate.pem": *other.intermediate,
    }});
    let patch = Patch::Merge(data);
    site.secrets().patch(SECRET, &PatchParams::default(), &patch).await.expect("replaced");
    // The next look is within half a minute.
    let after = good(&site, &namespace).await;
    assert_ne!(after.data, before.data);
    let anew = until("the new root", async || site.join(&ca, &token).await.ok()).await;
    assert_ne!(anew.bundle.roots(), joined.bundle.roots());
    assert_eq!(anew.bundle.roots(), site.roots().await);
    injected(&site, &namespace).await;
    ca.stop().await;
}
