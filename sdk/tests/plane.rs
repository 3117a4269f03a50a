//! A client against a small plane, over real mutual TLS: rules appear, change, break
//! and go; the plane goes away; the client starts without one.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use prost::Message as _;
use rulecast_api::{
    Code, SpiffeId,
    proto::{
        RULE_TYPE_URL,
        observe::v1::{
            ObserveRequest, ObserveResponse,
            rule_service_server::{RuleService, RuleServiceServer},
        },
        rules::v1::{ConditionRoute, Rule, Target, target::Scope},
    },
};
use rulecast_ca::{CaConfig, Place};
use rulecast_identity::{
    ClientAuth, ConnectOptions, IdentityClient, IdentityHandle, JoinToken, PrivateKey,
    ServeOptions, Svid, TrustBundle, serve_tls, state::StateDir, tls,
};
use rulecast_sdk::{
    Client, ClientBuilder, ConnectError, Decision, Endpoint, EndpointSet, Params, Request, Startup,
    Status, Tuning, host::FaultKind, status::Source,
};
use tokio::{net::TcpListener, sync::watch, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

const TYPE: &str = "dubbo.apache.org/v1alpha1/ConditionRoute";
const SERVICE: &str = "com.example.OrderService";
const LIMIT: Duration = Duration::from_secs(20);

/// A certificate authority as small as can be.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    bundle: Arc<TrustBundle>,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
        let root = params.self_signed(&key).expect("a root");
        let bundle = TrustBundle::new("test", vec![root.der().clone()], 1).expect("a bundle");
        Self { issuer: rcgen::Issuer::new(params, key), bundle: Arc::new(bundle) }
    }

    fn issue(&self, namespace: &str, application: &str) -> Svid {
        self.issue_until(namespace, application, SystemTime::now() + Duration::from_secs(3600))
    }

    fn issue_until(&self, namespace: &str, application: &str, end: SystemTime) -> Svid {
        let id = SpiffeId::application("test", namespace, application).expect("a name");
        let key = PrivateKey::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.subject_alt_names =
            vec![rcgen::SanType::URI(id.to_string().try_into().expect("ASCII"))];
        params.extended_key_usages = vec![
            rcgen::ExtendedKeyUsagePurpose::ClientAuth,
            rcgen::ExtendedKeyUsagePurpose::ServerAuth,
        ];
        params.not_before = (end - Duration::from_secs(2 * 3600)).into();
        params.not_after = end.into();
        let leaf = params.signed_by(key.pair(), &self.issuer).expect("a leaf");
        Svid::new(vec![leaf.der().clone()], key, self.bundle.clone(), None).expect("an identity")
    }

    /// As an application has it that joined before.
    fn joined(&self, folder: &Path) {
        let state = StateDir::open(folder).expect("a folder");
        state.store(&self.issue("default", "shop")).expect("stored");
    }
}

/// What the plane has, and what it heard.
#[derive(Clone)]
struct Rules {
    current: watch::Sender<(i64, Vec<Rule>)>,
    heard: watch::Sender<Vec<ObserveRequest>>,
}

#[tonic::async_trait]
impl RuleService for Rules {
    type ObserveStream = ReceiverStream<Result<ObserveResponse, tonic::Status>>;

    async fn observe(
        &self,
        request: tonic::Request<tonic::Streaming<ObserveRequest>>,
    ) -> Result<tonic::Response<Self::ObserveStream>, tonic::Status> {
        let mut requests = request.into_inner();
        let (out, responses) = tokio::sync::mpsc::channel(4);
        let (heard, mut current) = (self.heard.clone(), self.current.subscribe());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    request = requests.message() => {
                        let Ok(Some(request)) = request else { break };
                        if request.nonce.is_empty() {
                            current.mark_changed();
                        }
                        heard.send_modify(|all| all.push(request));
                    }
                    Ok(()) = current.changed(), if !heard.borrow().is_empty() => {
                        let (revision, rules) = current.borrow_and_update().clone();
                        if out.send(Ok(whole(revision, &rules))).await.is_err() {
                            break;
                        }
                    }
                }
            }
        });
        Ok(tonic::Response::new(ReceiverStream::new(responses)))
    }
}

