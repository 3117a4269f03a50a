//! Keeps the newest snapshot on disk.

use std::{sync::Arc, time::Duration};

use rulecast_api::SpiffeId;
use tokio::{sync::watch, task, time};
use tracing::{debug, warn};

use super::shared::{Held, Shared};
use crate::disk::SnapshotFile;

/// Between tries when writing fails.
const RETRY: Duration = Duration::from_secs(5);

/// Writes what `newest` brings until its sender is gone, the last one included.
/// Changes that come while one is written, or within `interval`, are written together.
pub(super) async fn run(
    file: SnapshotFile,
    identity: SpiffeId,
    shared: Arc<Shared>,
    mut newest: watch::Receiver<Option<Arc<Held>>>,
    interval: Duration,
) {
    while newest.changed().await.is_ok() {
        loop {
            let Some(held) = newest.borrow_and_update().clone() else { break };
            let (file, identity) = (file.clone(), identity.clone());
            let policies = shared.policies.clone();
            let path = file.path().display().to_string();
            let write = move || file.store(&identity, &held.to_stored(&policies));
            let error = match task::spawn_blocking(write).await {
                Ok(Ok(())) => None,
                Ok(Err(e)) => Some(e.to_string()),
                Err(e) => Some(format!("writing the snapshot broke off: {e}")),
            };
            match &error {
                Some(error) => warn!(%path, %error, "the snapshot is not on disk"),
                None => debug!(%path, "the snapshot is on disk"),
            }
            let failed = error.is_some();
            shared.update(|status| status.snapshot_error = error);
            // The pause gathers changes; the end of the client cuts it short.
            let pause = if failed { RETRY } else { interval };
            let ending = time::timeout(pause, closed(&newest)).await.is_ok();
            if !failed || ending {
                break;
            }
        }
    }
}

/// Resolves when the sender is gone; leaves what is unseen unseen.
async fn closed(newest: &watch::Receiver<Option<Arc<Held>>>) {
    let mut other = newest.clone();
    while other.changed().await.is_ok() {}
}
