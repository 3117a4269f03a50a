//! What one group of clients sees of one kind.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use rulecast_api::{Digest, Kind, proto::rules::v1::Rule};

/// A rule as it is delivered, encoded once for everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// `<name>/<namespace>`.
    pub key: String,
    /// Of `bytes`.
    pub digest: Digest,
    /// The same for all that is delivered of one version of a rule: the digest of the whole.
    pub version: Digest,
    /// A `rulecast.rules.v1.Rule`.
    pub bytes: Bytes,
    /// The same for clients of Dubbo's own wire, a `<Kind>ToClient`; `None`: that wire cannot
    /// say it.
    pub compat: Option<Bytes>,
}

/// What all `<Kind>ToClient` messages of Dubbo's wire are; on the wire a message is its bytes.
#[derive(Clone, PartialEq, Message)]
struct ToClient {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "bytes", tag = "2")]
    spec: Bytes,
}

impl Item {
    /// Encodes.
    pub fn new(rule: &Rule) -> Self {
        let bytes = Bytes::from(rule.encode_to_vec());
        let digest = Digest::of(&bytes);
        Self { key: rule.key.clone(), digest, version: digest, bytes, compat: None }
    }

    /// Encodes a part of what `whole` is.
    pub fn part_of(whole: &Self, part: &Rule) -> Self {
        Self { version: whole.version, ..Self::new(part) }
    }

    /// With the spec as [`RuleSpec::compat`](rulecast_api::kind::RuleSpec::compat) gives it.
    pub fn with_compat(self, spec: Option<Bytes>) -> Self {
        let message = |spec| ToClient { key: self.key.clone(), spec }.encode_to_vec().into();
        Self { compat: spec.map(message), ..self }
    }
}

/// The items of one kind that clients of one scope see at one revision. Immutable.
#[derive(Debug, Clone)]
pub struct View {
    /// Their kind.
    pub kind: Kind,
    /// Which history `revision` belongs to.
    pub lineage: Arc<str>,
    /// Of the scope that the view was made for.
    pub scope_hash: Digest,
    /// Orders views of a lineage; says nothing about equality.
    pub revision: i64,
    /// Of keys and digests of `items`; equal means the same content.
    pub set_digest: Digest,
    /// Sorted by key, keys unique.
    pub items: Vec<Arc<Item>>,
}

impl View {
    /// Sorts the items and takes their set digest.
    pub fn new(
        kind: Kind,
        lineage: Arc<str>,
        scope_hash: Digest,
        revision: i64,
        mut items: Vec<Arc<Item>>,
    ) -> Self {
        items.sort_by(|a, b| a.key.cmp(&b.key));
        let set_digest = Digest::of_set(items.iter().map(|i| (i.key.as_str(), &i.digest)));
        Self { kind, lineage, scope_hash, revision, set_digest, items }
    }

    /// The item of a key.
    pub fn get(&self, key: &str) -> Option<&Arc<Item>> {
        self.items.binary_search_by(|i| i.key.as_str().cmp(key)).ok().map(|at| &self.items[at])
    }
}
