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
use rulecast_ca::{CaConfig, Place};
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
            place: Place::Folder(dir.clone()),
            listen: address,
            http: None,
            ttl: HOUR,
            max_ttl: 24 * HOUR,
            drain: Duration::from_secs(1),
            dubbo: Default::default(),
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
        let mut request = Request::new(IssueCertificateRequest { csr: csr.into(), ttl_seconds: 0 });
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
    let status =
        grpc.unary(Request::new(GetTrustBundleRequest {}), path, codec).await.expect_err("unknown");
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
    assert_eq!(
        code(ca.ask(key().csr(None).expect("csr"), None, None).await),
        Code::CredentialMissing
    );
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

#[tokio::test]
async fn another_authority_is_not_believed() {
    let (ours, other) = (Ca::start("td.example").await, Ca::start("td.example").await);
    let elsewhere = Ca::start("other.example").await;
    // The token names its authority, so no other one gets to see the secret.
    assert_eq!(
        code(other.client().join(&ours.token("web"), &key(), None).await),
        Code::PeerUntrusted
    );
    let svid = ours.join("web", None).await;
    assert_eq!(code(other.client().renew(&svid, &key(), None).await), Code::PeerUntrusted);
    assert_eq!(code(elsewhere.client().renew(&svid, &key(), None).await), Code::PeerTrustDomain);
    // A client that believes the server, with a certificate that the server does not believe.
    let foreign = other.join("web", None).await;
    let mixed = Svid::new(foreign.chain, foreign.key, svid.bundle.clone(), None).expect("fits");
    assert_eq!(code(ours.client().renew(&mixed, &key(), None).await), Code::PeerUntrusted);
}

/// A leaf of `ca` whose time is another than the authority would give.
fn leaf_of(ca: &Ca, spiffe: &str, begin: SystemTime, end: SystemTime, like: &Svid) -> Svid {
    let text = std::fs::read_to_string(ca.dir.join("intermediate.pem")).expect("there");
    let blocks = pem::parse_many(text).expect("PEM");
    let issuer_key = KeyPair::from_pem(&pem::encode(&blocks[0])).expect("key");
    let issuer = Issuer::from_ca_cert_der(&like.chain[1], issuer_key).expect("an issuer");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(spiffe.try_into().expect("ASCII"))];
    (params.not_before, params.not_after) = (begin.into(), end.into());
    let key = key();
    let leaf = params.signed_by(key.pair(), &issuer).expect("signs");
    let chain = vec![leaf.der().clone(), like.chain[1].clone()];
    Svid::new(chain, key, like.bundle.clone(), None).expect("fits")
}

#[tokio::test]
async fn an_expired_certificate_is_renewed_for_a_day_and_for_applications_only() {
    let ca = Ca::start("td.example").await;
    let like = ca.join("web", None).await;
    let now = SystemTime::now();
    let minute = Duration::from_secs(60);
    let web = "spiffe://td.example/ns/shop/app/web";
    let recent = leaf_of(&ca, web, now - 4 * minute, now - minute, &like);
    let renewed = ca.client().renew(&recent, &key(), None).await.expect("within the day");
    assert_eq!(renewed.spiffe, like.spiffe);
    let old = leaf_of(&ca, web, now - 30 * HOUR, now - 25 * HOUR, &like);
    assert_eq!(code(ca.client().renew(&old, &key(), None).await), Code::PeerExpired);
    let account = "spiffe://td.example/ns/shop/sa/web";
    let account = leaf_of(&ca, account, now - 4 * minute, now - minute, &like);
    assert_eq!(code(ca.client().renew(&account, &key(), None).await), Code::PeerExpired);
    let own = "spiffe://td.example/ns/rulecast-system/app/rulecast-ca";
    let own = leaf_of(&ca, own, now - minute, now + HOUR, &like);
    assert_eq!(code(ca.client().renew(&own, &key(), None).await), Code::PeerIdentity);
    let nameless = "https://td.example/web";
    let key = key();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(nameless.try_into().expect("ASCII"))];
    let leaf = params.self_signed(key.pair()).expect("signs").der().clone();
    let refused = Svid::new(vec![leaf], key, like.bundle.clone(), None);
    assert_eq!(code(refused), Code::PeerIdentity);
}

fn config(
    ca: &Ca,
    application: &str,
    state: Option<PathBuf>,
    token: Option<String>,
) -> IdentityConfig {
    let mut config = IdentityConfig::new(ca.address.to_string());
    config.namespace = Some("shop".into());
    config.application = Some(application.into());
    config.state_dir = state;
    config.token = token.map(TokenSource::Text);
    config
}

async fn start(config: IdentityConfig) -> Result<IdentityHandle, IdentityError> {
    IdentityManager::start(config).await.map(|(handle, _worker)| handle)
}

#[tokio::test]
async fn a_state_folder_outlives_the_process_and_belongs_to_one_application() {
    let ca = Ca::start("td.example").await;
    let parent = tempfile::tempdir().expect("folder");
    let state = parent.path().join("state");
    assert_eq!(
        code(start(config(&ca, "web", Some(state.clone()), None)).await),
        Code::CredentialMissing
    );
    let token = ca.token_text("web", HOUR);
    let first = start(config(&ca, "web", Some(state.clone()), Some(token))).await.expect("joined");
    // Neither token nor authority are needed again.
    ca.shutdown.cancel();
    let again = start(config(&ca, "web", Some(state.clone()), None)).await.expect("from disk");
    assert_eq!(again.current().chain, first.current().chain);
    assert_eq!(
        code(start(config(&ca, "other", Some(state.clone()), None)).await),
        Code::OtherApplication
    );
    let mut elsewhere = config(&ca, "web", Some(state), None);
    elsewhere.namespace = Some("elsewhere".into());
    assert_eq!(code(start(elsewhere).await), Code::OtherApplication);
}

#[tokio::test]
async fn a_token_of_another_application_is_refused() {
    let ca = Ca::start("td.example").await;
    let token = ca.token_text("other", HOUR);
    assert_eq!(code(start(config(&ca, "web", None, Some(token))).await), Code::OtherApplication);
}

#[tokio::test]
async fn the_worker_renews_before_the_end() {
    let ca = Ca::start("td.example").await;
    let mut config = config(&ca, "web", None, Some(ca.token_text("web", HOUR)));
    config.ttl = Some(Duration::from_secs(3));
    let status = config.status.subscribe();
    let (handle, worker) = IdentityManager::start(config).await.expect("joined");
    let worker = tokio::spawn(worker);
    let first = handle.current();
    until("a renewal", || handle.current().not_after > first.not_after).await;
    let second = handle.current();
    assert_eq!(second.spiffe, first.spiffe);
    assert!(second.key.public_key() != first.key.public_key(), "each certificate has its own key");
    until("the status", || status.borrow().not_after > Some(first.not_after)).await;
    worker.abort();
}
