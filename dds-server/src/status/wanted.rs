//! What should stand on a rule, from what is known of it.

use std::{fmt::Write as _, time::Duration};

use rulecast_api::rule_status::{
    ACCEPTED, Condition, ConditionStatus, LastAccepted, PROGRAMMED, Refusal, RuleStatus,
};

use super::standing::{Standing, Stands};
use crate::{
    rollout::RuleRollout,
    store::{StoreProblem, Stored},
};

/// Most problems, refusals and names that a message tells; the rest is counted.
const TOLD: usize = 3;
/// Longest piece of foreign text in a message, in characters.
const PIECE: usize = 300;
/// Longest name of a client in the sample, in characters; the schema's limit.
const CLIENT: usize = 1024;
/// Longest reason of a client in the sample, in characters.
const REASON: usize = 1024;

/// Why a condition is as it is, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The current generation is valid.
    Accepted,
    /// The current generation is not valid; for Programmed: and nothing else is in force.
    Invalid,
    /// All clients that should have it have it.
    Applied,
    /// No client should have it.
    NoClients,
    /// The rule is disabled, and no client has it any more.
    Disabled,
    /// Some clients have not answered yet.
    Pending,
    /// Some clients have not answered in time.
    Lagging,
    /// Some clients refuse it.
    Rejected,
    /// The current generation is refused; an earlier one stays in force.
    LastGood,
}

impl Reason {
    const ALL: [Self; 9] = [
        Self::Accepted,
        Self::Invalid,
        Self::Applied,
        Self::NoClients,
        Self::Disabled,
        Self::Pending,
        Self::Lagging,
        Self::Rejected,
        Self::LastGood,
    ];

    /// As it stands on objects.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Invalid => "Invalid",
            Self::Applied => "Applied",
            Self::NoClients => "NoClients",
            Self::Disabled => "Disabled",
            Self::Pending => "Pending",
            Self::Lagging => "Lagging",
            Self::Rejected => "Rejected",
            Self::LastGood => "LastGood",
        }
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }

    fn status(self) -> ConditionStatus {
        match self {
            Self::Accepted | Self::Applied | Self::NoClients | Self::Disabled => {
                ConditionStatus::True
            }
            // As users of the Gateway API know it: false is a finding, and there is none yet.
            Self::Pending => ConditionStatus::Unknown,
            Self::Invalid | Self::Lagging | Self::Rejected | Self::LastGood => {
                ConditionStatus::False
            }
        }
    }
}

/// One condition, without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) reason: Reason,
    pub(super) message: String,
}

impl Verdict {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    pub(super) fn status(&self) -> ConditionStatus {
        self.reason.status()
    }
}

/// All that is known of one object.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    /// Its generation now.
    pub(super) generation: i64,
    /// What is in force of it.
    pub(super) stored: Option<&'a Stored>,
    /// What is wrong with it.
    pub(super) problems: &'a [&'a StoreProblem],
    /// Who holds what is in force.
    pub(super) rollout: &'a RuleRollout,
    /// How long a client may take to answer.
    pub(super) ack_deadline: Duration,
    /// Programmed has been true for this generation.
    pub(super) latched: bool,
    /// Clients that come back after a restart may be missing.
    pub(super) awaiting: bool,
    /// The last generation that was valid, where that is known.
    pub(super) good: Option<i64>,
    /// What stands on the object.
    pub(super) standing: Option<&'a Standing>,
}

/// What should stand on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) generation: i64,
    pub(super) accepted: Verdict,
    pub(super) programmed: Verdict,
    pub(super) matched: i64,
    pub(super) applied: i64,
    pub(super) rejected: i64,
    pub(super) reasons: Vec<Refusal>,
    pub(super) last_accepted: Option<LastAccepted>,
    /// Everybody has answered or is late: what changes from here on is no roll-out.
    pub(super) settled: bool,
}

impl Wanted {
    pub(super) fn of(facts: &Facts<'_>) -> Self {
        let rollout = facts.rollout;
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let valid = facts.stored.is_some_and(|stored| stored.accepted);
        let refusal = |(client, reason): &(String, String)| Refusal {
            client: shorten(client, CLIENT),
            reason: said(reason, REASON),
        };
        let (accepted, programmed) = if valid {
            (Verdict::new(Reason::Accepted, "the rule is valid"), programmed(facts))
        } else {
            (Verdict::new(Reason::Invalid, invalid(facts.problems)), last_good(facts))
        };
        let late = rollout.lagging + rollout.lagging_leaving;
        Self {
            generation: facts.generation,
            settled: !valid || (rollout.pending() == late && programmed.reason != Reason::Pending),
            accepted,
            programmed,
            matched: count(rollout.matched),
            applied: count(rollout.applied),
            rejected: count(rollout.rejected),
            reasons: rollout.reasons.iter().map(refusal).collect(),
            last_accepted: if valid { None } else { last_accepted(facts) },
        }
    }

