//! Governed calls: a real plane with rules, a real client, real servers on loopback.

#[path = "calls/server.rs"]
mod server;
#[path = "common/site.rs"]
mod site;
#[path = "calls/web.rs"]
mod web;

use std::{collections::BTreeMap, task::Poll, time::Duration};

use rulecast_api::{
    kind::KINDS,
    proto::{
        dubbo::mapping::{
            ServiceMappingRequest,
            service_name_mapping_service_client::ServiceNameMappingServiceClient,
        },
        observe::v1::{ObserveRequest, rule_service_client::RuleServiceClient},
    },
};
use rulecast_sdk::{
    Client, Endpoint, EndpointSet, Status as ClientStatus,
    channel::{Balance, GovernedChannel, GovernorBuilder, HttpError, Tries},
    layer::Attributes,
    tls::{ConnectOptions, Expected, Wire},
};
use serde_json::{Value, json};
use server::{Does, Server};
use site::{LIMIT, Plane, Site, soon};
use tokio::{sync::watch, task::JoinSet};
use tonic::{Code, Request, Status};
use web::Web;

const SERVICE: &str = "com.example.OrderService";

/// A plane, and a client of it.
struct Fleet {
    site: Site,
    plane: Plane,
    client: Client,
}

impl Fleet {
    async fn new(rules: &[(&str, Value)]) -> Self {
        let site = Site::new().await;
        for (name, rule) in rules {
            site.write(name, rule);
        }
        let plane = site.plane().await;
        let client = client(&site, &plane, "web").await;
        Self { site, plane, client }
    }

    fn calls(&self, servers: &[&Server]) -> GovernorBuilder {
        self.calls_to(servers.iter().map(|server| server.endpoint()))
    }

    fn calls_to(&self, endpoints: impl IntoIterator<Item = Endpoint>) -> GovernorBuilder {
        let set = EndpointSet::new(endpoints).expect("a small set");
        GovernedChannel::builder(&self.client, SERVICE).endpoints(set).plaintext()
    }

    /// Puts a rule in force, and waits until the client has it.
    async fn rule(&self, name: &str, rule: &Value) {
        let before = rules(&self.client.status());
        self.site.write(name, rule);
        let mut changes = self.client.changes();
        let changed = changes.wait_for(|status| rules(status) != before);
        soon("the rule arrives", changed).await.expect("the client runs");
    }
}

async fn client(site: &Site, plane: &Plane, application: &str) -> Client {
    let client = Client::builder()
        .plane(plane.address.to_string())
        .ca(site.authority.address.to_string())
        .join_token(site.authority.token("shop", application))
        .namespace("shop")
        .application(application)
        .service(SERVICE)
        .state_dir(site.path().join(application));
    soon("the client is ready", client.connect()).await.expect("connected")
}

/// The rules held, each with its digest.
fn rules(status: &ClientStatus) -> Vec<String> {
    status.kinds.iter().map(|kind| format!("{:?}", kind.rules)).collect()
}

fn config(parameters: Value) -> Value {
    dynamic_config(json!([{ "side": "consumer", "parameters": parameters }]))
}

fn dynamic_config(configs: Value) -> Value {
    json!({
        "apiVersion": "dubbo.apache.org/v1alpha1", "kind": "DynamicConfig",
        "metadata": { "name": "config", "namespace": "root" },
        "spec": {
            "configVersion": "v3.0", "scope": "service", "key": SERVICE, "enabled": true,
            "configs": configs,
        },
    })
}

fn route(name: &str, condition: &str) -> Value {
    json!({
        "apiVersion": "dubbo.apache.org/v1alpha1", "kind": "ConditionRoute",
        "metadata": { "name": name, "namespace": "root" },
        "spec": {
            "configVersion": "v3.0", "scope": "service", "key": SERVICE, "enabled": true,
            "force": true, "runtime": true, "conditions": [condition],
        },
    })
}

