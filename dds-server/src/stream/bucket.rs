//! A token bucket on a clock that its user brings.

use std::time::{Duration, Instant};

/// Lets `burst` through at once, then one per `every`.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    burst: u32,
    every: Duration,
    left: u32,
    /// When the next token is added; `None` while the bucket is full.
    next: Option<Instant>,
}

impl Bucket {
    pub(super) fn new(burst: u32, every: Duration) -> Self {
        let burst = burst.max(1);
        Self { burst, every: every.max(Duration::from_millis(1)), left: burst, next: None }
    }

    fn refill(&mut self, now: Instant) {
        while let Some(next) = self.next.filter(|next| *next <= now) {
            self.left += 1;
            self.next = (self.left < self.burst).then(|| next + self.every);
        }
    }

    /// Whether a token can be taken.
    pub(super) fn ready(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.left > 0
    }

    /// Takes a token if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let ready = self.ready(now);
        if ready {
            self.left -= 1;
            self.next.get_or_insert(now + self.every);
        }
        ready
    }

    /// When there will be a token, if there is none.
    pub(super) fn ready_at(&self) -> Option<Instant> {
        self.next.filter(|_| self.left == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lets_a_burst_through_and_then_a_rate() {
        let (t, every) = (Instant::now(), Duration::from_secs(1));
        let mut bucket = Bucket::new(2, every);
        assert!(bucket.take(t) && bucket.take(t) && !bucket.take(t));
        assert_eq!(bucket.ready_at(), Some(t + every));
        assert!(!bucket.take(t + every / 2) && bucket.take(t + every) && !bucket.take(t + every));
        // Rest fills it, and no further.
        let later = t + every * 100;
        assert!(bucket.take(later) && bucket.take(later) && !bucket.take(later));
    }
}
