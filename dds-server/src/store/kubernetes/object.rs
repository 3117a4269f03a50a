//! An object as the API server gives it, and the rule in it.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::jiff::Timestamp;
use rulecast_api::{
    Code, Digest, Kind, Kinds, Resource, ResourceId,
    manifest::{self, Format, Problem},
};
use serde::{
    Deserialize,
    de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value, json};

use crate::store::{Origin, StoreProblem, Version, digest};

/// What `kubectl apply` notes for itself: the whole object once more. No part of a rule.
pub(super) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What matters of an object. The rest, above all `managedFields`, is read over.
#[derive(Deserialize)]
pub(super) struct Object {
    pub(super) metadata: Meta,
    #[serde(default)]
    spec: Option<Shallow>,
    #[serde(default)]
    status: Option<Shallow>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) uid: String,
    #[serde(default)]
    pub(super) resource_version: String,
    #[serde(default)]
    pub(super) generation: i64,
    #[serde(default)]
    pub(super) labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(super) annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    creation_timestamp: Option<String>,
    #[serde(default)]
    pub(super) deletion_timestamp: Option<String>,
}

impl Meta {
    /// As an order. Kubernetes promises since 1.35 that resource versions of a kind are
    /// decimal numbers that grow with time; storage by etcd always made them so.
    pub(super) fn revision(&self) -> Result<i64, Unreadable> {
        revision(&self.resource_version)
    }

    /// Unix seconds; 0 where it is not known.
    fn created(&self) -> i64 {
        let time = self.creation_timestamp.as_deref().and_then(|text| text.parse().ok());
        time.map_or(0, |time: Timestamp| time.as_second())
    }
}

/// A resource version as a number.
pub(super) fn revision(text: &str) -> Result<i64, Unreadable> {
    text.parse()
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| Unreadable(format!("the resource version {text:?} is no number")))
}

/// An answer of the API server that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unreadable(pub(super) String);

/// What an object says.
pub(super) struct Reading {
    pub(super) id: ResourceId,
    pub(super) version: Version,
    pub(super) revision: i64,
    pub(super) content: Content,
    /// `status`, as compact JSON.
    pub(super) status: Option<Box<str>>,
}

/// What the rule in an object is.
pub(super) enum Content {
    /// A good one.
    Good(Resource, Digest),
    /// The same as is in force; see `State::lighten`.
    Same,
    /// One that is refused, with what was accepted last according to its status.
    Bad(Vec<Problem>, Option<(Resource, Digest)>),
}

/// Reads an object of a kind.
pub(super) fn read(kinds: Kinds, kind: Kind, object: Object) -> Result<Reading, Unreadable> {
    let Object { metadata, spec, status } = object;
    let revision = metadata.revision()?;
    if metadata.name.is_empty() || metadata.namespace.is_empty() || metadata.uid.is_empty() {
        return Err(Unreadable("an object without name, namespace or uid".into()));
    }
    let created = metadata.created();
    let id = ResourceId { kind, namespace: metadata.namespace, name: metadata.name };
    let labels = metadata.labels.unwrap_or_default();
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.remove(LAST_APPLIED);
    let status = match status {
        Some(Shallow::Value(value)) => Some(value),
        _ => None,
    };
    let content = match spec {
        Some(Shallow::TooDeep) => Err(vec![too_deep(&id)]),
        Some(Shallow::Value(spec)) => parse(kinds, &id, &labels, &annotations, created, Some(spec)),
        None => parse(kinds, &id, &labels, &annotations, created, None),
    };
    let content = match content {
        Ok((resource, digest)) => Content::Good(resource, digest),
        Err(problems) => {
            let last =
                status.as_ref().and_then(|status| last_accepted(status, metadata.generation));
            let last = last.and_then(|spec| {
                parse(kinds, &id, &labels, &annotations, created, Some(spec)).ok()
            });
            Content::Bad(problems, last)
        }
    };
    let version = Version { uid: metadata.uid.into(), generation: metadata.generation };
    let status = status.map(|status| status.to_string().into_boxed_str());
    Ok(Reading { id, version, revision, content, status })
}