/// Calls, and gives the name of who answered.
async fn call(channel: &GovernedChannel) -> Result<String, Status> {
    call_with(channel, Request::new(ServiceMappingRequest::default())).await
}

async fn call_with(
    channel: &GovernedChannel,
    request: Request<ServiceMappingRequest>,
) -> Result<String, Status> {
    let mut client = ServiceNameMappingServiceClient::new(channel.clone());
    let answer = client.register_service_app_mapping(request);
    let answer = soon("the call ends", answer).await?;
    Ok(answer.into_inner().message)
}

fn with_metadata(name: &'static str, value: &str) -> Request<ServiceMappingRequest> {
    let mut request = Request::new(ServiceMappingRequest::default());
    request.metadata_mut().insert(name, value.parse().expect("a value"));
    request
}

async fn spread(channel: &GovernedChannel, calls: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..calls {
        *counts.entry(call(channel).await.expect("answered")).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn weights_share_the_calls_and_rules_change_them() {
    let (a, b) = (Server::start().await, Server::start().await);
    let fleet = Fleet::new(&[]).await;
    let endpoints = [a.endpoint(), b.endpoint().with("weight", "300")];
    let channel = fleet.calls_to(endpoints).channel();
    let counts = spread(&channel, 400).await;
    assert!(counts[&a.name()].abs_diff(100) <= 2, "{counts:?}");

    let weight = json!([{
        "side": "provider", "match": { "address": { "wildcard": a.name() } },
        "parameters": { "weight": "900" },
    }]);
    fleet.rule("config", &dynamic_config(weight)).await;
    let counts = spread(&channel, 400).await;
    assert!(counts[&a.name()].abs_diff(300) <= 2, "{counts:?}");
}

#[tokio::test]
async fn rules_see_method_and_metadata() {
    let (old, new) = (Server::start().await, Server::start().await);
    let gray =
        route("gray", "attachments[x-lane]=gray & method=registerServiceAppMapping => version=2");
    let rest = route("rest", "attachments[x-lane]!=gray => version=1");
    let fleet = Fleet::new(&[("gray", gray), ("rest", rest)]).await;
    let version = |server: &Server, version| server.endpoint().with("version", version);
    let channel = fleet.calls_to([version(&old, "1"), version(&new, "2")]).channel();
    for _ in 0..4 {
        let answer = call_with(&channel, with_metadata("x-lane", "gray")).await;
        assert_eq!(answer.expect("answered"), new.name());
        // What the application says goes before what the metadata says.
        let mut request = with_metadata("x-lane", "gray");
        request.extensions_mut().insert(Attributes::new().with("x-lane", "blue"));
        assert_eq!(call_with(&channel, request).await.expect("answered"), old.name());
    }

    // Nothing is left: the message says by which rule.
    fleet.rule("rest", &route("nobody", "=> false")).await;
    let error = call(&channel).await.expect_err("nowhere to go");
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains("ConditionRoute nobody/root leaves 0"), "{error}");
    assert!(error.message().contains(SERVICE), "{error}");
}

#[tokio::test]
async fn the_less_loaded_of_two_is_called() {
    let (slow, fast) = (Server::start().await, Server::start().await);
    let fleet = Fleet::new(&[]).await;
    let channel = fleet.calls(&[&slow, &fast]).balance(Balance::LeastRequest).channel();
    slow.does.send_replace(Does::Hold);
    let mut held = JoinSet::new();
    while slow.calls() == 0 {
        let channel = channel.clone();
        held.spawn(async move { call(&channel).await });
        tokio::task::yield_now().await;
        while held.len() > 1 {
            held.join_next().await;
        }
    }
    let before = fast.calls();
    assert_eq!(spread(&channel, 50).await, [(fast.name(), 50)].into());
    assert_eq!((slow.calls(), fast.calls()), (1, before + 50));
    slow.does.send_replace(Does::Answer);
    while let Some(ended) = held.join_next().await {
        ended.expect("no panic").expect("answered");
    }
    assert_eq!(spread(&channel, 100).await.len(), 2, "both again");
}

#[tokio::test]
async fn a_key_stays_with_its_server() {
    let servers = [Server::start().await, Server::start().await, Server::start().await];
    let fleet = Fleet::new(&[]).await;
    let channel = fleet
        .calls(&[&servers[0], &servers[1], &servers[2]])
        .balance(Balance::Hash("x-user".into()))
        .channel();
    let owner = async |key: u32| {
        let request = with_metadata("x-user", &format!("user-{key}"));
        call_with(&channel, request).await.expect("answered")
    };
    let mut before = Vec::new();
    for key in 0..60 {
        before.push(owner(key).await);
        assert_eq!(owner(key).await, before[key as usize]);
    }
    for server in &servers {
        assert!(before.contains(&server.name()), "each has some of 60 keys");
    }
    let fewer = EndpointSet::new([servers[2].endpoint(), servers[0].endpoint()]).expect("a set");
    channel.governor().set_endpoints(fewer);
    for key in 0..60 {
        let now = owner(key).await;
        let was = &before[key as usize];
        assert!(now == *was || *was == servers[1].name(), "{key} moved from {was} to {now}");
    }
}

#[tokio::test]
async fn what_failed_is_tried_elsewhere_as_often_as_rules_say() {
    let (bad, good) = (Server::start().await, Server::start().await);
    bad.does.send_replace(Does::Fail(Code::Unavailable));
    let fleet = Fleet::new(&[]).await;
    let channel = fleet.calls(&[&bad, &good]).channel();
    assert_eq!(spread(&channel, 10).await, [(good.name(), 10)].into());
    assert_eq!(bad.calls(), 5, "those whose first choice it was");
    while bad.calls() == 5 {
        call(&channel).await.expect("answered");
    }
    let previous = good.last().get("grpc-previous-rpc-attempts").map(|v| v.as_bytes().to_vec());
    assert_eq!(previous.as_deref(), Some(&b"1"[..]));

    // Only what may be repeated.
    bad.does.send_replace(Does::Fail(Code::Internal));
    let answers = [call(&channel).await, call(&channel).await];
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 1);

    bad.does.send_replace(Does::Fail(Code::Unavailable));
    fleet.rule("config", &config(json!({ "retries": "0" }))).await;
    let answers = [call(&channel).await, call(&channel).await];
    let failed: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!((failed[0].code(), failed[0].message()), (Code::Unavailable, "as asked"));
}

