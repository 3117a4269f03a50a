use super::*;
use crate::Code;

fn errors(value: Value) -> Vec<(Code, String)> {
    let errors = AuthenticationPolicySpec::parse(value).expect_err("refused");
    errors.into_iter().map(|e| (e.code, e.path)).collect()
}

#[test]
fn round_trips() {
    for value in [
        json!({ "action": "STRICT" }),
        json!({ "action": "NONE", "selector": [{}, { "namespaces": ["a"] }],
                "portLevel": [{ "port": 0, "action": "DISABLED" },
                              { "port": 65535, "action": "PERMISSIVE" }] }),
        json!({ "action": "DISABLED", "PortLevel": [{ "port": 80, "action": "NONE" }] }),
        json!({ "action": "PERMISSIVE", "selector": [{
            "namespaces": ["a"], "notNamespaces": ["b"], "ipBlocks": ["10.0.0.0/8"],
            "notIpBlocks": ["10.1.*.*", "::1"], "principals": ["spiffe://td/ns/a/sa/b"],
            "notPrincipals": ["td/ns/a/app/c"], "extends": [{ "key": "k", "value": "" }],
            "notExtends": [{ "key": "l", "value": "v" }] }] }),
    ] {
        let spec = AuthenticationPolicySpec::parse(value).expect("valid");
        let again = AuthenticationPolicySpec::parse(spec.to_json()).expect("valid");
        assert_eq!(spec.to_json(), again.to_json());
        assert_eq!(spec.encode(), again.encode());
        assert_eq!((spec.target(), spec.priority(), spec.enabled()), (None, 0, true));
    }
}

#[test]
fn both_spellings_are_one() {
    let ports = json!([{ "port": 80, "action": "STRICT" }]);
    let old = json!({ "action": "NONE", "PortLevel": ports });
    let new = json!({ "action": "NONE", "portLevel": ports });
    let [old, new] = [old, new].map(|value| AuthenticationPolicySpec::parse(value).expect("valid"));
    assert_eq!(old.to_json(), new.to_json());
    assert_eq!(old.to_json()["portLevel"][0]["port"], 80);
    let both = json!({ "action": "NONE", "PortLevel": ports, "portLevel": ports });
    assert_eq!(errors(both), [(Code::FieldInvalid, "spec.PortLevel".to_owned())]);
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let cases = [
        (json!({}), Code::FieldMissing, "spec.action"),
        (json!([]), Code::FieldInvalid, "spec"),
        (json!({ "action": "strict" }), Code::FieldInvalid, "spec.action"),
        (json!({ "action": 1 }), Code::FieldInvalid, "spec.action"),
        (json!({ "action": "NONE", "selectors": [] }), Code::FieldUnknown, "spec.selectors"),
        (json!({ "action": "NONE", "selector": {} }), Code::FieldInvalid, "spec.selector"),
    ];
    for (value, code, path) in cases {
        assert_eq!(errors(value), [(code, path.to_owned())]);
    }
    let ports = [
        (json!({ "action": "NONE" }), Code::FieldMissing, "port"),
        (json!({ "port": 65536, "action": "NONE" }), Code::FieldInvalid, "port"),
        (json!({ "port": -1, "action": "NONE" }), Code::FieldInvalid, "port"),
        (json!({ "port": "80", "action": "NONE" }), Code::FieldInvalid, "port"),
        (json!({ "port": 80.5, "action": "NONE" }), Code::FieldInvalid, "port"),
        (json!({ "port": 80 }), Code::FieldMissing, "action"),
        (json!({ "port": 80, "action": "ALLOW" }), Code::FieldInvalid, "action"),
        (json!({ "port": 80, "action": "NONE", "mode": 1 }), Code::FieldUnknown, "mode"),
    ];
    for (port, code, field) in ports {
        let value = json!({ "action": "NONE", "portLevel": [port] });
        assert_eq!(errors(value), [(code, format!("spec.portLevel[0].{field}"))]);
    }
    let twice = json!([{ "port": 1, "action": "NONE" }, { "port": 1, "action": "STRICT" }]);
    let value = json!({ "action": "NONE", "PortLevel": twice });
    assert_eq!(errors(value), [(Code::FieldInvalid, "spec.PortLevel[1].port".to_owned())]);
}

#[test]
fn a_selector_that_is_wrong_says_what_would_be_right() {
    let cases = [
        (json!({ "namespaces": ["a*"] }), "namespaces[0]", "leave the field out"),
        (json!({ "namespaces": [""] }), "namespaces[0]", "leave the field out"),
        (json!({ "notNamespaces": "a" }), "notNamespaces", "write a list"),
        (json!({ "namespaces": [1] }), "namespaces[0]", "write a text"),
        (json!({ "principals": ["*"] }), "principals[0]", "write <trust domain>/ns/"),
        (json!({ "principals": ["app"] }), "principals[0]", "write <trust domain>/ns/"),
        (json!({ "principals": ["https://a/b"] }), "principals[0]", "write <trust domain>/ns/"),
        (json!({ "ipBlocks": ["10.0.0.0/33"] }), "ipBlocks[0]", "10.1.0.0/16"),
        (json!({ "ipBlocks": ["10.0.0.1:80"] }), "ipBlocks[0]", "10.1.0.0/16"),
        (json!({ "ipBlocks": ["example.com"] }), "ipBlocks[0]", "10.1.0.0/16"),
        (json!({ "extends": [{ "key": "a" }] }), "extends[0].value", "label or an annotation"),
        (json!({ "extend": [] }), "extend", "did you mean extends?"),
        (json!({ "NotIPBlocks": [] }), "NotIPBlocks", "did you mean notIpBlocks?"),
        (
            json!({ "extends": [{ "key": "a", "value": "v".repeat(257) }] }),
            "extends[0].value",
            "256",
        ),
    ];
    for (selector, field, hint) in cases {
        let value = json!({ "action": "NONE", "selector": [{}, selector] });
        let errors = AuthenticationPolicySpec::parse(value).expect_err(field);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].path, format!("spec.selector[1].{field}"));
        assert!(errors[0].hint.contains(hint), "{:?}", errors[0]);
    }
}
