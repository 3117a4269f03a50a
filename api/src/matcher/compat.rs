//! Matchers on the wire of the Dubbo control plane, where an empty text is not present. What
//! needs one is `None`: it cannot be said there.

use super::{AddressMatch, ParamMatch, StringMatch};
use crate::proto::dubbo::v1alpha1 as dubbo;

/// Text of a matcher that has none.
const PRESENT: &str = "true";

/// A text that is present.
fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

impl StringMatch {
    /// Its message there.
    pub(crate) fn compat(&self) -> Option<dubbo::StringMatch> {
        let mut message = dubbo::StringMatch::default();
        match self {
            Self::Never => {}
            Self::Exact(value) => message.exact = text(value)?,
            Self::Prefix(value) => message.prefix = text(value)?,
            Self::Regex(regex) => message.regex = text(regex.as_str())?,
            Self::Wildcard(value) => message.wildcard = text(value)?,
            Self::Empty => message.empty = PRESENT.to_owned(),
            Self::NoEmpty => message.noempty = PRESENT.to_owned(),
        }
        Some(message)
    }
}

impl ParamMatch {
    /// Its message there.
    pub(crate) fn compat(&self) -> Option<dubbo::ParamMatch> {
        Some(dubbo::ParamMatch { key: self.key.clone(), value: Some(self.value.compat()?) })
    }
}

impl AddressMatch {
    /// Its message there.
    pub(crate) fn compat(&self) -> Option<dubbo::AddressMatch> {
        let mut message = dubbo::AddressMatch::default();
        match self {
            Self::Never => {}
            Self::Cidr(value, _) => message.cird = text(value)?,
            Self::Wildcard(value) => message.wildcard = text(value)?,
            Self::Exact(value) => message.exact = text(value)?,
        }
        Some(message)
    }
}
