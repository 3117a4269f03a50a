//! The spec's schema, for Kubernetes. The comments on fields are what `kubectl explain` shows.

use schemars::JsonSchema;
use serde_json::{Value, json};

use super::spec::{MAX_CALLS, MAX_TRIALS};
use crate::{crd, fields::MAX_SPAN};

/// Leaves endpoints that fail out of their callers' choice for a while.
///
/// Each caller counts for itself how its calls end. A breaker that sees too many fail opens: calls
/// go elsewhere. After openFor it lets a few calls through to try; when all of them succeed it
/// closes, and when one fails it opens again. It comes after the routing rules.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use; the parser gives better errors")]
struct Spec {
    /// False: acts as if the rule were not there. Default true.
    #[schemars(default = "yes")]
    enabled: bool,
    /// What the key names: service, or application.
    scope: Scope,
    /// The calls that are watched: with scope service the service's key,
    /// [group/]interface[:version]; with scope application the name of the application that
    /// serves them.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^\S+$"))]
    key: String,
    /// Rules with a larger priority apply first. Default 0.
    #[schemars(default, range(min = i32::MIN, max = i32::MAX))]
    priority: i32,
    /// The span that is looked at, such as 10s or 1m; from a second to an hour. Default 10s.
    #[schemars(default = "window", length(max = MAX_SPAN))]
    window: String,
    /// Calls in the window below which errorPercent opens nothing. Default 20.
    #[schemars(default = "minimum_calls", range(min = 1, max = MAX_CALLS))]
    minimum_calls: i64,
    /// Opens when so many percent of the calls in the window failed; 0, the default: not by this.
    /// Without it consecutiveErrors is needed.
    #[schemars(default, range(min = 0, max = 100))]
    error_percent: f64,
    /// Opens when so many calls failed, one after the other; 0, the default: not by this. Without
    /// it errorPercent is needed.
    #[schemars(default, range(min = 0, max = MAX_CALLS))]
    consecutive_errors: i64,
    /// How long it stays open, such as 30s; from 100ms to a day. Default 30s.
    #[schemars(default = "open_for", length(max = MAX_SPAN))]
    open_for: String,
    /// Calls that are let through to try, after that. Default 1.
    #[schemars(default = "trial_calls", range(min = 1, max = MAX_TRIALS))]
    trial_calls: i64,
    /// endpoint: each endpoint has a breaker, and an open one is left out. service: all endpoints
    /// of a service share one, and while it is open there is nowhere to go. Default endpoint.
    #[schemars(default = "endpoint")]
    per: Per,
    /// Percent of the endpoints of a call that may be left out, with per endpoint. Rounded down,
    /// but one may be as long as another remains; 0: none. One always remains. Default 50.
    #[schemars(default = "half", range(min = 0, max = 100))]
    max_ejected_percent: i64,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use")]
enum Scope {
    Service,
    Application,
}

#[derive(JsonSchema, serde::Serialize)]
#[schemars(rename_all = "camelCase")]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use")]
enum Per {
    Endpoint,
    Service,
}

fn yes() -> bool {
    true
}

fn window() -> String {
    "10s".to_owned()
}

fn minimum_calls() -> i64 {
    20
}

fn open_for() -> String {
    "30s".to_owned()
}

fn trial_calls() -> i64 {
    1
}

fn endpoint() -> Per {
    Per::Endpoint
}

fn half() -> i64 {
    50
}

/// The schema of a spec.
pub(crate) fn schema() -> Value {
    let mut spec = crd::schema_of::<Spec>();
    let opens = json!({
        "rule": "double(self.errorPercent) > 0.0 || self.consecutiveErrors > 0",
        "message": "it would never open; write errorPercent or consecutiveErrors",
    });
    spec["x-kubernetes-validations"] = json!([crd::service_key_rule(), opens]);
    spec
}