#[tokio::test]
async fn what_is_too_large_to_keep_is_not_tried_again() {
    let bad = Server::start().await;
    bad.does.send_replace(Does::Fail(Code::Unavailable));
    let fleet = Fleet::new(&[]).await;
    let channel = fleet.calls(&[&bad]).channel();
    call(&channel).await.expect_err("refused");
    assert_eq!(bad.calls(), 3);
    let large = ServiceMappingRequest { namespace: "x".repeat(100_000), ..Default::default() };
    call_with(&channel, Request::new(large)).await.expect_err("refused");
    assert_eq!(bad.calls(), 4);
}

#[tokio::test]
async fn tries_again_do_not_multiply_an_outage() {
    let (a, b) = (Server::start().await, Server::start().await);
    let fleet = Fleet::new(&[]).await;
    let channel = fleet.calls(&[&a, &b]).channel();
    for server in [&a, &b] {
        server.does.send_replace(Does::Fail(Code::Unavailable));
    }
    for _ in 0..200 {
        call(&channel).await.expect_err("refused");
    }
    let calls = a.calls() + b.calls();
    assert!((240..=250).contains(&calls), "{calls} for 200 calls");
}

#[tokio::test]
async fn an_address_without_a_server_costs_no_call() {
    let server = Server::start().await;
    let gone = Server::start().await;
    let endpoint = gone.endpoint();
    drop(gone);
    let fleet = Fleet::new(&[]).await;
    let channel = fleet.calls_to([endpoint.clone(), server.endpoint()]).channel();
    assert_eq!(spread(&channel, 40).await, [(server.name(), 40)].into());

    let alone = fleet.calls_to([endpoint.clone()]).channel();
    let error = call(&alone).await.expect_err("nobody is there");
    assert_eq!(error.code(), Code::Unavailable);
    assert!(
        error.message().starts_with(&format!("{} cannot be reached", endpoint.address())),
        "{error}"
    );
    let none = fleet.calls_to([]).channel();
    let error = call(&none).await.expect_err("nobody is known");
    assert!(error.message().ends_with("none is known"), "{error}");
}

