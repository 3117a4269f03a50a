use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    kind::{KindInfo, Phase, RuleSpec},
    proto::rules::v1::Target,
};

#[derive(Debug)]
struct Spec(Value);

impl RuleSpec for Spec {
    fn target(&self) -> Option<Target> {
        None
    }
    fn enabled(&self) -> bool {
        true
    }
    fn priority(&self) -> i32 {
        0
    }
    fn encode(&self) -> Bytes {
        Bytes::new()
    }
    fn to_json(&self) -> Value {
        self.0.clone()
    }
}

/// Takes anything; a text with "!!" in it is refused at that place.
fn parse_spec(spec: Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
    fn walk(value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        match value {
            Value::String(text) => {
                if let Some(at) = text.find("!!") {
                    errors.push(FieldError {
                        code: Code::ConditionSyntax,
                        path: path.into(),
                        offset: Some(at),
                        value: Some(text.clone()),
                        message: "bad".into(),
                        hint: "good".into(),
                    });
                }
            }
            Value::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    walk(item, &format!("{path}[{n}]"), errors);
                }
            }
            Value::Object(map) => {
                for (key, item) in map {
                    walk(item, &format!("{path}.{key}"), errors);
                }
            }
            _ => {}
        }
    }
    let mut errors = Vec::new();
    walk(&spec, "spec", &mut errors);
    if errors.is_empty() { Ok(Arc::new(Spec(spec))) } else { Err(errors) }
}

static INFO: KindInfo = KindInfo {
    api_version: "test.io/v1",
    name: "TestRule",
    plural: "testrules",
    short_names: &[],
    type_name: "test.io/v1/TestRule",
    phase: Phase::Route,
    parse: parse_spec,
    crd: None,
};
static TABLE: Kinds = &[Kind(&INFO)];

fn read(text: &str) -> Manifest {
    parse(TABLE, text.as_bytes(), Format::Yaml)
}

fn head(name: &str) -> String {
    format!("apiVersion: test.io/v1\nkind: TestRule\nmetadata:\n  name: {name}\n")
}

fn one(text: &str) -> Problem {
    let manifest = read(text);
    let problems: Vec<_> = manifest.problems().cloned().collect();
    assert_eq!(problems.len(), 1, "{text}\n{problems:?}");
    problems.into_iter().next().expect("one")
}