    /// As it is written over what stands: a time changes with its status only.
    pub(super) fn status(&self, standing: Option<&Standing>, now: &str) -> RuleStatus {
        let condition = |kind: &str, verdict: &Verdict, stands: Option<&Stands>| {
            let since = stands.filter(|stands| stands.status == verdict.status());
            Condition {
                kind: kind.to_owned(),
                status: verdict.status(),
                observed_generation: self.generation,
                last_transition_time: since.map_or(now, |stands| &stands.since).to_owned(),
                reason: verdict.reason.as_str().to_owned(),
                message: verdict.message.clone(),
            }
        };
        let accepted = standing.and_then(|standing| standing.accepted.as_ref());
        let programmed = standing.and_then(|standing| standing.programmed.as_ref());
        RuleStatus {
            observed_generation: self.generation,
            conditions: vec![
                condition(ACCEPTED, &self.accepted, accepted),
                condition(PROGRAMMED, &self.programmed, programmed),
            ],
            matched: self.matched,
            applied: self.applied,
            rejected: self.rejected,
            reasons: self.reasons.clone(),
            last_accepted: self.last_accepted.clone(),
        }
    }
}

/// Programmed, of a valid generation.
fn programmed(facts: &Facts<'_>) -> Verdict {
    let RuleRollout { matched, applied, rejected, lagging, leaving, lagging_leaving, .. } =
        *facts.rollout;
    let enabled = facts.stored.is_some_and(|stored| stored.resource.spec.enabled());
    let reached = match (enabled, matched) {
        (false, _) => Verdict::new(Reason::Disabled, "the rule is disabled; no client has it"),
        (true, 0) => Verdict::new(Reason::NoClients, "no connected client should have it"),
        (true, _) => Verdict::new(Reason::Applied, "the clients that should have it apply it"),
    };
    if rejected > 0 {
        let refusals =
            facts.rollout.reasons.iter().map(|(client, reason)| {
                format!("{}: {}", shorten(client, PIECE), said(reason, PIECE))
            });
        let refusals = list(refusals, rejected);
        return Verdict::new(
            Reason::Rejected,
            format!("{} it: {refusals}", refuse(rejected, matched)),
        );
    }
    if facts.latched {
        // Clients come and go. While one is on its way, what was said stays.
        let said = facts.standing.and_then(|standing| standing.programmed.as_ref());
        return match said.and_then(|said| said.reason) {
            Some(Reason::NoClients) if matched > 0 && applied < matched => {
                Verdict::new(Reason::NoClients, "no connected client should have it")
            }
            _ => reached,
        };
    }
    let late = lagging + lagging_leaving;
    if late > 0 {
        let names = facts.rollout.laggards.iter().map(|name| shorten(name, PIECE));
        let message = format!(
            "{} not answered within {}: {}",
            have(late, matched + leaving),
            seconds(facts.ack_deadline),
            list(names, late)
        );
        return Verdict::new(Reason::Lagging, message);
    }
    let pending = facts.rollout.pending();
    if pending > 0 {
        let message = format!("{} not answered yet", have(pending, matched + leaving));
        return Verdict::new(Reason::Pending, message);
    }
    if facts.awaiting {
        let message =
            "this plane has just begun to write status; clients that come back are awaited";
        return Verdict::new(Reason::Pending, message);
    }
    reached
}

/// Programmed, of a generation that is not valid.
fn last_good(facts: &Facts<'_>) -> Verdict {
    let generation = facts.generation;
    match (facts.stored, facts.good) {
        (None, _) => Verdict::new(Reason::Invalid, "nothing of this rule is in force"),
        (Some(_), Some(good)) => Verdict::new(
            Reason::LastGood,
            format!("generation {generation} is refused; generation {good} stays in force"),
        ),
        (Some(_), None) => Verdict::new(
            Reason::LastGood,
            format!("generation {generation} is refused; an earlier one stays in force"),
        ),
    }
}

fn last_accepted(facts: &Facts<'_>) -> Option<LastAccepted> {
    match facts.stored {
        Some(stored) => Some(LastAccepted {
            generation: facts.good.unwrap_or_default(),
            spec: stored.resource.spec.to_json(),
        }),
        // Kept though nobody here can read it: a plane of another version may.
        None => facts.standing.and_then(|standing| standing.last_accepted.as_deref().cloned()),
    }
}

