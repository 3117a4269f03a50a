use std::{collections::BTreeMap, net::IpAddr};

use proptest::prelude::*;

use super::*;

fn read(value: &Value) -> Selector {
    let mut errors = Errors::default();
    let selector = Selector::read(&mut errors, value, "s", Of::Endpoint);
    assert_eq!(errors.0, []);
    selector
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.into(), value.into())).collect()
}

#[test]
fn every_field_by_what_is_attested() {
    let labels = map(&[("app", "web"), ("tier", "front")]);
    let annotations = map(&[("team", "shop")]);
    let addresses: Vec<IpAddr> =
        ["10.1.2.3", "fd00::7"].iter().map(|a| a.parse().expect("an address")).collect();
    let subject = Subject {
        namespace: "shop",
        workload: "web",
        identity: "td/ns/shop/sa/web",
        labels: &labels,
        annotations: &annotations,
        addresses: &addresses,
    };
    let pair = |key: &str, value: &str| json!({ "key": key, "value": value });
    let web = pair("app", "web");
    let cases = [
        (json!({}), true),
        (json!({ "namespaces": [] }), true),
        (json!({ "namespaces": ["other", "shop"] }), true),
        (json!({ "namespaces": ["Shop"] }), false),
        (json!({ "namespaces": ["sho"] }), false),
        (json!({ "notNamespaces": ["other"] }), true),
        (json!({ "notNamespaces": ["other", "shop"] }), false),
        (json!({ "namespaces": ["shop"], "notNamespaces": ["shop"] }), false),
        (json!({ "principals": ["spiffe://td/ns/shop/sa/web"] }), true),
        (json!({ "principals": ["td/ns/shop/sa/web"] }), true),
        (json!({ "principals": ["td/ns/shop/sa/web2"] }), false),
        (json!({ "principals": ["other/ns/shop/sa/web"] }), false),
        (json!({ "notPrincipals": ["spiffe://td/ns/shop/sa/web"] }), false),
        (json!({ "notPrincipals": ["td/ns/shop/app/web"] }), true),
        (json!({ "ipBlocks": ["10.1.0.0/16"] }), true),
        (json!({ "ipBlocks": ["10.2.0.0/16", "fd00::/8"] }), true),
        (json!({ "ipBlocks": ["10.1.2.4"] }), false),
        (json!({ "notIpBlocks": ["10.1.2.*"] }), false),
        (json!({ "notIpBlocks": ["10.1.3.*"] }), true),
        (json!({ "extends": [web] }), true),
        (json!({ "extends": [pair("team", "shop")] }), true),
        (json!({ "extends": [web, pair("team", "shop")] }), true),
        (json!({ "extends": [web, pair("team", "other")] }), false),
        (json!({ "extends": [pair("tier", "")] }), false),
        (json!({ "notExtends": [pair("tier", "back")] }), true),
        (json!({ "notExtends": [pair("tier", "back"), pair("team", "shop")] }), false),
        (json!({ "namespaces": ["shop"], "extends": [pair("app", "db")] }), false),
    ];
    for (value, matches) in cases {
        assert_eq!(read(&value).matches(&subject), matches, "{value}");
        // Nothing is known of its address, as before a pod has one.
        let unknown = Subject { addresses: &[], ..subject };
        let blocks = value.get("ipBlocks").is_some();
        let excluded = value.get("notIpBlocks").is_some();
        assert_eq!(read(&value).matches(&unknown), (matches || excluded) && !blocks, "{value}");
    }
}

#[test]
fn interest_is_in_what_is_looked_at() {
    use crate::kind::Interest;
    let pair = json!([{ "key": "team", "value": "x" }]);
    let interest = |value: Value| Interest::of([&read(&value)]);
    assert_eq!(interest(json!({ "namespaces": ["a"] })), Interest::default());
    assert!(interest(json!({ "notIpBlocks": ["10.0.0.1"] })).addresses);
    for field in ["extends", "notExtends"] {
        assert!(interest(json!({ field: pair })).annotations.contains("team"));
    }
}

proptest! {
    /// What a selector says outside of what it is read from does not depend on how a principal
    /// is written, and writing it out changes nothing.
    #[test]
    fn spellings_are_one(
        names in prop::collection::vec("[a-c]{1,2}", 0..3),
        ids in prop::collection::vec("[a-b]/ns/[a-c]/sa/[a-b]", 0..3),
        not in any::<bool>(),
        namespace in "[a-c]{1,2}",
        identity in "[a-b]/ns/[a-c]/sa/[a-b]",
    ) {
        let (n, p) = if not { ("notNamespaces", "notPrincipals") } else { ("namespaces", "principals") };
        let schemed: Vec<String> = ids.iter().map(|id| format!("spiffe://{id}")).collect();
        let plain = read(&json!({ n: names, p: ids }));
        let other = read(&json!({ n: names, p: schemed }));
        prop_assert_eq!(&plain, &other);
        prop_assert_eq!(&read(&plain.to_json()), &plain);
        let none = BTreeMap::new();
        let subject = Subject {
            namespace: &namespace, workload: "w", identity: &identity, labels: &none,
            annotations: &none, addresses: &[],
        };
        let named = (names.is_empty() || names.contains(&namespace) != not)
            && (ids.is_empty() || ids.contains(&identity) != not);
        prop_assert_eq!(plain.matches(&subject), named);
    }
}
