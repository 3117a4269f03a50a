//! Keeps the `caBundle` by which the API server verifies the webhook.

use std::{pin::pin, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures_util::StreamExt as _;
use json_patch::{AddOperation, PatchOperation, TestOperation, jsonptr::PointerBuf};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher::watch_object},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::kubernetes::{CallError, FIELD_MANAGER, in_time};

/// For one write.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two writes, so that somebody who keeps on undoing ours is no storm.
const PAUSE: Duration = Duration::from_secs(1);
/// After failed writes the pause doubles up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Keeps `webhooks[*].clientConfig.caBundle` of the MutatingWebhookConfiguration named
/// `configuration` equal to `roots_pem`, until `shutdown`. Whatever goes wrong is logged and
/// tried again; a configuration that is missing is waited for.
///
/// It writes that field and no other, only when it differs, and only into the version of
/// the object that it has seen: several writers disturb nobody, but one should do, the leader.
/// It needs the verbs `list`, `watch` and `patch`, which may be limited to this one name.
pub async fn keep_ca_bundle(
    client: kube::Client,
    configuration: String,
    mut roots_pem: watch::Receiver<String>,
    shutdown: CancellationToken,
) {
    let api = Api::<MutatingWebhookConfiguration>::all(client);
    let mut changes = pin!(watch_object(api.clone(), &configuration).default_backoff());
    let params =
        PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
    let mut seen: Option<MutatingWebhookConfiguration> = None;
    let (mut pause, mut not_before) = (PAUSE, Instant::now());
    let mut roots_follow = true;
    loop {
        let repair = seen.as_ref().and_then(|seen| repair(seen, roots_pem.borrow().as_bytes()));
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = roots_pem.changed(), if roots_follow => roots_follow = changed.is_ok(),
            change = changes.next() => match change {
                Some(Ok(now)) => {
                    if now.is_none() {
                        info!(configuration, "there is no such webhook configuration; waiting");
                    }
                    seen = now;
                }
                Some(Err(error)) => {
                    warn!(configuration, %error, "the webhook configuration cannot be watched");
                }
                // It never ends by itself.
                None => return,
            },
            () = sleep_until(not_before), if repair.is_some() => {
                let patch = Patch::Json::<()>(repair.unwrap_or_default());
                let written = tokio::select! {
                    () = shutdown.cancelled() => return,
                    written = in_time(PATIENCE, api.patch(&configuration, &params, &patch)) => written,
                };
                match written {
                    Ok(now) => {
                        info!(configuration, "the webhook configuration has the current roots");
                        seen = Some(now);
                        pause = PAUSE;
                    }
                    // Somebody else wrote; the watch tells.
                    Err(CallError::Api(kube::Error::Api(status)))
                        if [404, 409, 422].contains(&status.code) =>
                    {
                        debug!(configuration, %status, "the webhook configuration has changed");
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                    Err(error) => {
                        let error = error.text();
                        warn!(configuration, error, "the roots cannot be written");
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
                not_before = Instant::now() + pause;
            }
        }
    }
}

/// What makes `seen` right; `None`: nothing.
fn repair(seen: &MutatingWebhookConfiguration, roots: &[u8]) -> Option<json_patch::Patch> {
    // Without roots nobody would be trusted; and without a version others are overwritten.
    let version = seen.metadata.resource_version.clone().filter(|_| !roots.is_empty())?;
    let path = |tokens: &[&str]| PointerBuf::from_tokens(tokens.iter().copied());
    let mut operations = vec![PatchOperation::Test(TestOperation {
        path: path(&["metadata", "resourceVersion"]),
        value: version.into(),
    })];
    for (n, webhook) in seen.webhooks.iter().flatten().enumerate() {
        let there = webhook.client_config.ca_bundle.as_ref();
        if there.is_none_or(|there| there.0 != roots) {
            operations.push(PatchOperation::Add(AddOperation {
                path: path(&["webhooks", &n.to_string(), "clientConfig", "caBundle"]),
                value: BASE64_STANDARD.encode(roots).into(),
            }));
        }
    }
    (operations.len() > 1).then_some(json_patch::Patch(operations))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn configuration(bundles: &[Option<&str>]) -> MutatingWebhookConfiguration {
        let webhooks = bundles.iter().map(|bundle| {
            let mut webhook = json!({
                "name": "x", "clientConfig": { "url": "https://x" }, "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            });
            if let Some(bundle) = bundle {
                webhook["clientConfig"]["caBundle"] = BASE64_STANDARD.encode(bundle).into();
            }
            webhook
        });
        serde_json::from_value(json!({
            "metadata": { "name": "c", "resourceVersion": "7" },
            "webhooks": webhooks.collect::<Vec<_>>(),
        }))
        .expect("a configuration")
    }

    #[test]
    fn only_what_differs_is_written_and_only_into_what_was_seen() {
        let seen = configuration(&[Some("roots"), None, Some("old"), Some("")]);
        let patch = json!(repair(&seen, b"roots").expect("needed"));
        let add = |n: usize| {
            json!({ "op": "add", "path": format!("/webhooks/{n}/clientConfig/caBundle"),
                "value": BASE64_STANDARD.encode("roots") })
        };
        let test = json!({ "op": "test", "path": "/metadata/resourceVersion", "value": "7" });
        assert_eq!(patch, json!([test, add(1), add(2), add(3)]));
    }

    #[test]
    fn nothing_is_written_without_need() {
        assert_eq!(repair(&configuration(&[Some("roots"); 2]), b"roots"), None);
        assert_eq!(repair(&configuration(&[]), b"roots"), None);
        assert_eq!(repair(&configuration(&[None]), b""), None, "no roots");
        let mut seen = configuration(&[None]);
        seen.metadata.resource_version = None;
        assert_eq!(repair(&seen, b"roots"), None);
    }
}
