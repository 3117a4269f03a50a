//! The spec's schema, for Kubernetes. The comments on fields are what `kubectl explain` shows.

use schemars::JsonSchema;
use serde_json::Value;

use crate::{
    attribute::schema::Condition,
    crd,
    fields::MAX_ITEMS,
    selector::schema::{Caller, Selector},
};

/// Says who may call a server.
///
/// A call that a DENY policy matches is refused. Otherwise, where a server has an ALLOW policy,
/// a call is let in if one of them matches, and refused if none does. Otherwise it is let in.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use; the parser gives better errors")]
struct Spec {
    /// ALLOW, DENY, or AUDIT, which only records. (ADUIT and ADULT are read as AUDIT.)
    action: Action,
    /// What calls the policy matches; without any rule, all calls.
    #[schemars(length(max = MAX_ITEMS))]
    rules: Option<Vec<Rule>>,
    /// How rules combine: anyMatch, one that holds is enough, or allMatch, all must hold.
    #[schemars(default = "any")]
    match_type: MatchType,
    /// Percent of requests that the policy looks at, chosen by the request's id so that the
    /// same request is always chosen, or never. The others are as if it were not there.
    #[schemars(default = "all", range(min = 0, max = 100))]
    samples: f64,
    /// Policies with a smaller order go first. Default 0.
    #[schemars(default, range(min = -i32::MAX, max = i32::MAX))]
    order: i32,
}

fn any() -> MatchType {
    MatchType::Any
}

fn all() -> f64 {
    100.0
}

#[derive(JsonSchema)]
#[schemars(rename_all = "UPPERCASE")]
#[allow(dead_code, reason = "only its schema is of use")]
enum Action {
    Allow,
    Deny,
    Audit,
    Aduit,
    Adult,
}

#[derive(JsonSchema, serde::Serialize)]
#[allow(dead_code, reason = "only its schema is of use")]
enum MatchType {
    #[serde(rename = "anyMatch")]
    Any,
    #[serde(rename = "allMatch")]
    All,
}

/// A rule: it holds when all that is there holds.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct Rule {
    /// The caller, by what it proves.
    from: Option<Caller>,
    /// The server that is called. A policy outside of the root namespace is for servers of its
    /// own namespace only, whatever stands here.
    to: Option<Selector>,
    /// Conditions on the call; all must hold.
    #[schemars(length(max = MAX_ITEMS))]
    when: Option<Vec<Condition>>,
}

/// The schema of a spec.
pub(crate) fn schema() -> Value {
    crd::schema_of::<Spec>()
}