#[tokio::test]
async fn a_try_ends_in_time_and_the_server_knows() {
    let server = Server::start().await;
    server.does.send_replace(Does::Hold);
    let fleet = Fleet::new(&[("config", config(json!({ "timeout": "50" })))]).await;
    let channel = fleet.calls(&[&server]).channel();
    let error = call(&channel).await.expect_err("too late");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!(error.message().contains(&server.name()), "{error}");
    assert_eq!(server.last().get("grpc-timeout").map(|v| v.as_bytes()), Some(&b"50000u"[..]));
    assert_eq!(server.calls(), 1, "not tried again");

    // The caller's own time is shorter.
    let mut request = Request::new(ServiceMappingRequest::default());
    request.set_timeout(Duration::from_millis(20));
    let error = call_with(&channel, request).await.expect_err("too late");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    server.does.send_replace(Does::Answer);
    assert_eq!(call(&channel).await.expect("answered"), server.name());
}

#[tokio::test]
async fn endpoints_come_and_go_without_losing_a_call() {
    let (old, new) = (Server::start().await, Server::start().await);
    let fleet = Fleet::new(&[]).await;
    let set = |server: &Server| EndpointSet::new([server.endpoint()]).expect("a set");
    let (found, endpoints) = watch::channel(set(&old));
    let channel =
        GovernedChannel::builder(&fleet.client, SERVICE).follow(endpoints).plaintext().channel();
    assert_eq!(call(&channel).await.expect("answered"), old.name());
    old.does.send_replace(Does::Hold);
    let under_way = tokio::spawn({
        let channel = channel.clone();
        async move { call(&channel).await }
    });
    while old.calls() < 2 {
        tokio::task::yield_now().await;
    }
    found.send_replace(set(&new));
    let followed = async {
        while channel.governor().endpoints().endpoints()[0] != new.endpoint() {
            tokio::task::yield_now().await;
        }
    };
    soon("the new endpoints are known", followed).await;
    assert_eq!(call(&channel).await.expect("answered"), new.name());
    assert_eq!(*old.connections().borrow(), 1, "its call is still under way");
    old.does.send_replace(Does::Answer);
    assert_eq!(under_way.await.expect("no panic").expect("answered"), old.name());
    let mut connections = old.connections();
    let closed = tokio::time::timeout(LIMIT, connections.wait_for(|open| *open == 0)).await;
    closed.expect("the connection closes").expect("the server runs");
}

#[tokio::test]
async fn an_endpoint_whose_breaker_opens_gets_no_calls() {
    let (bad, good) = (Server::start().await, Server::start().await);
    bad.does.send_replace(Does::Fail(Code::Internal));
    let breaker = json!({
        "apiVersion": "rulecast.io/v1alpha1", "kind": "CircuitBreaker",
        "metadata": { "name": "breaker", "namespace": "root" },
        "spec": { "scope": "service", "key": SERVICE, "consecutiveErrors": 3, "openFor": "1h" },
    });
    let fleet = Fleet::new(&[("breaker", breaker)]).await;
    let channel = fleet.calls(&[&bad, &good]).channel();
    let mut refused = 0;
    for _ in 0..40 {
        refused += usize::from(call(&channel).await.is_err());
    }
    assert_eq!((refused, bad.calls(), good.calls()), (3, 3, 37));
}

