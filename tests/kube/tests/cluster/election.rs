//! Leader election.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use rulecast_cluster::{ElectionConfig, Leadership, campaign};
use rulecast_kube_tests::{Cluster, Namespace, Proxy};
use serde_json::json;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{connect, eventually};

const DURATION: Duration = Duration::from_secs(3);
const DEADLINE: Duration = Duration::from_secs(2);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_secs(5);

struct Candidate {
    leadership: Leadership,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

fn config(namespace: &str, identity: &str) -> ElectionConfig {
    ElectionConfig {
        duration: DURATION,
        deadline: DEADLINE,
        retry: Duration::from_millis(500),
        ..ElectionConfig::new(namespace, "leader", identity)
    }
}

fn start(client: kube::Client, namespace: &str, identity: &str) -> Candidate {
    let shutdown = CancellationToken::new();
    let (leadership, run) = campaign(client, config(namespace, identity), shutdown.clone());
    Candidate { leadership, shutdown, task: tokio::spawn(run) }
}

impl Candidate {
    async fn leads_within(&mut self, limit: Duration) {
        timeout(limit, self.leadership.wait()).await.expect("it leads");
    }

    async fn ceases_within(&self, limit: Duration) {
        eventually("it leads no more", limit, || async { !self.leadership.leads() }).await;
    }
}

struct Scene {
    leases: Api<Lease>,
    namespace: Namespace,
    cluster: Cluster,
}

impl Scene {
    async fn set(name: &str) -> Self {
        let cluster = Cluster::shared().await.expect("server");
        let namespace = cluster.namespace(name).await.expect("namespace");
        let leases = Api::namespaced(cluster.client(), &namespace);
        Self { leases, namespace, cluster }
    }

    async fn candidate(&self, identity: &str) -> Candidate {
        start(connect(&self.cluster.kubeconfig()).await, &self.namespace, identity)
    }

