//! Who may speak with whom, over real connections.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use crate::support::{Authority, HOUR, Server, Service, fingerprint_of};
use rulecast_api::{
    Code,
    proto::identity::v1::{
        GetTrustBundleRequest, IssueCertificateRequest,
        identity_service_client::IdentityServiceClient,
    },
};
use rulecast_identity::{
    ClientAuth, ConnectOptions, Expected, IdentityError, IdentityHandle, ServeOptions, channel,
    connect, tls,
};
use tokio::time::timeout;

type Refused = Arc<Mutex<Vec<Code>>>;

async fn dds(authority: &Arc<Authority>, identity: &IdentityHandle) -> (Server, Refused) {
    let refused = Refused::default();
    let seen = refused.clone();
    let hook = move |error: &IdentityError| seen.lock().expect("lock").push(error.code());
    let config = tls::server_config(identity, ClientAuth::Required, Some(Arc::new(hook)));
    let service = Service::new(authority, "shop");
    let server = Server::start(config.expect("config"), service, ServeOptions::default()).await;
    (server, refused)
}

async fn call(server: &Server, client: &IdentityHandle, expected: Expected) -> Result<(), Code> {
    let config = tls::client_config(client, expected).expect("config");
    let channel =
        connect(&server.address, config, &ConnectOptions::default()).await.map_err(|e| e.code())?;
    IdentityServiceClient::new(channel)
        .get_trust_bundle(GetTrustBundleRequest {})
        .await
        .map(drop)
        .map_err(|status| IdentityError::from_status(&status).code())
}

#[tokio::test]
async fn clients_are_refused_each_for_its_own_reason() {
    let authority = Authority::new("a.test");
    let identity = authority.identity(&authority.service("rulecast-dds"));
    let (server, refused) = dds(&authority, &identity).await;
    let shop = authority.identity(&authority.id("shop"));
    assert_eq!(call(&server, &shop, Expected::dds()).await, Ok(()));
    assert_eq!(*refused.lock().expect("lock"), []);

    let now = SystemTime::now();
    let twin = Authority::new("a.test");
    let stranger = Authority::new("b.test");
    // Each verifies the server; only what it shows is wrong.
    let showing = |svid: rulecast_identity::Svid| {
        let bundle = Arc::new(authority.bundle());
        let mut svid = svid;
        svid.bundle = bundle;
        IdentityHandle::fixed(svid)
    };
    let cases = [
        (showing(twin.svid(&twin.id("shop"))), Code::PeerUntrusted),
        (
            showing(authority.svid_between(&authority.id("shop"), now - 2 * HOUR, now - HOUR)),
            Code::PeerExpired,
        ),
        (
            showing(authority.svid_between(&authority.id("shop"), now + HOUR, now + 2 * HOUR)),
            Code::PeerExpired,
        ),
        (showing(stranger.svid(&stranger.id("shop"))), Code::PeerTrustDomain),
    ];
    for (client, code) in cases {
        let tried = call(&server, &client, Expected::dds()).await;
        assert_eq!(tried, Err(code));
        assert_eq!(refused.lock().expect("lock").pop(), Some(code), "the server knows the reason");
    }
    // The same over a lazy channel: the reason is found in the failed call.
    let twin = showing(twin.svid(&twin.id("shop")));
    let config = tls::client_config(&twin, Expected::dds()).expect("config");
    let lazy = channel(&server.address, config, &ConnectOptions::default()).expect("channel");
    let status = IdentityServiceClient::new(lazy)
        .get_trust_bundle(GetTrustBundleRequest {})
        .await
        .expect_err("refused");
    assert_eq!(IdentityError::from_status(&status).code(), Code::PeerUntrusted);
    // None at all.
    let fingerprint = fingerprint_of(&authority.root);
    let config = tls::first_contact_config("a.test", fingerprint, Expected::dds()).expect("config");
    let error = connect(&server.address, config, &ConnectOptions::default()).await;
    assert_eq!(error.expect_err("refused").code(), Code::CredentialMissing);
}

