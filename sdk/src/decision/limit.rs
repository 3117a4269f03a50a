//! Whether a server takes a call now.

use std::{fmt, sync::Arc, time::Duration};

use super::{DecisionFault, RuleEffect};

/// Whether a server takes a call now, and why not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admission {
    /// The rule that refuses it; `None`: the call is taken.
    pub limited: Option<Limited>,
    /// The shadow rule that would refuse it.
    pub would_limit: Option<Limited>,
    /// Rules that counted the call, shadow rules among them, in the order of their application.
    pub counted: Vec<RuleEffect>,
    /// What went wrong; those rules refuse nothing.
    pub faults: Vec<DecisionFault>,
}

impl Admission {
    /// Whether the call may go on.
    #[inline]
    pub fn is_admitted(&self) -> bool {
        self.limited.is_none()
    }
}

/// A refusal for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// The rule, `<name>/<namespace>`.
    pub key: Arc<str>,
    /// When the same call would be taken, if no other comes before it.
    pub retry_after: Duration,
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} limits it; again in {:?}", self.key, self.retry_after)
    }
}
