//! Schemas of matchers, for Kubernetes.

use schemars::JsonSchema;

use super::{MAX_REGEX, MAX_TEXT};

/// How a text is matched; the first field that is there decides, and without any nothing matches.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", rename = "StringMatch")]
#[allow(dead_code, reason = "only its schema is of use; the parser gives better errors")]
pub(crate) struct StringMatch {
    /// The value is this text.
    #[schemars(length(max = MAX_TEXT))]
    exact: Option<String>,
    /// The value begins with this text.
    #[schemars(length(max = MAX_TEXT))]
    prefix: Option<String>,
    /// The whole value matches this regular expression, in the syntax of the Rust crate regex.
    #[schemars(length(max = MAX_REGEX))]
    regex: Option<String>,
    /// "*" for any value, or the value itself.
    #[schemars(length(max = MAX_TEXT))]
    wildcard: Option<String>,
    /// There is no value, or an empty one; what is written here does not matter.
    #[schemars(length(max = MAX_TEXT))]
    empty: Option<String>,
    /// There is a value, and it is not empty; what is written here does not matter.
    #[schemars(length(max = MAX_TEXT))]
    noempty: Option<String>,
}

/// A parameter by name, and how its value is matched. A parameter that is missing does not match.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", rename = "ParamMatch")]
#[allow(dead_code, reason = "only its schema is of use")]
pub(crate) struct ParamMatch {
    /// The parameter's name.
    #[schemars(length(min = 1, max = MAX_TEXT))]
    key: String,
    /// How its value is matched.
    value: StringMatch,
}

/// How an address is matched; the first field that is there decides, and without any nothing
/// matches.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", rename = "AddressMatch")]
#[allow(dead_code, reason = "only its schema is of use")]
pub(crate) struct AddressMatch {
    /// An IP expression: an address, 192.168.1.*, 192.168.1.1-63:90 or 192.168.1.0/24.
    #[schemars(length(max = MAX_TEXT))]
    cidr: Option<String>,
    /// Another spelling of cidr.
    #[schemars(length(max = MAX_TEXT))]
    cird: Option<String>,
    /// "*" or "0.0.0.0" for any address, or a text in which the last "*" stands for anything.
    #[schemars(length(max = MAX_TEXT))]
    wildcard: Option<String>,
    /// The address itself.
    #[schemars(length(max = MAX_TEXT))]
    exact: Option<String>,
}
