//! Streams of clients that run in pods, over real views.

use std::collections::BTreeMap;

use prost::Message as _;

use super::*;
use crate::{
    index::Index,
    pods::{PodEvent, PodId},
    scope::{Labels, Owners, Root},
    store::{
        Event, Stored,
        conformance::{KIND as PROBE, KINDS as PROBES, ProbeSpec, stored},
        digest,
    },
    views::Debounce,
};

struct Site {
    index: Index,
    views: Views,
    pods: Pods,
    service: RuleService,
}

fn probe(name: &str, revision: i64, labels: &[(&str, &str)]) -> Stored {
    let mut stored = stored(name, "rulecast-system", "com.A", 1, revision);
    stored.resource.spec = Arc::new(ProbeSpec {
        key: "com.A".into(),
        application: false,
        enabled: true,
        value: 1,
        labels: labels.iter().map(|&(n, v)| (n.into(), v.into())).collect::<BTreeMap<_, _>>(),
    });
    stored.digest = digest(&stored.resource);
    stored
}

impl Site {
    /// Three rules: for all, for track=stable, for track=canary.
    fn new(pods: bool) -> Self {
        let index = Index::new(PROBES, "l".into());
        index.apply(vec![
            Event::Listing,
            Event::Upsert(probe("all", 1, &[])),
            Event::Upsert(probe("canary", 2, &[("track", "canary")])),
            Event::Upsert(probe("stable", 3, &[("track", "stable")])),
            Event::Listed { revision: 3 },
        ]);
        let views =
            Views::new(index.clone(), Owners::default(), Root::default(), Debounce::default());
        let table = Pods::new();
        let joined = pods.then(|| table.clone());
        let metrics = Metrics::register(&mut Registry::default());
        let (config, drain) = (StreamConfig::default(), CancellationToken::new());
        let rollout = Rollout::new();
        let service =
            RuleService::new(views.clone(), joined, rollout, config, PROBES, metrics, drain);
        Self { index, views, pods: table, service }
    }

    /// A client in the pod `uid`, subscribed.
    async fn client(&self, uid: &str, services: &[&str]) -> Client {
        let caller = Caller {
            identity: "spiffe://td/ns/shop/sa/web".parse().expect("a name"),
            pod: Some(pod(uid)),
            not_after: SystemTime::now() + HOUR,
            address: None,
        };
        let (requests, receiver) = mpsc::channel(16);
        let responses = self.service.serve(caller, ReceiverStream::new(receiver));
        let client = Client { requests, responses };
        let services = services.iter().map(|&s| s.to_owned()).collect();
        let request = ObserveRequest {
            r#type: PROBE.type_name.into(),
            subscription: Some(rulecast_api::proto::observe::v1::Subscription { services }),
            ..ObserveRequest::default()
        };
        client.requests.send(Ok(request)).await.expect("the stream is open");
        client
    }

    fn label(&self, uid: &str, track: &str) {
        let labels = Labels::new([("track", track), ("pod-template-hash", uid)]);
        self.pods.apply(PodEvent::Present { uid: uid.into(), traits: labels.into() });
    }

    fn list(&self) {
        self.pods.apply(PodEvent::Listing);
        self.pods.apply(PodEvent::Listed);
    }
}

fn pod(uid: &str) -> PodId {
    PodId { namespace: "shop".into(), name: format!("web-{uid}"), uid: uid.into() }
}

impl Client {
    /// The keys of the next response, which is acknowledged.
    async fn keys(&mut self) -> Vec<String> {
        let response = self.next().await.expect("a response");
        self.ask(PROBE, &response.nonce).await;
        let rules = response.data.iter().map(|any| Rule::decode(any.value.as_slice()));
        rules.map(|rule| rule.expect("a rule").key).collect()
    }

    /// Whether nothing comes for a while.
    async fn is_quiet(&mut self) -> bool {
        time::timeout(Duration::from_millis(100), self.responses.next()).await.is_err()
    }
}

fn keys(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("{name}/rulecast-system")).collect()
}

#[tokio::test]
async fn an_open_stream_follows_the_labels_of_its_pod_to_its_end() {
    let site = Site::new(true);
    let mut early = site.client("a", &[]).await;
    assert!(early.is_quiet().await, "no rule leaves before the labels are known");
    site.list();
    site.label("a", "stable");
    assert_eq!(early.keys().await, keys(&["all", "stable"]));
    // A fresh pod, known by a question alone.
    let mut fresh = site.client("b", &[]).await;
    assert!(fresh.is_quiet().await);
    let labels = Labels::new([("track", "canary"), ("pod-template-hash", "b")]);
    site.pods.found(&pod("b"), Some(labels.into()));
    assert_eq!(fresh.keys().await, keys(&["all", "canary"]));
    // Relabelled: the same stream moves, and shares the view.
    site.label("a", "canary");
    assert_eq!(early.keys().await, keys(&["all", "canary"]));
    assert_eq!(site.views.len(), 1);
    // A label that no rule selects by brings another view with the same content: nothing.
    site.label("a", "other");
    assert_eq!(early.keys().await, keys(&["all"]));
    site.label("a", "none");
    assert!(early.is_quiet().await);
    // The rules change under the new labels.
    site.index.apply(vec![Event::Upsert(probe("canary", 4, &[("track", "none")]))]);
    site.views.refresh();
    assert_eq!(early.keys().await, keys(&["all", "canary"]));
    assert_eq!(fresh.keys().await, keys(&["all"]));
    // Deleted: that stream ends, and no other.
    site.pods.apply(PodEvent::Deleted { uid: "a".into() });
    let ended = early.next().await.expect_err("ended");
    assert_eq!(ended.code(), tonic::Code::Unauthenticated);
    assert!(ended.message().starts_with(Code::PodGone.as_str()), "{ended}");
    assert!(fresh.is_quiet().await);
    let mut again = site.client("a", &[]).await;
    site.pods.found(&pod("a"), None);
    assert_eq!(again.next().await.expect_err("no more").code(), tonic::Code::Unauthenticated);
    drop((early, fresh, again));
    soon(async {
        while site.pods.followed() > 0 || !site.views.is_empty() {
            time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_declaration_narrows_and_never_widens() {
    let site = Site::new(true);
    site.list();
    site.label("a", "stable");
    let mut other = site.client("a", &["com.B"]).await;
    assert!(other.keys().await.is_empty());
    let mut this = site.client("a", &["com.A"]).await;
    assert_eq!(this.keys().await, keys(&["all", "stable"]));
    // Declared services stay declared when the labels move.
    site.label("a", "canary");
    assert_eq!(this.keys().await, keys(&["all", "canary"]));
    assert!(other.is_quiet().await);
}

#[tokio::test]
async fn a_pod_that_stays_unknown_is_sent_away_and_without_a_table_none_is_asked_for() {
    let site = Site::new(false);
    let mut client = site.client("a", &[]).await;
    assert_eq!(client.keys().await, keys(&["all"]), "as if it had no labels");
    let site = Site::new(true);
    let mut client = site.client("a", &[]).await;
    let ended = client.next().await.expect_err("sent away");
    assert_eq!(ended.code(), tonic::Code::Unavailable);
    assert!(ended.message().starts_with(Code::PodUnknown.as_str()), "{ended}");
}
