use super::*;
use crate::Code;
use proptest::prelude::*;

fn errors(value: Value) -> Vec<(Code, String, String)> {
    ServiceNameMappingSpec::parse(value)
        .expect_err("refused")
        .into_iter()
        .map(|error| (error.code, error.path, error.hint))
        .collect()
}

#[test]
fn is_sorted_and_each_once() {
    let value = json!({ "interfaceName": "com.Foo", "applicationNames": ["b", "a", "b"] });
    let spec = ServiceNameMappingSpec::read(&value).expect("valid");
    let normal = json!({ "interfaceName": "com.Foo", "applicationNames": ["a", "b"] });
    assert_eq!(spec.to_json(), normal);
    let delivered = wire::ServiceNameMapping::decode(spec.encode()).expect("a message");
    assert_eq!(delivered.interface_name, "com.Foo");
    assert_eq!(delivered.application_names, ["a", "b"]);
    let old = dubbo::ServiceNameMapping::decode(spec.compat().expect("it can say it"));
    let old = old.expect("a message");
    assert_eq!(
        (old.interface_name, old.application_names),
        ("com.Foo".into(), vec!["a".to_owned(), "b".to_owned()])
    );
}

#[test]
fn collects_all_errors() {
    let found = errors(json!({
        "interfacename": "x", "interfaceName": "g/com.Foo:1.0",
        "applicationNames": ["a", "", 3, "a,b", "a b", "x".repeat(254), null],
    }));
    let places: Vec<(Code, &str)> =
        found.iter().map(|(code, path, _)| (*code, path.as_str())).collect();
    assert_eq!(
        places,
        [
            (Code::FieldUnknown, "spec.interfacename"),
            (Code::FieldInvalid, "spec.interfaceName"),
            (Code::FieldInvalid, "spec.applicationNames[1]"),
            (Code::FieldInvalid, "spec.applicationNames[2]"),
            (Code::FieldInvalid, "spec.applicationNames[3]"),
            (Code::FieldInvalid, "spec.applicationNames[4]"),
            (Code::FieldInvalid, "spec.applicationNames[5]"),
            (Code::FieldInvalid, "spec.applicationNames[6]"),
        ]
    );
    assert_eq!(found[0].2, "did you mean interfaceName?");
    assert_eq!(found[4].2, "write each application as an entry of its own");
}

#[test]
fn needs_both_fields() {
    let missing = |value| -> Vec<(Code, String)> {
        errors(value).into_iter().map(|(code, path, _)| (code, path)).collect()
    };
    let (name, list) = ("spec.interfaceName".to_owned(), "spec.applicationNames".to_owned());
    assert_eq!(
        missing(json!({})),
        [(Code::FieldMissing, name.clone()), (Code::FieldMissing, list.clone())]
    );
    assert_eq!(
        missing(json!({ "interfaceName": "com.Foo", "applicationNames": [] })),
        [(Code::FieldInvalid, list.clone())]
    );
    assert_eq!(
        missing(json!({ "interfaceName": "com.Foo", "applicationNames": "a" })),
        [(Code::FieldInvalid, list)]
    );
    assert_eq!(
        missing(json!({ "interfaceName": "", "applicationNames": ["a"] })),
        [(Code::FieldInvalid, name)]
    );
    assert_eq!(missing(json!("text")), [(Code::FieldInvalid, "spec".to_owned())]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// What is written out reads back as the same, and a refusal never panics.
    #[test]
    fn reads_back(interface in "[a-zé./: ]{0,9}", applications in prop::collection::vec("[a-z,é ]{0,4}", 0..5)) {
        let value = json!({ "interfaceName": interface, "applicationNames": applications });
        if let Ok(spec) = ServiceNameMappingSpec::read(&value) {
            let again = ServiceNameMappingSpec::read(&spec.to_json()).expect("valid");
            prop_assert_eq!(spec.encode(), again.encode());
            prop_assert_eq!(spec.target(), again.target());
            prop_assert_eq!(spec, again);
        }
    }
}