fn whole(revision: i64, rules: &[Rule]) -> ObserveResponse {
    let any = |rule: &Rule| prost_types::Any {
        type_url: RULE_TYPE_URL.into(),
        value: rule.encode_to_vec(),
    };
    ObserveResponse {
        nonce: format!("{revision}"),
        r#type: TYPE.into(),
        revision,
        data: rules.iter().map(any).collect(),
        resume_token: format!("at {revision}").into_bytes().into(),
        lineage: "one".into(),
        ..ObserveResponse::default()
    }
}

struct Plane {
    address: SocketAddr,
    rules: Rules,
    stop: CancellationToken,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Plane {
    async fn start(authority: &Authority, rules: Vec<Rule>) -> Self {
        Self::at(authority, "127.0.0.1:0".parse().expect("an address"), 1, rules).await
    }

    async fn at(
        authority: &Authority,
        address: SocketAddr,
        revision: i64,
        rules: Vec<Rule>,
    ) -> Self {
        let identity = authority.issue("rulecast-system", "rulecast-dds");
        Self::with(identity, address, revision, rules).await
    }

    async fn with(identity: Svid, address: SocketAddr, revision: i64, rules: Vec<Rule>) -> Self {
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let tls = tls::server_config(&IdentityHandle::fixed(identity), ClientAuth::Required, None)
            .expect("a configuration");
        let rules = Rules {
            current: watch::Sender::new((revision, rules)),
            heard: watch::Sender::new(Vec::new()),
        };
        let service = tonic::service::Routes::new(RuleServiceServer::new(rules.clone()));
        let stop = CancellationToken::new();
        let options = ServeOptions { drain: Duration::from_millis(10), ..ServeOptions::default() };
        let server = tokio::spawn(serve_tls(listener, tls, service, stop.clone(), options));
        Self { address, rules, stop, server }
    }

    fn set(&self, rules: Vec<Rule>) {
        self.rules.current.send_modify(|(revision, now)| {
            *revision += 1;
            *now = rules;
        });
    }

    async fn heard(&self, what: impl Fn(&ObserveRequest) -> bool) -> ObserveRequest {
        let mut heard = self.rules.heard.subscribe();
        let all = timeout(LIMIT, heard.wait_for(|all| all.iter().any(&what))).await;
        let all = all.expect("in time").expect("the plane runs").clone();
        all.into_iter().find(|r| what(r)).expect("just seen")
    }

    async fn end(self) {
        self.stop.cancel();
        self.server.await.expect("no panic").expect("no error");
    }
}

fn rule(key: &str, conditions: &[&str]) -> Rule {
    let conditions = conditions.iter().map(|&c| c.into()).collect();
    let spec = ConditionRoute { force: true, conditions, ..ConditionRoute::default() };
    Rule {
        key: format!("{key}/default"),
        target: Some(Target { scope: Scope::Service.into(), key: SERVICE.into() }),
        spec: spec.encode_to_vec().into(),
        ..Rule::default()
    }
}

fn endpoints() -> EndpointSet {
    let endpoint = |host: &str, region: &str, version: &str| {
        Endpoint::new(host, 20880).with("region", region).with("version", version)
    };
    EndpointSet::new([
        endpoint("10.0.0.1", "hangzhou", "1"),
        endpoint("10.0.0.2", "hangzhou", "2"),
        endpoint("10.0.0.3", "beijing", "1"),
        endpoint("10.0.0.4", "beijing", "2"),
    ])
    .expect("a small set")
}

fn decide(client: &Client) -> Decision {
    client.route(&client.request(SERVICE).method("getOrder"), &endpoints())
}

fn kept(client: &Client) -> Vec<u32> {
    let decision = decide(client);
    assert!(decision.faults.is_empty(), "{:?}", decision.faults);
    decision.endpoints
}

fn builder(plane: SocketAddr) -> ClientBuilder {
    Client::builder()
        .plane(plane.to_string())
        // Nobody listens there: whoever needs the authority fails.
        .ca("127.0.0.1:1")
        .application("shop")
        .parameter("region", "hangzhou")
        .service(SERVICE)
        // The plane here has rules of this type alone.
        .subscribe([TYPE])
}

async fn until(client: &Client, what: impl Fn(&Status) -> bool) -> Status {
    let mut changes = client.changes();
    let found = timeout(LIMIT, changes.wait_for(|s| what(s))).await;
    match found {
        Ok(Ok(status)) => status.clone(),
        _ => panic!("not in time: {}", client.status()),
    }
}

fn nowhere() -> SocketAddr {
    "127.0.0.1:1".parse().expect("an address")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_pushed_broken_mended_and_withdrawn() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().expect("a folder");
    authority.joined(folder.path());
    let (region, version) = (rule("a", &["=> region=$region"]), rule("b", &["=> version=1"]));
    let other = rule("c", &["method=other => host=10.0.0.4"]);
    let plane =
        Plane::start(&authority, vec![region.clone(), version.clone(), other.clone()]).await;
    let client =
        builder(plane.address).state_dir(folder.path()).connect().await.expect("connected");
    let status = client.status();
    assert!(status.ready && status.connected, "{status}");
    assert_eq!((status.items(), status.kinds[0].source), (3, Some(Source::Plane)));
    assert_eq!(status.identity.spiffe_id.as_deref(), Some("spiffe://test/ns/default/app/shop"));
    assert!(status.identity.not_after.is_some());
    assert_eq!(kept(&client), [0]);
    // A request's own parameters win; what it does not say is the client's.
    let consumer: Params = [("region", "beijing")].into_iter().collect();
    let request = Request::new(SERVICE, &consumer).method("getOrder");
    assert_eq!(client.route(&request, &endpoints()).endpoints, [2]);
    let nothing = Params::default();
    assert_eq!(client.route(&Request::new(SERVICE, &nothing), &endpoints()).endpoints, [0]);
    let hello = plane.heard(|r| r.nonce.is_empty()).await;
    assert_eq!(hello.subscription.expect("declared").services, [SERVICE]);
    assert!(hello.node.expect("introduced").agent.starts_with("rulecast-sdk/"));
    let ack = plane.heard(|r| r.nonce == "1").await;
    assert!(ack.error_detail.is_none());

    // One of three is broken: two are applied, the third keeps its last good version.
    let bad = rule("b", &["version=1 => => version=2"]);
    let moved = rule("a", &["=> region=beijing"]);
    plane.set(vec![moved.clone(), bad, other.clone()]);
    let nack = plane.heard(|r| r.nonce == "2").await;
    let detail = nack.error_detail.expect("a reason");
    assert_eq!(detail.code, Code::ConditionSyntax.as_str(), "{detail:?}");
    assert_eq!(nack.rejected.len(), 1);
    assert_eq!(nack.rejected[0].key, "b/default");
    assert!(!nack.rejected[0].reason.is_empty());
    let status = client.status();
    let rejected: Vec<_> = status.rejected().collect();
    assert_eq!((rejected.len(), status.items(), status.kinds[0].revision), (1, 3, 2));
    assert!(rejected[0].1.last_good_in_force);
    assert_eq!(kept(&client), [2], "the new a and the old b");

    // Mended, and one withdrawn.
    plane.set(vec![moved, rule("b", &["=> version=2"])]);
    let status = until(&client, |s| s.items() == 2).await;
    assert_eq!(status.rejected().count(), 0);
    assert_eq!(kept(&client), [3]);

    // All withdrawn.
    plane.set(vec![]);
    until(&client, |s| s.items() == 0).await;
    assert_eq!(kept(&client), [0, 1, 2, 3]);

    let mut changes = client.changes();
    client.shutdown().await;
    assert!(!client.status().connected);
    drop(client);
    let ended = async { while changes.changed().await.is_ok() {} };
    timeout(LIMIT, ended).await.expect("the last client ends the changes");
    plane.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_plane_the_client_goes_on_and_starts_again() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().expect("a folder");
    authority.joined(folder.path());
    let good = rule("b", &["=> version=1"]);
    let plane = Plane::start(&authority, vec![rule("a", &["=> region=$region"]), good]).await;
    let (address, state) = (plane.address, folder.path());
    let client = builder(address).state_dir(state).connect().await.expect("connected");
    let bad = rule("b", &["version=1 => => version=2"]);
    plane.set(vec![rule("a", &["=> region=beijing"]), bad.clone()]);
    until(&client, |s| s.rejected().count() == 1).await;
    plane.end().await;
    let status = until(&client, |s| !s.connected && s.plane_error.is_some()).await;
    assert!(status.ready, "{status}");
    assert_eq!(kept(&client), [2]);
    client.shutdown().await;
    drop(client);

    let client = builder(address).state_dir(state).connect().await.expect("restored");
    let status = client.status();
    assert_eq!((status.ready, status.kinds[0].source), (true, Some(Source::Disk)), "{status}");
    assert_eq!((status.items(), status.kinds[0].revision), (2, 2));
    assert_eq!(status.rejected().count(), 1);
    assert_eq!(kept(&client), [2]);

    // The plane is back: the client says where it stands, and what it refused.
    let plane = Plane::at(&authority, address, 3, vec![rule("a", &["=> region=hangzhou"])]).await;
    let hello = plane.heard(|r| r.nonce.is_empty()).await;
    assert_eq!(hello.resume_token.as_ref(), b"at 2");
    assert_eq!(hello.rejected.len(), 1);
    assert_eq!(hello.rejected[0].key, "b/default");
    let status = until(&client, |s| s.connected && s.kinds[0].source == Some(Source::Plane)).await;
    assert_eq!((status.items(), status.plane_error.clone()), (1, None));
    assert_eq!(kept(&client), [0, 1]);
    client.shutdown().await;
    plane.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_outlive_the_certificate() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().expect("a folder");
    authority.joined(folder.path());
    let plane = Plane::start(&authority, vec![rule("a", &["=> region=$region"])]).await;
    let begin = || builder(plane.address).state_dir(folder.path());
    begin().connect().await.expect("connected").shutdown().await;

    // Neither is there now, and the certificate has ended.
    let ended = authority.issue_until("default", "shop", SystemTime::now() - LIMIT);
    StateDir::open(folder.path()).and_then(|s| s.store(&ended)).expect("stored");
    let client = begin().connect().await.expect("restored");
    assert_eq!(kept(&client), [0, 1]);
    let status = until(&client, |s| s.identity.last_error.is_some()).await;
    assert!(status.ready && !status.connected, "{status}");
    client.shutdown().await;

    // Nor does a snapshot serve another identity.
    let other = tempfile::tempdir().expect("a folder");
    let stranger = authority.issue("default", "stranger");
    StateDir::open(other.path()).and_then(|s| s.store(&stranger)).expect("stored");
    let name = rulecast_sdk::disk::FILE_NAME;
    std::fs::copy(folder.path().join(name), other.path().join(name)).expect("copied");
    let begin = builder(nowhere()).application("stranger").state_dir(other.path());
    let client = begin.startup(Startup::Deny).connect().await.expect("at once");
    let status = client.status();
    assert!(!status.ready, "{status}");
    let error = status.snapshot_error.expect("said");
    assert!(error.starts_with("RC0610 ") && error.contains("another identity"), "{error}");
    assert!(decide(&client).endpoints.is_empty());
    plane.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_snapshot_is_ignored_and_said() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().expect("a folder");
    authority.joined(folder.path());
    let plane = Plane::start(&authority, vec![rule("a", &["=> region=$region"])]).await;
    let (address, state) = (plane.address, folder.path());
    let client = builder(address).state_dir(state).connect().await.expect("connected");
    client.shutdown().await;
    plane.end().await;
    let file = state.join(rulecast_sdk::disk::FILE_NAME);
    let mut bytes = std::fs::read(&file).expect("written at shutdown");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).expect("own file");