#[tokio::test]
async fn connections_are_mutual_tls_to_whom_is_expected() {
    let fleet = Fleet::new(&[]).await;
    let orders = client(&fleet.site, &fleet.plane, "orders").await;
    let server = Server::secure(&orders).await;
    let set = || EndpointSet::new([server.endpoint()]).expect("a set");
    let secured = || GovernedChannel::builder(&fleet.client, SERVICE).endpoints(set());
    assert_eq!(call(&secured().channel()).await.expect("answered"), server.name());
    let workload =
        |name: &str| Wire::Tls(Expected::Workload { namespace: "shop".into(), name: name.into() });
    let channel = secured().wire(workload("orders")).channel();
    assert_eq!(call(&channel).await.expect("answered"), server.name());
    let error = call(&secured().wire(workload("stock")).channel()).await.expect_err("another");
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains("spiffe://td.test/ns/shop/app/orders"), "{error}");
}

#[tokio::test]
async fn a_connection_that_hangs_is_waited_for_once() {
    let fleet = Fleet::new(&[]).await;
    let orders = client(&fleet.site, &fleet.plane, "orders").await;
    let good = Server::secure(&orders).await;
    // Takes connections and says nothing.
    let hung = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = hung.local_addr().expect("bound").port();
    let set = EndpointSet::new([Endpoint::new("127.0.0.1", port), good.endpoint()]);
    let connect_timeout = Duration::from_millis(200);
    let channel = GovernedChannel::builder(&fleet.client, SERVICE)
        .endpoints(set.expect("a set"))
        .connect_options(ConnectOptions { connect_timeout, ..ConnectOptions::default() })
        .channel();
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let channel = channel.clone();
        calls.spawn(async move { call(&channel).await });
    }
    while let Some(answer) = calls.join_next().await {
        assert_eq!(answer.expect("no panic").expect("answered"), good.name());
    }
    let mut connections = 0;
    while let Poll::Ready(accepted) =
        std::future::poll_fn(|cx| Poll::Ready(hung.poll_accept(cx))).await
    {
        accepted.expect("accepted");
        connections += 1;
    }
    assert!((1..=2).contains(&connections), "{connections} for ten calls");
}

#[tokio::test]
async fn streams_flow_while_they_are_kept() {
    let server = Server::start().await;
    let fleet = Fleet::new(&[]).await;
    let channel = fleet.calls(&[&server]).channel();
    let (requests, list) = tokio::sync::mpsc::channel(1);
    let say = |nonce: &str| {
        let request = ObserveRequest { nonce: nonce.into(), ..ObserveRequest::default() };
        requests.try_send(request).expect("room")
    };
    let mut client = RuleServiceClient::new(channel);
    say("a");
    let stream = client.observe(tokio_stream::wrappers::ReceiverStream::new(list));
    let mut answers = soon("the stream begins", stream).await.expect("taken").into_inner();
    for (now, next) in [("a", "b"), ("b", "c"), ("c", "d")] {
        let answer = soon("an echo", answers.message()).await.expect("no error").expect("one");
        assert_eq!(answer.nonce, now);
        say(next);
    }
}

#[tokio::test]
async fn http_is_governed_alike() {
    let fleet =
        Fleet::new(&[("gray", route("gray", "attachments[x-lane]=gray => version=2"))]).await;
    let orders = client(&fleet.site, &fleet.plane, "orders").await;
    let (a, b) = (Web::start(&orders).await, Web::start(&orders).await);
    let set = EndpointSet::new([
        a.endpoint().with("version", "1"),
        b.endpoint().with("version", "2").with("weight", "300"),
    ]);
    let set = set.expect("a set");
    for plaintext in [true, false] {
        let builder = GovernedChannel::builder(&fleet.client, SERVICE).endpoints(set.clone());
        let builder = if plaintext { builder.plaintext() } else { builder };
        let http = builder.build().http().expect("a client");
        let url = "http://orders/who?are=you";
        let mut counts = BTreeMap::new();
        for _ in 0..40 {
            let request = http.client().get(url).build().expect("a request");
            let answer = soon("the call ends", http.execute(request)).await.expect("answered");
            assert_eq!(answer.url().path(), "/who");
            assert_eq!(answer.url().scheme(), if plaintext { "http" } else { "https" });
            *counts.entry(answer.text().await.expect("a body")).or_default() += 1;
        }
        assert_eq!(counts, [(a.name(), 10), (b.name(), 30)].into());
        let request = http.client().get(url).header("x-lane", "gray").build().expect("a request");
        for _ in 0..4 {
            let request = request.try_clone().expect("no stream");
            let answer = soon("the call ends", http.execute(request)).await.expect("answered");
            assert_eq!(answer.text().await.expect("a body"), b.name());
        }
    }
}

