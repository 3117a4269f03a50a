//! What the plane is told of the rules: what came since it was told last. Without I/O.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use rulecast_api::{
    Digest,
    proto::report::v1::{self as proto, Given, ReportRequest, RuleReport},
};

use super::{Counts, RuleStats, Verdict};

/// Rules of one report; the others come with the next.
const MAX_RULES: usize = 256;

/// A rule in force.
pub(crate) struct InForce<'a> {
    pub(crate) kind: &'static str,
    pub(crate) key: &'a Arc<str>,
    /// Of the item as it was delivered.
    pub(crate) digest: Digest,
    pub(crate) shadow: bool,
    pub(crate) stats: &'a Arc<RuleStats>,
    /// See [`RuleStats::counts`].
    pub(crate) decisions: Option<u64>,
}

/// Remembers what the plane knows.
#[derive(Debug, Default)]
pub(crate) struct Reporter {
    known: HashMap<(&'static str, Arc<str>), Known>,
    /// Counts the reports.
    round: u64,
    /// What the report under way says.
    pending: Vec<((&'static str, Arc<str>), Counts)>,
}

#[derive(Debug)]
struct Known {
    stats: Arc<RuleStats>,
    told: Counts,
    /// Not told yet.
    samples: BTreeMap<Verdict, String>,
    /// In which report it was.
    round: u64,
}

impl Reporter {
    /// A report of what changed; `None`: nothing did. Of many rules, shadow rules come first,
    /// then those that waited longest. Say how it went: [`sent`](Self::sent), or nothing.
    pub(crate) fn report<'a>(
        &mut self,
        rules: impl IntoIterator<Item = InForce<'a>>,
    ) -> Option<ReportRequest> {
        let mut before = std::mem::take(&mut self.known);
        let mut changed = Vec::new();
        for rule in rules {
            let InForce { kind, key, digest, shadow, stats, decisions } = rule;
            let name = (kind, key.clone());
            // Of another version it is not known what the plane was told.
            let known = before.remove(&name).filter(|known| Arc::ptr_eq(&known.stats, stats));
            let known = known.unwrap_or_else(|| Known {
                stats: stats.clone(),
                told: Counts::default(),
                samples: BTreeMap::new(),
                round: 0,
            });
            let now = stats.counts(shadow, decisions);
            if now.since(&known.told).sum() > 0 {
                changed.push((!shadow, known.round, name.clone(), now, digest));
            }
            self.known.insert(name, known);
        }
        changed.sort_by_key(|(enforced, round, ..)| (*enforced, *round));
        changed.truncate(MAX_RULES);
        self.pending.clear();
        let mut rules = Vec::with_capacity(changed.len());
        for (_, _, name, now, digest) in changed {
            let Some(known) = self.known.get_mut(&name) else { continue };
            known.samples.extend(known.stats.take_samples());
            rules.push(RuleReport {
                r#type: name.0.to_owned(),
                key: name.1.to_string(),
                digest: digest.to_bytes(),
                given: given(&now.since(&known.told), &known.samples),
            });
            self.pending.push((name, now));
        }
        (!rules.is_empty()).then_some(ReportRequest { rules })
    }

    /// The plane has the report.
    pub(crate) fn sent(&mut self) {
        self.round += 1;
        for (name, counts) in self.pending.drain(..) {
            if let Some(known) = self.known.get_mut(&name) {
                known.told = counts;
                known.round = self.round;
                known.samples.clear();
            }
        }
    }
}

fn given(counts: &Counts, samples: &BTreeMap<Verdict, String>) -> Vec<Given> {
    let given = Verdict::ALL.into_iter().filter(|verdict| counts.get(*verdict) > 0);
    let given = given.map(|verdict| Given {
        verdict: on_wire(verdict).into(),
        count: counts.get(verdict),
        sample: samples.get(&verdict).cloned().unwrap_or_default(),
    });
    given.collect()
}

fn on_wire(verdict: Verdict) -> proto::Verdict {
    match verdict {
        Verdict::Skipped => proto::Verdict::Skipped,
        Verdict::Applied => proto::Verdict::Applied,
        Verdict::Denied => proto::Verdict::Denied,
        Verdict::Limited => proto::Verdict::Limited,
        Verdict::Opened => proto::Verdict::Opened,
        Verdict::WouldSkip => proto::Verdict::WouldSkip,
        Verdict::WouldApply => proto::Verdict::WouldApply,
        Verdict::WouldDeny => proto::Verdict::WouldDeny,
        Verdict::WouldLimit => proto::Verdict::WouldLimit,
        Verdict::WouldOpen => proto::Verdict::WouldOpen,
        Verdict::Failed => proto::Verdict::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "g/v/Kind";

    fn rule<'a>(key: &'a Arc<str>, shadow: bool, stats: &'a Arc<RuleStats>) -> InForce<'a> {
        let digest = Digest::of(key.as_bytes());
        InForce { kind: KIND, key, digest, shadow, stats, decisions: None }
    }

    fn told(report: &ReportRequest) -> Vec<(&str, proto::Verdict, u64, &str)> {
        let each = report.rules.iter().flat_map(|rule| {
            let given = rule.given.iter();
            given.map(|g| (rule.key.as_str(), g.verdict(), g.count, g.sample.as_str()))
        });
        each.collect()
    }

    #[test]
    fn only_what_is_new_is_told_and_what_was_not_taken_again() {
        let (key, stats) = (Arc::from("a/ns"), Arc::new(RuleStats::default()));
        let (mut reporter, counter) = (Reporter::default(), stats.counter());
        let mut report = |sent: bool| {
            let report = reporter.report([rule(&key, true, &stats)]);
            if sent {
                reporter.sent();
            }
            report
        };
        assert_eq!(report(true), None);
        counter.add(Verdict::WouldDeny as usize);
        stats.sample(Verdict::WouldDeny, || "would deny x".into());
        let first = report(false).expect("new");
        let verdict = proto::Verdict::WouldDeny;
        assert_eq!(told(&first), [("a/ns", verdict, 1, "would deny x")]);
        assert_eq!(first.rules[0].digest, Digest::of(b"a/ns").to_bytes());
        // It did not arrive.
        counter.add(Verdict::WouldDeny as usize);
        assert_eq!(told(&report(true).expect("new")), [("a/ns", verdict, 2, "would deny x")]);
        assert_eq!(report(true), None);
        counter.add(Verdict::WouldDeny as usize);
        assert_eq!(told(&report(true).expect("new")), [("a/ns", verdict, 1, "")]);
    }

    #[test]
    fn another_version_begins_anew_and_what_is_gone_is_forgotten() {
        let key = Arc::from("a/ns");
        let (old, new) = (Arc::new(RuleStats::default()), Arc::new(RuleStats::default()));
        let mut reporter = Reporter::default();
        let (counter, newer) = (old.counter(), new.counter());
        (0..5).for_each(|_| counter.add(Verdict::Applied as usize));
        reporter.report([rule(&key, false, &old)]).expect("new");
        reporter.sent();
        (0..2).for_each(|_| newer.add(Verdict::Applied as usize));
        let report = reporter.report([rule(&key, false, &new)]).expect("new");
        assert_eq!(told(&report), [("a/ns", proto::Verdict::Applied, 2, "")]);
        reporter.report([]);
        assert!(reporter.known.is_empty());
        drop(counter);
        assert_eq!(Arc::strong_count(&old), 1);
    }

    #[test]
    fn of_many_rules_shadows_come_first_and_each_in_its_turn() {
        let rules: Vec<(Arc<str>, bool, Arc<RuleStats>)> = (0..600)
            .map(|i| (Arc::from(format!("r{i:03}/ns")), i >= 590, Arc::default()))
            .collect();
        let counters: Vec<_> = rules.iter().map(|(.., stats)| stats.counter()).collect();
        let mut reporter = Reporter::default();
        let mut seen = BTreeMap::new();
        for _ in 0..3 {
            counters.iter().for_each(|counter| counter.add(Verdict::Applied as usize));
            let all = rules.iter().map(|(key, shadow, stats)| rule(key, *shadow, stats));
            let report = reporter.report(all).expect("new");
            assert_eq!(report.rules.len(), MAX_RULES);
            assert!(report.rules[..10].iter().all(|rule| *rule.key >= *"r590"), "shadows first");
            reporter.sent();
            for rule in report.rules {
                *seen.entry(rule.key).or_insert(0) += rule.given[0].count;
            }
        }
        assert_eq!(seen.len(), 600, "none waits for ever");
    }
}
