//! The CustomResourceDefinitions: `crds/` is what the types say, the schemas are structural,
//! and they never refuse what the parser accepts.

#[path = "crds/cases.rs"]
mod cases;
#[path = "crds/schema.rs"]
mod schema;

use std::{collections::BTreeSet, path::Path};

use cases::{Server, cases};
use proptest::prelude::*;
use rulecast_api::{
    Kind, ServiceKey,
    condition_route::ConditionRouteSpec,
    crd,
    kind::{KINDS, RuleSpec},
    manifest::{self, Format},
};
use serde_json::{Value, json};

fn definition(kind: Kind) -> Value {
    crd::definition(kind).expect("a kind of Kubernetes")
}

fn properties(kind: Kind) -> Value {
    definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].take()
}

#[test]
fn the_folder_is_what_the_types_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds");
    let mut wanted = BTreeSet::new();
    for kind in KINDS {
        let name = crd::file_name(*kind);
        let text = std::fs::read_to_string(folder.join(&name)).unwrap_or_default();
        let fresh = crd::file(*kind).expect("a kind of Kubernetes");
        assert!(text == fresh, "crds/{name} is stale: run `cargo xtask crds` and commit it");
        wanted.insert(name);
    }
    let there: BTreeSet<String> = std::fs::read_dir(&folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    assert_eq!(there, wanted, "crds/ has files of no kind");
}

/// Our own YAML reader reads the file back as the definition.
#[test]
fn the_text_is_the_definition() {
    for kind in KINDS {
        let text = crd::file(*kind).expect("a kind of Kubernetes");
        assert_eq!(yaml(&text), definition(*kind));
    }
}

/// Reads YAML with the reader of manifests: as the spec of a kind that takes anything.
fn yaml(text: &str) -> Value {
    use std::sync::{Arc, Mutex};

    use rulecast_api::kind::{FieldError, KindInfo, Phase};

    static READ: Mutex<Value> = Mutex::new(Value::Null);
    fn keep(value: Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
        *READ.lock().expect("one thread") = value;
        Err(Vec::new())
    }
    static INFO: KindInfo = KindInfo {
        api_version: "t/v1",
        name: "Any",
        plural: "anys",
        short_names: &[],
        type_name: "t/v1/Any",
        phase: Phase::Route,
        parse: keep,
        crd: None,
    };
    static ANY: &[Kind] = &[Kind(&INFO)];
    let indented: String = text.lines().map(|line| format!("  {line}\n")).collect();
    let text = format!("apiVersion: t/v1\nkind: Any\nmetadata:\n  name: a\nspec:\n{indented}");
    manifest::parse(ANY, text.as_bytes(), Format::Yaml);
    READ.lock().expect("one thread").take()
}

#[test]
fn names_follow_from_the_row() {
    let cd = definition(Kind::CONDITION_ROUTE);
    assert_eq!(cd["metadata"]["name"], "conditionroutes.dubbo.apache.org");
    let names = json!({
        "kind": "ConditionRoute", "listKind": "ConditionRouteList", "plural": "conditionroutes",
        "singular": "conditionroute", "shortNames": ["cd"], "categories": ["rulecast"],
    });
    assert_eq!(cd["spec"]["names"], names);
    for kind in KINDS {
        let version = &definition(*kind)["spec"]["versions"][0];
        assert_eq!(version["subresources"], json!({ "status": {} }), "{kind}");
        let columns: Vec<(&str, bool)> = version["additionalPrinterColumns"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|c| (c["name"].as_str().expect("a name"), c["priority"] == 1))
            .collect();
        let common = [
            ("Matched", false),
            ("Applied", false),
            ("Rejected", false),
            ("Accepted", true),
            ("Programmed", true),
            ("Age", false),
        ];
        assert!(columns.ends_with(&common), "{kind}: {columns:?}");
    }
}

