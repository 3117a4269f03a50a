//! A rule as it is stored.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::{
    kind::{Kind, RuleSpec},
    proto::rules::v1::Enforcement,
};

/// What names a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId {
    /// Its kind.
    pub kind: Kind,
    /// `default` where a manifest says none.
    pub namespace: String,
    /// Unique within kind and namespace.
    pub name: String,
}

impl ResourceId {
    /// The key on the wire: `<name>/<namespace>`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.name, self.namespace)
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.name, self.namespace)
    }
}

/// A parsed and validated rule.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Its name.
    pub id: ResourceId,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// When it was made, Unix seconds; 0 where the store does not know.
    pub created: i64,
    /// The typed spec.
    pub spec: Arc<dyn RuleSpec>,
}

/// Annotation (or label) that makes a rule a shadow of itself: evaluated and reported only.
pub const ENFORCEMENT: &str = "rulecast.io/enforcement";

impl Resource {
    /// From the annotation or label [`ENFORCEMENT`]; anything but `shadow` enforces.
    pub fn enforcement(&self) -> Enforcement {
        let value = self.annotations.get(ENFORCEMENT).or_else(|| self.labels.get(ENFORCEMENT));
        match value.map(String::as_str) {
            Some("shadow") => Enforcement::Shadow,
            _ => Enforcement::Enforce,
        }
    }
}
