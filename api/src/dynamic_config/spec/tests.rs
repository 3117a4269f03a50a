use super::*;
use crate::Code;

fn full() -> Value {
    json!({
        "configVersion": "v3.0", "scope": "service", "key": "g/com.Foo:0.0.0", "enabled": true,
        "configs": [
            { "side": "consumer", "parameters": { "timeout": "1000", "retries": "0" },
              "match": { "address": { "cird": "10.0.0.*" },
                         "service": { "oneof": [{ "exact": "com.Foo" }, { "prefix": "com." }] },
                         "app": { "oneof": [{ "wildcard": "*" }] },
                         "param": [{ "key": "zone", "value": { "noempty": "x" } }] } },
            { "side": "provider", "parameters": { "weight": "5" }, "type": "weight",
              "enabled": false, "addresses": ["10.1.1.1:20880", "0.0.0.0"],
              "providerAddresses": ["10.1.1.2"], "applications": ["shop"], "services": ["*"] },
            { "parameters": { "a": "b" }, "type": "general", "enabled": false },
        ],
    })
}

fn errors(configs: Value) -> Vec<(Code, String)> {
    let spec = json!({ "configVersion": "v3.0", "scope": "application", "key": "shop",
                       "configs": configs });
    DynamicConfigSpec::parse(spec)
        .expect_err("refused")
        .into_iter()
        .map(|error| (error.code, error.path))
        .collect()
}

#[test]
fn reads_back_normalised() {
    let spec = DynamicConfigSpec::read(&full(), false).expect("valid");
    assert_eq!(spec.key, "g/com.Foo");
    let json = spec.to_json();
    assert_eq!(json["configs"][0]["match"]["address"], json!({ "cidr": "10.0.0.*" }));
    assert_eq!(json["configs"][0]["match"]["application"]["oneof"][0]["wildcard"], "*");
    // 0.0.0.0 and * among others are any; a general entry has no type.
    let second = &json["configs"][1];
    assert!(second.get("addresses").is_none() && second.get("services").is_none());
    assert_eq!(second["providerAddresses"], json!(["10.1.1.2"]));
    assert!(json["configs"][2].get("type").is_none());
    let again = DynamicConfigSpec::read(&json, false).expect("valid");
    assert_eq!(again, spec);
    assert_eq!(again.encode(), spec.encode());
}

#[test]
fn only_what_is_in_force_is_delivered() {
    let names = |value: &Value| {
        let spec = DynamicConfigSpec::read(value, false).expect("valid");
        let message = wire::DynamicConfig::decode(spec.encode()).expect("a message");
        let first = |config: &wire::Override| config.parameters[0].name.clone();
        (spec.enabled(), message.configs.iter().map(first).collect::<Vec<_>>())
    };
    let mut value = full();
    // The general ones go by the rule, whatever they say; the one with a type by itself.
    assert_eq!(names(&value), (true, vec!["retries".to_owned(), "a".to_owned()]));
    value["configs"][1]["enabled"] = json!(true);
    value["enabled"] = json!(false);
    assert_eq!(names(&value), (true, vec!["weight".to_owned()]));
    value["configs"][1]["enabled"] = json!(false);
    assert_eq!(names(&value), (false, vec![]));
}

#[test]
fn both_forms_are_delivered_as_one() {
    let spec = DynamicConfigSpec::read(&full(), false).expect("valid");
    let [mut newer, older] = [0, 1].map(|i| spec.configs[i].to_wire());
    assert_eq!(newer.side, r#override::Side::Consumer as i32);
    assert_eq!((newer.services.len(), newer.applications.len(), newer.params.len()), (2, 1, 1));
    assert!(newer.address.take().is_some());
    let shop = StringMatch::Exact("shop".into()).to_wire();
    assert_eq!((older.services, older.applications), (vec![], vec![shop]));
    assert_eq!((older.addresses, older.provider_addresses), (vec![], vec!["10.1.1.2".to_owned()]));
}

#[test]
fn the_old_wire_gets_all_entries_and_their_switches() {
    let spec = DynamicConfigSpec::read(&full(), false).expect("valid");
    let message = dubbo::DynamicConfig::decode(spec.compat().expect("it can say it"));
    let message = message.expect("a message");
    assert_eq!((message.key.as_str(), message.scope.as_str()), ("g/com.Foo", "service"));
    assert_eq!((message.enabled, message.configs.len()), (true, 3));
    let first = &message.configs[0];
    assert_eq!(first.parameters["timeout"], "1000");
    let matches = first.r#match.as_ref().expect("a match");
    assert_eq!(matches.address.as_ref().expect("an address").cird, "10.0.0.*");
    assert_eq!(matches.service.as_ref().expect("services").oneof[1].prefix, "com.");
    assert_eq!((message.configs[1].r#type.as_str(), message.configs[1].enabled), ("weight", false));
    // An empty text cannot be said there.
    let mut value = full();
    value["configs"][0]["match"]["service"]["oneof"][0]["exact"] = json!("");
    assert_eq!(DynamicConfigSpec::read(&value, false).expect("valid").compat(), None);
    let mut value = full();
    value["configs"][0]["match"]["address"] = json!({ "exact": "" });
    assert_eq!(DynamicConfigSpec::read(&value, false).expect("valid").compat(), None);
}

#[test]
fn collects_all_errors() {
    let at = |path: &str| (Code::FieldInvalid, format!("spec.configs[{path}"));
    assert_eq!(
        errors(json!([
            { "side": "server", "parameters": {} },
            { "parameters": { "timeout": 1000, "x": "y" }, "sides": "consumer" },
            { "match": { "service": { "oneof": [] } } },
            { "parameters": { "a": "b" }, "services": ["a", ""],
              "match": { "service": { "oneof": [{ "regex": "(" }] },
                         "address": { "cidr": "10.0.0.0/99" } } },
            { "parameters": { "a": "b" }, "applications": ["a"],
              "match": { "app": { "oneof": [{}] }, "application": { "oneof": [{}] } } },
        ])),
        [
            at("0].side"),
            at("0].parameters"),
            (Code::FieldUnknown, "spec.configs[1].sides".to_owned()),
            at("1].parameters.timeout"),
            (Code::FieldMissing, "spec.configs[2].parameters".to_owned()),
            at("2].match.service.oneof"),
            at("3].match.address.cidr"),
            at("3].match.service.oneof[0].regex"),
            at("3].services[1]"),
            at("3].services"),
            at("4].match.app"),
            at("4].applications"),
        ]
    );
    let found = DynamicConfigSpec::parse(json!({})).expect_err("refused");
    let paths: Vec<&str> = found.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["spec.configVersion", "spec.scope", "spec.key"]);
    assert!(DynamicConfigSpec::parse_lenient(&json!({})).is_ok());
}
