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
    sync::{Mutex, OwnedMutexGuard, watch},
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

/// Whether this plane is the one that writes. Clones share it.
pub trait Lead: Clone + Send + Sync + 'static {
    /// Whether it leads now.
    fn leads(&self) -> bool;

    /// Does `work` whenever this plane leads, and drops it as soon as it does not.
    fn lead<F: Future<Output = ()> + Send>(
        &self,
        work: impl FnMut() -> F + Send,
    ) -> impl Future<Output = ()> + Send;
}

impl Lead for watch::Receiver<bool> {
    fn leads(&self) -> bool {
        *self.borrow()
    }

    async fn lead<F: Future<Output = ()> + Send>(&self, mut work: impl FnMut() -> F + Send) {
        let mut leads = self.clone();
        while leads.wait_for(|leads| *leads).await.is_ok() {
            tokio::select! {
                biased;
                _ = leads.wait_for(|leads| !*leads) => {}
                () = work() => {}
            }
        }
    }
}

#[cfg(feature = "kubernetes")]
impl Lead for rulecast_cluster::Leadership {
    fn leads(&self) -> bool {
        rulecast_cluster::Leadership::leads(self)
    }

    async fn lead<F: Future<Output = ()> + Send>(&self, mut work: impl FnMut() -> F + Send) {
        rulecast_cluster::Leadership::lead(self, |_| work()).await;
    }
}

/// Shortest time between two looks at who holds what.
const LOOK: Duration = Duration::from_millis(100);
/// A look that takes long is followed by a rest so many times as long.
const REST: u32 = 10;

/// Shortest sleep.
const TICK: Duration = Duration::from_millis(1);

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
    lead: L,
    config: StatusConfig,
    shutdown: CancellationToken,
) {
    // One for all terms: the rates hold across them.
    let planner = Arc::new(Mutex::new(Planner::new(config.clone())));
    let writer = Writer { store, views, rollout, lead: lead.clone(), config };
    let terms = lead.lead(|| writer.clone().write(planner.clone()));
    shutdown.run_until_cancelled(terms).await;
}

/// The planner while this plane leads. It forgets everything with the lead.
struct Term(OwnedMutexGuard<Planner>);

impl Term {
    fn begin(mut planner: OwnedMutexGuard<Planner>) -> Self {
        planner.set_leading(Instant::now().into_std(), true);
        Self(planner)
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.0.set_leading(Instant::now().into_std(), false);
    }
}

#[derive(Clone)]
struct Writer<L> {
    store: Arc<dyn Store>,
    views: Views,
    rollout: Rollout,
    lead: L,
    config: StatusConfig,
}

impl<L: Lead> Writer<L> {
    /// Writes until it is dropped, and with it all that is under way.
    async fn write(self, planner: Arc<Mutex<Planner>>) {
        info!("this plane writes the status of rules");
        let mut term = Term::begin(planner.lock_owned().await);
        let planner = &mut *term.0;
        let mut advances = self.views.advances();
        let mut changes = self.rollout.changes();
        let mut flights: FuturesUnordered<BoxFuture<'static, Landing>> = FuturesUnordered::new();
        let begun = Instant::now();
        // When to look, once something has changed.
        let mut look_at = Some(begun);
        let mut rested = begun;
        loop {
            let now = Instant::now();
            if look_at.is_some_and(|at| at <= now) || planner.wants_look(now.into_std()) {
                look_at = None;
                advances.mark_unchanged();
                changes.mark_unchanged();
                let begun = std::time::Instant::now();
                self.look(planner, now);
                rested = now + LOOK.max(begun.elapsed() * REST);
            }
            // After a pause of the process the lead may be over, and nobody has said so yet.
            while self.lead.leads()
                && let Some(step) = planner.next(now.into_std(), SystemTime::now())
            {
                flights.push(carry(self.store.clone(), step, self.config.timeout));
            }
            tell(planner.take_notice());
            let deadline = planner.deadline().map(Instant::from_std);
            let wake = deadline.into_iter().chain(look_at).min().map(|wake| wake.max(now + TICK));
            tokio::select! {
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
    fn look(&self, planner: &mut Planner, now: Instant) {
        // First the views: whoever reports later can only be further.
        let shown = self.views.shown();
        let none = HashMap::new();
        let deadline = self.config.ack_deadline;
        let rollouts: BTreeMap<_, _> = shown
            .snapshot
            .kinds()
            .map(|kind| {
                let views = shown.views.get(&kind).unwrap_or(&none);
                (kind, self.rollout.kind_at(kind, views, now.into_std(), deadline))
            })
            .collect();
        planner.observe(now.into_std(), shown.snapshot, rollouts);
    }
}

fn tell(notice: Option<Notice>) {
    match notice {
        Some(Notice::Failing { objects, failure }) => warn!(
            code = %failure.code, objects, reason = %failure.reason,
            "status cannot be written; it is tried again"
        ),
        Some(Notice::Recovered) => info!("status can be written again"),
        None => {}
    }
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
