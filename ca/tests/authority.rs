//! The authority over real TLS on the loopback interface, with the client of `rulecast-identity`.

use std::{
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, IsCa, Issuer, KeyPair, SanType,
};
use rulecast_api::{
    Code,
    proto::identity::v1::{
        GetTrustBundleRequest, IssueCertificateRequest, IssueCertificateResponse,
        identity_service_client::IdentityServiceClient,
    },
};
use rulecast_ca::CaConfig;
use rulecast_identity::{
    ConnectOptions, Expected, IdentityClient, IdentityConfig, IdentityError, IdentityHandle,
    IdentityManager, JoinToken, PrivateKey, Svid, TokenSource, connect, tls,
};
use tokio::{net::TcpListener, task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Request, transport::Channel};

const HOUR: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(20);

struct Ca {
    _parent: tempfile::TempDir,
    dir: PathBuf,
    address: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), rulecast_ca::CaError>>,
}

impl Ca {
    async fn start(trust_domain: &str) -> Self {
        let parent = tempfile::tempdir().expect("folder");
        let dir = parent.path().join("ca");
        rulecast_ca::init(&dir, trust_domain).expect("made");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let shutdown = CancellationToken::new();
        let config = CaConfig {
            dir: dir.clone(),
            listen: address,
            http: None,
            ttl: HOUR,
            max_ttl: 24 * HOUR,
            drain: Duration::from_secs(1),
        };
        let task = tokio::spawn(rulecast_ca::serve(config, listener, shutdown.clone()));
        Self { _parent: parent, dir, address, shutdown, task }
    }

    fn token_text(&self, application: &str, ttl: Duration) -> String {
        rulecast_ca::create_token(&self.dir, "shop", application, ttl).expect("a token")
    }

    fn token(&self, application: &str) -> JoinToken {
        self.token_text(application, HOUR).parse().expect("own token")
    }

    fn client(&self) -> IdentityClient {
        IdentityClient::new(self.address.to_string(), ConnectOptions::default())
    }

    async fn join(&self, application: &str, ttl: Option<Duration>) -> Svid {
        let key = PrivateKey::generate().expect("key");
        self.client().join(&self.token(application), &key, ttl).await.expect("joined")
    }

    /// A connection without certificate, as for a first contact.
    async fn anonymous(&self) -> Channel {
        let token = self.token("anybody");
        let config = tls::first_contact_config(
            &token.trust_domain,
            token.root_fingerprint,
            Expected::authority(),
        )
        .expect("TLS");
        connect(&self.address.to_string(), config, &ConnectOptions::default()).await.expect("open")
    }

    /// Asks with a request of one's own making: by token, or by certificate.
    async fn ask(
        &self,
        csr: Vec<u8>,
        token: Option<&JoinToken>,
        svid: Option<&Svid>,
    ) -> Result<IssueCertificateResponse, IdentityError> {
        let channel = match svid {
            Some(svid) => {
                let identity = IdentityHandle::fixed(svid.clone());
                let config = tls::client_config(&identity, Expected::authority())?;
                connect(&self.address.to_string(), config, &ConnectOptions::default()).await?
            }
            None => self.anonymous().await,
        };
        let mut request =
            Request::new(IssueCertificateRequest { csr: csr.into(), ttl_seconds: 0 });
        if let Some(token) = token {
            let bearer = format!("Bearer {}", *token.bearer());
            let metadata = request.metadata_mut();
            metadata.insert("authorization", bearer.parse().expect("ASCII"));
            metadata.insert("authorization-type", "rulecast-join-token".parse().expect("ASCII"));
        }
        IdentityServiceClient::new(channel)
            .issue_certificate(request)
            .await
            .map(tonic::Response::into_inner)
            .map_err(|status| IdentityError::from_status(&status))
    }
}

fn code<T>(result: Result<T, IdentityError>) -> Code {
    match result {
        Ok(_) => panic!("not refused"),
        Err(error) => error.code(),
    }
}

