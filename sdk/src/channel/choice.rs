//! An endpoint that was chosen for a call, or why there is none.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use super::{
    place::{Open, Place},
    plan::{MAX_RETRIES, Tuning},
};
use crate::{
    breaker::Attempt,
    decision::{Decision, Effect},
    endpoints::{Endpoint, EndpointSet},
};

/// Before an endpoint is tried once more, at most; doubles each time.
const BACKOFF: Duration = Duration::from_millis(20);

/// What was tried of one call. [`Governor::choose`](super::Governor::choose) keeps it.
#[derive(Debug, Default)]
pub struct Tries {
    /// The last of them.
    places: [Option<Arc<Place>>; MAX_RETRIES as usize + 1],
    count: u32,
    repeats: bool,
    pub(super) draw: Option<u64>,
}

impl Tries {
    /// Of a call that begins.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many endpoints were chosen.
    pub fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn add(&mut self, place: Arc<Place>) {
        self.repeats = self.has(&place);
        let at = self.count as usize % self.places.len();
        self.places[at] = Some(place);
        self.count += 1;
    }

    /// How long to wait before the last choice is called: not, unless it was tried before.
    pub(super) fn pause(&self) -> Duration {
        match self.repeats {
            true => BACKOFF.saturating_mul(1 << self.count.min(8)).mul_f64(fastrand::f64()),
            false => Duration::ZERO,
        }
    }

    pub(super) fn has(&self, place: &Arc<Place>) -> bool {
        self.places.iter().flatten().any(|tried| Arc::ptr_eq(tried, place))
    }
}

/// An endpoint that was chosen for a call. Say how the call went; one that is dropped counts as
/// neither. The call counts as under way until then.
#[derive(Debug)]
#[must_use = "say how the call ended"]
pub struct Choice {
    set: EndpointSet,
    index: u32,
    open: Open,
    attempt: Option<Attempt>,
    tuning: Tuning,
}

impl Choice {
    pub(super) fn new(
        set: EndpointSet,
        index: u32,
        place: Arc<Place>,
        attempt: Attempt,
        tuning: Tuning,
    ) -> Self {
        Self { set, index, open: Open::new(place), attempt: Some(attempt), tuning }
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        // The index is of this very set.
        &self.set.endpoints()[self.index as usize]
    }

    /// Its index in the set of endpoints.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How long this try may take until its answer begins; `None`: no limit.
    pub fn timeout(&self) -> Option<Duration> {
        self.tuning.timeout
    }

    /// How often the call may be tried again.
    pub fn retries(&self) -> u32 {
        self.tuning.retries
    }

    /// The endpoint answered, be it with a refusal that is the caller's doing.
    pub fn succeeded(mut self) {
        self.settle(true);
    }

    /// The endpoint is at fault.
    pub fn failed(mut self) {
        self.settle(false);
    }

    /// No connection to the endpoint could be opened. While others are left, they are preferred
    /// for a while.
    pub fn unreachable(self) {
        self.open.place().unreachable(String::new());
        self.failed();
    }

    /// As [`succeeded`](Self::succeeded) or [`failed`](Self::failed), of a call that is still
    /// under way. Counts once.
    pub(super) fn settle(&mut self, succeeded: bool) {
        let Some(attempt) = self.attempt.take() else { return };
        match succeeded {
            true => {
                self.open.place().reached();
                attempt.succeeded();
            }
            false => attempt.failed(),
        }
    }

    /// There is a connection to the endpoint, whatever comes of the call.
    #[cfg(feature = "reqwest")]
    pub(super) fn reached(&self) {
        self.open.place().reached();
    }

    pub(super) fn is_settled(&self) -> bool {
        self.attempt.is_none()
    }

    pub(super) fn place(&self) -> &Arc<Place> {
        self.open.place()
    }
}

/// No endpoint is left for a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no endpoint of {service} is left for this call: {why}")]
pub struct NoEndpoint {
    service: String,
    why: String,
}

impl NoEndpoint {
    /// Rules that a message names.
    const MOST: usize = 3;

    pub(super) fn because(service: &str, endpoints: usize, decision: &Decision) -> Self {
        let mut why = match endpoints {
            0 => "none is known".to_owned(),
            1 => "of 1".to_owned(),
            _ => format!("of {endpoints}"),
        };
        let narrowed = decision.rules.iter().filter(|rule| rule.effect == Effect::Applied);
        let last = narrowed.clone().position(|rule| rule.remaining == 0);
        let upto = last.map_or(usize::MAX, |last| last + 1);
        let named: Vec<_> = narrowed.take(upto).collect();
        for rule in named.iter().skip(named.len().saturating_sub(Self::MOST)) {
            let kind = rule.kind.rsplit('/').next().unwrap_or_default();
            let _ = write!(why, ", {kind} {} leaves {}", rule.key, rule.remaining);
        }
        if !decision.endpoints.is_empty() {
            let open = decision.endpoints.len();
            let _ = write!(
                why,
                ", circuit breakers let no call through to the {open} that rules leave"
            );
        }
        for fault in decision.faults.iter().filter(|fault| fault.key.is_none()).take(1) {
            let _ = write!(why, "; {}", fault.fault.message);
        }
        Self { service: service.to_owned(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::RuleEffect;

    fn rule(kind: &'static str, effect: Effect, remaining: u32) -> RuleEffect {
        RuleEffect { kind, key: "a/ns".into(), effect, remaining }
    }

    #[test]
    fn says_who_left_none() {
        let rules = vec![
            rule("g/v/ConditionRoute", Effect::WouldApply, 0),
            rule("g/v/ConditionRoute", Effect::Skipped, 8),
            rule("g/v/ConditionRoute", Effect::Applied, 2),
            rule("g/v/TagRoute", Effect::Applied, 0),
            rule("g/v/AffinityRoute", Effect::Applied, 0),
        ];
        let decision = Decision { rules, ..Decision::default() };
        let text = NoEndpoint::because("s", 8, &decision).to_string();
        assert_eq!(
            text,
            "no endpoint of s is left for this call: of 8, ConditionRoute a/ns leaves 2, \
             TagRoute a/ns leaves 0"
        );
        let none = NoEndpoint::because("s", 0, &Decision::default()).to_string();
        assert_eq!(none, "no endpoint of s is left for this call: none is known");
        let open = Decision { endpoints: vec![0, 1], ..Decision::default() };
        let text = NoEndpoint::because("s", 2, &open).to_string();
        assert!(
            text.ends_with("of 2, circuit breakers let no call through to the 2 that rules leave"),
            "{text}"
        );
    }
}
