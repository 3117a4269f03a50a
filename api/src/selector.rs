//! Selectors of the security kinds: which endpoints a policy is for, and which callers it
//! speaks of.

use serde_json::{Map, Value, json};

use crate::{
    fields::{Errors, present, show},
    ip::{self, IpExpr},
    kind::Subject,
    proto::rules::v1::Source,
};

#[cfg(feature = "schema")]
pub(crate) mod schema;

/// Most bytes of a text in a selector.
pub(crate) const MAX_TEXT: usize = 2048;

/// Most bytes of a value of `extends`: longer annotations of a pod are not looked at.
pub const MAX_EXTENDS: usize = 256;

/// A selector. An empty list is no constraint; a hit in a `not` list excludes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Any of these.
    pub namespaces: Vec<String>,
    /// None of these.
    pub not_namespaces: Vec<String>,
    /// An address in any of these.
    pub ip_blocks: Vec<String>,
    /// No address in any of these.
    pub not_ip_blocks: Vec<String>,
    /// Any of these SPIFFE ids, without `spiffe://`.
    pub principals: Vec<String>,
    /// None of these.
    pub not_principals: Vec<String>,
    /// All of these, each a label or an annotation.
    pub extends: Vec<(String, String)>,
    /// None of these.
    pub not_extends: Vec<(String, String)>,
}

/// Whose selector it is: of an endpoint all is known, of a caller what it proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// The one that a policy is for.
    Endpoint,
    /// One that calls it.
    Caller,
}

const FIELDS: &[&str] = &[
    "namespaces",
    "notNamespaces",
    "ipBlocks",
    "notIpBlocks",
    "principals",
    "notPrincipals",
    "extends",
    "notExtends",
];

impl Selector {
    /// Reads one; what is wrong goes to `errors`.
    pub(crate) fn read(errors: &mut Errors, value: &Value, path: &str, of: Of) -> Self {
        let Some(map) = errors.object(value, path, FIELDS) else { return Self::default() };
        let mut texts = |field: &str, check: Check| read_texts(errors, map, path, field, check);
        let namespaces = texts("namespaces", namespace);
        let not_namespaces = texts("notNamespaces", namespace);
        let ip_blocks = texts("ipBlocks", block);
        let not_ip_blocks = texts("notIpBlocks", block);
        let principals = texts("principals", principal);
        let not_principals = texts("notPrincipals", principal);
        let mut pairs = |field: &str| match of {
            Of::Endpoint => read_pairs(errors, map, path, field),
            Of::Caller => {
                refuse_pairs(errors, map, path, field);
                Vec::new()
            }
        };
        let extends = pairs("extends");
        let not_extends = pairs("notExtends");
        Self {
            namespaces,
            not_namespaces,
            ip_blocks,
            not_ip_blocks,
            principals,
            not_principals,
            extends,
            not_extends,
        }
    }

    /// Whether an endpoint is selected, by what is attested of it. One without a known address
    /// is in no block.
    pub fn matches(&self, subject: &Subject<'_>) -> bool {
        let named = |names: &[String], name: &str| names.iter().any(|n| n == name);
        let within = |blocks: &[String]| {
            blocks.iter().filter_map(|block| IpExpr::parse(block).ok()).any(|block| {
                subject.addresses.iter().any(|address| block.matches_ip(Some(*address), None))
            })
        };
        let has = |(key, value): &(String, String)| {
            subject.labels.get(key) == Some(value) || subject.annotations.get(key) == Some(value)
        };
        (self.namespaces.is_empty() || named(&self.namespaces, subject.namespace))
            && !named(&self.not_namespaces, subject.namespace)
            && (self.principals.is_empty() || named(&self.principals, subject.identity))
            && !named(&self.not_principals, subject.identity)
            && (self.ip_blocks.is_empty() || within(&self.ip_blocks))
            && !within(&self.not_ip_blocks)
            && self.extends.iter().all(has)
            && !self.not_extends.iter().any(has)
    }

    /// Whether it constrains nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it looks at addresses.
    pub fn has_ip_blocks(&self) -> bool {
        !self.ip_blocks.is_empty() || !self.not_ip_blocks.is_empty()
    }

    /// The keys of labels and annotations that it looks at.
    pub fn extends_keys(&self) -> impl Iterator<Item = &str> {
        self.extends.iter().chain(&self.not_extends).map(|(key, _)| key.as_str())
    }

    /// As a callee's policy gets it.
    pub fn to_source(&self) -> Source {
        Source {
            namespaces: self.namespaces.clone(),
            not_namespaces: self.not_namespaces.clone(),
            ip_blocks: self.ip_blocks.clone(),
            not_ip_blocks: self.not_ip_blocks.clone(),
            principals: self.principals.clone(),
            not_principals: self.not_principals.clone(),
        }
    }

