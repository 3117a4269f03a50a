use std::sync::Arc;

use rulecast_api::{Kind, Resource, ResourceId};
use serde_json::json;

use super::*;
use crate::store::{Stored, conformance::stored};

/// A mapping in a namespace, made at some second.
fn mapping(name: &str, namespace: &str, interface: &str, created: i64) -> (Arc<str>, Arc<Stored>) {
    let spec = json!({ "interfaceName": interface, "applicationNames": ["orders"] });
    let resource = Resource {
        id: ResourceId {
            kind: Kind::SERVICE_NAME_MAPPING,
            namespace: namespace.into(),
            name: name.into(),
        },
        labels: Default::default(),
        annotations: Default::default(),
        created,
        spec: ServiceNameMappingSpec::parse(spec).expect("valid"),
    };
    let key = resource.id.key().into();
    (key, Arc::new(Stored { resource, ..stored(name, namespace, "", 0, 1) }))
}

fn owner(owners: &Owners, key: &str) -> Option<String> {
    let target = Target { scope: target::Scope::Service as i32, key: key.into() };
    owners.of(&target).map(str::to_owned)
}

#[test]
fn the_first_to_register_owns_whatever_else_is_registered() {
    let root = Root::default();
    let all = [
        mapping("late", "a-thief", "com.Order", 20),
        mapping("early", "shop", "com.Order", 10),
        mapping("early-again", "shop", "com.Order", 30),
        mapping("even", "b", "com.Even", 5),
        mapping("even", "a", "com.Even", 5),
        mapping("platform", "rulecast-system", "com.Pay", 1),
        mapping("pay", "money", "com.Pay", 2),
    ];
    let owners = Owners::default().registered(&all.iter().cloned().collect(), &root);
    for (key, namespace) in [
        ("com.Order", Some("shop")),
        ("gold/com.Order:1.0", Some("shop")),
        ("com.Even", Some("a")),
        ("com.Pay", Some("money")),
        ("com.Other", None),
    ] {
        assert_eq!(owner(&owners, key).as_deref(), namespace, "{key}");
    }
    let orders = Target { scope: target::Scope::Application as i32, key: "orders".into() };
    assert_eq!(owners.of(&orders), None);
    // With the first gone, the next; with all gone, nobody.
    let rest = all.iter().filter(|(key, _)| !key.ends_with("/shop")).cloned().collect();
    let owners = owners.registered(&rest, &root);
    assert_eq!(owner(&owners, "com.Order").as_deref(), Some("a-thief"));
    let owners = owners.registered(&Rules::new(), &root);
    assert_eq!(owner(&owners, "com.Order"), None);
    assert_eq!(owners, Owners::default());
}

#[test]
fn what_is_configured_wins() {
    let all: Rules = [mapping("m", "shop", "com.Order", 10)].into_iter().collect();
    let configured = Owners::new([("com.Order:1.0", "legacy"), ("orders", "apps")]);
    let owners = configured.registered(&all, &Root::default());
    assert_eq!(owner(&owners, "com.Order:1.0").as_deref(), Some("legacy"));
    assert_eq!(owner(&owners, "com.Order").as_deref(), Some("shop"));
    let owners = Owners::new([("com.Order", "legacy")]).registered(&all, &Root::default());
    assert_eq!(owner(&owners, "com.Order:1.0").as_deref(), Some("legacy"));
}
