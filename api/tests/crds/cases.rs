//! Specs of ConditionRoute, and who refuses them: `api/tests/crds.rs` asks the schema and the
//! parser, `tests/kube/tests/crd.rs` a real API server.

use serde_json::{Value, json};

/// A spec and its verdicts.
pub(crate) struct Case {
    /// A DNS label.
    pub(crate) name: &'static str,
    /// The spec as an author writes it.
    pub(crate) spec: Value,
    /// What the API server does.
    pub(crate) server: Server,
    /// The path that the parser refuses first; `None`: it accepts.
    pub(crate) parser: Option<&'static str>,
}

/// What the API server does with a spec.
pub(crate) enum Server {
    /// It stores it.
    Accepts,
    /// By the schema; its message has these words.
    Refuses(&'static [&'static str]),
    /// By a CEL rule whose message has these words; servers before 1.25 store it.
    Rule(&'static str),
}

use Server::{Accepts, Refuses, Rule};

/// A spec of the given version with the fields of `more` besides the required ones.
fn spec(version: &str, more: Value) -> Value {
    let mut spec =
        json!({ "configVersion": version, "scope": "service", "key": "com.example.Orders" });
    for (field, value) in more.as_object().expect("an object") {
        match value {
            // What is to be left out.
            Value::String(text) if text == "-" => spec.as_object_mut().expect("one").remove(field),
            value => spec.as_object_mut().expect("one").insert(field.clone(), value.clone()),
        };
    }
    spec
}

/// All cases.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = |name, version, more, server, parser| {
        cases.push(Case { name, spec: spec(version, more), server, parser });
    };
    let v30 = "v3.0";
    let v31 = "v3.1";

    case("least", v30, json!({}), Accepts, None);
    case(
        "as-documented",
        v30,
        json!({ "force": true, "runtime": true, "enabled": true,
                "conditions": ["method=getOrder => region=hangzhou"] }),
        Accepts,
        None,
    );
    case("group-and-version", v30, json!({ "key": "g/com.example.Orders:1.0" }), Accepts, None);
    case("application", v30, json!({ "scope": "application", "key": "shop:a/b" }), Accepts, None);
    case(
        "nulls",
        v30,
        json!({ "conditions": null, "enabled": null, "runtime": null }),
        Accepts,
        None,
    );
    case("empty-text", v30, json!({ "conditions": ["", "=> false"] }), Accepts, None);
    case(
        "destinations",
        v31,
        json!({ "conditions": [
            { "from": { "match": "a=b" }, "to": [{ "match": "c=d" }, { "weight": 0 }, {}] },
            { "from": { "match": "" }, "to": [{ "match": "" }] }, { "from": {}, "to": [] }, {},
        ] }),
        Accepts,
        None,
    );
    case(
        "null-weight",
        v31,
        json!({ "conditions": [{ "from": null, "to": [{ "match": null, "weight": null }] }, { "to": null }] }),
        Accepts,
        None,
    );
    case("most-conditions", v30, json!({ "conditions": vec!["a=b => c=d"; 1000] }), Accepts, None);
    case(
        "largest-weight",
        v31,
        json!({ "conditions": [{ "to": [{ "weight": u32::MAX }] }] }),
        Accepts,
        None,
    );
    case("lowest-priority", v30, json!({ "priority": i32::MIN }), Accepts, None);

    // What only the parser reads: it is stored, and the verdict goes into the status.
    case(
        "no-condition",
        v30,
        json!({ "conditions": ["a == b => c=d"] }),
        Accepts,
        Some("spec.conditions[0]"),
    );
    case(
        "null-condition",
        v30,
        json!({ "conditions": [null] }),
        Accepts,
        Some("spec.conditions[0]"),
    );
    // What the required fields, enums, types and bounds of the schema refuse.
    case(
        "no-key",
        v30,
        json!({ "key": "-" }),
        Refuses(&["spec.key", "Required"]),
        Some("spec.key"),
    );
    case(
        "no-scope",
        v30,
        json!({ "scope": "-" }),
        Refuses(&["spec.scope", "Required"]),
        Some("spec.scope"),
    );
    case(
        "no-version",
        v30,
        json!({ "configVersion": "-", "conditions": ["a=b => c=d"] }),
        Refuses(&["spec.configVersion", "Required"]),
        Some("spec.configVersion"),
    );
    case("empty-key", v30, json!({ "key": "" }), Refuses(&["spec.key"]), Some("spec.key"));
    case("blank-key", v30, json!({ "key": "a b" }), Refuses(&["spec.key"]), Some("spec.key"));
    case(
        "number-key",
        v30,
        json!({ "key": 3 }),
        Refuses(&["spec.key", "string"]),
        Some("spec.key"),
    );
    case(
        "other-version",
        "v2.0",
        json!({ "conditions": ["a=b => c=d"] }),
        Refuses(&["spec.configVersion", "\"v3.0\"", "\"v3.1\""]),
        Some("spec.configVersion"),
    );
    case(
        "other-scope",
        v30,
        json!({ "scope": "services" }),
        Refuses(&["spec.scope", "\"service\"", "\"application\""]),
        Some("spec.scope"),
    );
    case(
        "text-force",
        v30,
        json!({ "force": "yes" }),
        Refuses(&["spec.force", "boolean"]),
        Some("spec.force"),
    );
    case(
        "text-enabled",
        v30,
        json!({ "enabled": "no" }),
        Refuses(&["spec.enabled"]),
        Some("spec.enabled"),
    );
    case(
        "text-runtime",
        v30,
        json!({ "runtime": 1 }),
        Refuses(&["spec.runtime"]),
        Some("spec.runtime"),
    );
    case(
        "text-priority",
        v30,
        json!({ "priority": "1" }),
        Refuses(&["spec.priority"]),
        Some("spec.priority"),
    );
    case(
        "large-priority",
        v30,
        json!({ "priority": 1_i64 << 31 }),
        Refuses(&["spec.priority", "2147483647"]),
        Some("spec.priority"),
    );
    case(
        "broken-priority",
        v30,
        json!({ "priority": 1.5 }),
        Refuses(&["spec.priority"]),
        Some("spec.priority"),
    );
    case(
        "no-list",
        v30,
        json!({ "conditions": "a=b => c=d" }),
        Refuses(&["spec.conditions"]),
        Some("spec.conditions"),
    );
    case(
        "many-conditions",
        v30,
        json!({ "conditions": vec!["a=b => c=d"; 1001] }),
        Refuses(&["spec.conditions", "1000"]),
        Some("spec.conditions"),
    );
    case(
        "long-condition",
        v30,
        json!({ "conditions": ["a".repeat(16 * 1024 + 1)] }),
        Refuses(&["spec.conditions"]),
        Some("spec.conditions[0]"),
    );
    more(&mut cases);
    cases
}

