//! How long decisions took: a histogram in powers of two.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The first bucket ends at 2^7 ns, so at 128 ns.
const FIRST: u32 = 7;
/// Buckets with an end; the last one's is 2^23 ns, about 8.4 ms.
const BOUNDED: usize = 17;

/// Shared by all threads; written for the share of decisions that is measured.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDED + 1],
    /// Nanoseconds.
    sum: AtomicU64,
}

impl Histogram {
    pub(super) fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // The power of two at or above.
        let power = u64::BITS - nanos.saturating_sub(1).leading_zeros();
        let at = (power.saturating_sub(FIRST) as usize).min(BOUNDED);
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Latency {
        let buckets = self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        Latency { buckets, sum: Duration::from_nanos(self.sum.load(Ordering::Relaxed)) }
    }
}

/// How long decisions took, of the share that was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// By bucket; empty: nothing was measured.
    buckets: Vec<u64>,
    sum: Duration,
}

impl Latency {
    /// How many were measured.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How long they took together.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The buckets: to which time each reaches (`None`: any), and how many took so long or
    /// less. The first ends at 128 ns, each that follows at the double, the last at 8.4 ms.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let mut below = 0;
        self.buckets.iter().enumerate().map(move |(at, count)| {
            below += count;
            let end = Duration::from_nanos(1 << (FIRST as usize + at));
            ((at < BOUNDED).then_some(end), below)
        })
    }

    /// The end of the bucket in which a quantile (0 to 1) lies; `None`: nothing was measured,
    /// or it lies beyond all of them.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        let wanted = ((count as f64 * q).ceil() as u64).clamp(1, count.max(1));
        self.buckets().find(|(_, below)| *below >= wanted)?.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_in_the_bucket_that_reaches_to_it() {
        for (nanos, end) in [
            (0, Some(128)),
            (128, Some(128)),
            (129, Some(256)),
            (1000, Some(1024)),
            (1 << 23, Some(1 << 23)),
            ((1 << 23) + 1, None),
            (u64::MAX, None),
        ] {
            let histogram = Histogram::default();
            histogram.record(Duration::from_nanos(nanos));
            let read = histogram.read();
            assert_eq!(read.count(), 1);
            assert_eq!(read.quantile(0.5), end.map(Duration::from_nanos), "{nanos}");
        }
        assert_eq!(Latency::default().quantile(0.5), None);
    }

    #[test]
    fn quantiles_count_what_lies_below() {
        let histogram = Histogram::default();
        for _ in 0..99 {
            histogram.record(Duration::from_nanos(200));
        }
        histogram.record(Duration::from_micros(3));
        let read = histogram.read();
        assert_eq!(read.quantile(0.5), Some(Duration::from_nanos(256)));
        assert_eq!(read.quantile(0.99), Some(Duration::from_nanos(256)));
        assert_eq!(read.quantile(1.0), Some(Duration::from_nanos(4096)));
        assert_eq!(read.sum(), Duration::from_nanos(99 * 200 + 3000));
        assert_eq!(read.buckets().last(), Some((None, 100)));
    }
}
