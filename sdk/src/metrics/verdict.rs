//! What is counted.

use std::fmt;

/// What a rule made of a call; of each call and rule one is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Verdict {
    /// Nothing of it applied.
    Skipped,
    /// It applied: it chose among endpoints, allowed, noted, or counted the call.
    Applied,
    /// It denied the call.
    Denied,
    /// It refused the call for now.
    Limited,
    /// A breaker of it opened. Not of a call: it is counted each time that one opens.
    Opened,
    /// A shadow rule of which nothing would have applied.
    WouldSkip,
    /// A shadow rule that would have applied, without refusing the call.
    WouldApply,
    /// A shadow rule by which the call would have been denied, and was not.
    WouldDeny,
    /// A shadow rule that would have refused the call for now.
    WouldLimit,
    /// A breaker of a shadow rule that would have opened.
    WouldOpen,
    /// It failed and was passed over.
    Failed,
}

impl Verdict {
    /// All of them, each at its own number.
    pub const ALL: [Self; 11] = [
        Self::Skipped,
        Self::Applied,
        Self::Denied,
        Self::Limited,
        Self::Opened,
        Self::WouldSkip,
        Self::WouldApply,
        Self::WouldDeny,
        Self::WouldLimit,
        Self::WouldOpen,
        Self::Failed,
    ];

    /// In labels of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skipped => "skipped",
            Self::Applied => "applied",
            Self::Denied => "denied",
            Self::Limited => "limited",
            Self::Opened => "opened",
            Self::WouldSkip => "would_skip",
            Self::WouldApply => "would_apply",
            Self::WouldDeny => "would_deny",
            Self::WouldLimit => "would_limit",
            Self::WouldOpen => "would_open",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What came of a decision; of each decision one is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Outcome {
    /// The call may go on, by all that is enforced.
    Allowed,
    /// It may, but would not if the shadow rules were enforced.
    WouldDeny,
    /// It may not.
    Denied,
    /// It may not because this cannot be decided.
    Undecided,
    /// The call is taken now.
    Admitted,
    /// It is, but would not be if the shadow rules were enforced.
    WouldLimit,
    /// It is not taken now.
    Limited,
    /// It is taken, but not all rules could be asked.
    AdmittedBlind,
    /// Endpoints are left to choose from.
    Routed,
    /// No endpoint is left.
    NoEndpoint,
    /// Endpoints are left, but not all rules could be asked.
    RoutedBlind,
    /// There are no rules yet, so the startup policy decided.
    NotReady,
}

impl Outcome {
    /// All of them, each at its own number.
    pub const ALL: [Self; 12] = [
        Self::Allowed,
        Self::WouldDeny,
        Self::Denied,
        Self::Undecided,
        Self::Admitted,
        Self::WouldLimit,
        Self::Limited,
        Self::AdmittedBlind,
        Self::Routed,
        Self::NoEndpoint,
        Self::RoutedBlind,
        Self::NotReady,
    ];

    /// Of which decision: `authorize`, `admit` or `route`.
    pub fn decision(self) -> &'static str {
        match self {
            Self::Allowed | Self::WouldDeny | Self::Denied | Self::Undecided => "authorize",
            Self::Admitted | Self::WouldLimit | Self::Limited | Self::AdmittedBlind => "admit",
            Self::Routed | Self::NoEndpoint | Self::RoutedBlind | Self::NotReady => "route",
        }
    }

    /// In labels of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::WouldDeny => "would_deny",
            Self::Denied => "denied",
            Self::Undecided => "undecided",
            Self::Admitted => "admitted",
            Self::WouldLimit => "would_limit",
            Self::Limited => "limited",
            Self::AdmittedBlind => "admitted_blind",
            Self::Routed => "routed",
            Self::NoEndpoint => "no_endpoint",
            Self::RoutedBlind => "routed_blind",
            Self::NotReady => "not_ready",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_at_its_number() {
        for (at, verdict) in Verdict::ALL.into_iter().enumerate() {
            assert_eq!(verdict as usize, at);
        }
        for (at, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, at);
        }
        assert!(Verdict::ALL.len().max(Outcome::ALL.len()) <= super::super::cell::WIDTH);
    }
}
