//! The layers in front of servers of tonic, axum and hyper over real sockets, with rules of a
//! real plane.

#[path = "middleware/lines.rs"]
mod lines;
#[path = "common/site.rs"]
mod site;

use std::{
    convert::Infallible,
    future::{Ready, ready},
    net::SocketAddr,
    task::{Context, Poll},
};

use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{client::legacy, rt::TokioExecutor};
use lines::Lines;
use rulecast_api::kind::KINDS;
use rulecast_identity::{ConnectOptions, Expected, IdentityHandle, connect, tls};
use rulecast_sdk::{
    Client, ClientBuilder,
    layer::{Attributes, AuthorizeLayer, Disclose, Options, RateLimitLayer},
    tls::{Incoming, serve},
};
use serde_json::{Value, json};
use site::{Plane, Site, soon};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Code, service::Routes};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::{Layer, Service, ServiceExt as _, util::MapRequestLayer};

/// The server that is governed.
const ORDERS: (&str, &str) = ("shop", "orders");

fn policy(site: &Site, name: &str, action: &str, rules: Value) {
    let document = json!({
        "apiVersion": "dubbo.apache.org/v1alpha1", "kind": "AuthorizationPolicy",
        "metadata": { "name": name, "namespace": ORDERS.0 },
        "spec": { "action": action, "rules": rules },
    });
    site.write(name, &document);
}

fn when(key: &str, value: &str) -> Value {
    json!({ "key": key, "values": [{ "type": "equals", "value": value }] })
}

fn builder(site: &Site, plane: &Plane) -> ClientBuilder {
    let (namespace, application) = ORDERS;
    Client::builder()
        .plane(plane.address.to_string())
        .ca(site.authority.address.to_string())
        .join_token(site.authority.token(namespace, application))
        .namespace(namespace)
        .application(application)
}

