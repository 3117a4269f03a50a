//! What the plane knows of a pod, by which rules may select it.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use rulecast_cluster::ClusterConfig;
use rulecast_dds::{
    pods::{Place, PodId, Standing},
    scope::Traits,
};
use rulecast_kube_tests::Cluster;
use serde_json::json;
use tokio::time::timeout;

use crate::{
    authority::{PATIENCE, key, pod, pods},
    plane::Plane,
};

/// Waits for traits that are as wanted.
async fn until(place: &mut Place, what: &str, is: impl Fn(&Traits) -> bool) -> Traits {
    let wait = async {
        loop {
            match place.standing() {
                Standing::Present(traits) if is(&traits) => return traits,
                _ => place.changed().await,
            }
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{what} did not come"))
}

fn follow(plane: &Plane, pod: &Pod) -> Place {
    let (namespace, name, uid) = key(pod);
    plane.pods.follow(PodId { namespace, name, uid: uid.into() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_and_annotations_are_followed() {
    let cluster = Cluster::shared().await.expect("server");
    let namespace = cluster.namespace("traits").await.expect("namespace");
    cluster.token(&namespace, "web", "any", None, 600).await.expect("an account");
    let config = ClusterConfig { kubeconfig: Some(cluster.kubeconfig()), context: None };
    let plane = Plane::start(&config).await;
    let web = pod(&cluster, &namespace, "web-0", "web", Some("node-a")).await;
    let mut place = follow(&plane, &web);
    let fresh = until(&mut place, "the pod", |_| true).await;
    assert!(fresh.addresses.is_empty(), "it has none before its node gives it one");

    let api = pods(&cluster, &namespace);
    let status = json!({ "status": {
        "podIP": "10.1.2.3", "podIPs": [{ "ip": "10.1.2.3" }, { "ip": "fd00::7" }],
    } });
    let params = PatchParams::default();
    api.patch_status("web-0", &params, &Patch::Merge(status)).await.expect("patched");
    let there = until(&mut place, "its addresses", |t| !t.addresses.is_empty()).await;
    let wanted: [IpAddr; 2] = ["10.1.2.3", "fd00::7"].map(|ip| ip.parse().expect("an address"));
    assert_eq!(&*there.addresses, wanted);

    let noted = json!({ "metadata": { "annotations": {
        "team": "shop", "cni.projectcalico.org/podIP": "10.1.2.3/32", "long": "x".repeat(300),
    } } });
    api.patch("web-0", &params, &Patch::Merge(noted)).await.expect("patched");
    let noted = until(&mut place, "annotations", |t| t.annotations != there.annotations).await;
    let kept = noted.annotations.as_map();
    assert_eq!(kept.get("team").map(String::as_str), Some("shop"));
    assert_eq!(kept.keys().collect::<Vec<_>>(), ["team"], "what tools write, and what is long");
    assert_eq!((&noted.addresses, &noted.labels), (&there.addresses, &there.labels));

    // What concerns no rule is no change: conditions change all the time.
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    api.patch_status("web-0", &params, &Patch::Merge(ready)).await.expect("patched");
    // Asked about by itself it is the same.
    let other = Plane::start(&config).await;
    let mut elsewhere = follow(&other, &web);
    assert_eq!(until(&mut elsewhere, "the pod", |_| true).await, noted);
    let quiet = timeout(Duration::from_millis(300), place.changed()).await;
    assert!(quiet.is_err() && place.standing() == Standing::Present(noted));
}
