//! Stopping: the first signal drains, a second one stops at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Exit status after a second signal: that of a process ended by SIGINT.
const STOPPED_NOW: i32 = 130;

/// Cancels the returned token at SIGINT or SIGTERM; at a second one ends the process.
pub fn shutdown() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let cancel = token.clone();
    tokio::spawn(async move {
        let mut next =
            async || tokio::select! { _ = int.recv() => "SIGINT", _ = term.recv() => "SIGTERM" };
        let name = next().await;
        info!(signal = name, "draining; a second signal stops at once");
        cancel.cancel();
        let name = next().await;
        warn!(signal = name, "stopping at once");
        std::process::exit(STOPPED_NOW);
    });
    Ok(token)
}
