use std::{collections::HashMap, future::Future};

use prometheus_client::{encoding::text::encode, registry::Registry};
use rulecast_api::{
    Digest, SpiffeId,
    condition_route::ConditionRouteSpec,
    kind::{KindInfo, Phase},
    proto::rules::v1::Rule,
};
use tokio::sync::watch;

use super::*;
use crate::{rollout::State, stream::Services, view::Item};

mod pods;

static OTHER_INFO: KindInfo = KindInfo {
    api_version: "test/v1",
    name: "Other",
    plural: "others",
    short_names: &[],
    type_name: "test/v1/Other",
    phase: Phase::Route,
    parse: ConditionRouteSpec::parse,
    crd: None,
};
const ROUTE: Kind = Kind::CONDITION_ROUTE;
const OTHER: Kind = Kind(&OTHER_INFO);
static KINDS: Kinds = &[ROUTE, OTHER];

/// One view per kind, the same for everybody.
#[derive(Clone)]
struct Shelf(Arc<HashMap<Kind, watch::Sender<Option<Arc<View>>>>>);

impl Shelf {
    fn new() -> Self {
        Self(Arc::new(KINDS.iter().map(|kind| (*kind, watch::Sender::new(None))).collect()))
    }

    fn put(&self, kind: Kind, revision: i64, spec: impl Into<Vec<u8>>) {
        let rule = Rule { key: "a/default".into(), spec: spec.into().into(), ..Rule::default() };
        let items = vec![Arc::new(Item::new(&rule))];
        let view = View::new(kind, "l".into(), Digest::default(), revision, items);
        self.0[&kind].send_replace(Some(Arc::new(view)));
    }
}

struct Place(watch::Receiver<Option<Arc<View>>>);

impl ViewSource for Shelf {
    type Subscription = Place;

    fn subscribe(&self, _: &Subject, _: Services, kind: Kind) -> Place {
        Place(self.0[&kind].subscribe())
    }
}

impl ViewSubscription for Place {
    fn current(&mut self) -> Option<Arc<View>> {
        self.0.borrow_and_update().clone()
    }

    async fn changed(&mut self) -> Option<Arc<View>> {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.0.borrow_and_update().clone()
    }
}

struct Plane {
    shelf: Shelf,
    rollout: Rollout,
    service: RuleService<Shelf>,
    registry: Registry,
    drain: CancellationToken,
}

struct Client {
    requests: mpsc::Sender<Result<ObserveRequest, Status>>,
    responses: ResponseStream,
}

impl Plane {
    fn new() -> Self {
        let (shelf, rollout, drain) = (Shelf::new(), Rollout::new(), CancellationToken::new());
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let config = StreamConfig { chunk_bytes: 1 << 16, ..StreamConfig::default() };
        let service = RuleService::new(
            shelf.clone(),
            None,
            rollout.clone(),
            config,
            KINDS,
            metrics,
            drain.clone(),
        );
        Self { shelf, rollout, service, registry, drain }
    }

    fn client(&self, name: &str, valid: Duration) -> Client {
        let identity = SpiffeId::application("td", "default", name).expect("a name");
        let (requests, receiver) = mpsc::channel(16);
        let not_after = SystemTime::now() + valid;
        let caller = Caller { identity, pod: None, not_after, address: None };
        let responses = self.service.serve(caller, ReceiverStream::new(receiver));
        Client { requests, responses }
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// Within a time that only a fault passes.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    time::timeout(Duration::from_secs(20), future).await.expect("in time")
}

impl Client {
    async fn ask(&self, kind: Kind, nonce: &str) {
        let request = ObserveRequest {
            nonce: nonce.into(),
            r#type: kind.type_name.into(),
            ..ObserveRequest::default()
        };
        soon(self.requests.send(Ok(request))).await.expect("the stream is open");
    }

    async fn next(&mut self) -> Result<ObserveResponse, Status> {
        soon(self.responses.next()).await.expect("the stream is open")
    }

