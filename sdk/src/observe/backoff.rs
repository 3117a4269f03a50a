//! When to connect again.

use std::time::Duration;

/// Exponential, with jitter over the whole range, so that clients that lost one
/// plane do not come back together.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    least: Duration,
    most: Duration,
    failures: u32,
    rng: fastrand::Rng,
}

impl Backoff {
    pub(super) fn new(least: Duration, most: Duration, seed: u64) -> Self {
        Self { least, most: most.max(least), failures: 0, rng: fastrand::Rng::with_seed(seed) }
    }

    /// How long to wait now; longer each time, until a reset.
    pub(super) fn next(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let factor = 1u32.checked_shl(self.failures.min(31)).unwrap_or(u32::MAX);
        let ceiling = self.least.saturating_mul(factor).min(self.most);
        self.least + (ceiling - self.least).mul_f64(self.rng.f64())
    }

    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_limit_and_starts_again() {
        let (least, most) = (Duration::from_millis(100), Duration::from_secs(30));
        let mut backoff = Backoff::new(least, most, 7);
        for failures in 1..200u32 {
            let wait = backoff.next();
            let ceiling = least.saturating_mul(1 << failures.min(20)).min(most);
            assert!(wait >= least && wait <= ceiling, "{failures}: {wait:?}");
        }
        let late: Vec<_> = (0..100).map(|_| backoff.next()).collect();
        assert!(late.iter().any(|w| *w > most / 2) && late.iter().any(|w| *w < most / 2));
        backoff.reset();
        assert!(backoff.next() <= least * 2);
        // The same seed, the same waits.
        let waits = |seed| {
            let mut backoff = Backoff::new(least, most, seed);
            [backoff.next(), backoff.next(), backoff.next()]
        };
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }
}
