//! Carries the planner's steps to the store.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use rulecast_api::Code;
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Failure, Notice, Planner, StatusConfig, Step, Ticket};
use crate::{
    rollout::Rollout,
    store::{Store, StoreError},
    views::Views,
};

/// Whether this plane is the one that writes.
pub trait Lead: Send + 'static {
    /// Whether it leads now.
    fn leads(&self) -> bool;

    /// Waits until that changes; for ever when it cannot.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

impl Lead for watch::Receiver<bool> {
    fn leads(&self) -> bool {
        *self.borrow()
    }

    async fn changed(&mut self) {
        if watch::Receiver::changed(self).await.is_err() {
            std::future::pending().await
        }
    }
}

#[cfg(feature = "kubernetes")]
impl Lead for rulecast_cluster::Leadership {
    fn leads(&self) -> bool {
        rulecast_cluster::Leadership::leads(self)
    }

    async fn changed(&mut self) {
        rulecast_cluster::Leadership::changed(self).await;
    }
}

/// Shortest time between two looks at who holds what.
const LOOK: Duration = Duration::from_millis(100);
/// A look that takes long is followed by a rest so many times as long.
const REST: u32 = 10;

/// What a step came to.
enum Landing {
    Read(Ticket, Result<Option<Value>, Failure>),
    Written(Ticket, Result<(), Failure>),
}

/// Writes status until shutdown, while this plane leads.
pub async fn run<L: Lead>(
    store: Arc<dyn Store>,
    views: Views,
    rollout: Rollout,
    mut lead: L,
    config: StatusConfig,
    shutdown: CancellationToken,
) {
    let mut planner = Planner::new(config.clone());
    let mut advances = views.advances();
    let mut changes = rollout.changes();
    let mut flights: FuturesUnordered<BoxFuture<'static, Landing>> = FuturesUnordered::new();
    // When to look, once something has changed.
    let mut look_at: Option<Instant> = None;
    let mut rested = Instant::now();
    loop {
        let now = Instant::now();
        let leads = lead.leads();
        if leads != planner.leads() {
            info!(leads, "{}", if leads { "writes status" } else { "no longer writes status" });
            planner.set_leading(now.into_std(), leads);
            // What is under way is given up with the lead.
            flights.clear();
            look_at = leads.then_some(now);
        }
        if !leads {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = lead.changed() => continue,
            }
        }
        if look_at.is_some_and(|at| at <= now) || planner.wants_look(now.into_std()) {
            look_at = None;
            advances.mark_unchanged();
            changes.mark_unchanged();
            let begun = std::time::Instant::now();
            look(&mut planner, &views, &rollout, &config, now);
            rested = now + LOOK.max(begun.elapsed() * REST);
        }
        while let Some(step) = planner.next(now.into_std(), SystemTime::now()) {
            flights.push(carry(store.clone(), step, config.timeout));
        }
        match planner.take_notice() {
            Some(Notice::Failing { objects, failure }) => warn!(
                code = %failure.code, objects, reason = %failure.reason,
                "status cannot be written; it is tried again"
            ),
            Some(Notice::Recovered) => info!("status can be written again"),
            None => {}
        }
        let deadline = planner.deadline().map(Instant::from_std);
        let wake = deadline.into_iter().chain(look_at).min();
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = lead.changed() => {}
            Some(landing) = flights.next(), if !flights.is_empty() => {
                let now = Instant::now().into_std();
                match landing {
                    Landing::Read(ticket, result) => planner.on_read(now, ticket, result),
                    Landing::Written(ticket, result) => planner.on_written(now, ticket, result),
                }
            }
            // Views and rollout hold their senders.
            _ = advances.changed(), if look_at.is_none() => look_at = Some(rested.max(now)),
            _ = changes.changed(), if look_at.is_none() => look_at = Some(rested.max(now)),
            () = tokio::time::sleep_until(wake.unwrap_or(now)), if wake.is_some() => {}
        }
    }
}

/// Shows the planner what is in force and who holds it.
fn look(
    planner: &mut Planner,
    views: &Views,
    rollout: &Rollout,
    config: &StatusConfig,
    now: Instant,
) {
    // First the views: whoever reports later can only be further.
    let shown = views.shown();
    let none = HashMap::new();
    let rollouts: BTreeMap<_, _> = shown
        .snapshot
        .kinds()
        .map(|kind| {
            let views = shown.views.get(&kind).unwrap_or(&none);
            (kind, rollout.kind_at(kind, views, now.into_std(), config.ack_deadline))
        })
        .collect();
    planner.observe(now.into_std(), shown.snapshot, rollouts);
}

fn carry(store: Arc<dyn Store>, step: Step, limit: Duration) -> BoxFuture<'static, Landing> {
    async fn within<T>(
        limit: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Failure> {
        match timeout(limit, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(Failure { code: error.code(), reason: error.to_string() }),
            Err(_) => {
                let reason = format!("no answer within {limit:?}");
                Err(Failure { code: Code::StoreDown, reason })
            }
        }
    }
    Box::pin(async move {
        match step {
            Step::Read { ticket, id } => {
                Landing::Read(ticket, within(limit, store.read_status(id)).await)
            }
            Step::Write { ticket, id, status } => {
                debug!(rule = %id, ?status, "writes status");
                let value = serde_json::to_value(&status).unwrap_or_default();
                Landing::Written(ticket, within(limit, store.write_status(id, value)).await)
            }
        }
    })
}
