//! What failed before is not tried on every call.

use std::{
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::host::Fault;

/// Time aside after the first failure; doubled with each that follows.
const FIRST: Duration = Duration::from_millis(100);
/// Longest time aside.
const LONGEST: Duration = Duration::from_secs(30);

/// How many records of this process are of the ill.
static ILL: AtomicUsize = AtomicUsize::new(0);

/// The record of a rule or module, shared by all threads. Healthy ones cost one relaxed load,
/// and where all are healthy, one for all of them.
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
    /// Whether any rule or module of this process is ill. One that falls ill at the same time
    /// may be missed.
    #[inline]
    pub(crate) fn some_ill() -> bool {
        ILL.load(Ordering::Relaxed) > 0
    }

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
        let before = self.failures.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            ILL.fetch_add(1, Ordering::Relaxed);
        }
        let before = before.min(16);
        let pause = FIRST.saturating_mul(1 << before).min(LONGEST);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault.clone());
        self.until.store(now() + pause.as_millis() as u64, Ordering::Relaxed);
    }

    pub(crate) fn succeeded(&self) {
        if self.is_ill()
            && now() >= self.until.load(Ordering::Relaxed)
            && self.failures.swap(0, Ordering::Relaxed) > 0
        {
            ILL.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        if self.is_ill() {
            ILL.fetch_sub(1, Ordering::Relaxed);
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
        assert!(health.aside().is_some() && Health::some_ill());
        health.succeeded();
        assert!(health.is_ill(), "a success of another thread does not shorten the pause");
        health.until.store(0, Ordering::Relaxed);
        assert!(health.aside().is_none());
        health.succeeded();
        assert!(!health.is_ill());
    }
}