    let deny = builder(address).state_dir(state).startup(Startup::Deny);
    let client = deny.connect().await.expect("at once");
    let status = client.status();
    assert!(!status.ready, "{status}");
    let error = status.snapshot_error.expect("said");
    assert!(error.starts_with("RC0610 ") && error.contains("checksum"), "{error}");
    assert!(decide(&client).endpoints.is_empty());

    // What the plane sends replaces it.
    let plane = Plane::at(&authority, address, 5, vec![rule("a", &["=> region=beijing"])]).await;
    until(&client, |s| s.ready && s.snapshot_error.is_none()).await;
    assert_eq!(kept(&client), [2, 3]);
    client.shutdown().await;
    plane.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_cannot_be_written_is_said_and_stops_nothing() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().expect("a folder");
    authority.joined(folder.path());
    std::fs::create_dir(folder.path().join(rulecast_sdk::disk::FILE_NAME)).expect("own folder");
    let plane = Plane::start(&authority, vec![rule("a", &["=> region=$region"])]).await;
    let begin = builder(plane.address).state_dir(folder.path());
    let client = begin.connect().await.expect("connected");
    let said = |s: &Status| s.snapshot_error.as_ref().is_some_and(|e| e.starts_with("RC0304 "));
    until(&client, said).await;
    plane.set(vec![rule("a", &["=> region=beijing"])]);
    until(&client, |s| s.kinds[0].revision == 2).await;
    assert_eq!(kept(&client), [2, 3]);
    client.shutdown().await;
    plane.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn startup_policies_hold_before_anything_came() {
    let token = JoinToken {
        trust_domain: "test".into(),
        root_fingerprint: [1; 32],
        secret: [2; 32].into(),
    };
    let begin = || builder(nowhere()).join_token(token.to_text().as_str());
    let unready = |d: &Decision| {
        d.faults.iter().any(|f| f.fault.kind == FaultKind::NotReady && f.key.is_none())
    };

    let client = begin().startup(Startup::Deny).connect().await.expect("at once");
    let decision = decide(&client);
    assert!(decision.endpoints.is_empty() && unready(&decision), "{decision:?}");
    let why = client.explain(&client.request(SERVICE), &endpoints());
    assert!(why.decision.endpoints.is_empty() && why.text.contains("RC0611"), "{}", why.text);

    let client = begin().startup(Startup::Allow).connect().await.expect("at once");
    let decision = decide(&client);
    assert!(decision.endpoints.len() == 4 && unready(&decision), "{decision:?}");
    assert!(!client.status().ready);

    let mut tuning = Tuning::default();
    tuning.startup_timeout = Some(Duration::from_millis(300));
    let error = begin().tuning(tuning).connect().await.expect_err("nobody is there");
    assert_eq!(error.code(), Code::NotReady);
    let text = error.to_string();
    assert!(text.contains(TYPE) && text.contains("127.0.0.1:1"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waiting_does_not_mend_is_said_at_once() {
    let error = builder(nowhere()).connect().await.expect_err("no credential");
    assert_eq!(error.code(), Code::CredentialMissing, "{error}");
    let error = builder(nowhere()).join_token("nonsense").connect().await.expect_err("no token");
    assert_eq!(error.code(), Code::TokenInvalid, "{error}");

    let authority = Authority::new();
    let folder = tempfile::tempdir().expect("a folder");
    authority.joined(folder.path());
    let other = builder(nowhere()).application("other").state_dir(folder.path());
    let error = other.connect().await.expect_err("another's folder");
    assert_eq!(error.code(), Code::OtherApplication, "{error}");
    assert!(matches!(error, ConnectError::Identity(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_go_on_while_rules_change() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().expect("a folder");
    authority.joined(folder.path());
    let of = |region: &str| vec![rule("a", &[&format!("=> region={region}")])];
    let plane = Plane::start(&authority, of("hangzhou")).await;
    let client =
        builder(plane.address).state_dir(folder.path()).connect().await.expect("connected");
    let (stop, seen) = (CancellationToken::new(), Arc::new(Mutex::new([0u64; 2])));
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let (client, stop, seen) = (client.clone(), stop.clone(), seen.clone());
            std::thread::spawn(move || {
                while !stop.is_cancelled() {
                    let kept = kept(&client);
                    let which = usize::from(kept == [2, 3]);
                    assert!(which == 1 || kept == [0, 1], "{kept:?}");
                    seen.lock().expect("no panic")[which] += 1;
                }
            })
        })
        .collect();
    for round in 0..20 {
        plane.set(of(if round % 2 == 0 { "beijing" } else { "hangzhou" }));
        until(&client, |s| s.kinds[0].revision == 2 + round).await;
    }
    let both = async {
        while !seen.lock().expect("no panic").iter().all(|n| *n > 0) {
            plane.set(of(if fastrand::bool() { "beijing" } else { "hangzhou" }));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, both).await.expect("calls were decided by both");
    stop.cancel();
    for caller in callers {
        caller.join().expect("no call failed");
    }
    client.shutdown().await;
    plane.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_joins_and_shows_its_renewed_certificate() {
    let root = tempfile::tempdir().expect("a folder");
    let (dir, state) = (root.path().join("ca"), root.path().join("state"));
    rulecast_ca::init(&dir, "test").expect("made");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let ca = listener.local_addr().expect("bound");
    let stop = CancellationToken::new();
    let config = CaConfig {
        place: Place::Folder(dir.clone()),
        listen: ca,
        http: None,
        ttl: Duration::from_secs(4),
        max_ttl: Duration::from_secs(3600),
        drain: Duration::from_millis(10),
        dubbo: Default::default(),
    };
    let authority = tokio::spawn(rulecast_ca::serve(config, listener, stop.clone()));
    let token = |namespace, application| {
        rulecast_ca::create_token(&dir, namespace, application, LIMIT).expect("a token")
    };
    let dds = token("rulecast-system", "rulecast-dds").parse().expect("own token");
    let key = PrivateKey::generate().expect("a key");
    let joined = IdentityClient::new(ca.to_string(), ConnectOptions::default())
        .join(&dds, &key, Some(Duration::from_secs(600)))
        .await
        .expect("joined");
    let any = "127.0.0.1:0".parse().expect("an address");
    let plane = Plane::with(joined, any, 1, vec![rule("a", &["=> region=$region"])]).await;

    let file = root.path().join("token");
    std::fs::write(&file, token("default", "shop")).expect("own folder");
    let client = builder(plane.address)
        .ca(ca.to_string())
        .join_token_file(&file)
        .state_dir(&state)
        .connect()
        .await
        .expect("joined and connected");
    assert_eq!(kept(&client), [0, 1]);
    let first = client.status().identity.not_after.expect("there is a certificate");
    let mut changes = client.changes();
    // The stream moves to the new certificate before the old one ends, and nobody notices.
    let mut heard = plane.rules.heard.subscribe();
    let moved = heard.wait_for(|all| all.iter().filter(|r| r.node.is_some()).count() >= 2);
    timeout(LIMIT, moved).await.expect("in time").expect("the plane runs");
    let status = changes.borrow_and_update().clone();
    assert!(status.connected && status.ready && status.plane_error.is_none(), "{status}");
    assert!(status.identity.not_after > Some(first), "{status}");
    client.shutdown().await;
    plane.end().await;
    stop.cancel();
    authority.await.expect("no panic").expect("no error");
}
