//! The spec's schema, for Kubernetes. The comments on fields are what `kubectl explain` shows.

use schemars::JsonSchema;
use serde_json::Value;

use crate::{
    crd,
    fields::MAX_ITEMS,
    ip,
    matcher::{MAX_TEXT, schema::ParamMatch},
};

/// Groups the endpoints of an application by tags, and keeps calls that name a tag to its group.
///
/// A call names a tag with the attachment dubbo.tag, or its caller with a parameter of that name.
/// It goes to the tag's endpoints, else to those that carry the tag themselves, else to those of
/// no tag at all. A call without a tag never goes to the endpoints of a tag.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use; the parser gives better errors")]
struct Spec {
    /// v3.0; needed where a tag has match.
    config_version: Option<Version>,
    /// False: acts as no rule. Default true.
    #[schemars(default = "yes")]
    enabled: bool,
    /// The application whose endpoints are grouped.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^\S+$"))]
    key: String,
    /// True: calls of a tag that has addresses fail when none of them is there. False: they go to
    /// endpoints that carry the tag themselves, then to those of no tag. Default false.
    #[schemars(default)]
    force: bool,
    /// Rules with a larger priority apply first. Default 0.
    #[schemars(default, range(min = i32::MIN, max = i32::MAX))]
    priority: i32,
    /// Accepted for compatibility, without effect: a decision is always by the current state.
    runtime: Option<bool>,
    /// The groups. Without any the rule acts as no rule.
    #[schemars(length(max = MAX_ITEMS))]
    tags: Option<Vec<Tag>>,
}

fn yes() -> bool {
    true
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
enum Version {
    #[schemars(rename = "v3.0")]
    V3,
}

/// A group of endpoints.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use")]
struct Tag {
    /// What calls name. A call that names "a|b" falls back to "a".
    #[schemars(length(min = 1, max = MAX_TEXT))]
    name: String,
    /// The group's addresses: 10.1.2.3:20880, 0.0.0.0:20880 for any host, 10.1.2.*, a range
    /// 10.1.2.1-63:20880, or a block 10.1.2.0/24, which is of any port.
    #[schemars(length(max = MAX_ITEMS))]
    addresses: Option<Vec<Address>>,
    /// Without addresses: endpoints for which all of these hold.
    #[schemars(length(max = MAX_ITEMS))]
    r#match: Option<Vec<ParamMatch>>,
}

/// An address, or an expression of several.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct Address(#[schemars(length(max = ip::MAX_TEXT))] String);

/// The schema of a spec.
pub(crate) fn schema() -> Value {
    crd::schema_of::<Spec>()
}