    /// Takes the next response and acknowledges it.
    async fn take(&mut self) -> ObserveResponse {
        let response = self.next().await.expect("a response");
        let kind = Kind::by_type(KINDS, &response.r#type).expect("known");
        self.ask(kind, &response.nonce).await;
        response
    }
}

/// Waits for a condition that nobody announces.
async fn until(mut condition: impl FnMut() -> bool) {
    soon(async {
        while !condition() {
            time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn rules_go_out_and_answers_come_in() {
    let plane = Plane::new();
    let mut client = plane.client("a", HOUR);
    client.ask(ROUTE, "").await;
    plane.shelf.put(ROUTE, 1, "one");
    assert_eq!(client.take().await.data.len(), 1);
    let state = || plane.rollout.clients()[0].kinds.first().map(|kind| kind.state);
    until(|| state() == Some(State::Synced)).await;
    plane.shelf.put(ROUTE, 2, "two");
    let second = client.next().await.expect("a response");
    assert_eq!((second.revision, state()), (2, Some(State::Pending)));
    client.ask(ROUTE, &second.nonce).await;
    until(|| state() == Some(State::Synced)).await;
    let mut text = String::new();
    encode(&mut text, &plane.registry).expect("text");
    for line in ["streams 1", "responses_total 2", "acks_total 2", "stale_nonces_total 0"] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    assert!(text.contains("convergence_seconds_count{kind=\"ConditionRoute\"} 2"), "{text}");
    drop(client);
    until(|| plane.rollout.is_empty()).await;
}

#[tokio::test]
async fn streams_end_with_a_reason() {
    let plane = Plane::new();
    plane.shelf.put(ROUTE, 1, "one");
    let ends = async |client: &mut Client, code: Code, status: tonic::Code| {
        let error = client.next().await.expect_err("an end");
        assert_eq!(error.code(), status);
        assert!(error.message().starts_with(code.as_str()), "{error}");
        assert!(soon(client.responses.next()).await.is_none());
    };
    let mut unknown = plane.client("a", HOUR);
    let request = ObserveRequest { r#type: "x/y/Z".into(), ..ObserveRequest::default() };
    unknown.requests.send(Ok(request)).await.expect("open");
    ends(&mut unknown, Code::TypeUnsupported, tonic::Code::InvalidArgument).await;
    let mut expiring = plane.client("b", Duration::from_millis(150));
    expiring.ask(ROUTE, "").await;
    expiring.take().await;
    ends(&mut expiring, Code::IdentityEnded, tonic::Code::Unauthenticated).await;
    let mut drained = plane.client("c", HOUR);
    drained.ask(ROUTE, "").await;
    drained.take().await;
    plane.drain.cancel();
    ends(&mut drained, Code::Draining, tonic::Code::Unavailable).await;
    let mut late = plane.client("d", HOUR);
    ends(&mut late, Code::Draining, tonic::Code::Unavailable).await;
    until(|| plane.rollout.is_empty()).await;
}

#[tokio::test]
async fn who_stops_reading_delays_nobody_and_gets_the_newest() {
    let plane = Plane::new();
    plane.shelf.put(ROUTE, 1, vec![1; 1 << 16]);
    plane.shelf.put(OTHER, 1, "one");
    let mut slow = plane.client("slow", HOUR);
    slow.ask(ROUTE, "").await;
    slow.ask(OTHER, "").await;
    let mut quick = plane.client("quick", HOUR);
    quick.ask(ROUTE, "").await;
    quick.take().await;
    for revision in 2..200u8 {
        plane.shelf.put(ROUTE, revision.into(), vec![revision; 1 << 16]);
        assert_eq!(quick.take().await.revision, i64::from(revision));
    }
    // What had left, perhaps what was known when that was answered, and then the newest.
    let mut revisions = Vec::new();
    while revisions.last() != Some(&199) {
        let response = slow.take().await;
        if response.r#type == ROUTE.type_name {
            revisions.push(response.revision);
        }
    }
    assert!(revisions.len() <= 3, "{revisions:?}");
}

#[tokio::test]
async fn a_kind_that_is_never_answered_does_not_hold_up_another() {
    let plane = Plane::new();
    plane.shelf.put(ROUTE, 1, "one");
    plane.shelf.put(OTHER, 1, "one");
    let mut client = plane.client("a", HOUR);
    client.ask(ROUTE, "").await;
    client.next().await.expect("a response that stays without answer");
    client.ask(OTHER, "").await;
    client.take().await;
    for revision in 2..30 {
        plane.shelf.put(ROUTE, revision, revision.to_string());
        plane.shelf.put(OTHER, revision, revision.to_string());
        let response = client.take().await;
        assert_eq!((response.r#type.as_str(), response.revision), (OTHER.type_name, revision));
    }
}

#[tokio::test]
async fn who_shows_no_certificate_gets_nothing() {
    let plane = Plane::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let server = tonic::transport::Server::builder()
        .add_service(plane.service.clone().into_server())
        .serve_with_incoming_shutdown(
            tokio_stream::wrappers::TcpListenerStream::new(listener),
            plane.drain.clone().cancelled_owned(),
        );
    let server = tokio::spawn(server);
    let mut client =
        soon(rulecast_api::proto::observe::v1::rule_service_client::RuleServiceClient::connect(
            format!("http://{address}"),
        ))
        .await
        .expect("connected");
    let error = soon(client.observe(stream::pending())).await.expect_err("refused");
    assert_eq!(error.code(), tonic::Code::Unauthenticated);
    assert!(error.message().starts_with(Code::CredentialMissing.as_str()), "{error}");
    drop(client);
    plane.drain.cancel();
    soon(server).await.expect("ended").expect("without fault");
}
