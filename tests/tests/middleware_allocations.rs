//! A call that is taken costs the layers no memory: counted by an allocator of this program
//! alone.

#[path = "common/site.rs"]
mod site;

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use http::{Request, Response};
use rulecast_api::{Kind, kind::KINDS};
use rulecast_sdk::{
    Client,
    layer::{Attributes, AuthorizeLayer, RateLimitLayer},
    tls::{Peer, PeerIdentity},
};
use serde_json::json;
use site::Site;
use tower::{Layer as _, Service, service_fn};

/// Allocations of 100 calls that are taken, after so many that the latency of some was measured:
/// a histogram is made when it is first needed.
fn allocations<S, B>(service: &mut S, request: impl Fn() -> Request<()>) -> u64
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
{
    let mut calls = |requests: Vec<Request<()>>| {
        for request in requests {
            let mut answer = pin!(service.call(request));
            let mut context = Context::from_waker(Waker::noop());
            let Poll::Ready(Ok(answer)) = answer.as_mut().poll(&mut context) else {
                panic!("the service answers at once");
            };
            assert!(answer.status().is_success());
        }
    };
    let requests = |n| (0..n).map(|_| request()).collect::<Vec<_>>();
    calls(requests(5000));
    let requests = requests(100);
    allocation_counter::measure(|| calls(requests)).count_total
}

fn yes(_: Request<()>) -> Ready<Result<Response<()>, Infallible>> {
    ready(Ok(Response::new(())))
}

#[tokio::test]
async fn calls_that_are_taken_allocate_nothing() {
    let site = Site::new().await;
    let plane = site.plane().await;
    let when = |key: &str, value: &str| json!({ "key": key, "values": [{ "type": "equals", "value": value }] });
    let front = json!({
        "from": { "principals": ["spiffe://td.test/ns/web/app/front"],
                  "ipBlocks": ["10.0.0.0/8"] },
        "when": [when("method", "GetOrder"), when("request.headers[x-user]", "alice"),
                 when("extension[tier]", "gold"), when("destination.port", "8080")],
    });
    let rules = json!({ "action": "ALLOW", "rules": [front] });
    site.write("front", &manifest(Kind::AUTHORIZATION_POLICY, "front", rules));
    let guests = json!({ "action": "DENY", "rules": [{ "from": { "namespaces": ["guest"] } }] });
    site.write("guests", &manifest(Kind::AUTHORIZATION_POLICY, "guests", guests));
    let many = json!({ "keys": ["source.principal"], "requests": 1_000_000 });
    site.write("many", &manifest(Kind::RATE_LIMIT, "many", many));
    let client = Client::builder()
        .plane(plane.address.to_string())
        .ca(site.authority.address.to_string())
        .join_token(site.authority.token("shop", "orders"))
        .namespace("shop")
        .application("orders")
        .connect()
        .await
        .expect("connected");

    let identity = site.authority.join("web", "front", site::HOUR).await;
    let leaf = identity.certified_key().cert.first().expect("a leaf").clone();
    let identity = Arc::new(PeerIdentity::from_der(&leaf).expect("ours"));
    let address = |text: &str| text.parse().expect("an address");
    let peer = Peer::new(address("10.0.0.7:4711"), Some(identity)).at(address("10.0.0.8:8080"));
    let request = || {
        let request = Request::post("/shop.v1.Orders/GetOrder")
            .header("x-user", "alice")
            .header("x-request-id", "7")
            .extension(peer.clone())
            .extension(Attributes::new().with("tier", "gold"));
        request.body(()).expect("a request")
    };
    let layer = AuthorizeLayer::grpc(&client);
    let nobody = Request::post("/shop.v1.Orders/GetOrder").body(()).expect("a request");
    let Ok(refused) = layer.layer(service_fn(yes)).call(nobody).await;
    assert_eq!(refused.headers()["grpc-status"], "7", "the rules are in force");
    let mut authorized = layer.layer(service_fn(yes));
    assert_eq!(allocations(&mut authorized, request), 0);
    let mut limited = layer.layer(RateLimitLayer::grpc(&client).layer(service_fn(yes)));
    assert_eq!(allocations(&mut limited, request), 0);
    plane.end().await;
}

fn manifest(kind: Kind, name: &str, spec: serde_json::Value) -> serde_json::Value {
    json!({
        "apiVersion": kind.api_version, "kind": kind.name,
        "metadata": { "name": name, "namespace": "shop" }, "spec": spec,
    })
}
