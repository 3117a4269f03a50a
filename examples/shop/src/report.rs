//! What a process of the shop tells of its calls and of its rules.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rulecast_sdk::Client;
use serde::{Deserialize, Serialize};
use tonic::{Code, Response, Status};

use crate::proto::Server;

/// A process at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Who it is to the plane.
    pub application: String,
    /// Whether the plane is reached.
    pub connected: bool,
    /// The rules that it holds, by kind; kinds without rules are left out.
    pub rules: Vec<Held>,
    /// Its calls since it began, by the service that it calls.
    pub calls: BTreeMap<String, Edge>,
}

/// Rules of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Held {
    /// `ConditionRoute` …
    pub kind: String,
    /// The plane's, of the last change.
    pub revision: i64,
    /// How many are in force.
    pub rules: usize,
    /// What it refused, and why.
    pub rejected: Vec<String>,
}

/// Calls to one service.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Edge {
    /// Answers by who gave them: `version region address`.
    pub answers: BTreeMap<String, u64>,
    /// Calls that a rule refused, by what was said.
    pub denied: BTreeMap<String, u64>,
    /// Calls that failed otherwise, by code.
    pub failed: BTreeMap<String, u64>,
    /// How long calls took, answered or not.
    pub latency: Latency,
}

/// Texts of one kind that an edge keeps.
const TEXTS: usize = 32;

impl Edge {
    /// Counts a call.
    pub fn count(&mut self, outcome: Outcome, took: Duration) {
        let (texts, text) = match outcome {
            Outcome::Answered(by) => (&mut self.answers, by),
            Outcome::Denied(why) => (&mut self.denied, why),
            Outcome::Failed(why) => (&mut self.failed, why),
        };
        // When to come again is another each time.
        let text = text.split("; again in").next().unwrap_or_default().to_owned();
        let text = match texts.len() < TEXTS || texts.contains_key(&text) {
            true => text,
            false => "others".to_owned(),
        };
        *texts.entry(text).or_default() += 1;
        self.latency.count(took);
    }

    /// What came to it since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let less = |now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            let left = now.iter().map(|(text, count)| {
                (text.clone(), count.saturating_sub(before.get(text).copied().unwrap_or(0)))
            });
            left.filter(|(_, count)| *count > 0).collect()
        };
        Self {
            answers: less(&self.answers, &before.answers),
            denied: less(&self.denied, &before.denied),
            failed: less(&self.failed, &before.failed),
            latency: self.latency.since(&before.latency),
        }
    }

    /// Adds the calls of another process.
    pub fn add(&mut self, other: &Self) {
        for (to, from) in [
            (&mut self.answers, &other.answers),
            (&mut self.denied, &other.denied),
            (&mut self.failed, &other.failed),
        ] {
            for (text, count) in from {
                *to.entry(text.clone()).or_default() += count;
            }
        }
        self.latency.add(&other.latency);
    }

    /// All calls.
    pub fn total(&self) -> u64 {
        [&self.answers, &self.denied, &self.failed].into_iter().flat_map(BTreeMap::values).sum()
    }
}

/// How a call ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Who answered.
    Answered(String),
    /// What the server, or the channel, says of the rule that refused it.
    Denied(String),
    /// Why it failed.
    Failed(String),
}

/// Times in steps of an eighth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency(BTreeMap<u32, u64>);

impl Latency {
    fn count(&mut self, took: Duration) {
        let micros = took.as_micros().clamp(1, u128::from(u32::MAX)) as u32;
        // The highest bit and the three below it.
        let low = micros.ilog2().saturating_sub(3);
        *self.0.entry(micros >> low << low).or_default() += 1;
    }