fn spec(text: &str) -> Value {
    let manifest = read(text);
    assert_eq!(manifest.syntax, None, "{text}");
    match &manifest.documents[..] {
        [document] => document.outcome.as_ref().expect(text).spec.to_json(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn documents_in_order_with_their_lines() {
    let text = format!(
        "# first\n---\n{}spec: {{a: 1}}\n---\n---\n# empty\n...\n---\n{}spec:\n  b: x\n",
        head("a"),
        head("b")
    );
    let manifest = read(&text);
    assert_eq!(manifest.syntax, None);
    let seen: Vec<_> = manifest
        .documents
        .iter()
        .map(|d| (d.index, d.line, d.id.as_ref().expect("id").to_string()))
        .collect();
    assert_eq!(
        seen,
        [(0, 3, "TestRule a/default".to_owned()), (1, 13, "TestRule b/default".to_owned())]
    );
    assert!(read("").documents.is_empty() && read("# nothing\n---\n").documents.is_empty());
}

#[test]
fn values_by_the_core_schema() {
    let text = head("a")
        + "spec:\n  t: [true, yes, 'true', !!str 5]\n  n: [1, -2, 0x10, 0o17, 1.5, 1e3, .5, 007, 1.2.3, '3']\n  z: [~, null, '']\n  1: one\n  true: yes\n";
    assert_eq!(
        spec(&text),
        json!({
            "t": [true, "yes", "true", "5"],
            "n": [1, -2, 16, 15, 1.5, 1000.0, 0.5, 7, "1.2.3", "3"],
            "z": [null, null, ""],
            "1": "one",
            "true": "yes",
        })
    );
}

#[test]
fn aliases_are_allowed_within_a_budget() {
    let text = head("a") + "spec:\n  a: &x {k: [1, 2]}\n  b: *x\n";
    assert_eq!(spec(&text)["b"], json!({"k": [1, 2]}));

    let mut bomb = head("a") + "spec:\n  l0: &l0 [a, a, a, a, a, a, a, a, a, a]\n";
    for n in 1..9 {
        let refs = vec![format!("*l{}", n - 1); 10].join(", ");
        bomb += &format!("  l{n}: &l{n} [{refs}]\n");
    }
    bomb += &format!("---\n{}spec: {{}}\n", head("b"));
    let manifest = read(&bomb);
    assert_eq!(manifest.documents.len(), 2);
    let problems = manifest.documents[0].outcome.as_ref().expect_err("too large");
    assert_eq!(problems[0].code, Code::ManifestTooLarge);
    assert!(manifest.documents[1].outcome.is_ok());

    assert_eq!(one(&(head("a") + "spec: &s\n  x: *s\n")).code, Code::ManifestSyntax);
}

#[test]
fn limits_are_kept() {
    let deep = head("a") + "spec: " + &"[".repeat(100) + &"]".repeat(100) + "\n";
    assert_eq!(one(&deep).code, Code::ManifestTooLarge);
    let large = head("a") + "spec:\n  x: " + &"y".repeat(MAX_DOCUMENT) + "\n";
    assert_eq!(one(&large).code, Code::ManifestTooLarge);
    assert_eq!(one(&" ".repeat(MAX_FILE + 1)).code, Code::ManifestTooLarge);
    let json = "{\"a\":".repeat(100) + "1" + &"}".repeat(100);
    let manifest = parse(TABLE, json.as_bytes(), Format::Json);
    assert_eq!(manifest.syntax.expect("problem").code, Code::ManifestTooLarge);
    let many = head("a") + "spec: [" + &"1,".repeat(MAX_NODES) + "]\n";
    assert_eq!(one(&many).code, Code::ManifestTooLarge);
}

#[test]
fn syntax_errors_end_the_reading_and_earlier_documents_count() {
    let text = format!("{}spec: {{}}\n---\n{}spec:\n  a: [1, 2\n  b: 3\n", head("a"), head("b"));
    let manifest = read(&text);
    assert_eq!(manifest.documents.len(), 1);
    assert!(manifest.documents[0].outcome.is_ok());
    let problem = manifest.syntax.expect("problem");
    assert_eq!(problem.code, Code::ManifestSyntax);
    assert!(problem.line >= 11, "{problem}");

    for bytes in [&b"a: \xff"[..], b"a: b\0c", b"\xff\xfea\0"] {
        let manifest = parse(TABLE, bytes, Format::Yaml);
        assert_eq!(manifest.syntax.expect("problem").code, Code::ManifestSyntax);
    }
}

#[test]
fn duplicate_keys_name_both_places() {
    let problem = one(&(head("a") + "spec:\n  x: 1\n  y: 2\n  x: 3\n"));
    assert_eq!((problem.code, problem.line, problem.column), (Code::ManifestSyntax, 8, 3));
    assert!(problem.message.contains("first in line 6"), "{problem}");
    assert_eq!(problem.resource, "TestRule a/default");
    let json = r#"{"apiVersion":"test.io/v1","kind":"TestRule","metadata":{"name":"a"},
 "spec":{"x":1,"x":2}}"#;
    let problem = one(json);
    assert_eq!((problem.code, problem.line, problem.column), (Code::ManifestSyntax, 2, 16));
}

#[test]
fn positions_inside_texts() {
    for (written, line, column) in [
        ("plain ü !!", 6, 14),
        ("'it''s !!'", 6, 13),
        (r#""a\t\u00e4\"!!""#, 6, 18),
        ("\"!!\"", 6, 7),
        ("|\n      one\n      t!!o\n", 8, 8),
        // Where lines are folded only the beginning is known.
        (">\n      one\n      t!!o\n", 7, 7),
        ("\"one\n    t!!o\"", 6, 6),
    ] {
        let problem = one(&(head("a") + "spec:\n  c: " + written + "\n"));
        assert_eq!(
            (problem.line, problem.column, problem.field.as_str()),
            (line, column, "spec.c"),
            "{written}"
        );
    }
    let problem = one(&(head("a") + "spec:\r\n  - x\r\n  - y !!\r\n"));
    assert_eq!((problem.line, problem.column, problem.field.as_str()), (7, 7, "spec[1]"));
    let json = "{\"apiVersion\":\"test.io/v1\",\"kind\":\"TestRule\",\"metadata\":{\"name\":\"a\"},\n\t\"spec\":\t[\"\\ud83d\\ude00!!\"]}";
    let problem = one(json);
    assert_eq!((problem.line, problem.column), (2, 24));
}

#[test]
fn json_with_tabs_and_one_after_the_other() {
    let text = "\u{feff}{\n\t\"apiVersion\":\t\"test.io/v1\",\n\t\"kind\": \"TestRule\",\n\t\"metadata\": {\"name\": \"a\"},\n\t\"spec\": {\"e\": \"\\ud83d\\ude00\"}\n}\n{\"kind\": 1}";
    for format in [Format::Json, Format::Yaml] {
        let manifest = parse(TABLE, text.as_bytes(), format);
        assert_eq!(manifest.syntax, None);
        assert_eq!(manifest.documents.len(), 2);
        let first = manifest.documents[0].outcome.as_ref().expect("resource");
        assert_eq!(first.spec.to_json(), json!({"e": "😀"}));
        assert_eq!(manifest.documents[1].line, 7);
    }
    for bad in ["{", "{\"a\" 1}", "{\"a\": tru}", "[1,]", "{\"a\": \"\n\"}", "\"a", "{} x"] {
        let manifest = parse(TABLE, bad.as_bytes(), Format::Json);
        assert_eq!(manifest.syntax.expect(bad).code, Code::ManifestSyntax);
    }
    // Flow YAML is no JSON, and still YAML.
    assert_eq!(
        spec("{apiVersion: test.io/v1, kind: TestRule, metadata: {name: a}, spec: {}}"),
        json!({})
    );
}

#[test]
fn a_list_is_its_items() {
    let text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: test.io/v1\n  kind: TestRule\n  metadata: {name: a}\n  spec: {}\n- apiVersion: test.io/v1\n  kind: TestRule\n  metadata: {name: b}\n  spec: {x: '!!'}\n";
    let manifest = read(text);
    assert_eq!(manifest.documents.len(), 2);
    assert!(manifest.documents[0].outcome.is_ok());
    assert_eq!(manifest.documents[1].line, 8);
    let problems = manifest.documents[1].outcome.as_ref().expect_err("bad");
    assert_eq!((problems[0].line, problems[0].resource.as_str()), (11, "TestRule b/default"));
}

#[test]
fn envelopes_are_checked() {
    let problem = one("apiVersion: test.io/v1\nkind: TestRul\nmetadata: {name: a}\nspec: {}\n");
    assert_eq!((problem.code, problem.line, problem.column), (Code::ManifestKind, 2, 7));
    assert!(problem.hint.contains("TestRule"), "{problem}");
    let problem = one("apiVersion: test.io/v2\nkind: TestRule\nmetadata: {name: a}\nspec: {}\n");
    assert_eq!((problem.code, problem.field.as_str()), (Code::ManifestKind, "apiVersion"));
    assert!(problem.hint.contains("test.io/v1"), "{problem}");

    for (metadata, code, field) in [
        ("{}", Code::ManifestEnvelope, "metadata.name"),
        ("{name: A}", Code::ManifestEnvelope, "metadata.name"),
        ("{name: 5}", Code::ManifestEnvelope, "metadata.name"),
        ("{name: a, namespace: b_c}", Code::ManifestEnvelope, "metadata.namespace"),
        ("{name: a, lables: {}}", Code::FieldUnknown, "metadata.lables"),
        ("{name: a, labels: {v: 1.0}}", Code::FieldInvalid, "metadata.labels.v"),
        (
            "{name: a, annotations: {rulecast.io/enforcement: Shadow}}",
            Code::FieldInvalid,
            "metadata.annotations.rulecast.io/enforcement",
        ),
    ] {
        let text =
            format!("apiVersion: test.io/v1\nkind: TestRule\nmetadata: {metadata}\nspec: {{}}\n");
        let problem = one(&text);
        assert_eq!((problem.code, problem.field.as_str(), problem.line), (code, field, 3));
    }
    assert_eq!(one(&(head("a") + "spec: {}\nsepc: {}\n")).code, Code::FieldUnknown);
    assert_eq!(one(&head("a")).code, Code::FieldMissing);
    assert_eq!(one("just text").code, Code::ManifestEnvelope);
    // What Kubernetes writes is read over.
    let text = head("a")
        + "  uid: x\n  resourceVersion: '1'\n  generation: 2\n  creationTimestamp: null\n  managedFields: []\n  ownerReferences: []\n  finalizers: []\nspec: {}\nstatus: {x: 1}\n";
    assert_eq!(spec(&text), json!({}));
}

#[test]
fn names_of_files() {
    assert_eq!(Format::of("a.yaml"), Some(Format::Yaml));
    assert_eq!(Format::of("a.b.yml"), Some(Format::Yaml));
    assert_eq!(Format::of("a.json"), Some(Format::Json));
    for name in ["a.yaml~", ".yaml", "a", "a.txt", "a.yaml.swp"] {
        assert_eq!(Format::of(name), None, "{name}");
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        "[\\t\\n\\r \"'#:,\\[\\]{}a-c0-9.-]{0,8}".prop_map(Value::from),
        prop_oneof![Just("yes"), Just("null"), Just("1.0"), Just("---"), Just("")]
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-z:# ~]{0,4}", inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn check(text: &[u8]) {
    for format in [Format::Yaml, Format::Json] {
        for problem in parse(TABLE, text, format).problems() {
            assert!(problem.line >= 1 && problem.column >= 1, "{problem}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&bytes);
    }

    #[test]
    fn any_text_is_read(text in "[-a-z0-9:{}\\[\\]#&*!|>'\"%@`, \\t\\n?~\\\\üé😀]{0,120}") {
        check(text.as_bytes());
    }

    #[test]
    fn mutated_documents_are_read(
        value in any_value(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
    ) {
        let text = head("a") + "spec:\n  c: 'x !! y'\n  d: |\n   !!\n   e\n  v: &a\n    " + &to_yaml(&json!([value])).replace('\n', "\n    ") + "\n  w: *a\n";
        let mut bytes = text.into_bytes();
        for (at, byte, how) in cuts {
            if bytes.is_empty() { break; }
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                _ => bytes.insert(at, byte),
            }
        }
        check(&bytes);
    }

    #[test]
    fn what_is_written_reads_back(value in any_value()) {
        let value = json!({"v": value});
        // The test kind refuses this by design.
        prop_assume!(!value.to_string().contains("!!"));
        let resource = Resource { created: 0,
            id: ResourceId { kind: TABLE[0], namespace: "n".into(), name: "a".into() },
            labels: [("l".to_owned(), "1.0".to_owned())].into(),
            annotations: [("x.y/z".to_owned(), "yes # no".to_owned())].into(),
            spec: Arc::new(Spec(value.clone())),
        };
        for text in [to_yaml(&to_json(&resource)), to_json(&resource).to_string()] {
            let manifest = read(&text);
            prop_assert_eq!(&manifest.syntax, &None, "{}", text);
            let read = manifest.documents[0].outcome.as_ref().expect("reads back");
            prop_assert_eq!(read.spec.to_json(), value.clone(), "{}", text);
            prop_assert_eq!(&read.labels, &resource.labels);
            prop_assert_eq!(&read.annotations, &resource.annotations);
            prop_assert_eq!(&read.id, &resource.id);
        }
    }
}

#[test]
fn a_files_name_says_its_format() {
    for (name, format) in [
        ("a.yaml", Some(Format::Yaml)),
        ("a.b.YML", Some(Format::Yaml)),
        ("A.Json", Some(Format::Json)),
        (".yaml", None),
        ("yaml", None),
        ("a.yaml~", None),
        ("a.txt", None),
    ] {
        assert_eq!(Format::of(name), format, "{name}");
    }
}
