//! A plane of one rule kind that selects by labels, joined with the pods of a cluster.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use prometheus_client::registry::Registry;
use prost::Message as _;
use rulecast_api::proto::{
    observe::v1::{ObserveRequest, ObserveResponse, Subscription},
    rules::v1::Rule,
};
use rulecast_cluster::ClusterConfig;
use rulecast_dds::{
    index::Index,
    observe::{Caller, Metrics, RuleService},
    pods::{Informed, PodId, Pods, inform},
    rollout::Rollout,
    scope::{Owners, Root},
    store::{
        Event,
        conformance::{KIND, KINDS, ProbeSpec, stored},
        digest,
    },
    stream::StreamConfig,
    views::{Debounce, Views},
};
use rulecast_kube_tests::Cluster;
use serde_json::json;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;

use crate::authority::{PATIENCE, key, pods};

pub(crate) const SERVICE: &str = "com.A";

/// Everything between the API server's pods and the streams.
pub(crate) struct Plane {
    pub(crate) pods: Pods,
    pub(crate) service: RuleService,
    _stop: DropGuard,
}

impl Plane {
    /// Rules for everybody, `all`, `stable` and `canary`; the latter two for pods with this
    /// `track`. Pods come by `cluster`. Waits for the first complete list.
    pub(crate) async fn start(cluster: &ClusterConfig) -> Self {
        let index = Index::new(KINDS, "l".into());
        let mut events = vec![Event::Listing];
        for (revision, name) in [(1, "all"), (2, "stable"), (3, "canary")] {
            let mut rule = stored(name, "rulecast-system", SERVICE, 1, revision);
            let labels = (name != "all").then(|| ("track".to_owned(), name.to_owned()));
            rule.resource.spec = Arc::new(ProbeSpec {
                key: SERVICE.into(),
                application: false,
                enabled: true,
                value: 1,
                labels: labels.into_iter().collect::<BTreeMap<_, _>>(),
            });
            rule.digest = digest(&rule.resource);
            events.push(Event::Upsert(rule));
        }
        events.push(Event::Listed { revision: 3 });
        index.apply(events);
        let views = Views::new(index, Owners::default(), Root::default(), Debounce::default());
        let stop = CancellationToken::new();
        let client = rulecast_cluster::connect(cluster).await.expect("a client");
        let pods = Pods::new();
        tokio::spawn(inform(pods.clone(), client, stop.clone()));
        let mut registry = Registry::default();
        let service = RuleService::new(
            views,
            Some(pods.clone()),
            Rollout::new(),
            StreamConfig::default(),
            KINDS,
            Metrics::register(&mut registry),
            stop.clone(),
        );
        let plane = Self { pods, service, _stop: stop.drop_guard() };
        plane.informed("a complete list", |informed| informed.synced).await;
        plane
    }

    pub(crate) async fn informed(&self, what: &str, is: impl Fn(&Informed) -> bool) -> Informed {
        let mut state = self.pods.state();
        let came = timeout(PATIENCE, state.wait_for(|informed| is(informed))).await;
        came.unwrap_or_else(|_| panic!("{what} did not come")).expect("runs").clone()
    }

    /// A stream of a pod that the authority has attested.
    pub(crate) fn stream(&self, pod: &Pod, services: &[&str]) -> Client {
        let (namespace, name, uid) = key(pod);
        let caller = Caller {
            identity: format!("spiffe://td/ns/{namespace}/sa/web").parse().expect("a name"),
            pod: Some(PodId { namespace, name, uid: uid.into() }),
            not_after: SystemTime::now() + Duration::from_secs(3600),
            address: None,
        };
        let (requests, receiver) = mpsc::channel(16);
        let first = subscribe(services);
        requests.try_send(Ok(first)).expect("room");
        let responses = self.service.serve(caller, ReceiverStream::new(receiver));
        Client { requests, responses }
    }
}

pub(crate) fn subscribe(services: &[&str]) -> ObserveRequest {
    let services = services.iter().map(|&service| service.into()).collect();
    ObserveRequest {
        r#type: KIND.type_name.into(),
        subscription: Some(Subscription { services }),
        ..ObserveRequest::default()
    }
}

type Responses = Pin<Box<dyn Stream<Item = Result<ObserveResponse, Status>> + Send>>;

/// One stream's client, which acknowledges everything.
pub(crate) struct Client {
    pub(crate) requests: mpsc::Sender<Result<ObserveRequest, Status>>,
    pub(crate) responses: Responses,
}

impl Client {
    pub(crate) async fn next(&mut self) -> Result<ObserveResponse, Status> {
        let next = timeout(PATIENCE, self.responses.next()).await.expect("in time");
        next.expect("a reason for the end")
    }

    /// The names of the rules in the next response.
    pub(crate) async fn rules(&mut self) -> Vec<String> {
        let response = self.next().await.expect("a response");
        let ack = ObserveRequest { nonce: response.nonce, ..subscribe(&[]) };
        let ack = ObserveRequest { subscription: None, ..ack };
        self.requests.send(Ok(ack)).await.expect("open");
        let names = response.data.iter().map(|any| {
            let key = Rule::decode(any.value.as_slice()).expect("a rule").key;
            key.split('/').next().expect("a name").to_owned()
        });
        names.collect()
    }

    /// What it ends with. Nothing may come before.
    pub(crate) async fn end(&mut self) -> Status {
        self.next().await.expect_err("an end")
    }

    /// Whether nothing comes for a while.
    pub(crate) async fn is_quiet(&mut self) -> bool {
        timeout(Duration::from_millis(300), self.responses.next()).await.is_err()
    }
}

/// Gives a pod another `track`.
pub(crate) async fn label(cluster: &Cluster, pod: &Pod, track: &str) {
    let (namespace, name, _) = key(pod);
    let patch = Patch::Merge(json!({"metadata": {"labels": {"track": track}}}));
    let patched = pods(cluster, &namespace).patch(&name, &PatchParams::default(), &patch).await;
    patched.expect("patched");
}