#[tokio::test]
async fn http_is_tried_again_when_that_does_no_harm() {
    let fleet = Fleet::new(&[]).await;
    let orders = client(&fleet.site, &fleet.plane, "orders").await;
    let (bad, good) = (Web::start(&orders).await, Web::start(&orders).await);
    bad.answers(503);
    let set = EndpointSet::new([bad.endpoint(), good.endpoint()]).expect("a set");
    let builder = || GovernedChannel::builder(&fleet.client, SERVICE).plaintext();
    let http = builder().endpoints(set).build().http().expect("a client");
    let get = || http.client().get("http://orders/").build().expect("a request");
    let post = || http.client().post("http://orders/").body("x").build().expect("a request");
    for _ in 0..10 {
        let answer = soon("the call ends", http.execute(get())).await.expect("answered");
        assert_eq!(answer.text().await.expect("a body"), good.name());
    }
    let mut refused = 0;
    for _ in 0..10 {
        let answer = soon("the call ends", http.execute(post())).await.expect("answered");
        refused += usize::from(answer.status().as_u16() == 503);
    }
    assert_eq!(refused, 5);

    // Nobody is there: also what may not be repeated goes elsewhere.
    let nobody = Endpoint::new("127.0.0.1", 1);
    let set = EndpointSet::new([nobody.clone(), good.endpoint()]).expect("a set");
    let http = builder().endpoints(set).build().http().expect("a client");
    for _ in 0..10 {
        let answer = soon("the call ends", http.execute(post())).await.expect("answered");
        assert_eq!(answer.text().await.expect("a body"), good.name());
    }
    let set = EndpointSet::new([nobody]).expect("a set");
    let http = builder().endpoints(set).build().http().expect("a client");
    let error = soon("the call ends", http.execute(get())).await.expect_err("nobody is there");
    assert!(matches!(&error, HttpError::Http(error) if error.is_connect()), "{error:?}");
    let http = builder().build().http().expect("a client");
    let error = soon("the call ends", http.execute(get())).await.expect_err("nobody is known");
    assert!(error.to_string().ends_with("none is known"), "{error}");
}

#[tokio::test]
async fn to_choose_allocates_nothing_once_warm() {
    let rules = [
        ("gray", route("gray", "attachments[x-lane]=gray => version=2")),
        ("config", config(json!({ "timeout": "500" }))),
    ];
    let fleet = Fleet::new(&rules).await;
    let endpoint =
        |i: u16| Endpoint::new("10.0.0.1", 8000 + i).with("version", (1 + i % 2).to_string());
    let headers = [("x-lane", "gray"), ("x-user", "alice")];
    let balances = [Balance::RoundRobin, Balance::LeastRequest, Balance::Hash("x-user".into())];
    for balance in balances {
        let governor = fleet.calls_to((0..16).map(endpoint)).balance(balance).build();
        let choose = || {
            let request = governor.request().method("getOrder").headers(&headers);
            let choice = governor.choose(&request, &mut Tries::new()).expect("one is left");
            assert_eq!(choice.index() % 2, 1);
            assert_eq!(choice.timeout(), Some(Duration::from_millis(500)));
        };
        (0..1000).for_each(|_| choose());
        let counted = allocation_counter::measure(|| (0..1000).for_each(|_| choose()));
        assert_eq!(counted.count_total, 0);
    }
}