    /// The time within which this share of the calls ended, to an eighth of it.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let total: u64 = self.0.values().sum();
        let rank = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        self.0.iter().find_map(|(micros, count)| {
            seen += count;
            (seen >= rank).then(|| Duration::from_micros(u64::from(*micros)))
        })
    }

    fn since(&self, before: &Self) -> Self {
        let left = self.0.iter().map(|(step, count)| {
            (*step, count.saturating_sub(before.0.get(step).copied().unwrap_or(0)))
        });
        Self(left.filter(|(_, count)| *count > 0).collect())
    }

    fn add(&mut self, other: &Self) {
        for (step, count) in &other.0 {
            *self.0.entry(*step).or_default() += count;
        }
    }
}

/// The calls of this process, counted by all of its tasks.
#[derive(Clone, Debug, Default)]
pub struct Calls(Arc<Mutex<BTreeMap<String, Edge>>>);

impl Calls {
    /// Makes a call and counts how it ended. `by` says who answered.
    pub async fn watch<T>(
        &self,
        service: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
        by: impl Fn(&T) -> Option<&Server>,
    ) -> Result<T, Status> {
        let since = Instant::now();
        let ended = call.await.map(Response::into_inner);
        let outcome = match &ended {
            Ok(reply) => Outcome::Answered(by(reply).map_or_else(String::new, name)),
            Err(status) => match status.code() {
                Code::PermissionDenied | Code::ResourceExhausted => {
                    Outcome::Denied(status.message().to_owned())
                }
                code => Outcome::Failed(format!("{code:?}")),
            },
        };
        self.count(service, outcome, since.elapsed());
        ended
    }

    /// Counts a call that ended.
    pub fn count(&self, service: &str, outcome: Outcome, took: Duration) {
        let mut edges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match edges.get_mut(service) {
            Some(edge) => edge.count(outcome, took),
            None => edges.entry(service.to_owned()).or_default().count(outcome, took),
        }
    }

    /// All that was counted.
    pub fn edges(&self) -> BTreeMap<String, Edge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What this process tells.
    pub fn report(&self, client: &Client) -> Report {
        let status = client.status();
        let held = status.kinds.iter().filter(|kind| kind.items > 0 || !kind.rejected.is_empty());
        Report {
            application: client.consumer().get("application").unwrap_or_default().to_owned(),
            connected: status.connected,
            rules: held
                .map(|kind| Held {
                    kind: kind.type_name.rsplit('/').next().unwrap_or_default().to_owned(),
                    revision: kind.revision,
                    rules: kind.items,
                    rejected: kind
                        .rejected
                        .iter()
                        .map(|rule| format!("{}: {}", rule.key, rule.reason))
                        .collect(),
                })
                .collect(),
            calls: self.edges(),
        }
    }
}

fn name(server: &Server) -> String {
    format!("{} {} {}", server.version, server.region, server.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_between_two_reports_are_told_apart() {
        let mut edge = Edge::default();
        edge.count(Outcome::Answered("v1".into()), Duration::from_millis(1));
        let before = edge.clone();
        edge.count(Outcome::Answered("v2".into()), Duration::from_millis(9));
        edge.count(Outcome::Denied("by a".into()), Duration::from_millis(2));
        let since = edge.since(&before);
        assert_eq!(since.total(), 2);
        assert_eq!(since.answers, BTreeMap::from([("v2".to_owned(), 1)]));
        assert_eq!(since.latency.quantile(0.5), Some(Duration::from_micros(1920)));
        let mut sum = before;
        sum.add(&since);
        assert_eq!((sum.total(), sum.latency), (edge.total(), edge.latency));
    }

    #[test]
    fn refusals_by_one_rule_are_one() {
        let mut edge = Edge::default();
        for wait in ["1ms", "2.5s"] {
            let why = format!("too many calls: a/b limits it; again in {wait}");
            edge.count(Outcome::Denied(why), Duration::ZERO);
        }
        assert_eq!(edge.denied, BTreeMap::from([("too many calls: a/b limits it".to_owned(), 2)]));
    }

    #[test]
    fn texts_are_bounded() {
        let mut edge = Edge::default();
        for at in 0..1000 {
            edge.count(Outcome::Failed(at.to_string()), Duration::ZERO);
        }
        assert_eq!((edge.failed.len(), edge.total()), (TEXTS + 1, 1000));
    }
}
