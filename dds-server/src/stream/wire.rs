//! What of the contract a client speaks.

use rulecast_api::{Code, Kind};

use super::limits::MAX_REJECTED;
use crate::{
    rollout::Rejected,
    view::{Item, View},
};

/// What of the contract a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// All of it.
    #[default]
    Rulecast,
    /// The base alone, as clients of the Dubbo control plane: every response is the full
    /// state of a kind in one message, and an item is a `<Kind>ToClient`.
    Dubbo,
}

/// API version of the kinds of Dubbo's wire.
const DUBBO_VERSION: &str = "dubbo.apache.org/v1alpha1";
/// The kinds that it has a message for.
const DUBBO_KINDS: [&str; 6] = [
    "AuthenticationPolicy",
    "AuthorizationPolicy",
    "ConditionRoute",
    "DynamicConfig",
    "ServiceNameMapping",
    "TagRoute",
];

impl Wire {
    /// Whether it has a message for a kind.
    pub fn has(self, kind: Kind) -> bool {
        match self {
            Self::Rulecast => true,
            Self::Dubbo => kind.api_version == DUBBO_VERSION && DUBBO_KINDS.contains(&kind.name),
        }
    }
}

/// Type URL of the items of a kind on Dubbo's wire.
pub(super) fn type_url(kind: Kind) -> String {
    format!("type.googleapis.com/dubbo.apache.org.v1alpha1.{}ToClient", kind.name)
}

/// Bytes that a view takes on Dubbo's wire, or a little more.
pub(super) fn size(view: &View) -> usize {
    // Tags and lengths around an item and around them all.
    let around = type_url(view.kind).len() + 16;
    view.items.iter().filter_map(|item| item.compat.as_ref()).map(|item| item.len() + around).sum()
}

/// The items of a view that a client of Dubbo's wire is not sent, as if it had rejected them:
/// so the rule's status says that it does not have them, and why.
pub(super) fn unsaid(view: &View) -> Vec<Rejected> {
    let rejected = |item: &Item| Rejected {
        key: item.key.clone(),
        digest: item.digest,
        reason: format!(
            "{} the client speaks the wire of the Dubbo control plane, which cannot say this \
             rule; it is not sent there",
            Code::WireTooNarrow,
        ),
    };
    let unsaid = view.items.iter().filter(|item| item.compat.is_none());
    unsaid.take(MAX_REJECTED).map(|item| rejected(item)).collect()
}
