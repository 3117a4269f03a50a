//! Where breakers stand, for people and metrics.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use super::{
    bound::{Breaker, Group},
    cell::Phase,
    settings::Settings,
};

/// Where a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// Calls go.
    Closed,
    /// Calls go elsewhere.
    Open,
    /// A few calls go, to try.
    HalfOpen,
}

impl BreakerState {
    /// As people write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

impl fmt::Display for BreakerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A breaker at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerStatus {
    /// The rule, `<name>/<namespace>`.
    pub rule: Arc<str>,
    /// The service that was called.
    pub service: Box<str>,
    /// The endpoint's address; empty: one breaker for all.
    pub endpoint: Arc<str>,
    /// It is a shadow rule's: nothing is left out.
    pub shadow: bool,
    /// Where it stands.
    pub state: BreakerState,
    /// Calls that ended within the window, while it was closed.
    pub calls: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// How often it opened.
    pub opened: u64,
}

impl BreakerStatus {
    pub(super) fn new(
        group: &Group,
        breaker: &Breaker,
        settings: &Settings,
        shadow: bool,
        now: u64,
    ) -> Self {
        let state = match (breaker.cell.phase(), breaker.cell.shut(settings, now)) {
            (Phase::Closed { .. }, _) => BreakerState::Closed,
            (Phase::Open { .. }, Some(_)) => BreakerState::Open,
            (Phase::Open { .. }, None) | (Phase::Trying { .. }, _) => BreakerState::HalfOpen,
        };
        let counts = breaker.cell.counts(group.window, now);
        Self {
            rule: group.rule.clone(),
            service: group.service.clone(),
            endpoint: breaker.address.clone(),
            shadow,
            state,
            calls: counts.calls,
            failed: counts.failed,
            opened: breaker.opened.load(Ordering::Relaxed),
        }
    }
}