#[tokio::test]
async fn servers_are_refused_each_for_its_own_reason() {
    let authority = Authority::new("a.test");
    let twin = Authority::new("a.test");
    let stranger = Authority::new("b.test");
    let now = SystemTime::now();
    let client = authority.identity(&authority.id("shop"));
    let cases = [
        (twin.svid(&twin.service("rulecast-dds")), Code::PeerUntrusted),
        (stranger.svid(&stranger.service("rulecast-dds")), Code::PeerTrustDomain),
        (
            authority.svid_between(&authority.service("rulecast-dds"), now - 2 * HOUR, now - HOUR),
            Code::PeerExpired,
        ),
        // An application that says it is the server.
        (authority.svid(&authority.id("rulecast-dds")), Code::PeerIdentity),
        (authority.svid(&authority.service("rulecast-ca")), Code::PeerIdentity),
    ];
    for (svid, code) in cases {
        let (server, _) = dds(&authority, &IdentityHandle::fixed(svid)).await;
        assert_eq!(call(&server, &client, Expected::dds()).await, Err(code));
    }
}

#[tokio::test]
async fn first_contact_is_pinned_to_the_root() {
    let authority = Authority::new("a.test");
    let identity = authority.identity(&authority.service("rulecast-ca"));
    let config = tls::server_config(&identity, ClientAuth::Optional { grace: HOUR }, None);
    let service = Service::new(&authority, "shop");
    let server = Server::start(config.expect("config"), service, ServeOptions::default()).await;
    let fingerprint = fingerprint_of(&authority.root);
    for (domain, fingerprint, expected, result) in [
        ("a.test", fingerprint, Expected::authority(), None),
        ("a.test", [0; 32], Expected::authority(), Some(Code::PeerUntrusted)),
        ("b.test", fingerprint, Expected::authority(), Some(Code::PeerTrustDomain)),
        ("a.test", fingerprint, Expected::dds(), Some(Code::PeerIdentity)),
    ] {
        let config = tls::first_contact_config(domain, fingerprint, expected).expect("config");
        let tried = connect(&server.address, config, &ConnectOptions::default()).await;
        assert_eq!(tried.err().map(|e| e.code()), result, "{domain}");
    }
}

#[tokio::test]
async fn grace_lets_the_lately_expired_in_and_no_others() {
    let authority = Authority::new("a.test");
    let now = SystemTime::now();
    let svid = |end: SystemTime| authority.svid_between(&authority.id("shop"), end - HOUR, end);
    let verify = |svid: &rulecast_identity::Svid, bundle| {
        tls::verify_client_with_grace(&svid.chain[0], &svid.chain[1..], &bundle, now, HOUR)
            .map(|peer| peer.not_after < now)
            .map_err(|e| e.code())
    };
    let lately = svid(now - HOUR / 2);
    assert_eq!(verify(&svid(now + HOUR), authority.bundle()), Ok(false));
    assert_eq!(verify(&lately, authority.bundle()), Ok(true));
    assert_eq!(verify(&svid(now - 2 * HOUR), authority.bundle()), Err(Code::PeerExpired));
    let twin = Authority::new("a.test");
    assert_eq!(verify(&lately, twin.bundle()), Err(Code::PeerUntrusted));
}

#[tokio::test]
async fn new_certificates_and_roots_take_effect_without_new_configurations() {
    let old = Authority::new("a.test");
    let new = Authority::new("a.test");
    let (server_id, server_update) = IdentityHandle::new(old.svid(&old.service("rulecast-dds")));
    let (client_id, client_update) = IdentityHandle::new(old.svid(&old.id("shop")));
    let (server, _) = dds(&old, &server_id).await;
    assert_eq!(call(&server, &client_id, Expected::dds()).await, Ok(()));
    server_update.replace(new.svid(&new.service("rulecast-dds")));
    assert_eq!(call(&server, &client_id, Expected::dds()).await, Err(Code::PeerUntrusted));
    client_update.replace(new.svid(&new.id("shop")));
    assert_eq!(call(&server, &client_id, Expected::dds()).await, Ok(()));
}

