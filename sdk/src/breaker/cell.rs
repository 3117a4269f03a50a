//! One breaker: closed, open, or trying, as one word that threads swap.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    settings::Settings,
    window::{Counts, Window},
};

/// Bits of a word: phase, spared, generation, two counts, milliseconds.
const COUNT: u32 = 10;
const MASK: u64 = (1 << COUNT) - 1;
/// Most errors one after the other that are told apart; they take the place of both counts.
const MOST_ERRORS: u32 = (1 << (2 * COUNT)) - 1;
const TIME: u32 = u32::BITS;
const GENERATION: u32 = TIME + 2 * COUNT;
const GENERATIONS: u64 = (1 << 9) - 1;
const SPARED: u32 = GENERATION + 9;
const PHASE: u32 = SPARED + 1;

/// How far apart the clocks of two threads' readings may be, in milliseconds.
const SKEW: u32 = 60_000;

/// Where a breaker stands. Times are milliseconds, and wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Calls go; so many failed one after the other.
    Closed { errors: u32 },
    /// None goes, unless calls were left nothing else.
    Open { since: u32, spared: bool },
    /// A few go, to try.
    Trying {
        /// When the last one began.
        since: u32,
        under_way: u16,
        succeeded: u16,
        spared: bool,
    },
}

/// A phase, and its number: an outcome counts in the phase in which its call began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    phase: Phase,
    generation: u16,
}

impl Word {
    fn read(word: u64) -> Self {
        let count = |at: u32| (word >> at & MASK) as u16;
        let (since, spared) = (word as u32, word >> SPARED & 1 == 1);
        let phase = match word >> PHASE {
            0 => Phase::Closed { errors: (word >> TIME) as u32 & MOST_ERRORS },
            1 => Phase::Open { since, spared },
            _ => Phase::Trying {
                since,
                under_way: count(TIME),
                succeeded: count(TIME + COUNT),
                spared,
            },
        };
        Self { phase, generation: (word >> GENERATION & GENERATIONS) as u16 }
    }

    fn word(self) -> u64 {
        let phase = match self.phase {
            Phase::Closed { errors } => u64::from(errors) << TIME,
            Phase::Open { since, spared } => {
                1 << PHASE | u64::from(spared) << SPARED | u64::from(since)
            }
            Phase::Trying { since, under_way, succeeded, spared } => {
                2 << PHASE
                    | u64::from(spared) << SPARED
                    | u64::from(succeeded) << (TIME + COUNT)
                    | u64::from(under_way) << TIME
                    | u64::from(since)
            }
        };
        phase | u64::from(self.generation) << GENERATION
    }

    /// The same phase, otherwise.
    fn with(self, phase: Phase) -> Self {
        Self { phase, ..self }
    }

    /// The next phase.
    fn next(self, phase: Phase) -> Self {
        Self { phase, generation: (self.generation + 1) & GENERATIONS as u16 }
    }
}

/// Time that went by; none where another thread's clock was ahead.
fn elapsed(now: u64, since: u32) -> u32 {
    match (now as u32).wrapping_sub(since) {
        ahead if ahead > u32::MAX - SKEW => 0,
        elapsed => elapsed,
    }
}

/// A call under way that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    generation: u16,
    trial: bool,
}

/// Whether a call may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// And how it ends is counted.
    Watched(Token),
    /// But it tells nothing.
    Unwatched,
    /// It may not.
    Refused,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Succeeded,
    Failed,
    /// Nobody said.
    Dropped,
}

/// What became of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It was closed.
    Opened,
    /// A trial failed.
    Reopened,
    Closed,
}

/// A breaker. Times are milliseconds of one clock.
#[derive(Debug, Default)]
pub(super) struct Cell {
    word: AtomicU64,
    window: Window,
}

impl Cell {
    /// Replaces the word as `next` says, if it says so, when no other thread comes between.
    fn turn<T>(&self, mut next: impl FnMut(Word) -> (Option<Word>, T)) -> T {
        let mut held = self.word.load(Ordering::Acquire);
        loop {
            let (word, gives) = next(Word::read(held));
            let Some(word) = word else { return gives };
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            match self.word.compare_exchange_weak(held, word.word(), success, failure) {
                Ok(_) => return gives,
                Err(now) => held = now,
            }
        }
    }

    fn word(&self) -> Word {
        Word::read(self.word.load(Ordering::Acquire))
    }

    /// Where it stands, as it was last changed.
    pub(super) fn phase(&self) -> Phase {
        self.word().phase
    }

    /// What was counted lately.
    pub(super) fn counts(&self, window: u64, now: u64) -> Counts {
        self.window.counts(now, window)
    }

    /// Whether it is anything but closed.
    pub(super) fn is_tripped(&self) -> bool {
        !matches!(self.phase(), Phase::Closed { .. })
    }

