//! How many calls may be tried again.

use std::sync::atomic::{AtomicU32, Ordering};

/// In hundredths of a retry.
const RETRY: u32 = 100;
const PER_CALL: u32 = 20;
const MOST: u32 = 10 * RETRY;

/// One retry for every five calls, and ten in reserve: tries again do not multiply an outage.
#[derive(Debug)]
pub(super) struct Budget(AtomicU32);

impl Default for Budget {
    fn default() -> Self {
        Self(AtomicU32::new(MOST))
    }
}

impl Budget {
    /// A call comes, and earns.
    pub(super) fn earn(&self) {
        // Full is the usual state; then nothing is written.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            (left < MOST).then(|| (left + PER_CALL).min(MOST))
        });
    }

    /// Takes a retry out; false: there is none.
    pub(super) fn spend(&self) -> bool {
        let spent = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(RETRY));
        spent.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_calls_may_be_tried_again() {
        let budget = Budget::default();
        assert_eq!((0..20).filter(|_| budget.spend()).count(), 10);
        let retries = (0..1000).filter(|_| {
            budget.earn();
            budget.spend()
        });
        assert_eq!(retries.count(), 200);
        (0..1000).for_each(|_| budget.earn());
        assert_eq!((0..20).filter(|_| budget.spend()).count(), 10);
    }
}