/// What Kubernetes asks of a structural schema: a type everywhere, or unknown fields preserved;
/// under `allOf`, `anyOf` and `not` neither types, defaults nor descriptions, and only fields that
/// are also described outside; formats that it knows; a description for whoever asks.
#[test]
fn schemas_are_structural() {
    fn walk(schema: &Value, outside: Option<&Value>, path: &str) {
        for (keyword, value) in schema.as_object().expect(path) {
            assert!(schema::KEYWORDS.contains(&keyword.as_str()), "{path}: {keyword}");
            match keyword.as_str() {
                "format" => {
                    let known = ["int32", "int64", "double", "date-time"];
                    assert!(known.contains(&value.as_str().expect(path)), "{path}: {value}");
                }
                "properties" => {
                    for (field, inner) in value.as_object().expect(path) {
                        let outer = outside.map(|outside| &outside["properties"][field]);
                        walk(inner, outer, &format!("{path}.{field}"));
                    }
                }
                "items" => walk(value, outside.map(|o| &o["items"]), &format!("{path}[]")),
                // A structural schema has one or the other.
                "additionalProperties" => {
                    assert!(schema.get("properties").is_none(), "{path}");
                    walk(value, outside.map(|o| &o[keyword]), &format!("{path}.*"));
                }
                "allOf" | "anyOf" => {
                    for form in value.as_array().expect(path) {
                        walk(form, Some(outside.unwrap_or(schema)), path);
                    }
                }
                "not" => walk(value, Some(outside.unwrap_or(schema)), path),
                _ => {}
            }
        }
        if let Some(outside) = outside {
            assert!(outside.is_object(), "{path} is described inside only");
            for keyword in ["type", "default", "description", "nullable"] {
                assert!(schema.get(keyword).is_none(), "{path}: {keyword} inside");
            }
        } else {
            // Server-side apply takes whatever has properties for an object.
            let untyped = schema["x-kubernetes-preserve-unknown-fields"] == true
                && schema.get("properties").is_none();
            assert!(schema["type"].is_string() || untyped, "{path} has no type");
            assert!(schema["type"] != "array" || schema["items"].is_object(), "{path}: items");
            let described = schema["description"].as_str().is_some_and(|text| text.len() > 5);
            assert!(described || path.ends_with(".metadata"), "{path} has no description");
        }
    }
    for kind in KINDS {
        let schema = &definition(*kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        walk(schema, None, kind.name);
    }
}

/// Rules of CEL are costed by the largest sizes, so what they look at has bounds.
#[test]
fn what_rules_look_at_is_bounded() {
    fn walk(schema: &Value, path: &str) {
        for (field, inner) in schema["properties"].as_object().into_iter().flatten() {
            let bound = match inner["type"].as_str() {
                Some("string") if inner.get("enum").is_none() => "maxLength",
                Some("array") => "maxItems",
                _ => "type",
            };
            let bounded = inner.get(bound).is_some() || bound == "type";
            assert!(bounded, "{path}.{field} has no {bound}");
            walk(inner, &format!("{path}.{field}"));
            walk(&inner["items"], &format!("{path}.{field}[]"));
        }
    }
    for kind in KINDS {
        walk(&properties(*kind)["spec"], "spec");
    }
}

#[test]
fn schema_and_parser_agree() {
    let schema = &properties(Kind::CONDITION_ROUTE)["spec"];
    for case in cases() {
        let name = case.name;
        let stored = schema::stored(schema, &case.spec);
        let broken = schema::check(schema, &stored, "spec");
        let rules = if broken.is_empty() { schema::rules(schema, &stored) } else { Vec::new() };
        match case.server {
            Server::Accepts => assert!(broken.is_empty() && rules.is_empty(), "{name}: {broken:?}"),
            Server::Refuses(words) => {
                let named = broken.iter().any(|path| path.starts_with(words[0]));
                assert!(named, "{name}: {broken:?}");
            }
            Server::Rule(words) => {
                assert!(broken.is_empty(), "{name}: {broken:?}");
                assert!(rules.iter().any(|text| text.contains(words)), "{name}: {rules:?}");
            }
        }
        let found = ConditionRouteSpec::parse(case.spec).err();
        let found = found.as_ref().map(|errors| errors[0].path.as_str());
        assert_eq!(found, case.parser, "{name}: the parser");
        let refused = !matches!(case.server, Server::Accepts);
        assert!(found.is_some() || !refused, "{name}: the schema is stricter than the parser");
    }
}

/// The same rule to everybody: whether written with its defaults or without.
fn assert_same(written: &Value, stored: Value) {
    let written = ConditionRouteSpec::parse(written.clone()).expect("valid");
    let stored = ConditionRouteSpec::parse(stored).expect("valid also with defaults");
    assert_eq!(written.to_json(), stored.to_json());
    assert_eq!(written.encode(), stored.encode());
    assert_eq!(written.target(), stored.target());
    assert_eq!(written.enabled(), stored.enabled());
    assert_eq!(written.priority(), stored.priority());
}

fn text() -> impl Strategy<Value = Value> {
    let good = ["", "a=b", "method!=get & host=a", "region=$region", "port=1~9,*"];
    let good = prop::sample::select(good.to_vec()).prop_map(Value::from);
    prop_oneof![6 => good, 1 => "[a-c=>&~*!, ]{0,9}".prop_map(Value::from)]
}

fn number() -> impl Strategy<Value = Value> {
    let bounds = [i64::from(i32::MIN), i64::from(i32::MAX), i64::from(u32::MAX), -1, 0];
    prop_oneof![
        4 => (0..1000_i64).boxed(),
        2 => (prop::sample::select(bounds.to_vec()), -1..=1_i64).prop_map(|(a, b)| a + b).boxed(),
        1 => any::<i64>().boxed(),
    ]
    .prop_map(Value::from)
}

/// Now and then something else than what is meant.
fn mostly(
    strategy: impl Strategy<Value = Value> + 'static,
) -> impl Strategy<Value = Value> + Clone {
    let strategy = strategy.boxed();
    prop_oneof![
        60 => strategy,
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => number(),
        1 => text(),
        1 => Just(json!([])),
        1 => Just(json!({})),
    ]
}

fn object(
    fields: Vec<(&'static str, BoxedStrategy<Value>)>,
) -> impl Strategy<Value = Value> + 'static {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| prop::option::weighted(0.9, value.prop_map(move |v| (name, v))))
        .collect();
    fields.prop_map(|fields| {
        fields.into_iter().flatten().map(|(name, value)| (name.to_owned(), value)).collect()
    })
}

fn condition() -> impl Strategy<Value = Value> {
    let to = object(vec![("match", mostly(text()).boxed()), ("weight", mostly(number()).boxed())]);
    let to = prop::collection::vec(mostly(to), 0..3).prop_map(Value::from);
    let from = object(vec![("match", mostly(text()).boxed())]);
    object(vec![("from", mostly(from).boxed()), ("to", mostly(to).boxed())])
}

fn specs() -> impl Strategy<Value = Value> {
    fn list(item: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Value> {
        mostly(prop::collection::vec(item, 0..4).prop_map(Value::from)).boxed()
    }
    fn one(texts: &'static [&'static str]) -> BoxedStrategy<Value> {
        mostly(prop::sample::select(texts).prop_map(Value::from)).boxed()
    }
    let of_version = |version: &'static str, conditions| {
        let flag = || mostly(any::<bool>().prop_map(Value::from)).boxed();
        object(vec![
            ("configVersion", mostly(Just(json!(version))).boxed()),
            ("scope", one(&["service", "application"])),
            ("key", mostly("[a/:.-é\u{a0}]{0,2}[a-z]".prop_map(Value::from)).boxed()),
            ("enabled", flag()),
            ("force", flag()),
            ("runtime", flag()),
            ("priority", mostly(number()).boxed()),
            ("conditions", conditions),
        ])
    };
    prop_oneof![
        5 => of_version("v3.0", list(mostly(text()))),
        5 => of_version("v3.1", list(mostly(condition()))),
        1 => of_version("v3.1", list(prop_oneof![text().boxed(), condition().boxed()])),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_parses_is_stored_and_keeps_its_meaning(spec in specs()) {
        let schema = &properties(Kind::CONDITION_ROUTE)["spec"];
        if ConditionRouteSpec::parse(spec.clone()).is_ok() {
            let stored = schema::stored(schema, &spec);
            prop_assert_eq!(schema::check(schema, &stored, "spec"), Vec::<String>::new());
            prop_assert_eq!(schema::rules(schema, &stored), Vec::<String>::new());
            assert_same(&spec, stored);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The CEL rule reads keys as the parser does.
    #[test]
    fn the_rule_of_keys_is_the_parser_of_keys(key in "[ab/:.é]{0,7}") {
        let schema = &properties(Kind::CONDITION_ROUTE)["spec"];
        let service = json!({ "scope": "service", "key": key });
        let refused = !schema::rules(schema, &service).is_empty();
        prop_assert_eq!(refused, key.parse::<ServiceKey>().is_err(), "{}", key);
        let application = json!({ "scope": "application", "key": key });
        prop_assert!(schema::rules(schema, &application).is_empty());
    }
}
