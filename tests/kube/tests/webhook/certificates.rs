//! What the webhook shows, and what the API server verifies it by.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::StreamExt as _;
use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::site::{DEADLINE, Site, authority, eventually, from, pod, serving, variables};

const IN: (&str, &str) = ("rulecast.io/inject", "true");

impl Site {
    /// Waits until every webhook of the configuration has the current roots.
    async fn has_roots(&self) -> MutatingWebhookConfiguration {
        let roots = self.roots.borrow().clone();
        let api = self.configurations();
        eventually("the roots are in the configuration", async || {
            let found = api.get(&self.name).await.ok()?;
            let mut webhooks = found.webhooks.iter().flatten();
            let right = webhooks.all(|webhook| {
                let there = webhook.client_config.ca_bundle.as_ref();
                there.is_some_and(|there| there.0 == roots.as_bytes())
            });
            right.then_some(found)
        })
        .await
    }

    /// Waits until the API server goes by all configurations as they are stored now: it learns
    /// of them in order, and so of one that is made now after the others.
    async fn in_force(&self) {
        let namespace = self.cluster.namespace("sentinel").await.expect("a namespace");
        let labels = json!({ "metadata": { "labels": { "sentinel": &*namespace } } });
        let spaces = kube::Api::<k8s_openapi::api::core::v1::Namespace>::all(self.cluster.client());
        let merge = PatchParams::default();
        spaces.patch(&namespace, &merge, &Patch::Merge(labels)).await.expect("labelled");
        let sentinel: MutatingWebhookConfiguration = from(json!({
            "metadata": { "name": &*namespace },
            "webhooks": [{
                "name": "sentinel.rulecast.io",
                "clientConfig": { "url": "https://127.0.0.1:1/" },
                "namespaceSelector": { "matchLabels": { "sentinel": &*namespace } },
                "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                    "resources": ["pods"] }],
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }],
        }));
        let (api, post) = (self.configurations(), PostParams::default());
        api.create(&post, &sentinel).await.expect("a configuration");
        let dry = PostParams { dry_run: true, ..post };
        eventually("the sentinel is called", async || {
            self.pods(&namespace).create(&dry, &pod("probe")).await.err()
        })
        .await;
        api.delete(&namespace, &DeleteParams::default()).await.expect("deleted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_and_roots_change_while_pods_are_created() {
    let site = Site::start().await;
    let namespace = site.namespace(&[IN]).await;
    let (stop, made) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let creating = tokio::spawn({
        let (stop, made, pods) = (stop.clone(), made.clone(), site.pods(&namespace));
        let pod: Pod = from(json!({
            "metadata": { "generateName": "web-" },
            "spec": { "serviceAccountName": "default", "containers": [{ "name": "main", "image": "main:1" }] },
        }));
        async move {
            while !stop.is_cancelled() {
                let stored = pods.create(&PostParams::default(), &pod).await.expect("created");
                assert_eq!(variables(&stored, 0).len(), 7);
                made.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let more = async |what: &str| {
        let before = made.load(Ordering::SeqCst);
        eventually(what, async || {
            let failed = creating.is_finished();
            (failed || made.load(Ordering::SeqCst) > before + 5).then_some(())
        })
        .await;
    };
    more("pods before").await;
    let next = authority();
    let both = format!("{}{}", *site.roots.borrow(), next.roots_pem());
    site.roots.send_replace(both);
    site.has_roots().await;
    site.in_force().await;
    more("pods under both roots").await;
    let shown = serving(&next);
    site.certificate.replace(shown.chain, &shown.key).expect("fits");
    more("pods after the certificate").await;
    // From now on the first certificate is not trusted.
    site.roots.send_replace(next.roots_pem());
    site.has_roots().await;
    site.in_force().await;
    more("pods under the new root").await;
    stop.cancel();
    creating.await.expect("every pod was created, with trust");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_does_not_fit_changes_nothing() {
    let site = Site::start().await;
    let (one, other) = (serving(&authority()), serving(&authority()));
    site.certificate.replace(one.chain, &other.key).expect_err("another key");
    let namespace = site.namespace(&[IN]).await;
    site.create(&namespace, &pod("p")).await;
}

/// What is not the keeper's.
fn rest(configuration: &MutatingWebhookConfiguration) -> Value {
    let mut rest = json!(configuration);
    for webhook in rest["webhooks"].as_array_mut().expect("a list") {
        webhook["clientConfig"].as_object_mut().expect("an object").remove("caBundle");
    }
    let metadata = rest["metadata"].as_object_mut().expect("metadata");
    for mark in ["resourceVersion", "generation", "managedFields"] {
        metadata.remove(mark);
    }
    rest
}

#[tokio::test(flavor = "multi_thread")]
async fn spoilt_roots_are_repaired_and_nothing_else_is_touched() {
    let site = Site::start().await;
    let api = site.configurations();
    let before = site.has_roots().await;
    let foreign = base64(&authority().roots_pem());
    let spoil = json!([
        { "op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": foreign },
        { "op": "remove", "path": "/webhooks/1/clientConfig/caBundle" },
        { "op": "add", "path": "/metadata/annotations", "value": { "by": "somebody" } },
        { "op": "replace", "path": "/webhooks/1/timeoutSeconds", "value": 7 },
    ]);
    let spoil: json_patch::Patch = from(spoil);
    let params = PatchParams::default();
    let spoilt = api.patch(&site.name, &params, &Patch::Json::<()>(spoil)).await.expect("spoilt");
    assert_ne!(rest(&spoilt), rest(&before));
    let repaired = site.has_roots().await;
    assert_eq!(rest(&repaired), rest(&spoilt));
    site.in_force().await;
    let namespace = site.namespace(&[IN]).await;
    site.create(&namespace, &pod("after")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_writers_lose_nothing() {
    let site = Site::start().await;
    let api = site.configurations();
    let params = PatchParams::default();
    for n in 0..30 {
        // Each write is undone in its part by the keeper, while the next one is under way.
        let patch = json!({ "metadata": { "annotations": { format!("n{n}"): "x" } } });
        api.patch(&site.name, &params, &Patch::Merge(patch)).await.expect("written");
        let spoil = json!([{ "op": "remove", "path": "/webhooks/0/clientConfig/caBundle" }]);
        let spoil: json_patch::Patch = from(spoil);
        // Removed already.
        let _ = api.patch(&site.name, &params, &Patch::Json::<()>(spoil)).await;
        tokio::task::yield_now().await;
    }
    let repaired = site.has_roots().await;
    assert_eq!(repaired.metadata.annotations.map(|annotations| annotations.len()), Some(30));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_is_made_anew_gets_the_roots() {
    let site = Site::start().await;
    let api = site.configurations();
    api.delete(&site.name, &DeleteParams::default()).await.expect("deleted");
    site.configure("webhook.yaml").await;
    site.has_roots().await;
    site.settle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_without_need() {
    let site = Site::start().await;
    let api = site.configurations();
    let before = site.has_roots().await.metadata.resource_version.expect("a version");
    let params = PatchParams::default();
    let label = Patch::Merge(json!({ "metadata": { "labels": { "by": "somebody" } } }));
    api.patch(&site.name, &params, &label).await.expect("written");
    let spoil = json!([{ "op": "remove", "path": "/webhooks/0/clientConfig/caBundle" }]);
    let spoil: json_patch::Patch = from(spoil);
    api.patch(&site.name, &params, &Patch::Json::<()>(spoil)).await.expect("spoilt");
    let last = site.has_roots().await.metadata.resource_version;
    // All versions since: the label was no reason to write, and one write repaired.
    let only = WatchParams::default().fields(&format!("metadata.name={}", site.name));
    let mut changes = std::pin::pin!(api.watch(&only, &before).await.expect("a watch"));
    let mut spoilt = Vec::new();
    loop {
        let change = timeout(DEADLINE, changes.next()).await.expect("in time").expect("a change");
        let WatchEvent::Modified(now) = change.expect("no error") else { panic!("another event") };
        let mut webhooks = now.webhooks.iter().flatten();
        spoilt.push(webhooks.any(|webhook| webhook.client_config.ca_bundle.is_none()));
        if now.metadata.resource_version == last {
            break;
        }
    }
    assert_eq!(spoilt, [false, true, false]);
}

fn base64(text: &str) -> String {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    BASE64_STANDARD.encode(text)
}
