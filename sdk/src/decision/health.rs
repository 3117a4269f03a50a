//! What failed before is not tried on every call.

use std::{
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::host::Fault;

/// Time aside after the first failure; doubled with each that follows.
const FIRST: Duration = Duration::from_millis(100);
/// Longest time aside.
const LONGEST: Duration = Duration::from_secs(30);

/// The record of a rule or module, shared by all threads. Healthy ones cost one relaxed load.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failures: AtomicU32,
    /// Milliseconds since [`now`]'s start.
    until: AtomicU64,
    last: Mutex<Option<Fault>>,
}

fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}

impl Health {
    /// Whether it failed since it last succeeded.
    #[inline]
    pub(crate) fn is_ill(&self) -> bool {
        self.failures.load(Ordering::Relaxed) > 0
    }

    /// The last fault, while it is aside.
    #[inline]
    pub(crate) fn aside(&self) -> Option<Fault> {
        if self.is_ill() { self.aside_now() } else { None }
    }

    #[cold]
    fn aside_now(&self) -> Option<Fault> {
        if now() >= self.until.load(Ordering::Relaxed) {
            return None;
        }
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn failed(&self, fault: &Fault) {
        let before = self.failures.fetch_add(1, Ordering::Relaxed).min(16);
        let pause = FIRST.saturating_mul(1 << before).min(LONGEST);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault.clone());
        self.until.store(now() + pause.as_millis() as u64, Ordering::Relaxed);
    }

    pub(crate) fn succeeded(&self) {
        if self.is_ill() && now() >= self.until.load(Ordering::Relaxed) {
            self.failures.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::FaultKind;

    #[test]
    fn sets_aside_and_recovers() {
        let health = Health::default();
        assert!(health.aside().is_none());
        health.failed(&Fault::new(FaultKind::Trap, "x"));
        assert!(health.aside().is_some());
        health.succeeded();
        assert!(health.is_ill(), "a success of another thread does not shorten the pause");
        health.until.store(0, Ordering::Relaxed);
        assert!(health.aside().is_none());
        health.succeeded();
        assert!(!health.is_ill());
    }
}
