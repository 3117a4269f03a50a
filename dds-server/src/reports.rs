//! What rules made of calls, as their clients report it.
//!
//! Kept for the version of a rule that is in force, and gone with it; so there is never more
//! than the rules in force. Only what clients of this plane reported is known.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use rulecast_api::{
    Code, Digest, Kind, Kinds, ResourceId,
    proto::report::v1::{Given, ReportRequest, RuleReport, Verdict},
};

use crate::{scope::Scope, views::Views};

mod service;
#[cfg(test)]
mod tests;

pub use service::ReportService;

/// Rules of one report.
pub const MAX_RULES: usize = 256;
/// Bytes of a sample.
const MAX_SAMPLE: usize = 256;
/// Reports that all clients together are to send in a second.
const PER_SECOND: usize = 50;
/// Longest time between two reports of a client, however many there are.
const LONGEST: Duration = Duration::from_secs(600);

/// Why a report is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {0}", code = Code::RequestInvalid)]
pub struct ReportError(String);

/// What is known of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Of the version of which this is told; the digest of the whole item.
    version: Option<Digest>,
    /// By verdict, those that were given.
    pub verdicts: BTreeMap<Verdict, Tally>,
}

/// How often a rule gave a verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls.
    pub count: u64,
    /// The last one that was reported in words, and when.
    pub sample: Option<(String, SystemTime)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    kind: &'static str,
    verdict: String,
}

/// All that is known. Clones share it.
#[derive(Clone)]
pub struct Reports {
    inner: Arc<Inner>,
}

struct Inner {
    views: Views,
    kinds: Kinds,
    told: Mutex<HashMap<(Kind, String), Told>>,
    counted: Family<Labels, Counter>,
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reports").field("rules", &self.lock().len()).finish_non_exhaustive()
    }
}

impl Reports {
    /// Of the rules that `views` shows.
    pub fn new(views: Views, kinds: Kinds) -> Self {
        let (told, counted) = Default::default();
        Self { inner: Arc::new(Inner { views, kinds, told, counted }) }
    }

    /// Adds what is counted to a registry: by kind and verdict, for scrapers learn nothing of
    /// single rules.
    pub fn register(&self, registry: &mut Registry) {
        let help = "What rules made of calls, as clients reported it";
        registry.register("verdicts", help, self.inner.counted.clone());
    }

    /// Takes a report of a client. Gives how many rules were passed over: those that the
    /// client does not get, or no longer in this version.
    pub fn take(
        &self,
        from: &Scope,
        report: &ReportRequest,
        now: SystemTime,
    ) -> Result<u32, ReportError> {
        if report.rules.len() > MAX_RULES {
            let message = format!("more than {MAX_RULES} rules; report them in parts");
            return Err(ReportError(message));
        }
        let mut passed_over = 0;
        for rule in &report.rules {
            if !self.take_rule(from, rule, now) {
                passed_over += 1;
            }
        }
        Ok(passed_over)
    }

    fn take_rule(&self, from: &Scope, rule: &RuleReport, now: SystemTime) -> bool {
        let Inner { views, kinds, counted, .. } = &*self.inner;
        let Some(kind) = Kind::by_type(kinds, &rule.r#type) else { return false };
        let Some(item) = views.given(from, kind, &rule.key) else { return false };
        if item.digest.as_bytes()[..] != rule.digest[..] {
            return false;
        }
        let mut all = self.lock();
        let key = (kind, item.key.clone());
        if !all.contains_key(&key) && all.len() >= views.index().snapshot().len() {
            // Somebody's rules are gone.
            all.retain(|(kind, key), told| told.is_current(views, *kind, key));
        }
        let told = all.entry(key).or_default();
        if told.version != Some(item.version) {
            *told = Told { version: Some(item.version), ..Told::default() };
        }
        for given in &rule.given {
            let verdict = given.verdict();
            // Of a newer client: what it means cannot be known.
            if verdict == Verdict::Unspecified || given.count == 0 {
                continue;
            }
            told.add(given, now);
            let labels = Labels { kind: kind.name, verdict: name(verdict) };
            counted.get_or_create(&labels).inc_by(given.count);
        }
        true
    }

    /// What is known of the version of a rule that is in force.
    pub fn of(&self, id: &ResourceId) -> Told {
        let key = (id.kind, id.key());
        let told = self.lock().get(&key).cloned().unwrap_or_default();
        if told.is_current(&self.inner.views, id.kind, &key.1) { told } else { Told::default() }
    }

    /// After which time a client is to report again, where so many do; zero where they are few.
    pub fn again(clients: usize) -> Duration {
        Duration::from_secs((clients / PER_SECOND) as u64).min(LONGEST)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Kind, String), Told>> {
        self.inner.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    fn is_current(&self, views: &Views, kind: Kind, key: &str) -> bool {
        views.version(kind, key) == self.version
    }

    fn add(&mut self, given: &Given, now: SystemTime) {
        let tally = self.verdicts.entry(given.verdict()).or_default();
        tally.count = tally.count.saturating_add(given.count);
        let sample = &given.sample;
        if !sample.is_empty() && sample.len() <= MAX_SAMPLE {
            tally.sample = Some((sample.replace(char::is_control, " "), now));
        }
    }

    /// How many calls a verdict was given of.
    pub fn count(&self, verdict: Verdict) -> u64 {
        self.verdicts.get(&verdict).map_or(0, |tally| tally.count)
    }

    /// How many calls it was asked about.
    pub fn calls(&self) -> u64 {
        self.verdicts.values().fold(0, |sum, tally| sum.saturating_add(tally.count))
    }
}

/// A verdict as people read it, such as `would_deny`.
pub fn name(verdict: Verdict) -> String {
    let name = verdict.as_str_name();
    name.strip_prefix("VERDICT_").unwrap_or(name).to_ascii_lowercase()
}
