//! Reading the fields of a spec: all errors at once, each with its place and a hint.

use std::{ops::RangeInclusive, time::Duration};

use serde_json::{Map, Value};

use crate::{
    code::Code,
    condition::shorten,
    kind::FieldError,
    proto::rules::v1::{Target, target},
    service_key::ServiceKey,
};

/// Most entries of any list in a spec.
pub(crate) const MAX_ITEMS: usize = 1000;

/// Longest text of a time span, in bytes.
pub(crate) const MAX_SPAN: usize = 64;

/// What `key` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// A service, `[group/]interface[:version]`.
    Service,
    /// An application: its own calls, and calls to its endpoints.
    Application,
}

impl Scope {
    /// As written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Application => "application",
        }
    }

    /// The calls that a rule with this scope and key speaks of.
    pub fn target(self, key: impl Into<String>) -> Target {
        let scope = match self {
            Self::Service => target::Scope::Service,
            Self::Application => target::Scope::Application,
        };
        Target { scope: scope.into(), key: key.into() }
    }
}

/// A field that is there; null is as good as absent.
pub(crate) fn present<'a>(map: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    map.get(field).filter(|value| !value.is_null())
}

/// A value as it is quoted in messages, shortened.
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::String(text) => shorten(text),
        other => shorten(&other.to_string()),
    }
}

/// What is wrong with a spec, in document order.
#[derive(Debug, Default)]
pub(crate) struct Errors(pub(crate) Vec<FieldError>);

impl Errors {
    pub(crate) fn push(
        &mut self,
        code: Code,
        path: &str,
        value: Option<String>,
        message: String,
        hint: &str,
    ) {
        self.0.push(FieldError {
            code,
            path: path.to_owned(),
            offset: None,
            value,
            message,
            hint: hint.to_owned(),
        });
    }

    /// A value that a field cannot have.
    pub(crate) fn invalid(&mut self, path: &str, value: &str, message: String, hint: &str) {
        self.push(Code::FieldInvalid, path, Some(shorten(value)), message, hint);
    }

    /// A field that must be there.
    pub(crate) fn missing(&mut self, path: &str, hint: &str) {
        self.push(Code::FieldMissing, path, None, "is required".to_owned(), hint);
    }

    /// An object with no other fields than `fields`.
    pub(crate) fn object<'a>(
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

    /// A text.
    pub(crate) fn text<'a>(
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

    /// True or false; `path` is the object's.
    pub(crate) fn flag(
        &mut self,
        map: &Map<String, Value>,
        path: &str,
        field: &str,
    ) -> Option<bool> {
        match present(map, field)? {
            Value::Bool(flag) => Some(*flag),
            other => {
                let message = format!("{} is neither true nor false", show(other));
                self.invalid(
                    &format!("{path}.{field}"),
                    &show(other),
                    message,
                    "write true or false, without quotes",
                );
                None
            }
        }
    }

    /// A whole number within bounds; `path` is the object's.
    pub(crate) fn count(
        &mut self,
        map: &Map<String, Value>,
        path: &str,
        field: &str,
        bounds: RangeInclusive<u32>,
    ) -> Option<u32> {
        let value = present(map, field)?;
        let count = value.as_u64().and_then(|n| u32::try_from(n).ok());
        let count = count.filter(|n| bounds.contains(n));
        if count.is_none() {
            let message = format!("{} is no such number", show(value));
            let hint = format!("write a whole number from {} to {}", bounds.start(), bounds.end());
            self.invalid(&format!("{path}.{field}"), &show(value), message, &hint);
        }
        count
    }

    /// A time span of whole milliseconds within bounds, as a text such as `500ms` or `1m 30s`;
    /// `path` is the object's.
    pub(crate) fn duration(
        &mut self,
        map: &Map<String, Value>,
        path: &str,
        field: &str,
        bounds: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let value = present(map, field)?;
        let text = value.as_str().filter(|text| text.len() <= MAX_SPAN);
        let span = text.and_then(|text| humantime::parse_duration(text).ok());
        let span = span.filter(|span| span.subsec_nanos() % 1_000_000 == 0);
        let message = match span {
            Some(span) if bounds.contains(&span) => return Some(span),
            Some(span) if span < *bounds.start() => format!("{} is too short", show(value)),
            Some(_) => format!("{} is too long", show(value)),
            None => format!("{} is no time span in whole milliseconds", show(value)),
        };
        let [least, most] = [bounds.start(), bounds.end()].map(|&d| humantime::format_duration(d));
        let hint = format!("write a text such as 500ms, 10s or 1m, from {least} to {most}");
        self.invalid(&format!("{path}.{field}"), &show(value), message, &hint);
        None
    }

    /// A list with a bound; absent is empty.
    pub(crate) fn list<'a>(&mut self, value: Option<&'a Value>, path: &str) -> &'a [Value] {
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
    /// `spec.configVersion`, one of `versions`; `None` with an error, unless it is absent and
    /// `optional`.
    pub(crate) fn version<'a>(
        &mut self,
        map: &'a Map<String, Value>,
        kind: &str,
        versions: &[&str],
        optional: bool,
    ) -> Option<&'a str> {
        let hint = format!("write {}", versions.join(" or "));
        match self.text(map, "spec", "configVersion") {
            Some(version) if versions.contains(&version) => Some(version),
            Some(other) => {
                let message = format!("\"{}\" is no version of {kind}", shorten(other));
                self.invalid("spec.configVersion", other, message, &hint);
                None
            }
            None => {
                if !optional && present(map, "configVersion").is_none() {
                    self.missing("spec.configVersion", &hint);
                }
                None
            }
        }
    }

    /// `spec.scope`; `None` with an error, unless it is absent and `optional`.
    pub(crate) fn scope(&mut self, map: &Map<String, Value>, optional: bool) -> Option<Scope> {
        match self.text(map, "spec", "scope") {
            Some("service") => Some(Scope::Service),
            Some("application") => Some(Scope::Application),
            Some(other) => {
                let message = format!("\"{}\" is no scope", shorten(other));
                self.invalid("spec.scope", other, message, "write service or application");
                None
            }
            None => {
                if !optional && present(map, "scope").is_none() {
                    self.missing("spec.scope", "write service or application");
                }
                None
            }
        }
    }

    /// `spec.key` of this scope, a service key normalised; empty with an error, unless it is
    /// absent and `optional`.
    pub(crate) fn key(
        &mut self,
        map: &Map<String, Value>,
        scope: Option<Scope>,
        optional: bool,
    ) -> String {
        let Some(key) = self.text(map, "spec", "key") else {
            if !optional && present(map, "key").is_none() {
                let hint = match scope {
                    Some(Scope::Application) => "write the application's name",
                    Some(Scope::Service) => "write the service's key, [group/]interface[:version]",
                    None => {
                        "write the service's key, [group/]interface[:version], or the application's name"
                    }
                };
                self.missing("spec.key", hint);
            }
            return String::new();
        };
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

    /// `spec.priority`, 0 where it is absent.
    pub(crate) fn priority(&mut self, map: &Map<String, Value>) -> i32 {
        let Some(value) = present(map, "priority") else { return 0 };
        if let Some(Ok(priority)) = value.as_i64().map(i32::try_from) {
            return priority;
        }
        let message = format!("{} is no 32-bit integer", show(value));
        let hint = "write a whole number; larger goes first";
        self.invalid("spec.priority", &show(value), message, hint);
        0
    }
}
