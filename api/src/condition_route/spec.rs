use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::{
    code::Code,
    condition::{Condition, Side, SyntaxError},
    fields::{Errors, Scope, present, show},
    kind::{FieldError, RuleSpec},
    proto::{
        dubbo::v1alpha1 as dubbo,
        rules::v1::{self as wire, Target},
    },
};

/// The form of a rule's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConfigVersion {
    /// `when => then` texts.
    V3_0,
    /// `from`, `to` and weights.
    V3_1,
}

impl ConfigVersion {
    /// As written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V3_0 => "v3.0",
            Self::V3_1 => "v3.1",
        }
    }
}

/// The conditions, each text already known to parse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conditions {
    /// v3.0: `when => then`.
    Texts(Vec<String>),
    /// v3.1.
    Destinations(Vec<DestinationCondition>),
}

/// A condition of v3.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationCondition {
    /// `from.match`; empty: every caller.
    pub from: String,
    /// Empty: the traffic is disabled.
    pub to: Vec<Destination>,
}

/// A destination of v3.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Empty: all endpoints.
    pub matches: String,
    /// Its share is weight/sum; 0 receives nothing.
    pub weight: u32,
}

/// The spec of a ConditionRoute: routes calls by conditions on caller, call and endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionRouteSpec {
    /// False: acts as no rule. Default true.
    pub enabled: bool,
    /// A service key or an application's name; empty only when read leniently.
    pub key: String,
    /// What `key` names; `None` only when read leniently: all calls.
    pub scope: Option<Scope>,
    /// True: a condition that leaves no endpoint leaves none; false: it is skipped.
    pub force: bool,
    /// Larger first.
    pub priority: i32,
    /// Accepted for compatibility, without effect.
    pub runtime: Option<bool>,
    /// In the order of their application.
    pub conditions: Conditions,
}

impl ConditionRouteSpec {
    /// Parses and validates the `spec` of a manifest; all errors at once, in document order.
    pub fn parse(value: Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
        Self::read(&value, None).map(|spec| Arc::new(spec) as Arc<dyn RuleSpec>)
    }

    /// As [`ConditionRouteSpec::parse`], but `key` and `scope` may be missing (all calls) and
    /// `configVersion` too, which then is `version`.
    pub fn parse_lenient(value: &Value, version: ConfigVersion) -> Result<Self, Vec<FieldError>> {
        Self::read(value, Some(version))
    }

    fn read(value: &Value, lenient: Option<ConfigVersion>) -> Result<Self, Vec<FieldError>> {
        let mut errors = Errors::default();
        let spec = Self::read_fields(value, lenient, &mut errors);
        match spec {
            Some(spec) if errors.0.is_empty() => Ok(spec),
            _ => Err(errors.0),
        }
    }

    fn read_fields(
        value: &Value,
        lenient: Option<ConfigVersion>,
        errors: &mut Errors,
    ) -> Option<Self> {
        const FIELDS: &[&str] = &[
            "configVersion",
            "enabled",
            "key",
            "scope",
            "conditions",
            "force",
            "priority",
            "runtime",
        ];
        let map = errors.object(value, "spec", FIELDS)?;
        let optional = lenient.is_some();
        let version = match errors.version(map, "ConditionRoute", &["v3.0", "v3.1"], optional) {
            Some("v3.0") => Some(ConfigVersion::V3_0),
            Some(_) => Some(ConfigVersion::V3_1),
            None if present(map, "configVersion").is_some() => None,
            None => lenient,
        };
        let scope = errors.scope(map, optional);
        let key = errors.key(map, scope, optional);
        let enabled = errors.flag(map, "spec", "enabled");
        let force = errors.flag(map, "spec", "force");
        let runtime = errors.flag(map, "spec", "runtime");
        let priority = errors.priority(map);
        let items = errors.list(present(map, "conditions"), "spec.conditions");
        let conditions = match version {
            Some(ConfigVersion::V3_0) => Conditions::Texts(read_texts(items, errors)),
            Some(ConfigVersion::V3_1) => Conditions::Destinations(read_destinations(items, errors)),
            None => return None,
        };
        Some(Self {
            enabled: enabled.unwrap_or(true),
            key,
            scope,
            force: force.unwrap_or(false),
            priority,
            runtime,
            conditions,
        })
    }

    /// The form of its conditions.
    pub fn config_version(&self) -> ConfigVersion {
        match self.conditions {
            Conditions::Texts(_) => ConfigVersion::V3_0,
            Conditions::Destinations(_) => ConfigVersion::V3_1,
        }
    }

