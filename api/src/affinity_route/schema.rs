//! The spec's schema, for Kubernetes. The comments on fields are what `kubectl explain` shows.

use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::{crd, matcher::MAX_TEXT};

/// Prefers endpoints that share a parameter with their caller, such as its region.
///
/// It comes after the other routing rules, and chooses among the endpoints that they left.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use; the parser gives better errors")]
struct Spec {
    /// Accepted for compatibility, without effect.
    config_version: Option<Version>,
    /// False: acts as no rule. Default true.
    #[schemars(default = "yes")]
    enabled: bool,
    /// What the key names: service, or application.
    scope: Scope,
    /// The calls that the rule speaks of: with scope service the service's key,
    /// [group/]interface[:version]; with scope application the name of the application that
    /// serves them.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^\S+$"))]
    key: String,
    /// Accepted for compatibility, without effect: a decision is always by the current state.
    runtime: Option<bool>,
    /// What endpoints should share with their caller.
    affinity_aware: AffinityAware,
}

fn yes() -> bool {
    true
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
enum Version {
    #[schemars(rename = "v3.0")]
    V30,
    #[schemars(rename = "v3.1")]
    V31,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use")]
enum Scope {
    Service,
    Application,
}

/// A parameter, and how many endpoints must share it.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use")]
struct AffinityAware {
    /// The parameter. Callers without it go to all endpoints.
    #[schemars(length(min = 1, max = MAX_TEXT))]
    key: String,
    /// Percent: when fewer of the endpoints share the caller's value, it goes to all of them.
    /// With 0, the default, it goes to those that share it in any case, also where none does.
    #[schemars(default, range(min = 0, max = 100))]
    ratio: f64,
}

/// The schema of a spec.
pub(crate) fn schema() -> Value {
    let mut spec = crd::schema_of::<Spec>();
    spec["x-kubernetes-validations"] = json!([crd::service_key_rule()]);
    spec
}
