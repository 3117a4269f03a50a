//! What is counted of one rule.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use super::{
    Verdict,
    cell::{Cells, Counter},
    latency::{Histogram, Latency},
};

/// Bytes of a sample.
pub(crate) const MAX_SAMPLE: usize = 256;

/// The record of one version of a rule, shared by all threads. Gone with the rule.
#[derive(Debug, Default)]
pub(crate) struct RuleStats {
    cells: Cells,
    /// By verdict, of those that are rare: counted in one place.
    rare: [AtomicU64; Verdict::ALL.len()],
    /// The decisions of its phase that were made before it came.
    since: OnceLock<u64>,
    /// By verdict.
    latency: [OnceLock<Box<Histogram>>; Verdict::ALL.len()],
    samples: Samples,
}

/// Calls as examples, the first of each verdict since they were last taken.
#[derive(Debug, Default)]
struct Samples {
    /// Bits of the verdicts that have theirs.
    has: AtomicU32,
    texts: Mutex<BTreeMap<Verdict, String>>,
}

impl RuleStats {
    /// For the calling thread.
    pub(crate) fn counter(&self) -> Counter {
        self.cells.counter()
    }

    /// Counts a verdict that is not given call by call.
    pub(crate) fn rare(&self, verdict: Verdict) {
        self.rare[verdict as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Says how many decisions there were before it came, where every call asks it.
    pub(crate) fn begin(&self, decisions: u64) {
        self.since.get_or_init(|| decisions);
    }

    pub(super) fn took(&self, verdict: Verdict, histogram: impl FnOnce(&Histogram)) {
        histogram(self.latency[verdict as usize].get_or_init(Box::default));
    }

    pub(super) fn latency(&self, verdict: Verdict) -> Latency {
        let histogram = self.latency[verdict as usize].get();
        histogram.map(|histogram| histogram.read()).unwrap_or_default()
    }

    /// By verdict. `decisions` of its phase were made by now, where every call asks it: those
    /// in which it gave no verdict, it skipped.
    pub(crate) fn counts(&self, shadow: bool, decisions: Option<u64>) -> Counts {
        let mut counts = [0; Verdict::ALL.len()];
        counts.copy_from_slice(&self.cells.read()[..Verdict::ALL.len()]);
        for (count, rare) in counts.iter_mut().zip(&self.rare) {
            *count += rare.load(Ordering::Relaxed);
        }
        if let (Some(decisions), Some(since)) = (decisions, self.since.get()) {
            let skipped = if shadow { Verdict::WouldSkip } else { Verdict::Skipped };
            let spoke: u64 = counts.iter().sum();
            counts[skipped as usize] += decisions.saturating_sub(*since).saturating_sub(spoke);
        }
        Counts(counts)
    }

    /// Keeps a call as an example, unless there is one.
    #[inline]
    pub(crate) fn sample(&self, verdict: Verdict, text: impl FnOnce() -> String) {
        if self.samples.has.load(Ordering::Relaxed) & bit(verdict) == 0 {
            self.keep(verdict, text());
        }
    }

    #[cold]
    fn keep(&self, verdict: Verdict, text: String) {
        let mut texts = self.samples.texts.lock().unwrap_or_else(PoisonError::into_inner);
        self.samples.has.fetch_or(bit(verdict), Ordering::Relaxed);
        texts.entry(verdict).or_insert_with(|| shown(&text));
    }

    /// Takes the examples, so that the next calls give new ones.
    pub(crate) fn take_samples(&self) -> BTreeMap<Verdict, String> {
        let mut texts = self.samples.texts.lock().unwrap_or_else(PoisonError::into_inner);
        self.samples.has.store(0, Ordering::Relaxed);
        std::mem::take(&mut *texts)
    }
}

fn bit(verdict: Verdict) -> u32 {
    1 << verdict as u8
}

/// One line of bounded length.
fn shown(text: &str) -> String {
    let mut line = String::new();
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if line.len() + c.len_utf8() > MAX_SAMPLE - '…'.len_utf8() {
            line.push('…');
            break;
        }
        line.push(c);
    }
    line
}

/// Counts by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts([u64; Verdict::ALL.len()]);

impl Counts {
    pub(crate) fn get(&self, verdict: Verdict) -> u64 {
        self.0[verdict as usize]
    }

    /// All that came since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut counts = self.0;
        counts.iter_mut().zip(before.0).for_each(|(now, before)| {
            *now = now.saturating_sub(before);
        });
        Self(counts)
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_call_asks_and_says_nothing_is_skipped() {
        let stats = RuleStats::default();
        stats.begin(100);
        let counter = stats.counter();
        (0..3).for_each(|_| counter.add(Verdict::WouldDeny as usize));
        stats.rare(Verdict::Failed);
        let counts = stats.counts(true, Some(110));
        assert_eq!(counts.get(Verdict::WouldDeny), 3);
        assert_eq!(counts.get(Verdict::Failed), 1);
        assert_eq!(counts.get(Verdict::WouldSkip), 6);
        assert_eq!(stats.counts(true, Some(90)).get(Verdict::WouldSkip), 0);
        assert_eq!(counts.since(&stats.counts(true, Some(105))).sum(), 5);
    }

    #[test]
    fn one_sample_is_kept_until_it_is_taken() {
        let stats = RuleStats::default();
        for text in ["first", "second"] {
            stats.sample(Verdict::WouldDeny, || text.to_owned());
        }
        stats.sample(Verdict::WouldDeny, || unreachable!("there is one"));
        assert_eq!(stats.take_samples()[&Verdict::WouldDeny], "first");
        assert!(stats.take_samples().is_empty());
        stats.sample(Verdict::WouldDeny, || format!("a\n{}", "é".repeat(MAX_SAMPLE)));
        let text = &stats.take_samples()[&Verdict::WouldDeny];
        assert!(text.starts_with("a é") && text.ends_with('…') && text.len() <= MAX_SAMPLE);
    }
}
