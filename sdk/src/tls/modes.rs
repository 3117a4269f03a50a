//! Which connections a port takes, as the rules change.

use rulecast_identity::serve::{Event, Gate, Takes};
use tokio::sync::watch;

use crate::{Client, TlsMode};

/// What the client's rules say of a port.
#[derive(Clone, Debug)]
pub(super) struct Modes {
    client: Client,
    port: u16,
    undecided: TlsMode,
    /// As of the last change of the client's state: to be woken by.
    last: watch::Receiver<Takes>,
}

impl Modes {
    /// Follows the client in a task that ends with the last clone of what this gives.
    pub(super) fn follow(client: Client, port: u16, undecided: TlsMode) -> Self {
        // Subscribed before it is asked: no change goes by unseen.
        let mut changes = client.changes();
        let (sender, last) = watch::channel(asked(&client, port, undecided));
        let modes = Self { client: client.clone(), port, undecided, last };
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = sender.closed() => break,
                    changed = changes.changed() => if changed.is_err() { break },
                }
                let takes = asked(&client, port, undecided);
                let changed =
                    sender.send_if_modified(|last| std::mem::replace(last, takes) != takes);
                if changed {
                    tracing::info!(port, ?takes, "other connections are taken");
                }
            }
        });
        modes
    }
}

fn asked(client: &Client, port: u16, undecided: TlsMode) -> Takes {
    takes(client.tls_mode(port)).or_else(|| takes(undecided)).unwrap_or(Takes::Both)
}

fn takes(mode: TlsMode) -> Option<Takes> {
    match mode {
        TlsMode::Undecided => None,
        TlsMode::Disabled => Some(Takes::Plaintext),
        TlsMode::Permissive => Some(Takes::Both),
        TlsMode::Strict => Some(Takes::Tls),
    }
}

impl Gate for Modes {
    fn takes(&self) -> Takes {
        asked(&self.client, self.port, self.undecided)
    }

    async fn closes(&self, tls: bool) {
        let mut last = self.last.clone();
        while last.wait_for(|takes| !takes.includes(tls)).await.is_ok() {
            // What wakes may lag behind what a new connection was told.
            if !self.takes().includes(tls) {
                return;
            }
            if last.changed().await.is_err() {
                break;
            }
        }
        // Followed no more: what was taken stays.
        std::future::pending().await
    }

    fn has_certificate(&self) -> bool {
        self.client.identity().is_some()
    }

    fn count(&self, event: Event) {
        self.client.count_connection(event);
    }
}
