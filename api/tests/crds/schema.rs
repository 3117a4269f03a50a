//! Reads a structural schema as an API server does: nulls and defaults, validation, CEL rules.
//! It knows the keywords that our schemas may have and no other.

use std::sync::Arc;

use cel::{Context, Env};
use serde_json::{Map, Value};

/// Keywords with a meaning that is told here, or that only describe.
#[allow(dead_code, reason = "not every test that reads schemas asks for it")]
pub(crate) const KEYWORDS: &[&str] = &[
    "additionalProperties",
    "allOf",
    "anyOf",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "not",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

/// The value as it is stored: without unknown fields and nulls, with defaults.
pub(crate) fn stored(schema: &Value, value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let keeps = schema["x-kubernetes-preserve-unknown-fields"] == true;
            let empty = Map::new();
            let properties = schema["properties"].as_object().unwrap_or(&empty);
            let of = |field| properties.get(field).or(schema.get("additionalProperties"));
            let mut result: Map<String, Value> = map
                .iter()
                .filter(|(field, value)| match of(field.as_str()) {
                    Some(_) => !value.is_null(),
                    None => keeps,
                })
                .map(|(field, value)| match of(field.as_str()) {
                    Some(schema) => (field.clone(), stored(schema, value)),
                    // What is unknown and kept is kept whole.
                    None => (field.clone(), value.clone()),
                })
                .collect();
            for (field, schema) in properties {
                if let Some(default) = schema.get("default") {
                    result.entry(field).or_insert_with(|| default.clone());
                }
            }
            Value::Object(result)
        }
        Value::Array(items) => items.iter().map(|item| stored(&schema["items"], item)).collect(),
        other => other.clone(),
    }
}

/// Where a stored value breaks the schema, paths from `path`.
pub(crate) fn check(schema: &Value, value: &Value, path: &str) -> Vec<String> {
    let mut broken = Vec::new();
    let mut need = |holds: bool| {
        if !holds {
            broken.push(path.to_owned());
        }
    };
    let number = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
    let within = |size: f64, least: &str, most: &str| {
        number(least).is_none_or(|least| size >= least)
            && number(most).is_none_or(|most| size <= most)
    };
    if let Some(kind) = schema.get("type") {
        need(match value {
            Value::Null => false,
            Value::Bool(_) => kind == "boolean",
            Value::Number(n) => kind == "number" || kind == "integer" && !n.is_f64(),
            Value::String(_) => kind == "string",
            Value::Array(_) => kind == "array",
            Value::Object(_) => kind == "object",
        });
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        need(values.contains(value));
    }
    match value {
        Value::Number(n) => {
            need(within(n.as_f64().unwrap_or_default(), "minimum", "maximum"));
        }
        Value::String(text) => {
            need(within(text.chars().count() as f64, "minLength", "maxLength"));
            if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
                need(regex::Regex::new(pattern).expect("a pattern").is_match(text));
            }
        }
        Value::Array(items) => {
            need(within(items.len() as f64, "minItems", "maxItems"));
            for (at, item) in items.iter().enumerate() {
                broken.extend(check(&schema["items"], item, &format!("{path}[{at}]")));
            }
        }
        Value::Object(map) => {
            need(within(map.len() as f64, "minProperties", "maxProperties"));
            for field in schema["required"].as_array().into_iter().flatten() {
                let field = field.as_str().expect("a name");
                if !map.contains_key(field) {
                    broken.push(format!("{path}.{field}"));
                }
            }
            for (field, value) in map {
                let more = schema.get("additionalProperties");
                if let Some(schema) = schema["properties"].get(field).or(more) {
                    broken.extend(check(schema, value, &format!("{path}.{field}")));
                }
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
    if let Some(not) = schema.get("not")
        && check(not, value, path).is_empty()
    {
        broken.push(path.to_owned());
    }
    for schema in schema["allOf"].as_array().into_iter().flatten() {
        broken.extend(check(schema, value, path));
    }
    if let Some(forms) = schema.get("anyOf").and_then(Value::as_array) {
        let reasons: Vec<_> = forms.iter().map(|schema| check(schema, value, path)).collect();
        if !reasons.iter().any(Vec::is_empty) {
            broken.extend(reasons.concat());
        }
    }
    broken
}

/// Messages of the CEL rules that a valid value breaks; of the rules at the top only, where all
/// of ours are.
pub(crate) fn rules(schema: &Value, value: &Value) -> Vec<String> {
    let env = Arc::new(Env::stdlib());
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    let broken = rules.filter(|rule| {
        let program = env.compile(rule["rule"].as_str().expect("a rule")).expect("CEL");
        let mut context = Context::with_env(env.clone());
        context.add_variable("self", value).expect("a value");
        program.execute(&context).expect("a verdict") != cel::Value::Bool(true)
    });
    broken.map(|rule| rule["message"].as_str().expect("a message").to_owned()).collect()
}
