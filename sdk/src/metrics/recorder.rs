//! Counts the decisions of a client, and measures some of them.

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use rulecast_api::kind::Phase;

use super::{
    Outcome, Verdict,
    cell::{Cells, Counter},
    latency::{Histogram, Latency},
    rule::RuleStats,
};

/// One decision in so many is measured, on average: to ask the clock twice costs as much as a
/// small decision.
const MEASURED: u32 = 64;

/// What a client counts. Threads share nothing that they write for every decision.
#[derive(Debug)]
pub(crate) struct Recorder {
    id: u64,
    cells: Cells,
    latency: [Histogram; Outcome::ALL.len()],
}

thread_local! {
    /// Decisions until the next one that is measured.
    static NEXT: Cell<u32> = const { Cell::new(0) };
    /// The decision under way is measured.
    static MEASURING: Cell<bool> = const { Cell::new(false) };
    /// What rules made of it.
    static MADE: RefCell<Vec<(Arc<RuleStats>, Verdict)>> = const { RefCell::new(Vec::new()) };
    /// Cells of clients, by their number.
    static CLIENTS: RefCell<Vec<(u64, Counter)>> = const { RefCell::new(Vec::new()) };
}

/// A decision that is measured, until it is dropped.
struct Measured(Instant);

impl Measured {
    #[inline]
    fn begin() -> Option<Self> {
        let next = NEXT.get();
        NEXT.set(next.wrapping_sub(1));
        if next == 0 { Some(Self::start()) } else { None }
    }

    #[cold]
    fn start() -> Self {
        // By chance: what comes at regular intervals is not missed or met each time.
        NEXT.set(fastrand::u32(0..MEASURED * 2 - 1));
        MEASURING.set(true);
        Self(Instant::now())
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        MEASURING.set(false);
        MADE.with_borrow_mut(Vec::clear);
    }
}

/// Counts what a rule made of a call.
#[inline]
pub(crate) fn count(counter: &Counter, stats: &Arc<RuleStats>, verdict: Verdict) {
    counter.add(verdict as usize);
    if MEASURING.get() {
        MADE.with_borrow_mut(|made| made.push((stats.clone(), verdict)));
    }
}

impl Default for Recorder {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, cells: Cells::default(), latency: Default::default() }
    }
}

impl Recorder {
    /// Decides, and counts what `outcome` says came of it.
    #[inline]
    pub(crate) fn counted<T>(
        &self,
        decide: impl FnOnce() -> T,
        outcome: impl FnOnce(&T) -> Outcome,
    ) -> T {
        let measured = Measured::begin();
        let decided = decide();
        let outcome = outcome(&decided);
        if let Some(measured) = measured {
            self.measured(&measured, outcome);
        }
        self.count(outcome);
        decided
    }

    #[inline]
    fn count(&self, outcome: Outcome) {
        CLIENTS.with_borrow_mut(|clients| {
            let at = match clients.iter().position(|(id, _)| *id == self.id) {
                Some(at) => at,
                None => {
                    clients.retain(|(_, counter)| !counter.is_orphan());
                    clients.push((self.id, self.cells.counter()));
                    clients.len() - 1
                }
            };
            clients[at].1.add(outcome as usize);
        });
    }

    #[cold]
    fn measured(&self, measured: &Measured, outcome: Outcome) {
        let took = measured.0.elapsed();
        self.latency[outcome as usize].record(took);
        MADE.with_borrow(|made| {
            for (stats, verdict) in made {
                stats.took(*verdict, |histogram| histogram.record(took));
            }
        });
    }

    /// How often something came of a decision, by outcome.
    pub(super) fn counts(&self) -> [u64; Outcome::ALL.len()] {
        let mut counts = [0; Outcome::ALL.len()];
        counts.copy_from_slice(&self.cells.read()[..Outcome::ALL.len()]);
        counts
    }

    pub(super) fn latency(&self, outcome: Outcome) -> Latency {
        self.latency[outcome as usize].read()
    }

    /// How many decisions there were, by name ([`Outcome::decision`]).
    pub(crate) fn decisions(&self) -> Decisions {
        let mut decisions = Decisions::default();
        for (outcome, count) in Outcome::ALL.into_iter().zip(self.counts()) {
            match outcome.decision() {
                "authorize" => decisions.authorize += count,
                "admit" => decisions.admit += count,
                _ => {}
            }
        }
        decisions
    }
}

/// How many decisions of a server there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decisions {
    authorize: u64,
    admit: u64,
}

impl Decisions {
    /// Those in which every rule of a phase is asked; `None`: some are, by call.
    pub(crate) fn of(&self, phase: Phase) -> Option<u64> {
        match phase {
            Phase::Authorize => Some(self.authorize),
            Phase::Limit => Some(self.admit),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn counts_each_decision_and_measures_some() {
        let (recorder, stats) = (Recorder::default(), Arc::new(RuleStats::default()));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let counter = stats.counter();
                    for i in 0..10_000 {
                        let decide = || count(&counter, &stats, Verdict::Applied);
                        let denied = i % 10 == 0;
                        recorder.counted(decide, |()| match denied {
                            true => Outcome::Denied,
                            false => Outcome::Allowed,
                        });
                    }
                });
            }
        });
        let counts = recorder.counts();
        assert_eq!(counts[Outcome::Denied as usize], 2_000);
        assert_eq!(counts[Outcome::Allowed as usize], 18_000);
        assert_eq!(recorder.decisions(), Decisions { authorize: 20_000, admit: 0 });
        assert_eq!(stats.counts(false, None).get(Verdict::Applied), 20_000);
        let measured: u64 =
            Outcome::ALL.iter().map(|outcome| recorder.latency(*outcome).count()).sum();
        // 312.5 on average.
        assert!((200..450).contains(&measured), "{measured}");
        assert_eq!(stats.latency(Verdict::Applied).count(), measured);
        assert!(!MEASURING.get());
    }

    #[test]
    fn a_thread_forgets_clients_that_are_gone() {
        for _ in 0..100 {
            Recorder::default().counted(|| (), |()| Outcome::Routed);
        }
        assert!(CLIENTS.with_borrow(Vec::len) <= 2);
    }
}
