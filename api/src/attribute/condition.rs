//! Conditions on attributes of a call, as written and as policies get them.

use serde_json::{Map, Value, json};

use crate::{
    condition::shorten,
    fields::{Errors, present},
    matcher::WholeRegex,
    proto::rules::v1 as wire,
};

/// Most bytes of a value in a condition.
pub(super) const MAX_VALUE: usize = 4096;

/// What a value must be like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ValueMatch {
    /// This text.
    Equals(String),
    /// This regular expression, for the whole value.
    Regex(String),
}

/// A condition on an attribute of the call. It holds when any of `values` is met, or there are
/// none, and none of `not_values` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The attribute's [name](crate::attribute::name).
    pub key: String,
    /// Any of these.
    pub values: Vec<ValueMatch>,
    /// None of these.
    pub not_values: Vec<ValueMatch>,
}

impl Condition {
    /// Reads a list of them; what is wrong goes to `errors`.
    pub(crate) fn read_all(
        errors: &mut Errors,
        map: &Map<String, Value>,
        path: &str,
        field: &str,
    ) -> Vec<Self> {
        let path = format!("{path}.{field}");
        let items = errors.list(present(map, field), &path);
        items
            .iter()
            .enumerate()
            .filter_map(|(i, item)| condition(errors, item, &format!("{path}[{i}]")))
            .collect()
    }

    /// As a policy gets it.
    pub(crate) fn to_wire(&self) -> wire::AttributeMatch {
        wire::AttributeMatch {
            key: self.key.clone(),
            values: self.values.iter().map(ValueMatch::to_wire).collect(),
            not_values: self.not_values.iter().map(ValueMatch::to_wire).collect(),
        }
    }

    /// As a person would write it.
    pub(crate) fn to_json(&self) -> Value {
        let mut map = Map::new();
        map.insert("key".into(), self.key.clone().into());
        for (field, list) in [("values", &self.values), ("notValues", &self.not_values)] {
            if !list.is_empty() {
                map.insert(field.into(), list.iter().map(ValueMatch::to_json).collect());
            }
        }
        // One of them has to stand there.
        if map.len() == 1 {
            map.insert("values".into(), Value::Array(Vec::new()));
        }
        Value::Object(map)
    }
}

impl ValueMatch {
    fn to_wire(&self) -> wire::ValueMatch {
        use wire::value_match::How;
        let how = match self {
            Self::Equals(text) => How::Equals(text.clone()),
            Self::Regex(text) => How::Regex(text.clone()),
        };
        wire::ValueMatch { how: Some(how) }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Equals(text) => json!({ "type": "equals", "value": text }),
            Self::Regex(text) => json!({ "type": "regex", "value": text }),
        }
    }
}

fn condition(errors: &mut Errors, value: &Value, path: &str) -> Option<Condition> {
    let map = errors.object(value, path, &["key", "values", "notValues"])?;
    let key = errors.text(map, path, "key");
    let field = format!("{path}.key");
    let key = match key.map(|key| (key, super::name(key))) {
        Some((_, Ok(name))) => name,
        Some((key, Err(error))) => {
            errors.invalid(&field, key, error.message, &error.hint);
            String::new()
        }
        None => {
            if present(map, "key").is_none() {
                errors.missing(&field, "name an attribute, such as method or request.headers[x]");
            }
            String::new()
        }
    };
    let values = values(errors, map, path, "values");
    let not_values = self::values(errors, map, path, "notValues");
    if present(map, "values").is_none() && present(map, "notValues").is_none() {
        errors.missing(
            &format!("{path}.values"),
            "write values or notValues, or leave out the whole",
        );
    }
    Some(Condition { key, values, not_values })
}

fn values(
    errors: &mut Errors,
    map: &Map<String, Value>,
    path: &str,
    field: &str,
) -> Vec<ValueMatch> {
    let path = format!("{path}.{field}");
    let items = errors.list(present(map, field), &path);
    let mut values = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        values.extend(value_match(errors, item, &format!("{path}[{i}]")));
    }
    values
}

fn value_match(errors: &mut Errors, value: &Value, path: &str) -> Option<ValueMatch> {
    const HINT: &str = "write equals or regex";
    let map = errors.object(value, path, &["type", "value"])?;
    let how = errors.text(map, path, "type");
    if present(map, "type").is_none() {
        errors.missing(&format!("{path}.type"), HINT);
    }
    if present(map, "value").is_none() {
        errors.missing(&format!("{path}.value"), "write the text that it is compared with");
    }
    let text = errors.text(map, path, "value");
    let place = format!("{path}.value");
    if let Some(text) = text.filter(|text| text.len() > MAX_VALUE) {
        let message = format!("{} bytes are too many", text.len());
        errors.invalid(&place, text, message, &format!("write at most {MAX_VALUE}"));
        return None;
    }
    match how? {
        "equals" => text.map(|text| ValueMatch::Equals(text.to_owned())),
        "regex" => {
            let text = text?;
            if let Err(error) = WholeRegex::new(text) {
                errors.invalid(&place, text, error.message, &error.hint);
            }
            Some(ValueMatch::Regex(text.to_owned()))
        }
        "ognl" => {
            let message = "ognl is not evaluated: it is a program in the caller's hands, run by \
                           whoever reads the rule";
            errors.invalid(&format!("{path}.type"), "ognl", message.to_owned(), HINT);
            None
        }
        other => {
            let message = format!("\"{}\" is no way to compare", shorten(other));
            errors.invalid(&format!("{path}.type"), other, message, HINT);
            None
        }
    }
}