#[tokio::test]
async fn peers_are_told_to_services() {
    let authority = Authority::new("a.test");
    let identity = authority.identity(&authority.service("rulecast-dds"));
    let config = tls::server_config(&identity, ClientAuth::Required, None).expect("config");
    let service = Service::new(&authority, "shop");
    let server = Server::start(config, service.clone(), ServeOptions::default()).await;
    let client = authority.identity(&authority.id("shop"));
    let config = tls::client_config(&client, Expected::dds()).expect("config");
    let channel =
        connect(&server.address, config, &ConnectOptions::default()).await.expect("connects");
    let csr = client.current().key.csr(None).expect("csr").into();
    IdentityServiceClient::new(channel)
        .issue_certificate(IssueCertificateRequest { csr, ttl_seconds: 0 })
        .await
        .expect("answers");
    let peer = service.peers.lock().expect("lock")[0].clone().expect("has a certificate");
    assert_eq!(peer.spiffe.to_string(), authority.id("shop"));
    assert_eq!(peer.facts.as_ref().map(|f| f.method.as_str()), Some("test"));
}

#[tokio::test]
async fn shutdown_ends_idle_silent_and_handshaking_connections() {
    let authority = Authority::new("a.test");
    let identity = authority.identity(&authority.service("rulecast-dds"));
    let config = tls::server_config(&identity, ClientAuth::Required, None).expect("config");
    let service = Service::new(&authority, "shop");
    let options = ServeOptions { drain: Duration::from_secs(1), ..ServeOptions::default() };
    let mut server = Server::start(config, service, options).await;
    let silent = tokio::net::TcpStream::connect(&server.address).await.expect("connects");
    let client = authority.identity(&authority.id("shop"));
    let config = tls::client_config(&client, Expected::dds()).expect("config");
    let idle =
        connect(&server.address, config, &ConnectOptions::default()).await.expect("connects");
    server.shutdown.cancel();
    timeout(Duration::from_secs(10), &mut server.task)
        .await
        .expect("ends in time")
        .expect("does not panic")
        .expect("no error");
    drop((silent, idle));
    assert!(tokio::net::TcpStream::connect(&server.address).await.is_err(), "listens no more");
}

#[tokio::test]
async fn a_silent_handshake_is_given_up() {
    use tokio::io::AsyncReadExt as _;
    let authority = Authority::new("a.test");
    let identity = authority.identity(&authority.service("rulecast-dds"));
    let config = tls::server_config(&identity, ClientAuth::Required, None).expect("config");
    let options = ServeOptions {
        handshake_timeout: Duration::from_millis(50),
        handshakes: 1,
        ..ServeOptions::default()
    };
    let server = Server::start(config, Service::new(&authority, "shop"), options).await;
    let mut silent = tokio::net::TcpStream::connect(&server.address).await.expect("connects");
    let read = timeout(Duration::from_secs(10), silent.read(&mut [0; 1])).await;
    assert!(matches!(read, Ok(Ok(0) | Err(_))), "the server closes");
    // Its place is free again.
    let client = authority.identity(&authority.id("shop"));
    assert_eq!(call(&server, &client, Expected::dds()).await, Ok(()));
}

#[tokio::test]
async fn addresses_that_are_none_are_told() {
    let authority = Authority::new("a.test");
    let client = authority.identity(&authority.id("shop"));
    let config = tls::client_config(&client, Expected::dds()).expect("config");
    for address in ["", "host", "http://host:1", "host:x", "https://host:1/path"] {
        let error = channel(address, config.clone(), &ConnectOptions::default());
        assert_eq!(error.expect_err(address).code(), Code::ConfigInvalid, "{address}");
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = free.local_addr().expect("address").to_string();
    drop(free);
    let error = connect(&address, config, &ConnectOptions::default()).await;
    assert_eq!(error.expect_err("nobody listens").code(), Code::PlaneUnreachable);
}
