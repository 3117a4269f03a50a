//! Registrations of service names, from two planes at once.

use std::collections::BTreeSet;

use kube::{
    Api,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use rulecast_api::{Kind, Kinds};
use rulecast_dds::mapping::MappingService;
use rulecast_kube_tests::Cluster;

use crate::site::Followed;

const KINDS: Kinds = &[Kind::SERVICE_NAME_MAPPING];

#[tokio::test(flavor = "multi_thread")]
async fn fifty_registrations_at_two_planes_lose_nothing() {
    let cluster = Cluster::shared().await.expect("server");
    let crds = cluster.crds().await.expect("CRDs");
    let crd = crds.into_iter().find(|crd| crd["spec"]["names"]["kind"] == KINDS[0].name);
    let name = cluster.apply_crd(crd.expect("of the kind")).await.expect("applied");
    cluster.served(&name).await.expect("served");
    let namespace = cluster.namespace("mappings").await.expect("namespace");
    let mut planes = Vec::new();
    for _ in 0..2 {
        let followed = Followed::open(cluster.client(), KINDS).listed().await;
        let store = followed.store.clone();
        let service = MappingService::new(store, followed.index.clone(), KINDS).expect("served");
        planes.push((followed, service));
    }
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..50 {
        let service = planes[client % 2].1.clone();
        let namespace = namespace.name().to_owned();
        clients.spawn(async move {
            let interfaces = ["com.example.Order".to_owned()];
            service.register(&namespace, &format!("app-{client}"), &interfaces).await
        });
    }
    while let Some(client) = clients.join_next().await {
        client.expect("no panic").expect("registered");
    }
    // When the last is answered, all of it is stored.
    let gvk = GroupVersionKind::gvk("dubbo.apache.org", "v1alpha1", "ServiceNameMapping");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "servicenamemappings");
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &namespace, &resource);
    let stored = api.get("com.example.order").await.expect("stored");
    assert_eq!(stored.data["spec"]["interfaceName"], "com.example.Order");
    let names = stored.data["spec"]["applicationNames"].as_array().expect("a list");
    let names: BTreeSet<_> = names.iter().filter_map(|name| name.as_str()).collect();
    let wanted: Vec<_> = (0..50).map(|client| format!("app-{client}")).collect();
    assert_eq!(names, wanted.iter().map(String::as_str).collect());
}
