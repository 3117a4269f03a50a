//! Of several planes one writes.

use std::time::Duration;

use rulecast_cluster::{ElectionConfig, Leadership, campaign};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::site::{Plane, Site, eventually, programmed, versions};

/// A plane that runs for leader.
struct Candidate {
    plane: Plane,
    leadership: Leadership,
    campaign: JoinHandle<()>,
    shutdown: CancellationToken,
}

impl Candidate {
    async fn start(site: &Site, identity: &str) -> Self {
        let config = ElectionConfig {
            duration: Duration::from_secs(3),
            deadline: Duration::from_secs(2),
            retry: Duration::from_millis(500),
            ..ElectionConfig::new(site.namespace.name(), "status", identity)
        };
        let shutdown = CancellationToken::new();
        let (leadership, run) = campaign(site.cluster.client(), config, shutdown.clone());
        let campaign = tokio::spawn(run);
        let plane = Plane::start(site, leadership.clone()).await;
        Self { plane, leadership, campaign, shutdown }
    }

    async fn leads(&self) {
        eventually("it leads", async || self.leadership.leads()).await;
    }
}

#[tokio::test]
async fn one_of_two_planes_writes_and_the_other_takes_over_without_writing_anew() {
    let site = Site::new("lead").await;
    let one = Candidate::start(&site, "one").await;
    one.leads().await;
    let two = Candidate::start(&site, "two").await;
    for name in ["a", "b", "c"] {
        site.rule(name, "=> region=$region").await;
        site.until(name, |s| programmed(s) == ("NoClients", 1)).await;
    }
    assert_eq!(
        (one.plane.written(), two.plane.written().len()),
        (vec!["a", "b", "c"].into_iter().map(String::from).collect(), 0)
    );
    let before = versions(&site).await;

    // The first stops renewing, as when its process dies; its Lease stays.
    one.campaign.abort();
    two.leads().await;
    assert!(!one.leadership.leads());
    site.rule("d", "=> region=$region").await;
    site.until("d", |s| programmed(s).1 == 1).await;
    assert_eq!(two.plane.written()[0], "d");
    assert_eq!(one.plane.written().len(), 3);
    let after = versions(&site).await;
    assert_eq!(after[..3], before, "what stood there is not written anew");

    // The second one leaves; the first comes back as a new process.
    two.shutdown.cancel();
    let three = Candidate::start(&site, "three").await;
    three.leads().await;
    site.rule("a", "=> region=other").await;
    site.until("a", |s| programmed(s).1 == 2).await;
    assert_eq!(three.plane.written()[0], "a");
    assert!(!two.leadership.leads());
    assert!(!two.plane.written().contains(&"a".to_owned()));
}

#[tokio::test]
async fn who_loses_its_lease_to_another_stops_at_once() {
    use k8s_openapi::api::coordination::v1::Lease;
    use kube::{
        Api,
        api::{Patch, PatchParams},
    };

    let site = Site::new("robbed").await;
    let one = Candidate::start(&site, "one").await;
    one.leads().await;
    site.rule("a", "=> region=$region").await;
    site.until("a", |s| programmed(s) == ("NoClients", 1)).await;
    let leases: Api<Lease> = Api::namespaced(site.cluster.client(), &site.namespace);
    let stolen = serde_json::json!({ "spec": {
        "holderIdentity": "another", "leaseDurationSeconds": 3600, "renewTime": "2026-01-01T00:00:00.000000Z",
    }});
    leases.patch("status", &PatchParams::default(), &Patch::Merge(&stolen)).await.expect("stolen");
    eventually("it leads no more", async || !one.leadership.leads()).await;
    // Another plane sees what this one would write.
    site.rule("a", "=> region=other").await;
    let (_lead, leads) = tokio::sync::watch::channel(true);
    let two = Plane::start(&site, leads).await;
    site.until("a", |s| programmed(s) == ("NoClients", 2)).await;
    assert_eq!((one.plane.written().len(), two.written().len()), (1, 1));
}