/// By the very reader of manifests, so that a rule is right or wrong wherever it is written.
fn parse(
    kinds: Kinds,
    id: &ResourceId,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    created: i64,
    spec: Option<Value>,
) -> Result<(Resource, Digest), Vec<Problem>> {
    let mut document = json!({
        "apiVersion": id.kind.api_version,
        "kind": id.kind.name,
        "metadata": {
            "name": id.name,
            "namespace": id.namespace,
            "labels": labels,
            "annotations": annotations,
        },
    });
    if let (Some(spec), Some(document)) = (spec, document.as_object_mut()) {
        document.insert("spec".into(), spec);
    }
    let read = manifest::parse(kinds, document.to_string().as_bytes(), Format::Json);
    let mut problems: Vec<Problem> = read.syntax.into_iter().collect();
    match read.documents.into_iter().next().map(|document| document.outcome) {
        Some(Ok(mut resource)) if problems.is_empty() => {
            resource.created = created;
            let digest = digest(&resource);
            return Ok((resource, digest));
        }
        Some(Err(more)) => problems.extend(more),
        _ => {}
    }
    Err(problems)
}

/// The spec that was accepted before the current one, by a status that may be anybody's.
fn last_accepted(status: &Value, generation: i64) -> Option<Value> {
    let last = status.get("lastAccepted")?;
    let of = last.get("generation").and_then(Value::as_i64).unwrap_or_default();
    last.get("spec").filter(|spec| of < generation && spec.is_object()).cloned()
}

fn too_deep(id: &ResourceId) -> Problem {
    Problem {
        code: Code::ManifestTooLarge,
        line: 0,
        column: 0,
        field: "spec".into(),
        value: None,
        message: format!("it is nested deeper than {} levels", manifest::MAX_DEPTH),
        hint: "write the rule anew".into(),
        resource: id.to_string(),
    }
}

/// What people call an object: `conditionroute/prefer-local in default`.
pub(super) fn place(id: &ResourceId) -> String {
    format!("{}/{} in {}", id.kind.name.to_ascii_lowercase(), id.name, id.namespace)
}

/// Where an object is, for [`crate::store::Stored`].
pub(super) fn origin(id: &ResourceId) -> Origin {
    Origin { file: place(id).into(), line: 0 }
}

/// A problem of an object, for people.
pub(super) fn problem(
    id: &ResourceId,
    version: &Version,
    problem: Problem,
    last_good_in_force: bool,
) -> StoreProblem {
    StoreProblem {
        file: place(id),
        // Of the text that was parsed; nobody else has seen it.
        line: 0,
        column: 0,
        code: problem.code,
        field: problem.field,
        value: problem.value,
        message: problem.message,
        hint: problem.hint,
        resource: id.to_string(),
        last_good_in_force,
        object: Some((id.clone(), version.clone())),
    }
}

/// A value that is nested as deep as a manifest may be, or none: a reader with one
/// limit for a whole page would refuse the other objects on it too.
enum Shallow {
    Value(Value),
    TooDeep,
}

impl<'de> Deserialize<'de> for Shallow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Levels(manifest::MAX_DEPTH).deserialize(deserializer)? {
            Some(value) => Self::Value(value),
            None => Self::TooDeep,
        })
    }
}

/// Reads a value of at most so many levels; `None` for one that has more.
#[derive(Clone, Copy)]
struct Levels(usize);

impl<'de> DeserializeSeed<'de> for Levels {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if self.0 == 0 {
            // Skipped without recursion.
            deserializer.deserialize_ignored_any(IgnoredAny)?;
            return Ok(None);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Levels {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Some(Value::Null))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Some(value.into()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Some(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Some(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Some(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Some(Vec::new());
        while let Some(item) = seq.next_element_seed(Levels(self.0 - 1))? {
            match (&mut items, item) {
                (Some(items), Some(item)) => items.push(item),
                _ => items = None,
            }
        }
        Ok(items.map(Value::Array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Some(Map::new());
        while let Some(key) = map.next_key::<String>()? {
            match (&mut fields, map.next_value_seed(Levels(self.0 - 1))?) {
                (Some(fields), Some(value)) => {
                    fields.insert(key, value);
                }
                _ => fields = None,
            }
        }
        Ok(fields.map(Value::Object))
    }
}