fn invalid(problems: &[&StoreProblem]) -> String {
    if problems.is_empty() {
        return "what is stored is refused".to_owned();
    }
    let told = problems.iter().map(|problem| {
        let mut text = problem.code.to_string();
        if !problem.field.is_empty() {
            let _ = write!(text, " {}", shorten(&problem.field, PIECE));
        }
        if let Some(value) = &problem.value {
            let _ = write!(text, " = {:?}", shorten(value, PIECE));
        }
        let _ = write!(text, ": {}", shorten(&problem.message, PIECE));
        if !problem.hint.is_empty() {
            let _ = write!(text, "; {}", shorten(&problem.hint, PIECE));
        }
        text
    });
    list(told, problems.len())
}

/// The first of `all` entries, and how many more there are.
fn list(entries: impl Iterator<Item = String>, all: usize) -> String {
    let told: Vec<_> = entries.take(TOLD).collect();
    let more = all.saturating_sub(told.len());
    let told = told.join("; ");
    if more > 0 && !told.is_empty() { format!("{told}; and {more} more") } else { told }
}

fn refuse(n: usize, all: usize) -> String {
    match (n, all) {
        (1, 1) => "the one client refuses".to_owned(),
        (1, _) => format!("1 of {all} clients refuses"),
        _ => format!("{n} of {all} clients refuse"),
    }
}

fn have(n: usize, all: usize) -> String {
    match (n, all) {
        (1, 1) => "the one client has".to_owned(),
        (1, _) => format!("1 of {all} clients has"),
        _ => format!("{n} of {all} clients have"),
    }
}

fn seconds(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        format!("{} s", duration.as_secs())
    } else {
        format!("{} ms", duration.as_millis())
    }
}

/// A client's words. Server-side apply of Kubernetes 1.20 makes null of an empty text in a
/// list, and then refuses it.
fn said(reason: &str, limit: usize) -> String {
    if reason.trim().is_empty() {
        return "it gave no reason".to_owned();
    }
    shorten(reason, limit)
}

/// At most so many characters, without control characters.
fn shorten(text: &str, limit: usize) -> String {
    let mut short: String =
        text.chars().take(limit).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(limit).is_some() {
        short.pop();
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rollout: RuleRollout) -> Wanted {
        let stored = crate::store::conformance::stored("a", "default", "com.A", 1, 1);
        Wanted::of(&Facts {
            generation: 1,
            stored: Some(&stored),
            problems: &[],
            rollout: &rollout,
            ack_deadline: Duration::from_secs(10),
            latched: false,
            awaiting: false,
            good: None,
            standing: None,
        })
    }

    #[test]
    fn messages_are_short_and_never_empty_whatever_clients_say() {
        let long = format!("line\n{}", "ä".repeat(5000));
        let reasons: Vec<_> =
            [" ", &long, "c", "d", "e"].iter().map(|r| ("x".repeat(2000), (*r).into())).collect();
        let wanted = of(RuleRollout { matched: 9, rejected: 7, reasons, ..RuleRollout::default() });
        assert!(wanted.programmed.message.starts_with("7 of 9 clients refuse it: x"));
        assert!(wanted.programmed.message.ends_with("; and 4 more"));
        assert!(wanted.programmed.message.chars().count() < 3000);
        assert_eq!(wanted.reasons[0].reason, "it gave no reason");
        assert!(wanted.reasons[1].reason.starts_with("line ä"));
        assert!(wanted.reasons[1].reason.ends_with("ä…"));
        assert!(wanted.reasons.iter().all(|r| r.client.chars().count() <= CLIENT));
        let status = wanted.status(None, "2026-11-30T12:00:00Z");
        assert!(status.conditions.iter().all(|c| !c.message.is_empty()));
    }

    #[test]
    fn who_is_late_with_leaving_counts_too() {
        let rollout = RuleRollout {
            matched: 3,
            applied: 3,
            leaving: 2,
            lagging_leaving: 1,
            laggards: vec!["x".into()],
            ..RuleRollout::default()
        };
        let wanted = of(rollout.clone());
        let told = "1 of 5 clients has not answered within 10 s: x";
        let programmed = (wanted.programmed.reason, wanted.programmed.message.as_str());
        assert_eq!((programmed, wanted.settled), ((Reason::Lagging, told), false));
        let wanted = of(RuleRollout { lagging_leaving: 0, ..rollout });
        assert_eq!(wanted.programmed.reason, Reason::Pending);
    }
}
