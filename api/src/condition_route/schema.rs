//! The spec's schema, for Kubernetes.
//!
//! It accepts whatever the parser accepts, up to the bounds that are named here, and refuses
//! what can be refused without reading conditions. `api/tests/crds.rs` compares the two.
//! The comments on fields are what `kubectl explain` shows, so they speak to a rule's author.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::{condition::MAX_TEXT, crd, fields::MAX_ITEMS};

/// Routes calls by conditions on the caller, the call and the endpoints.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use; the parser gives better errors")]
struct Spec {
    /// The form of the conditions: v3.0 for texts "when => then", v3.1 for from, to and weights.
    config_version: Version,
    /// False: acts as no rule. Default true.
    #[schemars(default = "yes")]
    enabled: bool,
    /// What the key names: service, or application.
    scope: Scope,
    /// The calls that the rule speaks of: with scope service the service's key,
    /// [group/]interface[:version]; with scope application the application's name.
    // Blanks are refused by the parser too; the length only bounds the cost of the CEL rule.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^\S+$"))]
    key: String,
    /// True: a condition that leaves no endpoint leaves none, and calls fail. False: such a
    /// condition is skipped. Default false.
    #[schemars(default)]
    force: bool,
    /// Rules with a larger priority apply first. Default 0.
    #[schemars(default, range(min = i32::MIN, max = i32::MAX))]
    priority: i32,
    /// Accepted for compatibility, without effect: a decision is always by the current state.
    runtime: Option<bool>,
    /// Conditions, applied in this order, each to the endpoints that the one before left.
    ///
    /// With configVersion v3.0 texts, "when => then": calls for which the left side holds go to
    /// endpoints for which the right side holds. A side is key=value or key!=value, joined by &,
    /// several values by commas; an empty left side is every call, an empty right side no
    /// endpoint. For example "method=get* & region=hangzhou => region=hangzhou".
    ///
    /// With configVersion v3.1 objects, {from: {match}, to: [{match, weight}]}. Callers for which
    /// from.match holds, or all without it, go to the endpoints of one of the destinations, for
    /// which its match holds: weight/sum of them to each, 0 to none, where a weight left out is
    /// 100. Without destinations they go nowhere, whatever force says. For example
    /// {from: {match: region=hangzhou}, to: [{match: version=1.0, weight: 90}, {match:
    /// version=2.0, weight: 10}]}.
    #[schemars(length(max = MAX_ITEMS))]
    conditions: Option<Vec<AnyCondition>>,
}

fn yes() -> bool {
    true
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
enum Version {
    #[schemars(rename = "v3.0")]
    Texts,
    #[schemars(rename = "v3.1")]
    Destinations,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use")]
enum Scope {
    Service,
    Application,
}

/// A text (v3.0) or an object (v3.1) in one list.
///
/// A structural schema has one type for each place, or none. A place without a type must
/// preserve unknown fields, and that has its price:
/// - CEL does not see it, nor the list that holds it, so no rule can speak of conditions;
/// - it may not have `properties`: server-side apply would take every value for an object,
///   and fail on the texts;
/// - `allOf` and `anyOf` may only name fields that are described outside of them too, so they
///   cannot look into the objects either.
///
/// What remains are keywords that each concern one type of value: lengths texts, bounds
/// numbers. So texts are bounded, what is neither text nor object is refused by bounds that
/// nothing meets, and what is in an object is left to the parser, which sees all of it:
/// nothing was dropped, and a misspelt weight is named rather than lost.
struct AnyCondition;

impl JsonSchema for AnyCondition {
    fn schema_name() -> Cow<'static, str> {
        "Condition".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A text (v3.0) or an object (v3.1).",
            "x-kubernetes-preserve-unknown-fields": true,
            "maxLength": MAX_TEXT,
            "minItems": 1, "maxItems": 0,
            "minimum": 1, "maximum": 0,
            "not": { "enum": [true, false] },
        })
    }
}

/// The schema of a spec.
pub(crate) fn schema() -> Value {
    let mut spec = crd::schema_of::<Spec>();
    // Here and not as CEL, for the reason above: unless the version is another, no object among
    // texts, no text among objects. No object has between 1 and 0 properties, no text between
    // 1 and 0 characters.
    let unless = |version: &str, items: Value| {
        json!({ "anyOf": [
            { "properties": { "configVersion": { "not": { "enum": [version] } } } },
            { "properties": { "conditions": { "items": items } } },
        ] })
    };
    spec["allOf"] = json!([
        unless("v3.0", json!({ "minProperties": 1, "maxProperties": 0 })),
        unless("v3.1", json!({ "minLength": 1, "maxLength": 0 })),
    ]);
    spec["x-kubernetes-validations"] = json!([crd::service_key_rule()]);
    spec
}
