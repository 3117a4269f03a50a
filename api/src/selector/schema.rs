//! Schemas of selectors, for Kubernetes.

use schemars::JsonSchema;

use super::MAX_TEXT;
use crate::fields::MAX_ITEMS;

/// Endpoints, by what is attested of them. A field that is left out is no constraint.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use; the parser gives better errors")]
pub(crate) struct Selector {
    /// The endpoint is in one of these namespaces.
    #[schemars(length(max = MAX_ITEMS))]
    namespaces: Option<Vec<Namespace>>,
    /// It is in none of these namespaces.
    #[schemars(length(max = MAX_ITEMS))]
    not_namespaces: Option<Vec<Namespace>>,
    /// One of its addresses is in one of these blocks, such as 10.1.0.0/16 or 192.168.1.*.
    #[schemars(length(max = MAX_ITEMS))]
    ip_blocks: Option<Vec<Block>>,
    /// None of its addresses is in any of these blocks.
    #[schemars(length(max = MAX_ITEMS))]
    not_ip_blocks: Option<Vec<Block>>,
    /// Its identity is one of these SPIFFE ids, with or without spiffe://.
    #[schemars(length(max = MAX_ITEMS))]
    principals: Option<Vec<Principal>>,
    /// Its identity is none of these.
    #[schemars(length(max = MAX_ITEMS))]
    not_principals: Option<Vec<Principal>>,
    /// Its pod has all of these labels or annotations.
    #[schemars(length(max = MAX_ITEMS))]
    extends: Option<Vec<Extend>>,
    /// Its pod has none of these labels or annotations.
    #[schemars(length(max = MAX_ITEMS))]
    not_extends: Option<Vec<Extend>>,
}

/// Callers, by what they prove. A field that is left out is no constraint.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use; the parser gives better errors")]
pub(crate) struct Caller {
    /// The caller is in one of these namespaces.
    #[schemars(length(max = MAX_ITEMS))]
    namespaces: Option<Vec<Namespace>>,
    /// It is in none of these namespaces.
    #[schemars(length(max = MAX_ITEMS))]
    not_namespaces: Option<Vec<Namespace>>,
    /// Its address is in one of these blocks, such as 10.1.0.0/16 or 192.168.1.*.
    #[schemars(length(max = MAX_ITEMS))]
    ip_blocks: Option<Vec<Block>>,
    /// Its address is in none of these blocks.
    #[schemars(length(max = MAX_ITEMS))]
    not_ip_blocks: Option<Vec<Block>>,
    /// Its identity is one of these SPIFFE ids, with or without spiffe://.
    #[schemars(length(max = MAX_ITEMS))]
    principals: Option<Vec<Principal>>,
    /// Its identity is none of these.
    #[schemars(length(max = MAX_ITEMS))]
    not_principals: Option<Vec<Principal>>,
    /// Must be empty: a callee has no proof of its caller's labels.
    #[schemars(length(max = 0))]
    extends: Option<Vec<Extend>>,
    /// Must be empty, as extends.
    #[schemars(length(max = 0))]
    not_extends: Option<Vec<Extend>>,
}

/// A label or an annotation.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct Extend {
    /// Its name.
    #[schemars(length(max = 256))]
    key: String,
    /// Its value.
    #[schemars(length(max = 256))]
    value: String,
}

/// The name of a namespace.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct Namespace(#[schemars(length(min = 1, max = MAX_TEXT))] String);

/// An address, or a block of them.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct Block(#[schemars(length(min = 1, max = MAX_TEXT))] String);

/// A SPIFFE id.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct Principal(#[schemars(length(min = 1, max = MAX_TEXT))] String);