    /// The message that the policy gets.
    pub fn to_wire(&self) -> wire::ConditionRoute {
        let mut message = wire::ConditionRoute { force: self.force, ..Default::default() };
        match &self.conditions {
            Conditions::Texts(texts) => message.conditions = texts.clone(),
            Conditions::Destinations(items) => {
                message.weighted = true;
                message.destinations = items
                    .iter()
                    .map(|item| wire::DestinationCondition {
                        from: item.from.clone(),
                        to: item
                            .to
                            .iter()
                            .map(|to| wire::Destination {
                                r#match: to.matches.clone(),
                                weight: to.weight,
                            })
                            .collect(),
                    })
                    .collect();
            }
        }
        message
    }
}

impl RuleSpec for ConditionRouteSpec {
    fn target(&self) -> Option<Target> {
        Some(self.scope?.target(self.key.clone()))
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
        let Conditions::Texts(conditions) = &self.conditions else { return None };
        let message = dubbo::ConditionRoute {
            priority: self.priority,
            enabled: self.enabled,
            force: self.force,
            runtime: self.runtime.unwrap_or_default(),
            key: self.key.clone(),
            scope: self.scope?.as_str().into(),
            conditions: conditions.clone(),
            config_version: self.config_version().as_str().into(),
        };
        Some(message.encode_to_vec().into())
    }

    fn to_json(&self) -> Value {
        let conditions: Value = match &self.conditions {
            Conditions::Texts(texts) => json!(texts),
            Conditions::Destinations(items) => items
                .iter()
                .map(|item| {
                    let to: Vec<Value> = item
                        .to
                        .iter()
                        .map(|to| json!({ "match": to.matches, "weight": to.weight }))
                        .collect();
                    json!({ "from": { "match": item.from }, "to": to })
                })
                .collect(),
        };
        let mut map = Map::new();
        map.insert("configVersion".into(), self.config_version().as_str().into());
        map.insert("enabled".into(), self.enabled.into());
        if let Some(scope) = self.scope {
            map.insert("scope".into(), scope.as_str().into());
        }
        if !self.key.is_empty() {
            map.insert("key".into(), self.key.clone().into());
        }
        map.insert("force".into(), self.force.into());
        map.insert("priority".into(), self.priority.into());
        if let Some(runtime) = self.runtime {
            map.insert("runtime".into(), runtime.into());
        }
        map.insert("conditions".into(), conditions);
        Value::Object(map)
    }
}

fn read_texts(items: &[Value], errors: &mut Errors) -> Vec<String> {
    let mut texts = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let path = format!("spec.conditions[{i}]");
        match item {
            Value::String(text) => {
                if let Err(error) = Condition::parse(text) {
                    errors.syntax(path, error);
                }
                texts.push(text.clone());
            }
            Value::Object(_) => {
                let message = "a v3.1 condition in a v3.0 rule".to_owned();
                let hint = "write configVersion: v3.1, or a text \"when => then\"";
                errors.invalid(&path, &show(item), message, hint);
            }
            _ => {
                let message = format!("{} is no text", show(item));
                errors.invalid(&path, &show(item), message, "write a text \"when => then\"");
            }
        }
    }
    texts
}

fn read_destinations(items: &[Value], errors: &mut Errors) -> Vec<DestinationCondition> {
    let mut conditions = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let path = format!("spec.conditions[{i}]");
        if let Value::String(text) = item {
            let message = "a v3.0 condition in a v3.1 rule".to_owned();
            let hint = "write configVersion: v3.0, or from: {match: …} and to: [{match: …}]";
            errors.invalid(&path, text, message, hint);
            continue;
        }
        let Some(map) = errors.object(item, &path, &["from", "to"]) else { continue };
        let from = match present(map, "from") {
            None => String::new(),
            Some(value) => {
                let path = format!("{path}.from");
                errors
                    .object(value, &path, &["match"])
                    .map(|map| errors.side(map, &path, Side::parse_from))
                    .unwrap_or_default()
            }
        };
        let list = errors.list(present(map, "to"), &format!("{path}.to"));
        let mut to = Vec::with_capacity(list.len());
        for (j, item) in list.iter().enumerate() {
            let path = format!("{path}.to[{j}]");
            let Some(map) = errors.object(item, &path, &["match", "weight"]) else { continue };
            let matches = errors.side(map, &path, Side::parse_to);
            let weight = match present(map, "weight") {
                None => 100,
                Some(value) => match value.as_u64().map(u32::try_from) {
                    Some(Ok(weight)) => weight,
                    _ => {
                        let negative = value.as_f64().is_some_and(|n| n < 0.0);
                        let message = match negative {
                            true => format!("the weight {} is negative", show(value)),
                            false => format!("the weight {} is no 32-bit integer", show(value)),
                        };
                        let hint = "write a whole number from 0, which receives nothing";
                        errors.invalid(&format!("{path}.weight"), &show(value), message, hint);
                        0
                    }
                },
            };
            to.push(Destination { matches, weight });
        }
        conditions.push(DestinationCondition { from, to });
    }
    conditions
}

