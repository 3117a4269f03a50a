//! Who owns a service follows from the mappings in force, and where rules stand from that.

use prost::Message as _;
use rulecast_api::{
    Resource, condition_route::ConditionRouteSpec, kind, proto::rules::v1::Rule,
    service_name_mapping::ServiceNameMappingSpec,
};
use serde_json::json;

use super::*;
use crate::scope::{TIER_OWN, TIER_OWNER};

const ROUTE: Kind = Kind::CONDITION_ROUTE;
const MAPPING: Kind = Kind::SERVICE_NAME_MAPPING;

pub(super) fn of(
    kind: Kind,
    name: &str,
    namespace: &str,
    created: i64,
    spec: Arc<dyn RuleSpec>,
) -> Stored {
    let id = ResourceId { kind, namespace: namespace.into(), name: name.into() };
    let (labels, annotations) = Default::default();
    let resource = Resource { id, labels, annotations, created, spec };
    let digest = crate::store::digest(&resource);
    Stored { resource, digest, ..stored(name, namespace, "", 0, 1) }
}

fn mapping(namespace: &str, interface: &str, created: i64) -> Stored {
    let spec = json!({ "interfaceName": interface, "applicationNames": ["orders"] });
    let spec = ServiceNameMappingSpec::parse(spec).expect("valid");
    of(MAPPING, "m", namespace, created, spec)
}

pub(super) fn route(namespace: &str, key: &str) -> Stored {
    let spec = json!({ "configVersion": "v3.0", "scope": "service", "key": key,
                       "conditions": ["=> region=a"] });
    of(ROUTE, "r", namespace, 0, ConditionRouteSpec::parse(spec).expect("valid"))
}

/// Keys and tiers of what a view has.
fn tiers(view: &View) -> Vec<(String, u32)> {
    let rule = |item: &Arc<Item>| Rule::decode(item.bytes.clone()).expect("a rule");
    view.items.iter().map(rule).map(|rule| (rule.key, rule.tier)).collect()
}

fn now(subscription: &mut Subscription) -> Vec<(String, u32)> {
    tiers(&subscription.current().expect("listed"))
}

#[test]
fn a_registered_mapping_moves_the_rules_of_its_service() {
    let index = Index::new(kind::KINDS, "l".into());
    let views = Views::new(index.clone(), Owners::default(), Root::default(), Debounce::default());
    let order = &["gold/com.Order:1.0"][..];
    let [mut shop, mut thief, mut other] =
        ["shop", "thief", "other"].map(|ns| views.subscribe(&scope(ns, Some(order)), ROUTE));
    let mut idle = views.subscribe(&scope("other", Some(&["com.Pay"])), ROUTE);
    let mut apps = views.subscribe(&scope("other", Some(order)), MAPPING);
    let pair = |key: &str, tier| (key.to_owned(), tier);
    let key = "gold/com.Order:1.0";
    let all = [route("shop", key), route("thief", key), route("shop", "com.Pay")];
    list(&index, &all, 1);
    views.refresh();
    let own = [pair("r/shop", TIER_OWN)];
    // The last of a name counts, so `r/shop` is of com.Pay.
    assert_eq!(now(&mut idle), []);
    assert_eq!(now(&mut thief), [pair("r/thief", TIER_OWN)]);

    index.apply(vec![Event::Upsert(route("shop", key))]);
    views.refresh();
    assert_eq!(now(&mut shop), own);
    assert_eq!(now(&mut other), []);
    assert_eq!(now(&mut apps), []);
    let before = idle.current().expect("listed");

    // Its rule reaches everybody from now on, whose service is named with group and version.
    index.apply(vec![Event::Upsert(mapping("shop", "com.Order", 10))]);
    views.refresh();
    let owner = [pair("r/shop", TIER_OWNER)];
    assert_eq!(now(&mut other), owner);
    assert_eq!(now(&mut shop), owner);
    assert_eq!(now(&mut thief), [pair("r/shop", TIER_OWNER), pair("r/thief", TIER_OWN)]);
    assert_eq!(now(&mut apps), [pair("m/shop", TIER_OWNER)]);
    assert!(Arc::ptr_eq(&before, &idle.current().expect("listed")));

    // Somebody else who registers it gets nothing by that, and disturbs nobody.
    let seen = other.current().expect("listed");
    index.apply(vec![Event::Upsert(mapping("thief", "com.Order", 20))]);
    views.refresh();
    assert!(Arc::ptr_eq(&seen, &other.current().expect("listed")));
    assert_eq!(now(&mut apps), [pair("m/shop", TIER_OWNER)]);

    // With the first gone it is the next one's.
    let gone = ResourceId { kind: MAPPING, namespace: "shop".into(), name: "m".into() };
    index.apply(vec![Event::Remove { id: gone, revision: 9 }]);
    views.refresh();
    assert_eq!(now(&mut other), [pair("r/thief", TIER_OWNER)]);
    assert_eq!(now(&mut shop), [pair("r/shop", TIER_OWN), pair("r/thief", TIER_OWNER)]);
    assert_eq!(now(&mut apps), [pair("m/thief", TIER_OWNER)]);

    // What was moved step by step is what is made anew.
    let fresh = Views::new(index, Owners::default(), Root::default(), Debounce::default());
    for (namespace, subscription) in [("shop", &mut shop), ("other", &mut other)] {
        let mut anew = fresh.subscribe(&scope(namespace, Some(order)), ROUTE);
        let anew = anew.current().expect("listed");
        assert_eq!(anew.set_digest, subscription.current().expect("listed").set_digest);
    }
}