/// Conditions of the wrong form, and what CEL refuses.
fn more(cases: &mut Vec<Case>) {
    let mut wrong = |name, version, condition: Value| {
        let spec = spec(version, json!({ "conditions": [condition] }));
        let parser = Some("spec.conditions[0]");
        cases.push(Case { name, spec, server: Refuses(&["spec.conditions"]), parser });
    };
    wrong("object-in-v30", "v3.0", json!({ "to": [{ "match": "a=b" }] }));
    wrong("empty-object-in-v30", "v3.0", json!({}));
    wrong("text-in-v31", "v3.1", json!("a=b => c=d"));
    wrong("empty-text-in-v31", "v3.1", json!(""));
    wrong("number", "v3.0", json!(3));
    wrong("fraction", "v3.1", json!(0.5));
    wrong("true", "v3.0", json!(true));
    wrong("false", "v3.1", json!(false));
    wrong("list", "v3.0", json!(["a=b => c=d"]));
    wrong("empty-list", "v3.1", json!([]));

    // What is in an object the schema cannot see: it is stored, and the parser's verdict goes
    // into the status.
    let mut unseen = |name, condition: Value, parser| {
        let spec = spec("v3.1", json!({ "conditions": [condition] }));
        cases.push(Case { name, spec, server: Accepts, parser: Some(parser) });
    };
    unseen("from-list", json!({ "from": [] }), "spec.conditions[0].from");
    unseen("to-text", json!({ "to": ["a=b"] }), "spec.conditions[0].to[0]");
    let negative = json!({ "to": [{ "weight": -1 }] });
    unseen("negative-weight", negative, "spec.conditions[0].to[0].weight");
    let misspelt = json!({ "to": [{ "weigth": 1 }] });
    unseen("misspelt-weight", misspelt, "spec.conditions[0].to[0].weigth");
    let misspelt = json!({ "form": { "match": "a=b" } });
    unseen("misspelt-from", misspelt, "spec.conditions[0].form");

    let mut by_rule = |name, key| {
        let spec = spec("v3.0", json!({ "key": key }));
        cases.push(Case {
            name,
            spec,
            server: Rule("[group/]interface[:version]"),
            parser: Some("spec.key"),
        });
    };
    by_rule("no-interface", "group/");
    by_rule("only-version", ":1.0");
    by_rule("four-parts", "a/b/c:1.0");
    by_rule("two-versions", "a:1:2");
}
