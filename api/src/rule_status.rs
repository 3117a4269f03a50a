//! The `status` of a rule on Kubernetes: the same for every kind.
//!
//! The comments on fields are what `kubectl explain` shows, so they speak to a rule's author.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Type of the condition that says whether the rule is valid.
pub const ACCEPTED: &str = "Accepted";
/// Type of the condition that says whether the clients have the rule.
pub const PROGRAMMED: &str = "Programmed";
/// Most entries of [`RuleStatus::reasons`].
pub const MAX_REASONS: usize = 5;

/// What became of the rule: whether it is valid, and how many clients hold it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RuleStatus {
    /// The metadata.generation that this status speaks of. While it is behind, the rest tells of
    /// an earlier version of the rule.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub observed_generation: i64,
    /// Accepted: the rule is valid. Programmed: the clients that should have it hold it.
    #[cfg_attr(
        feature = "schema",
        schemars(
            length(max = 8),
            extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
        )
    )]
    pub conditions: Vec<Condition>,
    /// Connected clients that should have the rule.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub matched: i64,
    /// Clients of these that hold exactly this version.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub applied: i64,
    /// Clients of these that refused this version; they go on with the one before.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub rejected: i64,
    /// Why clients refused it: a sample of at most 5.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(max = 5), extend("x-kubernetes-list-type" = "atomic"))
    )]
    pub reasons: Vec<Refusal>,
    /// The last version that was valid, which stays in force. Present only while the current
    /// one is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_accepted: Option<LastAccepted>,
}

/// One aspect of the rule's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "RuleCondition"))]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Accepted or Programmed.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 316)))]
    pub kind: String,
    /// Whether it is so.
    pub status: ConditionStatus,
    /// The metadata.generation that this condition speaks of.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub observed_generation: i64,
    /// When status last changed.
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub last_transition_time: String,
    /// Why, in one word for programs.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))]
    pub reason: String,
    /// Why, for people.
    // Left out when empty: some servers take an empty text for null.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32768)))]
    pub message: String,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ConditionStatus {
    /// It does.
    True,
    /// It does not.
    False,
    /// Nobody can say.
    Unknown,
}

/// Why one client refused the rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// Who: the client's identity, and the instance where it is known.
    pub client: String,
    /// What it said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A version of the rule that was valid.
// Atomic: replaced and removed as one. Server-side apply would otherwise take it apart, and
// leave the shell of a spec behind when the rest is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-map-type" = "atomic")))]
#[serde(rename_all = "camelCase")]
pub struct LastAccepted {
    /// Its metadata.generation.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub generation: i64,
    /// Its spec.
    // As it was stored, so that a spec of an older schema is kept too.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))
    )]
    pub spec: Value,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_what_it_writes_and_what_others_leave_out() {
        let value = json!({
            "observedGeneration": 3,
            "conditions": [{
                "type": "Accepted", "status": "False", "observedGeneration": 3,
                "lastTransitionTime": "2026-11-30T12:00:00Z", "reason": "Invalid", "message": "m",
            }],
            "matched": 2, "applied": 1, "rejected": 1,
            "reasons": [{ "client": "spiffe://t/ns/a/sa/b", "reason": "RC0401 no" }],
            "lastAccepted": { "generation": 2, "spec": { "key": "a" } },
        });
        let status: RuleStatus = serde_json::from_value(value.clone()).expect("valid");
        assert_eq!(status.conditions[0].kind, ACCEPTED);
        assert_eq!(status.conditions[0].status, ConditionStatus::False);
        assert_eq!(serde_json::to_value(&status).expect("JSON"), value);
        let least: RuleStatus = serde_json::from_value(json!({ "new": 1 })).expect("valid");
        assert_eq!(least, RuleStatus::default());
    }

    #[test]
    fn counts_are_written_also_when_zero() {
        let value = serde_json::to_value(RuleStatus::default()).expect("JSON");
        let zero = json!({ "observedGeneration": 0, "conditions": [], "matched": 0, "applied": 0, "rejected": 0 });
        assert_eq!(value, zero);
    }
}
