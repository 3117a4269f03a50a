//! Decisions: which endpoints a call may use, whether a server takes it, and why.
//!
//! [`Policies`] hold a policy per kind, a [`RuleSet`] the rules of one moment; both are
//! immutable, cheap to clone and shared by all threads. Each thread keeps an instance of each
//! policy that it needs, and brings it up to date with the rules that it is asked with: a rule
//! is committed once per thread, when a call first needs it.

mod authenticate;
mod authorize;
mod engine;
mod explained;
mod health;
mod inbound;
mod kinds;
mod limit;
mod local;
mod parameters;
mod policies;
mod request;
mod route;
mod rule_set;
mod worker;

use std::{fmt, sync::Arc};

pub use authenticate::TlsMode;
pub use authorize::{Authorization, Reason};
pub use explained::Explained;
pub use inbound::{Headers, Inbound};
pub use kinds::{POLICIES, PolicyKind, TYPES};
pub(crate) use kinds::{TYPE_CIRCUIT_BREAKER, is_hosted, slot};
pub use limit::{Admission, Counted, Limited};
pub use parameters::EffectiveParameters;
pub(crate) use policies::check_frame;
pub use policies::{Policies, Rejection};
pub use request::Request;
#[cfg(test)]
pub(crate) use request::{Attribute, Call};
pub use rule_set::RuleSet;
pub(crate) use rule_set::{Address, Entry, KindRules};

use crate::{
    host::{Fault, FaultKind},
    metrics::Outcome,
};

/// What a rule did in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// No condition of it applied.
    Skipped,
    /// It applied.
    Applied,
    /// A shadow rule of which no condition would have applied.
    WouldSkip,
    /// A shadow rule that would have applied; nothing else changed by it.
    WouldApply,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Skipped => "skipped",
            Self::Applied => "applied",
            Self::WouldSkip => "would skip",
            Self::WouldApply => "would apply",
        })
    }
}

/// A rule's part in a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleEffect {
    /// The type of the rule, `<group>/<version>/<Kind>`.
    pub kind: &'static str,
    /// `<name>/<namespace>`.
    pub key: Arc<str>,
    /// What it did.
    pub effect: Effect,
    /// How many endpoints remained after it; for a shadow rule, would have.
    pub remaining: u32,
}

/// A failure on the way to a decision. The rule, or without one all of its kind, was passed
/// over: the endpoints are those that there would be without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionFault {
    /// The type of the rules, `<group>/<version>/<Kind>`; `None`: of all kinds.
    pub kind: Option<&'static str>,
    /// The rule at work, when one was.
    pub key: Option<Arc<str>>,
    /// The rule is a shadow: nothing would have changed by it.
    pub shadow: bool,
    /// What happened.
    pub fault: Fault,
    /// It happened before; the rule is set aside for a while and was not tried again.
    pub aside: bool,
}

impl fmt::Display for DecisionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, fault, .. } = self;
        let kind = route::Of(self.kind.unwrap_or_default());
        let aside = if self.aside { " (set aside for a while)" } else { "" };
        match key {
            Some(key) => write!(f, "rule {key}{kind} is passed over: {fault}{aside}"),
            None => write!(f, "all rules{kind} are passed over: {fault}{aside}"),
        }
    }
}

/// What was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Indices of the endpoints that remain, ascending.
    pub endpoints: Vec<u32>,
    /// The rules that spoke of this call, in the order of their application.
    pub rules: Vec<RuleEffect>,
    /// What went wrong.
    pub faults: Vec<DecisionFault>,
    /// The number from which chance came, when a rule needed it. The same request with this
    /// draw decides the same.
    pub draw: Option<u64>,
}

impl Decision {
    pub(crate) fn outcome(&self) -> Outcome {
        let unready = |fault: &DecisionFault| fault.fault.kind == FaultKind::NotReady;
        match (&self.endpoints[..], &self.faults[..]) {
            (_, [fault, ..]) if unready(fault) => Outcome::NotReady,
            ([], _) => Outcome::NoEndpoint,
            (_, []) => Outcome::Routed,
            _ => Outcome::RoutedBlind,
        }
    }

    /// Empties it; its memory stays.
    pub fn clear(&mut self) {
        let Self { endpoints, rules, faults, draw } = self;
        endpoints.clear();
        rules.clear();
        faults.clear();
        *draw = None;
    }
}

/// A decision with its reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// What was decided.
    pub decision: Decision,
    /// Why, line by line, for people.
    pub text: String,
}