    async fn lease(&self) -> LeaseSpec {
        let lease = self.leases.get("leader").await.expect("there is a Lease");
        lease.spec.expect("it has a spec")
    }
}

#[tokio::test]
async fn one_leads_and_the_other_follows_when_it_dies() {
    let scene = Scene::set("election").await;
    let mut one = scene.candidate("one").await;
    one.leads_within(SLACK).await;
    let spec = scene.lease().await;
    assert_eq!(spec.holder_identity.as_deref(), Some("one"));
    assert_eq!(spec.lease_duration_seconds, Some(3));
    assert_eq!(spec.lease_transitions, Some(0));
    assert!(spec.acquire_time.is_some() && spec.renew_time.is_some());

    let mut two = scene.candidate("two").await;
    let waits = timeout(DURATION * 2, two.leadership.wait()).await;
    waits.expect_err("the first one leads, for longer than the duration");
    assert!(one.leadership.leads());

    // Killed: it gives nothing up.
    one.task.abort();
    one.ceases_within(SLACK).await;
    two.leads_within(DURATION + SLACK).await;
    let spec = scene.lease().await;
    assert_eq!(spec.holder_identity.as_deref(), Some("two"));
    assert_eq!(spec.lease_transitions, Some(1));
}

#[tokio::test]
async fn who_shuts_down_gives_the_lease_up_after_its_work() {
    let scene = Scene::set("release").await;
    // So long that only giving up explains a change.
    let long = ElectionConfig {
        duration: Duration::from_secs(600),
        deadline: Duration::from_secs(500),
        ..config(&scene.namespace, "one")
    };
    let shutdown = CancellationToken::new();
    let client = connect(&scene.cluster.kubeconfig()).await;
    let (mut leadership, run) = campaign(client, long, shutdown.clone());
    let task = tokio::spawn(run);
    let works = CancellationToken::new();
    let work = {
        let (leadership, works) = (leadership.clone(), works.clone());
        tokio::spawn(async move {
            leadership
                .lead(|_| async {
                    // Dropped when the work is cut.
                    let _guard = works.clone().drop_guard();
                    std::future::pending::<()>().await;
                })
                .await;
        })
    };
    timeout(SLACK, leadership.wait()).await.expect("it leads");
    let mut two = scene.candidate("two").await;
    assert!(!works.is_cancelled());
    shutdown.cancel();
    timeout(SLACK, task).await.expect("it ends soon").expect("well");
    assert!(!leadership.leads());
    assert!(works.is_cancelled(), "the work was cut before the Lease was given up");
    timeout(SLACK, work).await.expect("it ends with the campaign").expect("well");
    two.leads_within(SLACK).await;
    assert_eq!(scene.lease().await.lease_transitions, Some(1));

    two.shutdown.cancel();
    timeout(SLACK, two.task).await.expect("it ends soon").expect("well");
    let spec = scene.lease().await;
    assert_eq!(spec.holder_identity.as_deref(), Some(""));
    assert_eq!(spec.lease_duration_seconds, Some(1));
}

#[tokio::test]
async fn who_does_not_reach_the_server_stops_before_another_leads() {
    let scene = Scene::set("stall").await;
    let proxy = Proxy::start(scene.cluster.addr()).await.expect("proxy");
    let client = connect(&scene.cluster.kubeconfig_via(&proxy)).await;
    let mut one = start(client, &scene.namespace, "one");
    one.leads_within(SLACK).await;
    let term = one.leadership.term().expect("it leads");
    let mut two = scene.candidate("two").await;
    proxy.stall(true);
    two.leads_within(DURATION + SLACK).await;
    // Not checked by the clock but by what counts: at this moment the first one is over.
    assert!(!one.leadership.leads());
    timeout(SLACK, term.ended().cancelled()).await.expect("its work is cut");

    proxy.stall(false);
    two.task.abort();
    drop(two);
    one.leads_within(Duration::from_secs(30) + DURATION + SLACK).await;
    assert_eq!(one.leadership.term().expect("it leads").number(), term.number() + 1);
}

#[tokio::test]
async fn a_deleted_lease_is_made_again_and_one_leads() {
    let scene = Scene::set("deleted").await;
    let mut one = scene.candidate("one").await;
    one.leads_within(SLACK).await;
    let two = scene.candidate("two").await;
    let first = scene.leases.get("leader").await.expect("a Lease").metadata.uid;
    scene.leases.delete("leader", &DeleteParams::default()).await.expect("deleted");
    // Whoever made it: in the end its holder leads, and at no time both.
    eventually("the holder of a new Lease leads", DURATION * 2 + SLACK, || async {
        let (one, two) = (one.leadership.leads(), two.leadership.leads());
        assert!(!(one && two), "both lead");
        let lease = scene.leases.get_opt("leader").await.expect("an answer");
        lease.is_some_and(|lease| {
            let new = lease.metadata.uid != first;
            let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
            new && (one && holder == "one" || two && holder == "two")
        })
    })
    .await;
}

#[tokio::test]
async fn who_is_put_off_by_force_stops_at_once() {
    let scene = Scene::set("forced").await;
    let mut one = scene.candidate("one").await;
    one.leads_within(SLACK).await;
    let labels = json!({ "metadata": { "labels": { "seen": "by-a-person" } } });
    let force = json!({ "spec": { "holderIdentity": "a-person" } });
    let patch = async |patch: &serde_json::Value| {
        let params = PatchParams::default();
        scene.leases.patch("leader", &params, &Patch::Merge(patch)).await.expect("patched")
    };
    let version = patch(&labels).await.metadata.resource_version;
    eventually("it renews over that", SLACK, || async {
        let lease = scene.leases.get("leader").await.expect("a Lease");
        lease.metadata.resource_version != version
    })
    .await;
    let lease = scene.leases.get("leader").await.expect("a Lease");
    assert!(lease.metadata.labels.is_some_and(|labels| labels.contains_key("seen")), "it is kept");
    assert_eq!(one.leadership.term().expect("it leads on").number(), 1);

    patch(&force).await;
    one.ceases_within(SLACK).await;
    // A person does not renew, so it is taken back.
    one.leads_within(DURATION + SLACK).await;
    assert_eq!(scene.lease().await.lease_transitions, Some(1));
}
