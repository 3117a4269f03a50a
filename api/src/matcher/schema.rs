//! Schemas of matchers, for Kubernetes.

use schemars::JsonSchema;

use super::MAX_REGEX;

/// How a text is matched; the first field that is there decides, and without any nothing matches.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", rename = "StringMatch")]
#[allow(dead_code, reason = "only its schema is of use; the parser gives better errors")]
pub(crate) struct StringMatch {
    /// The value is this text.
    exact: Option<String>,
    /// The value begins with this text.
    prefix: Option<String>,
    /// The whole value matches this regular expression, in the syntax of the Rust crate regex.
    #[schemars(length(max = MAX_REGEX))]
    regex: Option<String>,
    /// "*" for any value, or the value itself.
    wildcard: Option<String>,
    /// There is no value, or an empty one; what is written here does not matter.
    empty: Option<String>,
    /// There is a value, and it is not empty; what is written here does not matter.
    noempty: Option<String>,
}

/// A parameter by name, and how its value is matched. A parameter that is missing does not match.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", rename = "ParamMatch")]
#[allow(dead_code, reason = "only its schema is of use")]
pub(crate) struct ParamMatch {
    /// The parameter's name.
    #[schemars(length(min = 1))]
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
    cidr: Option<String>,
    /// Another spelling of cidr.
    cird: Option<String>,
    /// "*" or "0.0.0.0" for any address, or a text in which the last "*" stands for anything.
    wildcard: Option<String>,
    /// The address itself.
    exact: Option<String>,
}
