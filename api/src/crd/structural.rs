//! From JSON Schema as schemars writes it to the structural schemas of Kubernetes.

use serde_json::{Map, Value, json};

/// Keywords whose value is a schema.
const ONE: [&str; 3] = ["items", "not", "additionalProperties"];
/// Keywords whose value is a list of schemas.
const LIST: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Rewrites a schema in place:
/// - `null` beside a type goes: the API server drops nulls from fields that are not nullable,
///   which is how the parsers read them;
/// - an enum of variants with comments, a `oneOf` of constants, becomes an `enum`;
/// - lines of a description become paragraphs;
/// - formats that only schemars knows become `int32` or `int64`, or go;
/// - titles go, and `additionalProperties: false`, which Kubernetes does by dropping unknown
///   fields, or refusing them where the client asks for it.
pub(super) fn convert(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    map.remove("title");
    map.remove("$schema");
    if map.get("additionalProperties") == Some(&Value::Bool(false)) {
        map.remove("additionalProperties");
    }
    drop_null(map);
    constants(map);
    if let Some(Value::String(text)) = map.get_mut("description") {
        *text = paragraphs(text);
    }
    if let Some(format) = map.get("format").and_then(Value::as_str) {
        match format {
            "uint8" | "uint16" | "int8" | "int16" => map.insert("format".into(), json!("int32")),
            "uint32" | "uint64" => map.insert("format".into(), json!("int64")),
            "uint" | "int" => map.remove("format"),
            _ => None,
        };
    }
    each(map, convert);
}

/// Removes every default.
pub(super) fn remove_defaults(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    map.remove("default");
    each(map, remove_defaults);
}

/// With the keys of every object in order, whatever order the JSON library keeps.
pub(super) fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(String, Value)> = map.into_iter().collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            entries.into_iter().map(|(key, value)| (key, sorted(value))).collect()
        }
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        other => other,
    }
}

fn each(map: &mut Map<String, Value>, change: fn(&mut Value)) {
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(change);
    }
    for keyword in ONE {
        if let Some(schema) = map.get_mut(keyword) {
            change(schema);
        }
    }
    for keyword in LIST {
        if let Some(Value::Array(schemas)) = map.get_mut(keyword) {
            schemas.iter_mut().for_each(change);
        }
    }
}

/// `type: [T, null]` becomes `type: T`; `anyOf: [T, {type: null}]` becomes T; a default of
/// null goes, and so does null among constants, with which older API servers refuse a schema.
fn drop_null(map: &mut Map<String, Value>) {
    if map.get("default") == Some(&Value::Null) {
        map.remove("default");
    }
    if let Some(Value::Array(constants)) = map.get_mut("enum") {
        constants.retain(|constant| !constant.is_null());
    }
    if let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|t| t != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            map.insert("type".into(), one);
        }
    }
    let null = json!({ "type": "null" });
    let Some(Value::Array(forms)) = map.get("anyOf") else { return };
    let [Value::Object(form), other] = forms.as_slice() else { return };
    if *other == null {
        let form = form.clone();
        map.remove("anyOf");
        for (key, value) in form {
            // What stands at the field itself says more than what stands at its type.
            map.entry(key).or_insert(value);
        }
    }
}

/// `oneOf: [{const: a, description: b}, …]` becomes an enum whose description has the parts.
fn constants(map: &mut Map<String, Value>) {
    let Some(Value::Array(forms)) = map.get("oneOf") else { return };
    let values: Option<Vec<Value>> = forms.iter().map(|form| form.get("const").cloned()).collect();
    let Some(values) = values else { return };
    let mut text = map.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    for form in forms {
        if let (Some(value), Some(says)) = (form["const"].as_str(), form["description"].as_str()) {
            text = format!("{text} {value}: {says}").trim_start().to_owned();
        }
    }
    map.remove("oneOf");
    map.insert("type".into(), json!("string"));
    map.insert("enum".into(), Value::Array(values));
    if !text.is_empty() {
        map.insert("description".into(), json!(text));
    }
}

/// A blank line parts paragraphs; other line ends are only how the comment was wrapped.
fn paragraphs(text: &str) -> String {
    let paragraphs: Vec<String> =
        text.split("\n\n").map(|p| p.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    paragraphs.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_json_schema_has_is_rewritten() {
        let mut schema = json!({
            "title": "T", "$schema": "s", "type": "object", "additionalProperties": false,
            "description": "One\nline.\n\nAnother\nparagraph.",
            "properties": {
                "text": { "type": ["string", "null"], "default": null },
                "form": { "type": ["string", "null"], "enum": ["v1", "v2", null] },
                "inner": {
                    "description": "Here.",
                    "anyOf": [{ "type": "object", "description": "There." }, { "type": "null" }],
                },
                "word": { "description": "Which.", "oneOf": [
                    { "const": "a", "description": "First." }, { "const": "b" },
                ]},
                "count": { "type": "integer", "format": "uint32", "default": 1 },
                "list": { "type": "array", "items": { "type": "integer", "format": "uint8" } },
            },
            "anyOf": [{ "required": ["text"] }, { "required": ["word"] }],
        });
        convert(&mut schema);
        let wanted = json!({
            "type": "object",
            "description": "One line.\n\nAnother paragraph.",
            "properties": {
                "text": { "type": "string" },
                "form": { "type": "string", "enum": ["v1", "v2"] },
                "inner": { "type": "object", "description": "Here." },
                "word": { "type": "string", "description": "Which. a: First.", "enum": ["a", "b"] },
                "count": { "type": "integer", "format": "int64", "default": 1 },
                "list": { "type": "array", "items": { "type": "integer", "format": "int32" } },
            },
            // Forms of an object, of which none is null.
            "anyOf": [{ "required": ["text"] }, { "required": ["word"] }],
        });
        assert_eq!(schema, wanted);
        remove_defaults(&mut schema);
        assert_eq!(schema["properties"]["count"], json!({ "type": "integer", "format": "int64" }));
    }

    #[test]
    fn sorting_reaches_every_object() {
        let sorted = sorted(json!({ "b": [{ "d": 1, "c": 2 }], "a": null }));
        assert_eq!(sorted.to_string(), r#"{"a":null,"b":[{"c":2,"d":1}]}"#);
    }
}