/// What conditions need besides.
impl Errors {
    fn syntax(&mut self, path: String, error: SyntaxError) {
        self.0.push(FieldError {
            code: Code::ConditionSyntax,
            path,
            offset: Some(error.offset),
            value: Some(error.value),
            message: error.message,
            hint: error.hint,
        });
    }

    fn side(
        &mut self,
        map: &Map<String, Value>,
        path: &str,
        parse: fn(&str) -> Result<Side, SyntaxError>,
    ) -> String {
        let Some(text) = self.text(map, path, "match") else { return String::new() };
        if let Err(error) = parse(text) {
            self.syntax(format!("{path}.match"), error);
        }
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(value: Value) -> Vec<(Code, String)> {
        let errors = ConditionRouteSpec::parse(value).expect_err("refused");
        errors.into_iter().map(|e| (e.code, e.path)).collect()
    }

    #[test]
    fn round_trips() {
        for value in [
            json!({ "configVersion": "v3.0", "scope": "service", "key": "g/com.Foo:1.0",
                    "force": true, "priority": -3, "runtime": true,
                    "conditions": ["method=a => host=b", "=> false"] }),
            json!({ "configVersion": "v3.1", "scope": "application", "key": "shop", "enabled": false,
                    "conditions": [{ "from": { "match": "a=b" }, "to": [{ "match": "c=d", "weight": 3 }, {}] },
                                   { "to": null }, {}] }),
        ] {
            let spec = ConditionRouteSpec::parse(value).expect("valid");
            let again = ConditionRouteSpec::parse(spec.to_json()).expect("valid");
            assert_eq!(spec.to_json(), again.to_json());
            assert_eq!(spec.encode(), again.encode());
            assert_eq!(spec.target(), again.target());
        }
    }

    #[test]
    fn defaults() {
        let value = json!({ "configVersion": "v3.1", "scope": "service", "key": "com.Foo:0.0.0",
                            "conditions": [{ "to": [{ "match": "c=d" }] }] });
        let spec = ConditionRouteSpec::read(&value, None).expect("valid");
        assert!(spec.enabled && !spec.force && spec.priority == 0);
        assert_eq!(spec.key, "com.Foo");
        let Conditions::Destinations(items) = &spec.conditions else { panic!("v3.1") };
        assert_eq!(items[0].to[0].weight, 100);
        assert!(spec.to_wire().weighted);
    }

    #[test]
    fn collects_all_errors() {
        let found = errors(json!({
            "configVersion": "v3.1", "scope": "services", "prioritty": 1, "force": "yes",
            "priority": 1.5,
            "conditions": [
                "a=b => c=d",
                { "from": { "match": "host" }, "to": [{ "match": "a=b", "weight": -1 }, { "weigth": 3 }] },
            ],
        }));
        let path = |text: &str| text.to_owned();
        assert_eq!(
            found,
            [
                (Code::FieldUnknown, path("spec.prioritty")),
                (Code::FieldInvalid, path("spec.scope")),
                (Code::FieldMissing, path("spec.key")),
                (Code::FieldInvalid, path("spec.force")),
                (Code::FieldInvalid, path("spec.priority")),
                (Code::FieldInvalid, path("spec.conditions[0]")),
                (Code::ConditionSyntax, path("spec.conditions[1].from.match")),
                (Code::FieldInvalid, path("spec.conditions[1].to[0].weight")),
                (Code::FieldUnknown, path("spec.conditions[1].to[1].weigth")),
            ]
        );
        assert_eq!(errors(json!([])), [(Code::FieldInvalid, path("spec"))]);
        assert_eq!(errors(json!({})).len(), 3);
    }

    #[test]
    fn names_the_nearest_field_and_the_offset() {
        let value = json!({ "configVersion": "v3.0", "scope": "service", "key": "com.Foo",
                            "Condition": [], "conditions": ["a=b => c"], "zzzzzzzzzzz": 1 });
        let errors = ConditionRouteSpec::parse(value).expect_err("refused");
        assert_eq!(errors[0].hint, "did you mean conditions?");
        assert!(errors[1].hint.starts_with("known fields"));
        assert_eq!(errors[2].offset, Some(7));
        assert_eq!(errors[2].code, Code::ConditionSyntax);
    }

    #[test]
    fn a_missing_version_does_not_hide_the_rest() {
        let found = errors(json!({ "scope": "service", "key": "a b" }));
        assert_eq!(
            found,
            [
                (Code::FieldMissing, "spec.configVersion".to_owned()),
                (Code::FieldInvalid, "spec.key".to_owned()),
            ]
        );
    }

    #[test]
    fn lenient_needs_no_key() {
        let value = json!({ "conditions": ["a=b => c=d"] });
        let spec = ConditionRouteSpec::parse_lenient(&value, ConfigVersion::V3_0).expect("valid");
        assert_eq!(spec.target(), None);
        let value = json!({ "conditions": ["a => c=d"] });
        assert!(ConditionRouteSpec::parse_lenient(&value, ConfigVersion::V3_0).is_err());
    }
}