async fn orders(site: &Site, plane: &Plane) -> Client {
    builder(site, plane).connect().await.expect("connected")
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

async fn health(
    address: SocketAddr,
    caller: &IdentityHandle,
) -> HealthClient<tonic::transport::Channel> {
    let expected = Expected::Workload { namespace: ORDERS.0.into(), name: ORDERS.1.into() };
    let tls = tls::client_config(caller, expected).expect("a configuration");
    let options = ConnectOptions::default();
    HealthClient::new(connect(&address.to_string(), tls, &options).await.expect("connected"))
}

/// How a check of a server's health ends.
async fn check(health: &mut HealthClient<tonic::transport::Channel>) -> Result<(), (Code, String)> {
    let answer = health.check(HealthCheckRequest::default()).await;
    answer.map(drop).map_err(|status| (status.code(), status.message().to_owned()))
}

/// Waits until a check ends like that.
async fn checks(
    health: &mut HealthClient<tonic::transport::Channel>,
    right: impl Fn(&Result<(), (Code, String)>) -> bool,
) {
    soon("the rules have changed", async {
        while !right(&check(health).await) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tonic_takes_whom_the_rules_name_and_tells_the_others_why() {
    let site = Site::new().await;
    let plane = site.plane().await;
    let from = |namespace| json!([{ "from": { "namespaces": [namespace] } }]);
    let front = json!([{ "from": { "namespaces": ["web"] }, "when": [when("method", "Check")] }]);
    policy(&site, "front-may-check", "ALLOW", front);
    let client = orders(&site, &plane).await;
    let (_reporter, service) = tonic_health::server::health_reporter();
    // One service, and all routes: both can be wrapped.
    let routes = Routes::new(RateLimitLayer::grpc(&client).layer(service));
    let routes = AuthorizeLayer::grpc(&client).layer(routes);
    let (listener, address) = listen().await;
    let stop = CancellationToken::new();
    let _stops = stop.clone().drop_guard();
    let served = client.clone();
    tokio::spawn(async move { serve(listener, &served, routes, stop, Default::default()).await });

    let (front, guest) = (site.identity("web", "front").await, site.identity("guest", "x").await);
    let mut front = health(address, &front).await;
    let mut guest = health(address, &guest).await;
    let words = "call denied: no ALLOW policy matches it, front-may-check/shop does not";
    let none = (Code::PermissionDenied, words.to_owned());
    checks(&mut front, Result::is_ok).await;
    assert_eq!(check(&mut guest).await, Err(none.clone()));
    let watched = front.watch(HealthCheckRequest::default()).await.map(drop);
    let status = watched.expect_err("only Check is allowed");
    assert_eq!((status.code(), status.message()), (none.0, &*none.1));

    // An edit turns it round, on the same connections.
    policy(&site, "front-may-check", "ALLOW", from("guest"));
    checks(&mut front, |ended| ended.as_ref() == Err(&none)).await;
    assert_eq!(check(&mut guest).await, Ok(()));

    let denied = (Code::PermissionDenied, "call denied: no-guests/shop denies it".to_owned());
    policy(&site, "no-guests", "DENY", from("guest"));
    checks(&mut guest, |ended| ended.as_ref() == Err(&denied)).await;
    plane.end().await;
}

type HttpClient = legacy::Client<legacy::connect::HttpConnector, Full<Bytes>>;

async fn send(http: &HttpClient, request: http::request::Builder) -> (StatusCode, String) {
    let request = request.body(Full::default()).expect("a request");
    let answer = soon("an answer", http.request(request)).await.expect("an answer");
    let status = answer.status();
    let body = answer.into_body().collect().await.expect("whole").to_bytes();
    (status, String::from_utf8(body.into()).expect("text"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axum_is_asked_by_verb_path_and_what_the_application_adds() {
    let site = Site::new().await;
    let plane = site.plane().await;
    let gold = json!([{ "when": [when("method", "GET"), when("extension[tier]", "gold")] }]);
    policy(&site, "gold-may-read", "ALLOW", gold);
    policy(&site, "no-secrets", "DENY", json!([{ "when": [when("path", "/files/secret")] }]));
    let client = orders(&site, &plane).await;
    let tier = MapRequestLayer::new(|mut request: axum::extract::Request| {
        let tier = request.headers().get("x-session").map_or("none", |_| "gold");
        request.extensions_mut().insert(Attributes::new().with("tier", tier));
        request
    });
    let files = || axum::Router::new().route("/files/{name}", get(|| async { "a file" }));
    let open = Options { disclose: Disclose::Everyone, ..Options::default() };
    let router = axum::Router::new()
        .nest("/open", files().layer(AuthorizeLayer::http(&client).options(open)))
        .merge(files().layer(AuthorizeLayer::http(&client)))
        .layer(tier);
    let (listener, address) = listen().await;
    let server = tokio::spawn(async { axum::serve(listener, router).await });

    let http = legacy::Client::builder(TokioExecutor::new()).build_http();
    let with = |verb: &str, path: &str, session: bool| {
        let request = Request::builder().method(verb).uri(format!("http://{address}{path}"));
        if session { request.header("x-session", "1") } else { request }
    };
    let get = |path: &str, session: bool| with("GET", path, session);
    let denied = (StatusCode::FORBIDDEN, "call denied\n".to_owned());
    let taken = (StatusCode::OK, "a file".to_owned());
    assert_eq!(send(&http, get("/files/a?x=1", true)).await, taken);
    assert_eq!(send(&http, get("/files/a", false)).await, denied);
    assert_eq!(send(&http, get("/files/secret?x=1", true)).await, denied);
    // What a method is does not depend on what the caller calls itself.
    let disguised = with("POST", "/files/GET", true).header("content-type", "application/grpc");
    assert_eq!(send(&http, disguised).await, denied);
    // Where everybody may know, nobody is left to wonder.
    let (status, text) = send(&http, get("/open/files/a", false)).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let words = "call denied: no ALLOW policy matches it, gold-may-read/shop does not\n";
    assert_eq!(text, words);
    server.abort();
    plane.end().await;
}

/// So many calls in an hour, of each value of `key`.
fn limit(site: &Site, name: &str, key: &str, requests: u32) {
    let document = json!({
        "apiVersion": "rulecast.io/v1alpha1", "kind": "RateLimit",
        "metadata": { "name": name, "namespace": ORDERS.0 },
        "spec": { "keys": [key], "requests": requests, "per": "1h" },
    });
    site.write(name, &document);
}

/// Whether this is the wait of who has used up one call in an hour just now.
fn is_an_hour(seconds: &str) -> bool {
    seconds.parse().is_ok_and(|seconds: u64| (3500..=3600).contains(&seconds))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tonic_counts_each_caller_and_says_when_to_come_again() {
    let site = Site::new().await;
    let plane = site.plane().await;
    limit(&site, "each-caller", "source.principal", 1);
    let stranger = json!([{ "from": { "namespaces": ["away"] } }]);
    policy(&site, "no-strangers", "DENY", stranger);
    let client = orders(&site, &plane).await;
    let (_reporter, service) = tonic_health::server::health_reporter();
    let service = RateLimitLayer::grpc(&client).layer(service);
    let routes = Routes::new(AuthorizeLayer::grpc(&client).layer(service));
    let (listener, address) = listen().await;
    let stop = CancellationToken::new();
    let _stops = stop.clone().drop_guard();
    tokio::spawn(async move { serve(listener, &client, routes, stop, Default::default()).await });

    for application in ["front", "back"] {
        let mut caller = health(address, &site.identity("web", application).await).await;
        assert_eq!(check(&mut caller).await, Ok(()));
        let status = caller.check(HealthCheckRequest::default()).await.expect_err("once an hour");
        assert_eq!(status.code(), Code::ResourceExhausted);
        let words = status.message();
        assert!(words.starts_with("too many calls: each-caller/shop limits it"), "{words}");
        let metadata = status.metadata().clone().into_headers();
        let wait = |name: &str| metadata[name].to_str().expect("ASCII").to_owned();
        assert!(is_an_hour(&wait("retry-after")), "{status:?}");
        let milliseconds = wait("grpc-retry-pushback-ms");
        assert!(is_an_hour(&milliseconds[..milliseconds.len() - 3]), "{status:?}");
    }
    let mut stranger = health(address, &site.identity("away", "x").await).await;
    for _ in 0..2 {
        let ended = check(&mut stranger).await.expect_err("denied, which takes nothing");
        assert_eq!(ended.0, Code::PermissionDenied);
    }
    plane.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axum_counts_by_header_and_answers_429() {
    let site = Site::new().await;
    let plane = site.plane().await;
    limit(&site, "each-user", "request.headers[x-user]", 1);
    let client = orders(&site, &plane).await;
    let router = axum::Router::new().route("/", get(|| async { "taken" }));
    let router = router.layer(RateLimitLayer::http(&client)).layer(AuthorizeLayer::http(&client));
    let (listener, address) = listen().await;
    let stop = CancellationToken::new();
    let _stops = stop.clone().drop_guard();
    tokio::spawn(async move { serve(listener, &client, router, stop, Default::default()).await });

    let http: HttpClient = legacy::Client::builder(TokioExecutor::new()).build_http();
    for user in ["alice", "bob"] {
        let get = || Request::get(format!("http://{address}/")).header("x-user", user);
        assert_eq!(send(&http, get()).await, (StatusCode::OK, "taken".to_owned()));
        let request = get().body(Full::default()).expect("a request");
        let answer = soon("an answer", http.request(request)).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        let wait = answer.headers()["retry-after"].to_str().expect("ASCII").to_owned();
        assert!(is_an_hour(&wait), "{wait}");
        let body = answer.into_body().collect().await.expect("whole").to_bytes();
        assert_eq!(body, "too many calls\n", "who proves nobody is told no rule");
    }
    plane.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_of_its_own_is_asked_by_address_and_port() {
    let site = Site::new().await;
    let plane = site.plane().await;
    let (listener, address) = listen().await;
    let port = address.port().to_string();
    let local = json!([{ "from": { "ipBlocks": ["127.0.0.0/8"] },
                         "when": [when("path", "/admin"), when("destination.port", &port)] }]);
    policy(&site, "no-local-admin", "DENY", local);
    let client = orders(&site, &plane).await;
    let own = tower::service_fn(|request: Request<Incoming>| async move {
        let path = request.uri().path().to_owned();
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(path))))
    });
    let service = AuthorizeLayer::http(&client).layer(own);
    let stop = CancellationToken::new();
    let _stops = stop.clone().drop_guard();
    tokio::spawn(async move { serve(listener, &client, service, stop, Default::default()).await });

    let http = legacy::Client::builder(TokioExecutor::new()).build_http();
    let get = |path: &str| Request::get(format!("http://{address}{path}"));
    assert_eq!(send(&http, get("/")).await, (StatusCode::OK, "/".to_owned()));
    let denied = (StatusCode::FORBIDDEN, "call denied\n".to_owned());
    assert_eq!(send(&http, get("/admin")).await, denied);
    plane.end().await;
}

/// How a refused or taken call of a service in this program ends.
async fn call<L>(layer: &L, request: http::request::Builder) -> StatusCode
where
    L: Layer<Yes>,
    L::Service: Service<Request<()>, Response = Answer, Error = Infallible>,
{
    let request = request.body(()).expect("a request");
    let Ok(answer) = layer.layer(Yes).oneshot(request).await;
    answer.status()
}

type Answer = Response<rulecast_sdk::layer::GuardedBody<Full<Bytes>>>;

/// Takes every call. Neither it nor what it is asked can be copied.
struct Yes;

impl Service<Request<()>> for Yes {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Full::default())))
    }
}

#[tokio::test]
async fn the_log_tells_each_rule_that_denies_and_is_not_flooded() {
    let site = Site::new().await;
    let plane = site.plane().await;
    policy(&site, "no-secrets", "DENY", json!([{ "when": [when("path", "/secret")] }]));
    policy(&site, "no-posts", "DENY", json!([{ "when": [when("method", "POST")] }]));
    policy(&site, "posts", "AUDIT", json!([{ "when": [when("method", "POST")] }]));
    let client = builder(&site, &plane).trace_share(0.0).connect().await.expect("connected");
    let layer = AuthorizeLayer::http(&client);
    let lines = Lines::new();
    for _ in 0..100 {
        assert_eq!(call(&layer, Request::get("/secret")).await, StatusCode::FORBIDDEN);
    }
    let written = lines.take("rulecast");
    assert_eq!(written.len(), 10, "{written:?}");
    let fields = &written[0]["fields"];
    assert_eq!((&written[0]["level"], &fields["message"]), (&json!("WARN"), &json!("call denied")));
    assert_eq!((&fields["rule"], &fields["path"]), (&json!("no-secrets/shop"), &json!("/secret")));
    assert_eq!(fields["principal"], "nobody proven");
    // Another rule has lines of its own; and records are no refusals.
    assert_eq!(call(&layer, Request::post("/")).await, StatusCode::FORBIDDEN);
    let [audited, denied] = &lines.take("rulecast")[..] else { panic!("two lines") };
    assert_eq!(
        (&audited["target"], &audited["fields"]["verdict"]),
        (&json!("rulecast::audit"), &json!("denied"))
    );
    assert_eq!(audited["fields"]["rule"], "posts/shop");
    assert_eq!(denied["fields"]["rule"], "no-posts/shop");
    assert_eq!(call(&layer, Request::get("/")).await, StatusCode::OK);
    assert!(lines.take("rulecast").is_empty());
    plane.end().await;
}

#[tokio::test]
async fn calls_are_traced_by_share_and_where_the_caller_traces() {
    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let site = Site::new().await;
    let plane = site.plane().await;
    policy(&site, "no-secrets", "DENY", json!([{ "when": [when("path", "/secret")] }]));
    let all = builder(&site, &plane).trace_share(1.0).connect().await.expect("connected");
    let none = builder(&site, &plane).trace_share(0.0).connect().await.expect("connected");
    let lines = Lines::new();
    let closed = |lines: &Lines| {
        let mut closed = lines.take("rulecast");
        closed.retain(|line| line["fields"]["message"] == "close");
        closed.into_iter().map(|line| line["span"].clone()).collect::<Vec<_>>()
    };
    let layers = (AuthorizeLayer::http(&all), RateLimitLayer::http(&all));
    assert_eq!(call(&layers.0, Request::get("/secret")).await, StatusCode::FORBIDDEN);
    let spans = closed(&lines);
    let denied = json!({ "name": "rulecast.authorize", "path": "/secret", "verdict": "denied",
                         "rule": "no-secrets/shop" });
    assert_eq!(spans, [denied]);
    assert_eq!(call(&layers.1, Request::get("/")).await, StatusCode::OK);
    let admitted = json!({ "name": "rulecast.limit", "path": "/", "verdict": "admitted" });
    assert_eq!(closed(&lines), [admitted]);

    let layer = AuthorizeLayer::http(&none);
    assert_eq!(call(&layer, Request::get("/")).await, StatusCode::OK);
    assert!(closed(&lines).is_empty());
    let traced = Request::get("/").header("traceparent", SAMPLED);
    assert_eq!(call(&layer, traced).await, StatusCode::OK);
    let allowed = json!({ "name": "rulecast.authorize", "path": "/", "verdict": "allowed" });
    assert_eq!(closed(&lines), [allowed]);
    plane.end().await;
}
