//! Writes resources as people read them.

use serde_json::{Map, Value, json};

use super::yaml::core_schema;
use crate::resource::Resource;

/// A resource as a manifest; reads back as an equal one.
pub fn to_json(resource: &Resource) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".into(), json!(resource.id.name));
    metadata.insert("namespace".into(), json!(resource.id.namespace));
    if !resource.labels.is_empty() {
        metadata.insert("labels".into(), json!(resource.labels));
    }
    if !resource.annotations.is_empty() {
        metadata.insert("annotations".into(), json!(resource.annotations));
    }
    json!({
        "apiVersion": resource.id.kind.api_version,
        "kind": resource.id.kind.name,
        "metadata": metadata,
        "spec": resource.spec.to_json(),
    })
}

/// A value as block YAML, with a line end; reads back as an equal one.
pub fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    block(value, 0, &mut text);
    text
}

fn block(value: &Value, indent: usize, text: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (at, (key, value)) in map.iter().enumerate() {
                if at > 0 {
                    pad(indent, text);
                }
                scalar(key, text);
                text.push(':');
                nested(value, indent + 2, text);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    pad(indent, text);
                }
                text.push_str("- ");
                block(item, indent + 2, text);
            }
        }
        Value::String(s) => {
            scalar(s, text);
            text.push('\n');
        }
        // Empty ones, numbers, booleans and null are written as in JSON.
        other => {
            text.push_str(&other.to_string());
            text.push('\n');
        }
    }
}

fn nested(value: &Value, indent: usize, text: &mut String) {
    let empty = match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => true,
    };
    if empty {
        text.push(' ');
    } else {
        text.push('\n');
        pad(indent, text);
    }
    block(value, indent, text);
}

fn pad(indent: usize, text: &mut String) {
    text.extend(std::iter::repeat_n(' ', indent));
}

/// A text, in quotes unless it can only be read as itself.
fn scalar(value: &str, text: &mut String) {
    let bare = value.starts_with(|c: char| c.is_ascii_alphabetic())
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"_./-".contains(&b))
        // What YAML 1.1 takes for a boolean is quoted for older readers.
        && !matches!(value.to_ascii_lowercase().as_str(), "yes" | "no" | "on" | "off" | "y" | "n")
        && core_schema(value).is_string();
    if bare {
        text.push_str(value);
    } else {
        quoted(value, text);
    }
}

fn quoted(value: &str, text: &mut String) {
    text.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                text.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => text.push(c),
        }
    }
    text.push('"');
}
