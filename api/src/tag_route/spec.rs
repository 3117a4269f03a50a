use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Map, Value, json};

use super::MAX_ADDRESSES;
use crate::{
    fields::{Errors, Scope, present},
    kind::{FieldError, RuleSpec},
    matcher::{ParamMatch, spec::name},
    proto::{
        dubbo::v1alpha1 as dubbo,
        rules::v1::{self as wire, Target},
    },
};

/// A group of a provider's endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// What calls name.
    pub name: String,
    /// IP expressions, each known to parse.
    pub addresses: Vec<String>,
    /// Endpoints for which all of these hold, where there are no addresses.
    pub matches: Vec<ParamMatch>,
}

/// The spec of a TagRoute: groups a provider's endpoints by tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagRouteSpec {
    /// Whether `configVersion: v3.0` is written; `match` needs it.
    pub versioned: bool,
    /// False: acts as no rule. Default true.
    pub enabled: bool,
    /// True: calls of a tag that has endpoints never leave them.
    pub force: bool,
    /// Accepted for compatibility, without effect.
    pub runtime: Option<bool>,
    /// The provider's application; empty only when read leniently.
    pub key: String,
    /// Larger first.
    pub priority: i32,
    /// Each with a name of its own.
    pub tags: Vec<Tag>,
}

impl TagRouteSpec {
    /// Parses and validates the `spec` of a manifest; all errors at once, in document order.
    pub fn parse(value: Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
        Self::read(&value, false).map(|spec| Arc::new(spec) as Arc<dyn RuleSpec>)
    }

    /// As [`TagRouteSpec::parse`], but `key` may be missing (all calls) and `configVersion` too,
    /// which then is v3.0.
    pub fn parse_lenient(value: &Value) -> Result<Self, Vec<FieldError>> {
        Self::read(value, true)
    }

    fn read(value: &Value, lenient: bool) -> Result<Self, Vec<FieldError>> {
        let mut errors = Errors::default();
        let spec = Self::read_fields(value, lenient, &mut errors);
        match spec {
            Some(spec) if errors.0.is_empty() => Ok(spec),
            _ => Err(errors.0),
        }
    }

    fn read_fields(value: &Value, lenient: bool, errors: &mut Errors) -> Option<Self> {
        const FIELDS: &[&str] =
            &["configVersion", "enabled", "force", "runtime", "key", "priority", "tags"];
        let map = errors.object(value, "spec", FIELDS)?;
        let versioned = errors.version(map, "TagRoute", &["v3.0"], true).is_some()
            || lenient && present(map, "configVersion").is_none();
        let enabled = errors.flag(map, "spec", "enabled").unwrap_or(true);
        let force = errors.flag(map, "spec", "force").unwrap_or(false);
        let runtime = errors.flag(map, "spec", "runtime");
        let key = errors.key(map, Some(Scope::Application), lenient);
        let priority = errors.priority(map);
        let mut names = HashSet::new();
        let mut tags = Vec::new();
        for (i, item) in errors.list(present(map, "tags"), "spec.tags").iter().enumerate() {
            let path = format!("spec.tags[{i}]");
            let Some(tag) = Tag::read(item, &path, errors) else { continue };
            if !names.insert(tag.name.clone()) {
                let message = "is the name of an earlier tag".to_owned();
                let hint = "write its addresses in one tag, or give it a name of its own";
                errors.invalid(&format!("{path}.name"), &tag.name, message, hint);
            }
            if !versioned && !tag.matches.is_empty() && present(map, "configVersion").is_none() {
                let message = "needs configVersion: v3.0".to_owned();
                let hint = "write configVersion: v3.0 beside key, or addresses in place of match";
                errors.invalid(&format!("{path}.match"), "", message, hint);
            }
            tags.push(tag);
        }
        let addresses: usize = tags.iter().map(|tag| tag.addresses.len()).sum();
        if addresses > MAX_ADDRESSES {
            let message = format!("{addresses} addresses are too many");
            let hint = format!("write at most {MAX_ADDRESSES}, or blocks and ranges of them");
            errors.invalid("spec.tags", &addresses.to_string(), message, &hint);
        }
        Some(Self { versioned, enabled, force, runtime, key, priority, tags })
    }

    /// The message that the policy gets.
    pub fn to_wire(&self) -> wire::TagRoute {
        let tags = self.tags.iter().map(|tag| wire::Tag {
            name: tag.name.clone(),
            addresses: tag.addresses.clone(),
            r#match: tag.matches.iter().map(ParamMatch::to_wire).collect(),
        });
        wire::TagRoute { force: self.force, tags: tags.collect(), present: true }
    }
}

impl Tag {
    fn read(value: &Value, path: &str, errors: &mut Errors) -> Option<Self> {
        let map = errors.object(value, path, &["name", "addresses", "match"])?;
        let name = name(map, path, "name", "write the tag's name, as calls say it", errors);
        let addresses = errors.ips(present(map, "addresses"), &format!("{path}.addresses"));
        let matches =
            ParamMatch::read_list(present(map, "match"), &format!("{path}.match"), errors);
        Some(Self { name: name?, addresses, matches })
    }
}

impl RuleSpec for TagRouteSpec {
    fn target(&self) -> Option<Target> {
        (!self.key.is_empty()).then(|| Scope::Application.target(self.key.clone()))
    }

    fn enabled(&self) -> bool {
        self.enabled
    }

    fn priority(&self) -> i32 {
        self.priority
    }

    fn encode(&self) -> Bytes {
        Bytes::from(self.to_wire().encode_to_vec())
    }

    fn compat(&self) -> Option<Bytes> {
        let tag = |tag: &Tag| {
            Some(dubbo::Tag {
                name: tag.name.clone(),
                addresses: tag.addresses.clone(),
                r#match: tag.matches.iter().map(ParamMatch::compat).collect::<Option<_>>()?,
            })
        };
        let message = dubbo::TagRoute {
            priority: self.priority,
            enabled: self.enabled,
            runtime: self.runtime.unwrap_or(true),
            key: self.key.clone(),
            config_version: if self.versioned { "v3.0".to_owned() } else { String::new() },
            force: self.force,
            tags: self.tags.iter().map(tag).collect::<Option<_>>()?,
        };
        Some(message.encode_to_vec().into())
    }

    fn to_json(&self) -> Value {
        let tags = self.tags.iter().map(|tag| {
            let mut map = Map::new();
            map.insert("name".into(), tag.name.clone().into());
            if !tag.addresses.is_empty() {
                map.insert("addresses".into(), json!(tag.addresses));
            }
            if !tag.matches.is_empty() {
                let matches = tag.matches.iter().map(ParamMatch::to_json);
                map.insert("match".into(), matches.collect());
            }
            Value::Object(map)
        });
        let tags: Value = tags.collect();
        let mut map = Map::new();
        if self.versioned {
            map.insert("configVersion".into(), "v3.0".into());
        }
        map.insert("enabled".into(), self.enabled.into());
        if !self.key.is_empty() {
            map.insert("key".into(), self.key.clone().into());
        }
        map.insert("force".into(), self.force.into());
        map.insert("priority".into(), self.priority.into());
        if let Some(runtime) = self.runtime {
            map.insert("runtime".into(), runtime.into());
        }
        map.insert("tags".into(), tags);
        Value::Object(map)
    }
}

#[cfg(test)]
mod tests;