    /// How long a call has been waiting for in vain: `None` when one may begin.
    pub(super) fn shut(&self, settings: &Settings, now: u64) -> Option<u32> {
        let since = match self.phase() {
            Phase::Closed { .. } => return None,
            Phase::Trying { under_way, succeeded, .. }
                if u32::from(under_way + succeeded) < settings.trial_calls =>
            {
                return None;
            }
            Phase::Open { since, .. } | Phase::Trying { since, .. } => since,
        };
        Some(elapsed(now, since)).filter(|elapsed| *elapsed < settings.open)
    }

    /// Begins a call.
    pub(super) fn begin(&self, settings: &Settings, now: u64) -> Begun {
        let watched =
            |word: Word, trial| Begun::Watched(Token { generation: word.generation, trial });
        let since = now as u32;
        self.turn(|word| match word.phase {
            Phase::Closed { .. } => (None, watched(word, false)),
            Phase::Trying { under_way, succeeded, spared, .. }
                if u32::from(under_way + succeeded) < settings.trial_calls =>
            {
                let under_way = under_way + 1;
                let next = word.with(Phase::Trying { since, under_way, succeeded, spared });
                (Some(next), watched(next, true))
            }
            Phase::Open { since: opened, .. } if elapsed(now, opened) >= settings.open => {
                let (under_way, succeeded, spared) = (1, 0, false);
                let next = word.next(Phase::Trying { since, under_way, succeeded, spared });
                (Some(next), watched(next, true))
            }
            // Trials that say nothing hold their places for so long only.
            Phase::Trying { since: last, succeeded, spared, .. }
                if elapsed(now, last) >= settings.open =>
            {
                let under_way = 1;
                let next = word.next(Phase::Trying { since, under_way, succeeded, spared });
                (Some(next), watched(next, true))
            }
            Phase::Open { spared: true, .. } | Phase::Trying { spared: true, .. } => {
                (None, Begun::Unwatched)
            }
            Phase::Open { .. } | Phase::Trying { .. } => (None, Begun::Refused),
        })
    }

    /// Ends a call.
    pub(super) fn end(
        &self,
        settings: &Settings,
        token: Token,
        end: End,
        now: u64,
    ) -> Option<Change> {
        let stale = |word: Word| word.generation != token.generation;
        if end == End::Dropped && !token.trial || stale(self.word()) {
            return None;
        }
        if !token.trial {
            self.window.record(now, settings.window, end == End::Failed);
        }
        let open = Phase::Open { since: now as u32, spared: false };
        self.turn(|word| match (word.phase, end) {
            _ if stale(word) => (None, None),
            (Phase::Closed { errors: 0 }, End::Succeeded) => (None, None),
            (Phase::Closed { .. }, End::Succeeded) => {
                (Some(word.with(Phase::Closed { errors: 0 })), None)
            }
            (Phase::Closed { errors }, End::Failed) => {
                let errors = (errors + 1).min(MOST_ERRORS);
                match self.opens(settings, errors, now) {
                    true => (Some(word.next(open)), Some(Change::Opened)),
                    false => (Some(word.with(Phase::Closed { errors })), None),
                }
            }
            (Phase::Trying { .. }, End::Failed) => (Some(word.next(open)), Some(Change::Reopened)),
            (Phase::Trying { since, under_way, succeeded, spared }, end) => {
                let (under_way, succeeded) =
                    (under_way.saturating_sub(1), succeeded + u16::from(end == End::Succeeded));
                if end == End::Succeeded && u32::from(succeeded) >= settings.trial_calls {
                    // While trying nothing is counted here; once it is closed, others count.
                    self.window.clear();
                    return (Some(word.next(Phase::Closed { errors: 0 })), Some(Change::Closed));
                }
                (Some(word.with(Phase::Trying { since, under_way, succeeded, spared })), None)
            }
            (Phase::Closed { .. }, End::Dropped) | (Phase::Open { .. }, _) => (None, None),
        })
    }

    fn opens(&self, settings: &Settings, errors: u32, now: u64) -> bool {
        if (1..=errors).contains(&settings.consecutive_errors) {
            return true;
        }
        if settings.error_percent == 0.0 {
            return false;
        }
        let counts = self.window.counts(now, settings.window);
        counts.calls >= u64::from(settings.minimum_calls)
            && counts.failed as f64 * 100.0 >= settings.error_percent * counts.calls as f64
    }

    /// Lets calls pass, for as long as it is as it is: they were left nothing else.
    pub(super) fn spare(&self) {
        self.turn(|word| {
            let phase = match word.phase {
                Phase::Open { since, spared: false } => Phase::Open { since, spared: true },
                Phase::Trying { since, under_way, succeeded, spared: false } => {
                    Phase::Trying { since, under_way, succeeded, spared: true }
                }
                _ => return (None, ()),
            };
            (Some(word.with(phase)), ())
        });
    }
}

#[cfg(test)]
mod tests;
