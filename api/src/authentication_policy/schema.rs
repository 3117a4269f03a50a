//! The spec's schema, for Kubernetes. The comments on fields are what `kubectl explain` shows.

use schemars::JsonSchema;
use serde_json::Value;

use crate::{crd, fields::MAX_ITEMS, selector::schema::Selector};

/// Says how servers take connections: in plaintext, by mutual TLS, or both.
///
/// For one port the first policy decides that does not say NONE: port levels of any policy go
/// before actions of whole policies; then policies of the server's own namespace before those of
/// the root namespace, older before younger, and by name.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use; the parser gives better errors")]
struct Spec {
    /// STRICT takes mutual TLS only, PERMISSIVE plaintext too, DISABLED plaintext only; NONE
    /// leaves it undecided.
    action: Action,
    /// The servers that the policy is for: all entries must match; without any all servers. A
    /// policy outside of the root namespace is for servers of its own namespace only, whatever
    /// stands here.
    #[schemars(length(max = MAX_ITEMS))]
    selector: Option<Vec<Selector>>,
    /// What holds for single ports, in place of the action.
    #[schemars(length(max = MAX_ITEMS))]
    port_level: Option<Vec<PortLevel>>,
    /// An older spelling of portLevel.
    #[schemars(rename = "PortLevel", length(max = MAX_ITEMS))]
    old_port_level: Option<Vec<PortLevel>>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "UPPERCASE")]
#[allow(dead_code, reason = "only its schema is of use")]
enum Action {
    None,
    Disabled,
    Permissive,
    Strict,
}

/// A port, and how connections to it are taken.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct PortLevel {
    /// Where connections come in.
    #[schemars(range(min = 0, max = 65535))]
    port: i32,
    /// As the policy's own action, for this port.
    action: Action,
}

/// The schema of a spec.
pub(crate) fn schema() -> Value {
    crd::schema_of::<Spec>()
}
