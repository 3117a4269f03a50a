//! The schema of a condition, for Kubernetes.

use schemars::JsonSchema;

use super::{MAX_NAME, condition::MAX_VALUE};
use crate::fields::MAX_ITEMS;

/// A condition on an attribute of the call.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use")]
pub(crate) struct Condition {
    /// The attribute: method, path, request.headers[name], request.id, extension[name],
    /// source.principal, source.namespace, source.ip, source.application, destination.port or
    /// destination.application.
    #[schemars(length(min = 1, max = MAX_NAME))]
    key: String,
    /// One of these must be met. An attribute that is absent meets none.
    #[schemars(length(max = MAX_ITEMS))]
    values: Option<Vec<ValueMatch>>,
    /// None of these may be met.
    #[schemars(length(max = MAX_ITEMS))]
    not_values: Option<Vec<ValueMatch>>,
}

/// What a value must be like.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct ValueMatch {
    /// How it is compared: equals, or regex, a regular expression for the whole value in the
    /// syntax of RE2 or the Rust crate regex.
    r#type: How,
    /// The text that it is compared with.
    #[schemars(length(max = MAX_VALUE))]
    value: String,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use")]
enum How {
    Equals,
    Regex,
}
