use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::{
    code::Code,
    condition::{Condition, Side, SyntaxError, shorten},
    kind::{FieldError, RuleSpec},
    proto::rules::v1::{self as wire, Target, target},
    service_key::ServiceKey,
};

/// Most conditions of a rule, and most destinations of a condition.
pub(super) const MAX_ITEMS: usize = 1000;

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

/// What `key` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// A service, `[group/]interface[:version]`.
    Service,
    /// An application: its own calls, and calls to its endpoints.
    Application,
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
        let mut errors = Errors(Vec::new());
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
        let version = match errors.text(map, "spec", "configVersion") {
            Some("v3.0") => Some(ConfigVersion::V3_0),
            Some("v3.1") => Some(ConfigVersion::V3_1),
            Some(other) => {
                let message = format!("\"{}\" is no version of ConditionRoute", shorten(other));
                errors.invalid("spec.configVersion", other, message, "write v3.0 or v3.1");
                None
            }
            None if present(map, "configVersion").is_some() => None,
            None => {
                if lenient.is_none() {
                    errors.missing("spec.configVersion", "write v3.0 or v3.1");
                }
                lenient
            }
        };
        let scope = match errors.text(map, "spec", "scope") {
            Some("service") => Some(Scope::Service),
            Some("application") => Some(Scope::Application),
            Some(other) => {
                let message = format!("\"{}\" is no scope", shorten(other));
                errors.invalid("spec.scope", other, message, "write service or application");
                None
            }
            None => {
                if lenient.is_none() && present(map, "scope").is_none() {
                    errors.missing("spec.scope", "write service or application");
                }
                None
            }
        };
        let key = match errors.text(map, "spec", "key") {
            Some(key) => errors.key(key, scope),
            None => {
                if lenient.is_none() && present(map, "key").is_none() {
                    let hint = "write the service's key, [group/]interface[:version], or the application's name";
                    errors.missing("spec.key", hint);
                }
                String::new()
            }
        };
        let enabled = errors.flag(map, "enabled");
        let force = errors.flag(map, "force");
        let runtime = errors.flag(map, "runtime");
        let priority = match present(map, "priority") {
            None => 0,
            Some(value) => match value.as_i64().map(i32::try_from) {
                Some(Ok(priority)) => priority,
                _ => {
                    let message = format!("{} is no 32-bit integer", show(value));
                    let hint = "write a whole number; larger goes first";
                    errors.invalid("spec.priority", &show(value), message, hint);
                    0
                }
            },
        };
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
        let scope = match self.scope? {
            Scope::Service => target::Scope::Service,
            Scope::Application => target::Scope::Application,
        };
        Some(Target { scope: scope.into(), key: self.key.clone() })
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
            let scope = match scope {
                Scope::Service => "service",
                Scope::Application => "application",
            };
            map.insert("scope".into(), scope.into());
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

/// A field that is there; null is as good as absent.
fn present<'a>(map: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    map.get(field).filter(|value| !value.is_null())
}

fn show(value: &Value) -> String {
    match value {
        Value::String(text) => shorten(text),
        other => shorten(&other.to_string()),
    }
}

struct Errors(Vec<FieldError>);

impl Errors {
    fn push(&mut self, code: Code, path: &str, value: Option<String>, message: String, hint: &str) {
        self.0.push(FieldError {
            code,
            path: path.to_owned(),
            offset: None,
            value,
            message,
            hint: hint.to_owned(),
        });
    }

    fn invalid(&mut self, path: &str, value: &str, message: String, hint: &str) {
        self.push(Code::FieldInvalid, path, Some(shorten(value)), message, hint);
    }

    fn missing(&mut self, path: &str, hint: &str) {
        self.push(Code::FieldMissing, path, None, "is required".to_owned(), hint);
    }

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

    /// An object with no other fields than `fields`.
    fn object<'a>(
        &mut self,
        value: &'a Value,
        path: &str,
        fields: &[&str],
    ) -> Option<&'a Map<String, Value>> {
        let Some(map) = value.as_object() else {
            let message = format!("{} is no object", show(value));
            self.invalid(path, &show(value), message, &format!("write {}", fields.join(", ")));
            return None;
        };
        for field in map.keys().filter(|field| !fields.contains(&field.as_str())) {
            // By case first: a wrong capital is the commonest slip.
            let nearest = fields
                .iter()
                .find(|known| known.eq_ignore_ascii_case(field))
                .or_else(|| {
                    let distance = |known: &&&str| strsim::damerau_levenshtein(known, field);
                    fields
                        .iter()
                        .min_by_key(distance)
                        .filter(|known| distance(known) <= 1 + known.len().max(field.len()) / 3)
                })
                .copied();
            let hint = match nearest {
                Some(known) => format!("did you mean {known}?"),
                None => format!("known fields: {}", fields.join(", ")),
            };
            let path = format!("{path}.{field}");
            let message = format!("there is no field {}", shorten(field));
            self.push(Code::FieldUnknown, &path, Some(shorten(field)), message, &hint);
        }
        Some(map)
    }

    fn text<'a>(
        &mut self,
        map: &'a Map<String, Value>,
        path: &str,
        field: &str,
    ) -> Option<&'a str> {
        match present(map, field)? {
            Value::String(text) => Some(text),
            other => {
                let message = format!("{} is no text", show(other));
                self.invalid(&format!("{path}.{field}"), &show(other), message, "write a text");
                None
            }
        }
    }

    fn flag(&mut self, map: &Map<String, Value>, field: &str) -> Option<bool> {
        match present(map, field)? {
            Value::Bool(flag) => Some(*flag),
            other => {
                let message = format!("{} is neither true nor false", show(other));
                self.invalid(
                    &format!("spec.{field}"),
                    &show(other),
                    message,
                    "write true or false, without quotes",
                );
                None
            }
        }
    }

    fn list<'a>(&mut self, value: Option<&'a Value>, path: &str) -> &'a [Value] {
        match value {
            None => &[],
            Some(Value::Array(items)) if items.len() <= MAX_ITEMS => items,
            Some(Value::Array(items)) => {
                let message = format!("{} entries are too many", items.len());
                let hint = format!("write at most {MAX_ITEMS}");
                self.invalid(path, &items.len().to_string(), message, &hint);
                &[]
            }
            Some(other) => {
                let message = format!("{} is no list", show(other));
                self.invalid(path, &show(other), message, "write a list");
                &[]
            }
        }
    }

    fn key(&mut self, key: &str, scope: Option<Scope>) -> String {
        match scope {
            Some(Scope::Service) => match key.parse::<ServiceKey>() {
                Ok(parsed) => return parsed.to_string(),
                Err(error) => {
                    let message = format!("is no service key: {}", error.reason);
                    self.invalid("spec.key", key, message, "write [group/]interface[:version]");
                }
            },
            Some(Scope::Application) | None => {
                if key.is_empty() || key.chars().any(|c| c.is_whitespace() || c.is_control()) {
                    let message = "is empty or has a blank or control character".to_owned();
                    self.invalid("spec.key", key, message, "write the application's name");
                }
            }
        }
        key.to_owned()
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
