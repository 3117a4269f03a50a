//! Connections between services: real certificates of a real authority, modes by
//! AuthenticationPolicies of a real plane, HTTP over loopback.

#[path = "common/site.rs"]
mod site;
#[path = "tls/world.rs"]
mod world;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use rulecast_api::{
    Code,
    kind::KINDS,
    proto::identity::v1::{
        GetTrustBundleRequest, IssueCertificateRequest, IssueCertificateResponse, TrustBundle,
        identity_service_client::IdentityServiceClient,
        identity_service_server::{IdentityService, IdentityServiceServer},
    },
};
use rulecast_identity::Svid;
use rulecast_sdk::{
    Client, TlsMode,
    tls::{self, Acceptor, Expected, Limits, Peer, Refused, ServeOptions, Wire},
};
use site::{Authority, HOUR, soon};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tonic::{service::Routes, transport::Endpoint};
use tower_service::Service as _;
use world::{Caller, Refusal, Server, World, policy, until};

fn orders() -> Expected {
    Expected::Workload { namespace: "shop".into(), name: "orders".into() }
}

const WEB: &str = "spiffe://td.test/ns/shop/app/web";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_mode_takes_what_it_says() {
    let world = World::new().await;
    let orders_client = world.client("orders").await;
    let web = world.client("web").await;
    let server = Server::start(&orders_client, ServeOptions::default()).await;
    let plain = Caller::new(&web, Wire::Plaintext);
    let mutual = Caller::new(&web, Wire::Tls(orders()));
    // Without a policy both are taken.
    for (action, takes_plain, takes_tls) in [
        (None, true, true),
        (Some("STRICT"), false, true),
        (Some("DISABLED"), true, false),
        (Some("PERMISSIVE"), true, true),
        (Some("NONE"), true, true),
    ] {
        if let Some(action) = action {
            let wanted = match action {
                "STRICT" => TlsMode::Strict,
                "DISABLED" => TlsMode::Disabled,
                "PERMISSIVE" => TlsMode::Permissive,
                _ => TlsMode::Undecided,
            };
            world.site.write("mode", &policy(action, &[]));
            server.mode(wanted).await;
        }
        for http2 in [false, true] {
            let said = plain.once(&server, http2).await;
            assert_eq!(said.is_ok(), takes_plain, "{action:?} {said:?}");
            if let Ok(said) = said {
                assert_eq!(said, "nobody");
            }
            let said = mutual.once(&server, http2).await;
            assert_eq!(said.is_ok(), takes_tls, "{action:?} {said:?}");
            if let Ok(said) = said {
                assert_eq!(said, WEB);
            }
        }
    }
    let counts = orders_client.connections();
    assert_eq!((counts.plaintext, counts.plaintext_refused), (8, 2), "{counts:?}");
    assert_eq!((counts.tls, counts.tls_refused), (8, 2), "{counts:?}");
    assert_eq!(counts.handshakes_failed, 0, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_may_have_its_own_mode_and_the_server_a_default() {
    let world = World::new().await;
    let orders_client = world.client("orders").await;
    let web = world.client("web").await;
    let strict = || ServeOptions { undecided: TlsMode::Strict, ..ServeOptions::default() };
    let (one, two) = (
        Server::start(&orders_client, strict()).await,
        Server::start(&orders_client, strict()).await,
    );
    let plain = Caller::new(&web, Wire::Plaintext);
    let mutual = Caller::new(&web, Wire::Tls(orders()));
    for server in [&one, &two] {
        assert!(plain.once(server, true).await.is_err());
        assert_eq!(mutual.once(server, true).await.as_deref(), Ok(WEB));
    }
    let ports = [(one.address.port(), "PERMISSIVE")];
    world.site.write("mode", &policy("DISABLED", &ports));
    one.mode(TlsMode::Permissive).await;
    two.mode(TlsMode::Disabled).await;
    assert_eq!(plain.once(&one, true).await.as_deref(), Ok("nobody"));
    assert_eq!(mutual.once(&one, true).await.as_deref(), Ok(WEB));
    assert_eq!(plain.once(&two, true).await.as_deref(), Ok("nobody"));
    assert!(mutual.once(&two, true).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_drains_what_would_be_taken_no_more() {
    let world = World::new().await;
    let orders_client = world.client("orders").await;
    let web = world.client("web").await;
    let server = Server::start(&orders_client, ServeOptions::default()).await;
    let plain = Caller::new(&web, Wire::Plaintext);
    let mutual = Caller::new(&web, Wire::Tls(orders()));
    let (plain_channel, mutual_channel) =
        (plain.kept(&server, true).await, mutual.kept(&server, true).await);
    let old_plain = plain.kept(&server, false).await;
    // A call that is open when the rule comes ends well.
    let open = tokio::spawn(plain_channel.clone().get("/held"));
    server.held(1).await;
    world.site.write("mode", &policy("STRICT", &[]));
    server.mode(TlsMode::Strict).await;
    assert!(plain.once(&server, true).await.is_err(), "new ones at once");
    until("both are told to go", || orders_client.connections().drained == 2).await;
    server.release();
    let held = soon("the open call ends", open).await.expect("it does not panic");
    assert_eq!(held.as_deref(), Ok("nobody"));
    soon("idle ones end", old_plain.closed()).await;
    soon("and the one with the call", plain_channel.closed()).await;
    // The other kind was not touched.
    assert_eq!(mutual_channel.get("/").await.as_deref(), Ok(WEB));
    assert_eq!(orders_client.connections().drained, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_end_in_the_drain_time_is_cut() {
    let world = World::new().await;
    let orders_client = world.client("orders").await;
    let web = world.client("web").await;
    let limits = Limits { drain: Duration::from_millis(100), ..Limits::default() };
    let server = Server::start(&orders_client, ServeOptions { limits, ..Default::default() }).await;
    let channel = Caller::new(&web, Wire::Plaintext).kept(&server, true).await;
    let open = tokio::spawn(channel.get("/held"));
    server.held(1).await;
    world.site.write("mode", &policy("STRICT", &[]));
    let cut = soon("it is cut", open).await.expect("it does not panic");
    assert!(cut.is_err(), "{cut:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_valid_certificates_of_the_domain_come_in() {
    let world = World::new().await;
    let orders_client = world.client("orders").await;
    let web = world.client("web").await;
    let server = Server::start(&orders_client, ServeOptions::default()).await;
    let code = |refused: Result<String, Refusal>| refused.expect_err("refused").code();

    let other = Expected::Workload { namespace: "shop".into(), name: "stock".into() };
    let mistaken = Caller::new(&web, Wire::Tls(other)).once(&server, true).await;
    assert_eq!(code(mistaken), Some(Code::PeerIdentity));
    let any = Caller::new(&web, Wire::Tls(Expected::Any));
    assert_eq!(any.once(&server, true).await.as_deref(), Ok(WEB));

    let showing =
        |svid: Svid| Caller::showing(svid, orders_client.identity().expect("one").bundle());
    let second = Authority::start("other.test").await;
    let stranger = second.join("shop", "web", HOUR).await;
    assert_eq!(code(showing(stranger).once(&server, true).await), Some(Code::PeerTrustDomain));
    let twin = Authority::start("td.test").await;
    let twin = twin.join("shop", "web", HOUR).await;
    assert_eq!(code(showing(twin).once(&server, true).await), Some(Code::PeerUntrusted));
    let brief = world.site.authority.join("shop", "web", Duration::from_secs(1)).await;
    let ended = brief.not_after + Duration::from_secs(1);
    until("it ends", || std::time::SystemTime::now() > ended).await;
    assert_eq!(code(showing(brief).once(&server, true).await), Some(Code::PeerExpired));
    until("all are counted", || orders_client.connections().handshakes_failed == 4).await;

    // And the other way round: the server is of another domain.
    let there = world::without_plane(&second, "orders").await;
    let foreign = Server::start(&there, ServeOptions::default()).await;
    let refused = Caller::new(&web, Wire::Tls(Expected::Any)).once(&foreign, true).await;
    assert_eq!(code(refused), Some(Code::PeerTrustDomain));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_the_first_certificate_handshakes_fail_and_say_so() {
    let world = World::new().await;
    let nobody = world.waiting().await;
    let orders_client = world.client("orders").await;
    let server = Server::start(&orders_client, ServeOptions::default()).await;
    let refused = Caller::new(&nobody, Wire::Tls(Expected::Any)).once(&server, true).await;
    let refused = refused.expect_err("there is none");
    assert_eq!(refused.code(), Some(Code::CredentialMissing));
    assert!(refused.to_string().contains("no certificate yet"), "{refused}");

    // A server of which no rules are known takes mutual TLS only, and cannot do it yet.
    let empty = Server::start(&nobody, ServeOptions::default()).await;
    let web = world.client("web").await;
    assert!(Caller::new(&web, Wire::Plaintext).once(&empty, true).await.is_err());
    assert!(Caller::new(&web, Wire::Tls(Expected::Any)).once(&empty, true).await.is_err());
    let counts = nobody.connections();
    assert_eq!((counts.plaintext_refused, counts.handshakes_failed), (1, 1), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_port_for_both_bears_slow_silent_and_short_callers() {
    let world = World::new().await;
    let orders_client = world.client("orders").await;
    let web = world.client("web").await;
    let limits =
        Limits { handshake_timeout: Duration::from_secs(2), handshakes: 1, ..Limits::default() };
    let server = Server::start(&orders_client, ServeOptions { limits, ..Default::default() }).await;
    let mutual = Caller::new(&web, Wire::Tls(orders()));
    let connect = || async { TcpStream::connect(server.address).await.expect("connects") };

    // One says nothing, and holds up nobody.
    let silent = connect().await;
    let mut late = connect().await;
    assert_eq!(mutual.once(&server, true).await.as_deref(), Ok(WEB));
    // One that came before others were served sends byte by byte.
    for byte in b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n" {
        late.write_all(&[*byte]).await.expect("written");
        tokio::task::yield_now().await;
    }
    let mut answer = String::new();
    soon("it is answered", late.read_to_string(&mut answer)).await.expect("read");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("nobody"), "{answer}");
    // Two begin, by TLS and by HTTP/2, and do not go on. One ends without a byte.
    let (mut shaking, mut preface) = (connect().await, connect().await);
    shaking.write_all(&[0x16, 3, 1]).await.expect("written");
    preface.write_all(b"PRI * HTTP/2").await.expect("written");
    drop(connect().await);
    for mut stalled in [silent, shaking, preface] {
        let read = soon("it is closed", stalled.read(&mut [0; 1])).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    // The only place for handshakes is free again.
    assert_eq!(mutual.once(&server, true).await.as_deref(), Ok(WEB));
    until("all are counted", || orders_client.connections().silent == 3).await;
    let counts = orders_client.connections();
    assert_eq!((counts.tls, counts.plaintext, counts.handshakes_failed), (2, 2, 0), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tonic_calls_by_the_connector_and_sees_its_caller() {
    let world = World::new().await;
    let (orders_client, web) = (world.client("orders").await, world.client("web").await);
    let routes = Routes::new(IdentityServiceServer::new(Mirror));
    let server = Server::of(&orders_client, routes, ServeOptions::default()).await;
    for (wire, whose) in [(Wire::Plaintext, "nobody"), (Wire::Tls(orders()), WEB)] {
        let connector = tls::connector(&web, wire).expect("a connector");
        let endpoint = Endpoint::from_shared(format!("http://{}", server.address));
        let channel = endpoint.expect("an address").connect_with_connector_lazy(connector);
        let mut mirror = IdentityServiceClient::new(channel);
        let mirrored = mirror.get_trust_bundle(GetTrustBundleRequest {}).await.expect("answered");
        assert_eq!(mirrored.into_inner().trust_domain, whose);
    }
}

/// Answers with its caller in the place of the trust domain.
struct Mirror;

#[tonic::async_trait]
impl IdentityService for Mirror {
    async fn issue_certificate(
        &self,
        _: tonic::Request<IssueCertificateRequest>,
    ) -> Result<tonic::Response<IssueCertificateResponse>, tonic::Status> {
        Err(tonic::Status::unimplemented("not here"))
    }

    async fn get_trust_bundle(
        &self,
        request: tonic::Request<GetTrustBundleRequest>,
    ) -> Result<tonic::Response<TrustBundle>, tonic::Status> {
        let peer = request.extensions().get::<Peer>().expect("told");
        let trust_domain = peer.principal().unwrap_or("nobody").to_owned();
        Ok(tonic::Response::new(TrustBundle { trust_domain, ..TrustBundle::default() }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_of_ones_own_has_the_same_acceptor() {
    let world = World::new().await;
    let (orders_client, web) = (world.client("orders").await, world.client("web").await);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let acceptor = Acceptor::new(&orders_client, address.port(), &ServeOptions::default())
        .expect("an acceptor");
    let (accepting, (taken, mut peers)) =
        (acceptor.clone(), tokio::sync::mpsc::unbounded_channel());
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.expect("accepts");
            let accepted = accepting.accept(tcp).await.map(|(mut stream, peer)| {
                tokio::spawn(async move {
                    stream.write_all(b"hello").await?;
                    stream.shutdown().await
                });
                peer
            });
            taken.send(accepted).expect("the test listens");
        }
    });
    let address: http::Uri = format!("http://{address}").parse().expect("an address");
    let mut mutual = tls::connector(&web, Wire::Tls(orders())).expect("a connector");
    let stream = mutual.call(address.clone()).await.expect("connects");
    let peer = peers.recv().await.expect("one").expect("taken");
    assert_eq!(peer.principal(), Some(WEB));
    assert_eq!((peer.namespace(), peer.application()), (Some("shop"), Some("web")));
    assert_eq!(peer.local().map(|local| local.port()), address.port_u16());
    let mut said = String::new();
    let mut stream = stream.into_inner();
    soon("it speaks", stream.read_to_string(&mut said)).await.expect("to its end");
    assert_eq!(said, "hello");

    world.site.write("mode", &policy("STRICT", &[]));
    soon("plaintext is taken no more", acceptor.closes(false)).await;
    let open = tokio::time::timeout(Duration::ZERO, acceptor.closes(true)).await;
    assert!(open.is_err(), "TLS still is");
    let mut plain = tls::connector(&web, Wire::Plaintext).expect("a connector");
    let mut stream = plain.call(address).await.expect("connects").into_inner();
    stream.write_all(b"GET").await.expect("written");
    let refused = peers.recv().await.expect("one");
    assert!(matches!(refused, Err(Refused::Plaintext)), "{refused:?}");
}

/// 300 requests per second for some seconds, each tenth over a connection of its own, while both
/// sides get new certificates every five seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotation_under_load_loses_no_request() {
    const RUN: Duration = Duration::from_secs(15);
    const PAUSE: Duration = Duration::from_micros(1_000_000 / 300);
    let world = World::with_life(Duration::from_secs(10)).await;
    let orders_client = world.client("orders").await;
    let web = world.client("web").await;
    let server = Server::start(&orders_client, ServeOptions::default()).await;
    let mutual = Caller::new(&web, Wire::Tls(orders()));
    let kept = mutual.kept(&server, true).await;
    let renewals = AtomicU64::new(0);
    let watch = |client: &Client| {
        let mut changes = client.identity().expect("one").subscribe();
        let renewals = &renewals;
        async move {
            while changes.changed().await.is_ok() {
                renewals.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let load = async {
        let (begin, mut ticks) = (Instant::now(), tokio::time::interval(PAUSE));
        let mut calls = tokio::task::JoinSet::new();
        let mut sent = 0u64;
        while begin.elapsed() < RUN {
            ticks.tick().await;
            let (kept, mutual, address) = (kept.clone(), mutual.clone(), server.address);
            calls.spawn(async move {
                match sent.is_multiple_of(10) {
                    true => mutual.call(address, true).await,
                    false => kept.get("/").await,
                }
            });
            sent += 1;
        }
        let mut lost = Vec::new();
        while let Some(call) = calls.join_next().await {
            match call.expect("it does not panic") {
                Ok(said) => assert_eq!(said, WEB),
                Err(refusal) => lost.push(refusal.to_string()),
            }
        }
        (sent, lost)
    };
    let (sent, lost) = tokio::select! {
        done = load => done,
        () = async { tokio::join!(watch(&orders_client), watch(&web)); } => unreachable!("both live"),
    };
    assert_eq!(lost, Vec::<String>::new(), "of {sent}");
    assert!(sent >= 300 * RUN.as_secs() * 9 / 10, "{sent} is no load");
    assert!(renewals.load(Ordering::Relaxed) >= 4, "{renewals:?}");
}
