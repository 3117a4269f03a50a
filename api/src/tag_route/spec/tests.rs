use super::*;
use crate::code::Code;

fn errors(value: Value) -> Vec<(Code, String)> {
    let errors = TagRouteSpec::parse(value).expect_err("refused");
    errors.into_iter().map(|e| (e.code, e.path)).collect()
}

#[test]
fn round_trips() {
    for value in [
        json!({ "key": "shop" }),
        json!({ "configVersion": "v3.0", "key": "shop", "enabled": false, "force": true,
                "runtime": false, "priority": 7,
                "tags": [{ "name": "gray", "addresses": ["10.0.0.1:20880", "10.1.*.*"] },
                         { "name": "a|b", "match": [{ "key": "env", "value": { "regex": "g.*" } }] },
                         { "name": "none", "addresses": null, "match": [] }] }),
    ] {
        let spec = TagRouteSpec::parse(value).expect("valid");
        let again = TagRouteSpec::parse(spec.to_json()).expect("valid");
        assert_eq!(spec.to_json(), again.to_json());
        assert_eq!(spec.encode(), again.encode());
        assert_eq!(spec.target(), Some(Scope::Application.target("shop")));
    }
}

#[test]
fn defaults() {
    let spec = TagRouteSpec::read(&json!({ "key": "shop" }), false).expect("valid");
    assert!(spec.enabled && !spec.force && spec.priority == 0 && spec.tags.is_empty());
    assert!(spec.to_wire().present);
}

#[test]
fn collects_all_errors() {
    let found = errors(json!({
        "configVersion": "v3.1", "forse": true, "key": "a b", "priority": "high",
        "tags": [
            { "addresses": ["10.0.0.1", "shop-1:20880", 3], "match": [{ "key": "a" }] },
            { "name": "gray", "match": { "a": "b" } },
            { "name": "gray", "match": [{ "key": "a", "value": { "regex": "(" } }] },
            "gray",
        ],
    }));
    let invalid = |path: &str| (Code::FieldInvalid, path.to_owned());
    assert_eq!(
        found,
        [
            (Code::FieldUnknown, "spec.forse".to_owned()),
            invalid("spec.configVersion"),
            invalid("spec.key"),
            invalid("spec.priority"),
            (Code::FieldMissing, "spec.tags[0].name".to_owned()),
            invalid("spec.tags[0].addresses[1]"),
            invalid("spec.tags[0].addresses[2]"),
            (Code::FieldMissing, "spec.tags[0].match[0].value".to_owned()),
            invalid("spec.tags[1].match"),
            invalid("spec.tags[2].match[0].value.regex"),
            invalid("spec.tags[2].name"),
            invalid("spec.tags[3]"),
        ]
    );
    assert_eq!(errors(json!({})), [(Code::FieldMissing, "spec.key".to_owned())]);
}

#[test]
fn match_needs_the_version() {
    let tags = json!([{ "name": "a", "match": [{ "key": "k", "value": { "exact": "v" } }] }]);
    let value = json!({ "key": "shop", "tags": tags });
    let found = TagRouteSpec::parse(value.clone()).expect_err("refused");
    assert_eq!(found[0].path, "spec.tags[0].match");
    assert!(found[0].hint.contains("configVersion: v3.0"));
    assert!(TagRouteSpec::parse_lenient(&value).is_ok());
    let value = json!({ "configVersion": "v3.0", "key": "shop", "tags": tags });
    assert!(TagRouteSpec::parse(value).is_ok());
}

#[test]
fn addresses_have_a_bound() {
    let tag = |i: usize| json!({ "name": i.to_string(), "addresses": vec!["10.0.0.1"; 1000] });
    let rule = |n| json!({ "key": "shop", "tags": (0..n).map(tag).collect::<Vec<_>>() });
    assert!(TagRouteSpec::parse(rule(2)).is_ok());
    assert_eq!(errors(rule(3)), [(Code::FieldInvalid, "spec.tags".to_owned())]);
}

#[test]
fn in_the_words_of_the_old_wire() {
    let compat = |value: Value| {
        let bytes = TagRouteSpec::parse(value).expect("valid").compat();
        bytes.map(|bytes| dubbo::TagRoute::decode(bytes).expect("its message"))
    };
    let spec = compat(json!({
        "configVersion": "v3.0", "key": "shop", "force": true, "priority": 7,
        "tags": [{ "name": "gray", "addresses": ["10.0.0.1:20880"],
                   "match": [{ "key": "env", "value": { "prefix": "g" } },
                             { "key": "zone", "value": { "noempty": "" } }] }],
    }));
    let param = |key: &str, value| dubbo::ParamMatch { key: key.into(), value: Some(value) };
    let tag = dubbo::Tag {
        name: "gray".into(),
        addresses: vec!["10.0.0.1:20880".into()],
        r#match: vec![
            param("env", dubbo::StringMatch { prefix: "g".into(), ..Default::default() }),
            param("zone", dubbo::StringMatch { noempty: "true".into(), ..Default::default() }),
        ],
    };
    let wanted = dubbo::TagRoute {
        priority: 7,
        enabled: true,
        runtime: true,
        key: "shop".into(),
        config_version: "v3.0".into(),
        force: true,
        tags: vec![tag],
    };
    assert_eq!(spec, Some(wanted));
    // There an empty text is not present.
    let tag = json!({ "name": "gray", "match": [{ "key": "env", "value": { "exact": "" } }] });
    assert_eq!(compat(json!({ "configVersion": "v3.0", "key": "shop", "tags": [tag] })), None);
}
