//! What a client counts of its decisions.
//!
//! Each thread counts in cells of its own, so counting costs a few nanoseconds however many
//! threads decide; they are added up when somebody looks. Of the decisions one in about 64 is
//! measured. What is counted of a rule begins anew when it changes, and goes with it.

use std::sync::Arc;

use crate::tls::ConnectionCounts;

mod cell;
mod latency;
mod recorder;
mod reporter;
mod rule;
mod text;
mod verdict;

pub(crate) use cell::Counter;
pub use latency::Latency;
pub(crate) use recorder::{Recorder, count};
pub(crate) use reporter::{InForce, Reporter};
pub(crate) use rule::{Counts, RuleStats};
pub use text::CONTENT_TYPE;
pub use verdict::{Outcome, Verdict};

/// What a client has counted, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Metrics {
    /// By what came of the decisions; in the order of [`Outcome::ALL`].
    pub decisions: Vec<Counted<Outcome>>,
    /// Of the rules in force that were asked at least once; by type, in the order of their
    /// application.
    pub rules: Vec<RuleMetrics>,
    /// What became of connections that [`tls`](crate::tls) was to take.
    pub connections: ConnectionCounts,
}

/// How often something was the case, and how long those decisions took.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Counted<T> {
    /// What was the case.
    pub what: T,
    /// How often.
    pub count: u64,
    /// How long the decisions took, of those that were measured.
    pub latency: Latency,
}

/// What was counted of one version of a rule.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RuleMetrics {
    /// `<group>/<version>/<Kind>`.
    pub kind: &'static str,
    /// `<name>/<namespace>`.
    pub key: Arc<str>,
    /// It is evaluated, and not enforced.
    pub shadow: bool,
    /// By verdict, those that were given; in the order of [`Verdict::ALL`].
    pub verdicts: Vec<Counted<Verdict>>,
}

impl RuleMetrics {
    /// How many calls it was asked about.
    pub fn calls(&self) -> u64 {
        self.verdicts.iter().map(|verdict| verdict.count).sum()
    }

    /// How often it gave a verdict.
    pub fn count(&self, verdict: Verdict) -> u64 {
        self.verdicts.iter().find(|given| given.what == verdict).map_or(0, |given| given.count)
    }

    pub(crate) fn of(
        kind: &'static str,
        key: &Arc<str>,
        shadow: bool,
        stats: &RuleStats,
        decisions: Option<u64>,
    ) -> Option<Self> {
        let counts = stats.counts(shadow, decisions);
        let verdicts: Vec<_> = Verdict::ALL
            .into_iter()
            .filter(|verdict| counts.get(*verdict) > 0)
            .map(|what| Counted { what, count: counts.get(what), latency: stats.latency(what) })
            .collect();
        let asked = !verdicts.is_empty();
        asked.then(|| Self { kind, key: key.clone(), shadow, verdicts })
    }
}

impl Metrics {
    pub(crate) fn new(
        recorder: &Recorder,
        rules: Vec<RuleMetrics>,
        connections: ConnectionCounts,
    ) -> Self {
        let counted = |(what, count)| Counted { what, count, latency: recorder.latency(what) };
        let decisions = Outcome::ALL.into_iter().zip(recorder.counts()).map(counted).collect();
        Self { decisions, rules, connections }
    }

    /// How many decisions came to this.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.decisions.get(outcome as usize).map_or(0, |counted| counted.count)
    }

    /// A rule, by type and key.
    pub fn rule(&self, kind: &str, key: &str) -> Option<&RuleMetrics> {
        self.rules.iter().find(|rule| rule.kind == kind && *rule.key == *key)
    }
}

#[cfg(test)]
mod tests;
