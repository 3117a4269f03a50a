//! What a server pays for each call: the client's own decision, with all that goes on around
//! it, and the middleware.

use std::{
    cell::RefCell,
    convert::Infallible,
    future::{Ready, ready},
    hint::black_box,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use anyhow::Result;
use http::{Request, Response};
use rulecast_api::kind::Kind;
use rulecast_sdk::{
    Client, Inbound,
    layer::{Attributes, AuthorizeLayer},
    tls::Peer,
};
use serde_json::json;
use tower_layer::Layer as _;
use tower_service::Service;

use super::{
    limiting,
    problem::{Problem, Values},
    site::Site,
    threads::scaling,
};
use crate::{
    report::Report,
    rounds::{Rounds, Way, way},
};

/// Nanoseconds of the whole layer.
const LAYER: f64 = 1000.0;
/// Of what a spin loop scales, at least.
const SCALE: f64 = 0.95;

pub(crate) fn run(report: &mut Report, rounds: Rounds) -> Result<()> {
    const KIND: Kind = Kind::AUTHORIZATION_POLICY;
    let problem = Problem::new(100);
    let call = &problem.calls[0];
    let four = json!({"action": "ALLOW", "rules": [{"from": {"principals": [call[0]]}, "when": [
        {"key": "method", "values": [{"type": "equals", "value": call[3]}]},
        {"key": "path", "values": [{"type": "regex", "value": "/shop\\.v1\\.Orders/.*"}]},
        {"key": "request.headers[x-tenant]", "values": [{"type": "equals", "value": call[6]}]},
    ]}]});
    let mut rules = vec![("one", KIND, four)];
    rules.extend(problem.policies().into_iter().map(|spec| ("many", KIND, spec)));
    rules.push(("limited", Kind::RATE_LIMIT, limiting::rule()));
    let site = Site::new(&rules)?;
    let peer = site.peer(&call[1], &call[2])?;
    let address = "10.0.0.7:4711".parse()?;
    let peer = Peer::new(address, Some(Arc::new(peer))).at("10.0.0.8:8443".parse()?);
    let clients = [site.client("one", "orders")?, site.client("many", "orders")?];
    report.part("a server: the client's decision, and the middleware");
    let names = ["1 rule, 4 attributes", "100 rules, 10 attributes"];
    let mut ways = Vec::new();
    for client in &clients {
        ways.push(deciding(client, call)?);
        ways.push(layer(client, request(call, &peer)?)?);
    }
    let times = rounds.measure(&mut ways);
    for (at, name) in names.iter().enumerate() {
        report.row(format!("{name}: Client::authorize"), times.median(at * 2), "ns");
        report.row(format!("{name}: AuthorizeLayer"), times.median(at * 2 + 1), "ns");
        report.at_most(format!("whole layer, {name}, ns"), times.median(at * 2 + 1), LAYER);
    }
    let scale = scaling(rounds.rounds, || {
        black_box(authorize(&clients[1], call));
    });
    report.row("two threads, over what a spin loop scales", scale, "times");
    report.at_least("two threads, over what a spin loop scales", scale, SCALE);
    limiting::run(report, rounds, &site.client("limited", "orders")?)
}

fn authorize(client: &Client, call: &Values) -> bool {
    let [principal, namespace, application, method, path, _, tenant, channel, tier, region] = call;
    let headers = [("x-tenant", tenant.as_str()), ("x-channel", channel)];
    let extensions = [("tier", tier.as_str()), ("region", region)];
    let call = Inbound::new()
        .principal(principal)
        .namespace(namespace)
        .source_application(application)
        .method(method)
        .path(path)
        .port(8443)
        .headers(&headers)
        .extensions(&extensions);
    client.authorize(black_box(&call)).is_allowed()
}

fn deciding<'a>(client: &'a Client, call: &'a Values) -> Result<Way<'a>> {
    anyhow::ensure!(authorize(client, call), "{call:?} must be allowed");
    Ok(way(move || {
        black_box(authorize(client, call));
    }))
}

/// The call as a server has it that takes mutual TLS.
fn request(call: &Values, peer: &Peer) -> Result<Request<()>> {
    let [.., method, path, _, tenant, channel, tier, region] = call;
    let mut request = Request::builder()
        .method(method.as_str())
        .uri(format!("https://orders.test:8443{path}"))
        .header("user-agent", "bench")
        .header("accept", "application/json")
        .header("x-request-id", "8b51c3f0-6d6f-4f5e-9e0a-4e6f2a1d7c11")
        .header("x-tenant", tenant)
        .header("x-channel", channel)
        .body(())?;
    let attributes = Attributes::new().with("tier", tier.clone()).with("region", region.clone());
    request.extensions_mut().insert(peer.clone());
    request.extensions_mut().insert(attributes);
    Ok(request)
}

/// Keeps the request that it gets, so that it can be sent again: making one costs more than the
/// middleware.
struct Keep<'a>(&'a RefCell<Option<Request<()>>>);

impl Service<Request<()>> for Keep<'_> {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        *self.0.borrow_mut() = Some(request);
        ready(Ok(Response::new(())))
    }
}

/// Calls a service that does nothing behind the layer.
fn layer<'a>(client: &'a Client, request: Request<()>) -> Result<Way<'a>> {
    let layer = AuthorizeLayer::http(client);
    let kept = RefCell::new(Some(request));
    let call = move || {
        let mut service = layer.layer(Keep(&kept));
        let request = kept.take()?;
        let mut context = Context::from_waker(Waker::noop());
        match pin!(service.call(request)).poll(&mut context) {
            Poll::Ready(Ok(response)) => Some(response.status()),
            Poll::Pending => None,
        }
    };
    anyhow::ensure!(call() == Some(http::StatusCode::OK), "the layer must let it pass");
    Ok(way(move || {
        black_box(call());
    }))
}