    /// As a person would write it; only what is there.
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        let texts = [
            ("namespaces", &self.namespaces),
            ("notNamespaces", &self.not_namespaces),
            ("ipBlocks", &self.ip_blocks),
            ("notIpBlocks", &self.not_ip_blocks),
            ("principals", &self.principals),
            ("notPrincipals", &self.not_principals),
        ];
        for (field, list) in texts.into_iter().filter(|(_, list)| !list.is_empty()) {
            map.insert(field.into(), json!(list));
        }
        for (field, list) in [("extends", &self.extends), ("notExtends", &self.not_extends)] {
            if !list.is_empty() {
                let pair = |(key, value): &(String, String)| json!({ "key": key, "value": value });
                map.insert(field.into(), list.iter().map(pair).collect());
            }
        }
        Value::Object(map)
    }
}

/// Reads a text: what is kept of it, or what is wrong and what would be right.
type Check = fn(&str) -> Result<String, (String, String)>;

fn read_texts(
    errors: &mut Errors,
    map: &Map<String, Value>,
    path: &str,
    field: &str,
    check: Check,
) -> Vec<String> {
    let path = format!("{path}.{field}");
    let mut texts = Vec::new();
    for (i, item) in errors.list(present(map, field), &path).iter().enumerate() {
        let path = format!("{path}[{i}]");
        match item {
            Value::String(text) if text.len() > MAX_TEXT => {
                let message = format!("{} bytes are too many", text.len());
                errors.invalid(&path, text, message, &format!("write at most {MAX_TEXT}"));
            }
            Value::String(text) => match check(text) {
                Ok(text) => texts.push(text),
                Err((message, hint)) => errors.invalid(&path, text, message, &hint),
            },
            other => {
                let message = format!("{} is no text", show(other));
                errors.invalid(&path, &show(other), message, "write a text");
            }
        }
    }
    texts
}

/// Names are compared as they are, so one that could be meant as a pattern would never be met.
fn plain(text: &str, what: &str) -> Result<(), (String, String)> {
    let wrong = |message: &str| (format!("{message} {what}"), "leave the field out for any".into());
    if text.contains('*') {
        return Err(wrong("a pattern is no"));
    }
    if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(wrong("an empty text, or one with blanks, is no"));
    }
    Ok(())
}

fn namespace(text: &str) -> Result<String, (String, String)> {
    plain(text, "namespace").map(|()| text.to_owned())
}

fn principal(text: &str) -> Result<String, (String, String)> {
    let id = text.strip_prefix("spiffe://").unwrap_or(text);
    let hint = || "write <trust domain>/ns/<namespace>/sa/<service account>".to_owned();
    plain(id, "principal").map_err(|(message, _)| (message, hint()))?;
    if !id.contains('/') || id.contains("://") {
        return Err(("a principal is a SPIFFE id".to_owned(), hint()));
    }
    Ok(id.to_owned())
}

fn block(text: &str) -> Result<String, (String, String)> {
    let hint = "write an address, or a block of them such as 10.1.0.0/16 or 192.168.1.*";
    let port = match text.split_once('/') {
        Some((_, bits)) => bits.contains(':'),
        None => ip::split(text).1.is_some(),
    };
    match IpExpr::parse(text) {
        Ok(_) if port => Err(("a block has no port".to_owned(), hint.to_owned())),
        Ok(_) => Ok(text.trim().to_owned()),
        Err(error) => Err((error.message, hint.to_owned())),
    }
}

fn read_pairs(
    errors: &mut Errors,
    map: &Map<String, Value>,
    path: &str,
    field: &str,
) -> Vec<(String, String)> {
    let path = format!("{path}.{field}");
    let mut pairs = Vec::new();
    for (i, item) in errors.list(present(map, field), &path).iter().enumerate() {
        let path = format!("{path}[{i}]");
        let Some(map) = errors.object(item, &path, &["key", "value"]) else { continue };
        let mut one = |field: &str| {
            if present(map, field).is_none() {
                let hint = "name a label or an annotation of the endpoint, and its value";
                errors.missing(&format!("{path}.{field}"), hint);
            }
            let text = errors.text(map, &path, field)?;
            if text.len() > MAX_EXTENDS {
                let message = format!("{} bytes are too many", text.len());
                let hint = format!("write at most {MAX_EXTENDS}; longer ones are not looked at");
                errors.invalid(&format!("{path}.{field}"), text, message, &hint);
            }
            Some(text.to_owned())
        };
        if let (Some(key), Some(value)) = (one("key"), one("value")) {
            pairs.push((key, value));
        }
    }
    pairs
}

fn refuse_pairs(errors: &mut Errors, map: &Map<String, Value>, path: &str, field: &str) {
    if let Some(value) = present(map, field)
        && value.as_array().is_none_or(|items| !items.is_empty())
    {
        let message = "a callee has no proof of its caller's labels".to_owned();
        let hint = "select callers by principals, namespaces or ipBlocks";
        errors.invalid(&format!("{path}.{field}"), &show(value), message, hint);
    }
}

#[cfg(test)]
mod tests;
