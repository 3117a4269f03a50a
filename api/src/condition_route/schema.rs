//! The spec's schema, for Kubernetes.
//!
//! It accepts whatever the parser accepts, up to the bounds that are named here, and refuses
//! what can be refused without reading conditions. `api/tests/crds.rs` compares the two.
//! The comments on fields are what `kubectl explain` shows, so they speak to a rule's author.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::spec::MAX_ITEMS;
use crate::{condition::MAX_TEXT, crd};

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
    /// With configVersion v3.1 objects, {from: {match}, to: [{match, weight}]}: callers that
    /// from.match describes go to one of the destinations by weight.
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

/// Where calls of some callers go.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct DestinationCondition {
    /// Which calls; absent: all.
    from: Option<From>,
    /// Where they go. Absent or empty: nowhere, whatever force says.
    #[schemars(length(max = MAX_ITEMS))]
    to: Option<Vec<Destination>>,
}

/// Which calls.
// Unknown fields stay, so that the parser can name them: dropping a misspelt weight or match
// would leave a rule that does something else, without a word.
#[derive(JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
#[allow(dead_code, reason = "only its schema is of use")]
struct From {
    /// Conditions on caller and call, as on the left side of v3.0: key=value or key!=value,
    /// joined by &. Empty: every call.
    #[schemars(length(max = MAX_TEXT))]
    r#match: Option<String>,
}

/// A set of endpoints, and its share of the calls.
#[derive(JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
#[allow(dead_code, reason = "only its schema is of use")]
struct Destination {
    /// Conditions on endpoints, as on the right side of v3.0. Empty: all endpoints.
    #[schemars(length(max = MAX_TEXT))]
    r#match: Option<String>,
    /// Its share is weight/sum of the weights of those destinations that have endpoints; 0
    /// receives nothing. Default 100.
    #[schemars(default = "hundred", range(min = 0, max = u32::MAX))]
    weight: u32,
}

fn hundred() -> u32 {
    100
}

/// A text (v3.0) or an object (v3.1) in one list.
///
/// A structural schema has one type for each place, or none. Without a type the place must
/// preserve unknown fields, and CEL does not see it, nor the list that holds it. What remains
/// are keywords that each concern one type of value: lengths and patterns texts, properties
/// objects, bounds numbers. So the two forms are described side by side, and what is neither
/// is refused by bounds that nothing meets.
struct AnyCondition;

impl JsonSchema for AnyCondition {
    fn schema_name() -> Cow<'static, str> {
        "Condition".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut object = DestinationCondition::json_schema(generator);
        json_schema!({
            "description": "A text (v3.0) or an object (v3.1).",
            "x-kubernetes-preserve-unknown-fields": true,
            "maxLength": MAX_TEXT,
            "properties": object.remove("properties"),
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
    spec["x-kubernetes-validations"] = json!([{
        "rule": format!("self.scope != 'service' || self.key.matches('{SERVICE_KEY}')"),
        "message": "key is no service key; write [group/]interface[:version]",
    }]);
    spec
}

/// What [`crate::ServiceKey`] reads, as a regular expression of RE2; blanks are looked at elsewhere.
const SERVICE_KEY: &str = "^([^/]*/)?[^/:]+(:[^/:]*)?$";
