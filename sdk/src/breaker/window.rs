//! How calls of the last while ended, shared by all threads without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of time in a window: how finely it slides.
const BUCKETS: u64 = 10;

/// Bits of a bucket: its time in the upper ones, then calls, then those that failed.
const COUNT: u32 = 20;
const MOST: u64 = (1 << COUNT) - 1;
const TIMES: u64 = (1 << (u64::BITS - 2 * COUNT)) - 1;

/// The outcomes of a sliding window, in buckets of a tenth of it. What it counts goes back by
/// nine to ten tenths of its span.
#[derive(Debug, Default)]
pub(super) struct Window([AtomicU64; BUCKETS as usize]);

/// Calls and failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) calls: u64,
    pub(super) failed: u64,
}

#[derive(Clone, Copy)]
struct Bucket {
    time: u64,
    counts: Counts,
}

impl Bucket {
    fn read(word: u64) -> Self {
        let counts = Counts { calls: word >> COUNT & MOST, failed: word & MOST };
        Self { time: word >> (2 * COUNT), counts }
    }

    fn word(self) -> u64 {
        self.time << (2 * COUNT) | self.counts.calls << COUNT | self.counts.failed
    }

    /// With one more. A full one is halved first: the share of failures stays.
    fn with(self, failed: bool) -> Self {
        let Counts { mut calls, failed: mut failures } = self.counts;
        if calls == MOST {
            (calls, failures) = (calls / 2, failures / 2);
        }
        let counts = Counts { calls: calls + 1, failed: failures + u64::from(failed) };
        Self { counts, ..self }
    }

    /// How many buckets of time before `time` this one is; of one that is ahead a great number.
    fn age(self, time: u64) -> u64 {
        time.wrapping_sub(self.time) & TIMES
    }
}

/// The bucket of a time, in milliseconds, with the span of the window.
fn time(now: u64, span: u64) -> u64 {
    now / (span / BUCKETS).max(1)
}

impl Window {
    /// Counts an outcome at `now`; both times in milliseconds, the span always the same.
    pub(super) fn record(&self, now: u64, span: u64, failed: bool) {
        let time = time(now, span);
        let bucket = &self.0[(time % BUCKETS) as usize];
        let next = |word| {
            let held = Bucket::read(word);
            let next = match held.age(time) {
                0 => held.with(failed),
                // Another thread is in a later bucket already; this outcome is too old.
                age if age > TIMES / 2 && held.counts.calls > 0 => return None,
                _ => Bucket { time: time & TIMES, counts: Counts::default() }.with(failed),
            };
            Some(next.word())
        };
        // Outcomes order nothing but themselves.
        let _ = bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// What was counted in the window that ends at `now`.
    pub(super) fn counts(&self, now: u64, span: u64) -> Counts {
        let time = time(now, span);
        let mut sum = Counts::default();
        for word in &self.0 {
            let bucket = Bucket::read(word.load(Ordering::Relaxed));
            if bucket.age(time) < BUCKETS {
                sum.calls += bucket.counts.calls;
                sum.failed += bucket.counts.failed;
            }
        }
        sum
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        for word in &self.0 {
            word.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: u64 = 10_000;

    #[test]
    fn it_slides_by_tenths() {
        let window = Window::default();
        window.record(999, SPAN, true);
        window.record(1000, SPAN, false);
        let counts = |now| {
            let Counts { calls, failed } = window.counts(now, SPAN);
            (calls, failed)
        };
        assert_eq!(counts(1000), (2, 1));
        assert_eq!(counts(9_999), (2, 1));
        assert_eq!(counts(10_000), (1, 0));
        assert_eq!(counts(11_000), (0, 0));
        window.record(20_500, SPAN, true);
        assert_eq!(counts(20_500), (1, 1));
        window.clear();
        assert_eq!(counts(20_500), (0, 0));
    }

    #[test]
    fn a_thread_that_is_late_spoils_no_later_bucket() {
        let window = Window::default();
        window.record(10_000, SPAN, false);
        window.record(500, SPAN, true);
        assert_eq!(window.counts(10_000, SPAN), Counts { calls: 1, failed: 0 });
    }

    #[test]
    fn a_full_bucket_keeps_its_share() {
        let window = Window::default();
        for i in 0..MOST + 3 {
            window.record(5, SPAN, i % 4 == 0);
        }
        let Counts { calls, failed } = window.counts(5, SPAN);
        assert!(calls < MOST, "{calls}");
        let share = failed as f64 / calls as f64;
        assert!((share - 0.25).abs() < 0.001, "{share}");
    }
}