fn key() -> PrivateKey {
    PrivateKey::generate().expect("key")
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "{what} did not come");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn joins_renews_and_keeps_its_name_and_facts() {
    let ca = Ca::start("td.example").await;
    let first = ca.join("web", None).await;
    assert_eq!(first.spiffe.to_string(), "spiffe://td.example/ns/shop/app/web");
    let second = ca.client().renew(&first, &key(), Some(2 * HOUR)).await.expect("renewed");
    assert_eq!(second.spiffe, first.spiffe);
    assert!(second.not_after > first.not_after);
    let facts = |svid: &Svid| {
        rulecast_identity::PeerIdentity::from_der(&svid.chain[0]).expect("ours").facts
    };
    assert_eq!(facts(&second), facts(&first));
    assert!(facts(&first).expect("facts").token_id.is_some());
    let clamped = ca.client().renew(&second, &key(), Some(1000 * HOUR)).await.expect("renewed");
    assert!(clamped.not_after <= SystemTime::now() + 24 * HOUR + Duration::from_secs(5));

    let answer = IdentityServiceClient::new(ca.anonymous().await)
        .get_trust_bundle(GetTrustBundleRequest {})
        .await
        .expect("public")
        .into_inner();
    assert_eq!(answer, first.bundle.to_proto());

    ca.shutdown.cancel();
    let ended = tokio::time::timeout(PATIENCE, ca.task).await.expect("drains").expect("no panic");
    ended.expect("ends well");
}

#[tokio::test]
async fn health_is_told_and_unknown_calls_are_refused() {
    let ca = Ca::start("td.example").await;
    let channel = ca.anonymous().await;
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel.clone());
    let request = tonic_health::pb::HealthCheckRequest { service: String::new() };
    let answer = health.check(request).await.expect("answers").into_inner();
    assert_eq!(answer.status(), tonic_health::pb::health_check_response::ServingStatus::Serving);
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.expect("open");
    let path = http::uri::PathAndQuery::from_static("/rulecast.identity.v1.IdentityService/Other");
    let codec = tonic_prost::ProstCodec::<GetTrustBundleRequest, GetTrustBundleRequest>::default();
    let status = grpc
        .unary(Request::new(GetTrustBundleRequest {}), path, codec)
        .await
        .expect_err("unknown");
    assert_eq!(status.code(), tonic::Code::Unimplemented);
}

#[tokio::test]
async fn tokens_are_used_once_but_a_lost_answer_may_be_asked_again() {
    let ca = Ca::start("td.example").await;
    let (token, first) = (ca.token("web"), key());
    ca.client().join(&token, &first, None).await.expect("joined");
    ca.client().join(&token, &first, None).await.expect("asked again with the same key");
    assert_eq!(code(ca.client().join(&token, &key(), None).await), Code::TokenInvalid);

    let begin = Instant::now();
    let short: JoinToken = ca.token_text("web", Duration::from_secs(1)).parse().expect("token");
    until("the token's end", || begin.elapsed() > Duration::from_millis(2100)).await;
    assert_eq!(code(ca.client().join(&short, &key(), None).await), Code::TokenExpired);

    let mut unknown = ca.token("web");
    unknown.secret[0] ^= 1;
    assert_eq!(code(ca.client().join(&unknown, &key(), None).await), Code::TokenInvalid);
    assert_eq!(code(ca.ask(key().csr(None).expect("csr"), None, None).await), Code::CredentialMissing);
    let own = rulecast_ca::create_token(&ca.dir, "rulecast-system", "rulecast-ca", HOUR);
    assert_eq!(own.expect_err("the authority's name").code(), Code::ConfigInvalid);
}

#[tokio::test]
async fn a_bad_token_is_not_made_good_by_a_certificate() {
    let ca = Ca::start("td.example").await;
    let svid = ca.join("web", None).await;
    let mut token = ca.token("web");
    token.secret[0] ^= 1;
    let answer = ca.ask(key().csr(None).expect("csr"), Some(&token), Some(&svid)).await;
    assert_eq!(code(answer), Code::TokenInvalid);
}

#[tokio::test]
async fn bad_requests_are_refused_and_do_not_cost_the_token() {
    let ca = Ca::start("td.example").await;
    let token = ca.token("web");
    let other = "spiffe://td.example/ns/shop/app/other".parse().expect("an identity");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    let authority = params.serialize_request(key().pair()).expect("signs").der().to_vec();
    let mut wrong = key().csr(None).expect("csr");
    *wrong.last_mut().expect("not empty") ^= 1;
    let weak = include_bytes!("../src/csr/fixtures/rsa1024.der").to_vec();
    for (csr, expected) in [
        (key().csr(Some(&other)).expect("csr"), Code::CsrIdentity),
        (authority, Code::CsrAuthority),
        (wrong, Code::CsrInvalid),
        (weak, Code::CsrKey),
        (Vec::new(), Code::CsrInvalid),
    ] {
        assert_eq!(code(ca.ask(csr, Some(&token), None).await), expected);
    }
    ca.client().join(&token, &key(), None).await.expect("still good");
    let svid = ca.join("web", None).await;
    let renewal = ca.ask(key().csr(Some(&other)).expect("csr"), None, Some(&svid)).await;
    assert_eq!(code(renewal), Code::CsrIdentity);
}
