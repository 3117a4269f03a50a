//! Keeps the authority in use current: its intermediate, what others put in its place, and
//! its own certificate.

use std::{
    io,
    time::{Duration, Instant, SystemTime},
};

use rulecast_identity::{IdentityHandle, IdentityUpdater};
use rulecast_runtime::Readiness;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    CaError,
    authority::{AuthorityHandle, AuthorityUpdater},
    metrics::Metrics,
    place::Source,
    trouble::Trouble,
};

/// Life of the authority's own server certificate.
pub(crate) const OWN_LIFE: Duration = Duration::from_secs(3600);
/// The place of the authority and the wall clock are looked at this often; a timer
/// sleeps through a suspended machine.
const LOOK: Duration = Duration::from_secs(30);

/// Readiness is blocked by this name when the authority's own certificate has ended.
const BLOCKER: &str = "authority";

/// Keeps the authority and its own certificate current.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) source: Source,
    pub(crate) authority: AuthorityHandle,
    pub(crate) authority_updater: AuthorityUpdater,
    pub(crate) identity: IdentityHandle,
    pub(crate) identity_updater: IdentityUpdater,
    pub(crate) metrics: Metrics,
}

impl Keeper {
    /// Until `shutdown`.
    pub(crate) async fn keep(
        mut self,
        readiness: Readiness,
        shutdown: CancellationToken,
    ) -> Result<(), io::Error> {
        self.metrics.in_place(true);
        let mut trouble = Trouble::default();
        let mut next_look = Instant::now() + LOOK;
        loop {
            let now = SystemTime::now();
            let current = self.identity.current();
            let mut due = current.renew_at <= now;
            if due || Instant::now() >= next_look {
                match self.look().await {
                    Ok(changed) => {
                        due |= changed;
                        if trouble.over() {
                            info!("the authority's place can be used again");
                        }
                        self.metrics.in_place(true);
                    }
                    Err(error) => {
                        // What is held signs on until its end.
                        if trouble.is_news(&error) {
                            error!(%error, "the authority's place cannot be used");
                        }
                        self.metrics.in_place(false);
                    }
                }
                next_look = Instant::now() + LOOK;
            }
            if due {
                match self.renew_own() {
                    Ok(()) => {
                        readiness.clear(BLOCKER);
                        continue;
                    }
                    Err(error) => {
                        warn!(%error, "the authority's own certificate is not renewed");
                        // The one that is held serves until its end.
                        if !current.is_valid_at(now) {
                            readiness.block(BLOCKER, error.to_string());
                        }
                    }
                }
            }
            let left = current.renew_at.duration_since(now).unwrap_or_default();
            let pause = if left.is_zero() { LOOK } else { left.min(LOOK) };
            tokio::select! {
                () = sleep(pause) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    /// Whether another authority is in use now.
    pub(crate) async fn look(&mut self) -> Result<bool, CaError> {
        let held = self.authority.current();
        let Some(authority) = self.source.look(&held).await? else { return Ok(false) };
        info!("the authority was read anew from its place");
        self.authority_updater.replace(authority.with_names(held.names().clone()));
        Ok(true)
    }

    /// The authority's own certificate, from the authority in use.
    pub(crate) fn renew_own(&self) -> Result<(), CaError> {
        let authority = self.authority.current();
        let own = authority.own_svid(OWN_LIFE)?;
        self.metrics.valid_until(own.not_after, authority.not_after());
        self.identity_updater.replace(own);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
