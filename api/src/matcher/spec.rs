//! Matchers as people write them.

use serde_json::{Map, Value, json};

use super::{AddressMatch, MAX_TEXT, MatchError, ParamMatch, StringMatch, WholeRegex};
use crate::{
    fields::{Errors, present, show},
    ip::IpExpr,
};

/// The fields of a [`StringMatch`], in the order in which they decide.
const STRING: &[&str] = &["exact", "prefix", "regex", "wildcard", "empty", "noempty"];

/// The fields of an [`AddressMatch`], in the order in which they decide.
const ADDRESS: &[&str] = &["cidr", "cird", "wildcard", "exact"];

impl StringMatch {
    /// Reads `{exact|prefix|regex|wildcard|empty|noempty: text}`; the first that is there decides.
    pub(crate) fn read(value: &Value, path: &str, errors: &mut Errors) -> Self {
        let Some(map) = errors.object(value, path, STRING) else { return Self::Never };
        let mut found = None;
        for field in STRING {
            // Looked at also when another decides: a wrong text is a mistake anyhow.
            let Some(text) = errors.short(map, path, field) else { continue };
            let matcher = match *field {
                "exact" => Self::Exact(text.to_owned()),
                "prefix" => Self::Prefix(text.to_owned()),
                "regex" => match WholeRegex::new(text) {
                    Ok(regex) => Self::Regex(Box::new(regex)),
                    Err(error) => {
                        errors.matcher(&format!("{path}.regex"), text, error);
                        continue;
                    }
                },
                "wildcard" => Self::Wildcard(text.to_owned()),
                "empty" => Self::Empty,
                _ => Self::NoEmpty,
            };
            found = found.or(Some(matcher));
        }
        found.unwrap_or_default()
    }

    /// As a person would write it.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Never => json!({}),
            Self::Exact(text) => json!({ "exact": text }),
            Self::Prefix(text) => json!({ "prefix": text }),
            Self::Regex(regex) => json!({ "regex": regex.as_str() }),
            Self::Wildcard(text) => json!({ "wildcard": text }),
            Self::Empty => json!({ "empty": "" }),
            Self::NoEmpty => json!({ "noempty": "" }),
        }
    }

    /// Whether a matcher as written matches; `None` where it is refused. For vectors.
    pub fn matches_json(matcher: &Value, value: Option<&str>) -> Option<bool> {
        let mut errors = Errors::default();
        let matcher = Self::read(matcher, "matcher", &mut errors);
        errors.0.is_empty().then(|| matcher.matches(value.map(str::as_bytes)))
    }
}

impl ParamMatch {
    /// Reads `{key, value}`.
    pub(crate) fn read(value: &Value, path: &str, errors: &mut Errors) -> Option<Self> {
        let map = errors.object(value, path, &["key", "value"])?;
        let key = name(map, path, "key", "write the parameter's name", errors);
        let value = match present(map, "value") {
            Some(value) => StringMatch::read(value, &format!("{path}.value"), errors),
            None => {
                errors.missing(&format!("{path}.value"), "write {exact: text}, or another match");
                StringMatch::Never
            }
        };
        Some(Self { key: key?, value })
    }

    /// Reads a list of them.
    pub(crate) fn read_list(value: Option<&Value>, path: &str, errors: &mut Errors) -> Vec<Self> {
        let items = errors.list(value, path).iter().enumerate();
        items.filter_map(|(i, item)| Self::read(item, &format!("{path}[{i}]"), errors)).collect()
    }

    /// As a person would write it.
    pub(crate) fn to_json(&self) -> Value {
        json!({ "key": self.key, "value": self.value.to_json() })
    }
}

impl AddressMatch {
    /// Reads `{cidr|wildcard|exact: text}`; the first that is there decides. `cird` is how some
    /// write the first.
    pub(crate) fn read(value: &Value, path: &str, errors: &mut Errors) -> Self {
        let Some(map) = errors.object(value, path, ADDRESS) else { return Self::Never };
        let mut found = None;
        for field in ADDRESS {
            let Some(text) = errors.short(map, path, field) else { continue };
            let matcher = match *field {
                "cidr" | "cird" => match Self::cidr(text) {
                    Ok(matcher) => matcher,
                    Err(error) => {
                        errors.matcher(&format!("{path}.{field}"), text, error);
                        continue;
                    }
                },
                "wildcard" => Self::Wildcard(text.to_owned()),
                _ => Self::Exact(text.to_owned()),
            };
            found = found.or(Some(matcher));
        }
        found.unwrap_or_default()
    }

    /// As a person would write it.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Never => json!({}),
            Self::Cidr(text, _) => json!({ "cidr": text }),
            Self::Wildcard(text) => json!({ "wildcard": text }),
            Self::Exact(text) => json!({ "exact": text }),
        }
    }
}

impl Errors {
    /// Why a text is no matcher.
    pub(crate) fn matcher(&mut self, path: &str, value: &str, error: MatchError) {
        self.invalid(path, value, error.message, &error.hint);
    }

    /// A text of a bounded length; a longer one is an error, and read as far as it may go.
    fn short<'a>(
        &mut self,
        map: &'a Map<String, Value>,
        path: &str,
        field: &str,
    ) -> Option<&'a str> {
        let text = self.text(map, path, field)?;
        if text.len() > MAX_TEXT {
            let message = format!("{} bytes are too long", text.len());
            let hint = format!("write at most {MAX_TEXT} bytes");
            self.invalid(&format!("{path}.{field}"), text, message, &hint);
        }
        Some(&text[..text.floor_char_boundary(MAX_TEXT)])
    }

    /// A list of IP expressions, as written; each is known to parse.
    pub(crate) fn ips(&mut self, value: Option<&Value>, path: &str) -> Vec<String> {
        let mut found = Vec::new();
        for (i, item) in self.list(value, path).iter().enumerate() {
            let path = format!("{path}[{i}]");
            let Some(text) = item.as_str() else {
                let message = format!("{} is no text", show(item));
                self.invalid(&path, &show(item), message, "write an address or an IP expression");
                continue;
            };
            match IpExpr::parse(text) {
                Ok(_) => found.push(text.trim().to_owned()),
                Err(error) => self.matcher(&path, text, error.into()),
            }
        }
        found
    }
}

/// A name that must be there: not empty.
pub(crate) fn name(
    map: &Map<String, Value>,
    path: &str,
    field: &str,
    hint: &str,
    errors: &mut Errors,
) -> Option<String> {
    match errors.short(map, path, field) {
        Some("") => {
            errors.invalid(&format!("{path}.{field}"), "", "is empty".to_owned(), hint);
            None
        }
        Some(text) => Some(text.to_owned()),
        None => {
            if present(map, field).is_none() {
                errors.missing(&format!("{path}.{field}"), hint);
            }
            None
        }
    }
}
