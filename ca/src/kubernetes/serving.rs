//! The certificate of the pod webhook, and the roots that the API server verifies it by.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::webhook::ServingCertificate;
use crate::{Authority, CaError, authority::AuthorityHandle};

/// Life of a serving certificate.
const LIFE: Duration = Duration::from_secs(24 * 3600);
/// The wall clock is looked at this often: a timer sleeps through a suspended machine.
const LOOK: Duration = Duration::from_secs(30);

/// The first certificate for `hosts`, and when the next one is due.
pub(crate) fn first(
    authority: &Authority,
    hosts: &[String],
) -> Result<(ServingCertificate, SystemTime), CaError> {
    let issued = authority.webhook_certificate(hosts, LIFE)?;
    Ok((ServingCertificate::new(issued.chain, &issued.key)?, issued.renew_at))
}

/// Replaces `certificate` when it is due, and whenever the authority is another one.
pub(crate) async fn keep(
    mut authority: watch::Receiver<Arc<Authority>>,
    hosts: Vec<String>,
    certificate: ServingCertificate,
    mut renew_at: SystemTime,
    shutdown: CancellationToken,
) -> Result<(), Infallible> {
    let mut changed = false;
    loop {
        if changed || renew_at <= SystemTime::now() {
            let current = authority.borrow_and_update().clone();
            let renewed = current.webhook_certificate(&hosts, LIFE).and_then(|next| {
                certificate.replace(next.chain, &next.key)?;
                Ok(next.renew_at)
            });
            match renewed {
                Ok(next) => {
                    info!("the webhook has a new certificate");
                    (renew_at, changed) = (next, false);
                }
                // The one that is held serves until its end.
                Err(error) => warn!(%error, "the webhook's certificate is not renewed"),
            }
        }
        tokio::select! {
            () = sleep(LOOK) => {}
            next = authority.changed() => match next {
                Ok(()) => changed = true,
                // Only at the end of the process.
                Err(_) => {
                    shutdown.cancelled().await;
                    return Ok(());
                }
            },
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

/// The roots as PEM, followed by the future that must be run beside.
pub(crate) fn roots(
    authority: &AuthorityHandle,
    shutdown: CancellationToken,
) -> (impl Future<Output = ()> + Send + use<>, watch::Receiver<String>) {
    let mut changes = authority.subscribe();
    let (sender, receiver) = watch::channel(changes.borrow_and_update().roots_pem());
    let follow = async move {
        loop {
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { break },
                () = shutdown.cancelled() => return,
            }
            let roots = changes.borrow_and_update().roots_pem();
            sender.send_if_modified(|held| {
                let other = *held != roots;
                *held = roots;
                other
            });
        }
        shutdown.cancelled().await;
    };
    (follow, receiver)
}
