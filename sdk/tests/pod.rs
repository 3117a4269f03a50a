//! A client in a pod: set up by the environment, known by a service-account token, and
//! started again while everything else is away. Over real TLS.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use prost::Message as _;
use rulecast_api::{
    Code,
    proto::{
        RULE_TYPE_URL,
        identity::v1::{
            GetTrustBundleRequest, IssueCertificateRequest, IssueCertificateResponse,
            TrustBundle as WireBundle,
            identity_service_server::{IdentityService, IdentityServiceServer},
        },
        observe::v1::{
            Node, ObserveRequest, ObserveResponse,
            rule_service_server::{RuleService, RuleServiceServer},
        },
        rules::v1::{ConditionRoute, Rule, Target, target::Scope},
    },
};
use rulecast_identity::{
    ClientAuth, IdentityHandle, PrivateKey, ServeOptions, Svid, TrustBundle, serve_tls, tls,
};
use rulecast_sdk::{ClientBuilder, Rulecast, Startup, Tuning, status::Source};
use tokio::{net::TcpListener, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

const LIMIT: Duration = Duration::from_secs(20);

/// Signs for whoever shows the one token.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    bundle: Arc<TrustBundle>,
    token: String,
}

impl Authority {
    fn new(token: &str) -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
        let root = params.self_signed(&key).expect("a root");
        let bundle = TrustBundle::new("test", vec![root.der().clone()], 1).expect("a bundle");
        let issuer = rcgen::Issuer::new(params, key);
        Self { issuer, bundle: Arc::new(bundle), token: token.into() }
    }

    fn sign(&self, id: &str, key: &impl rcgen::PublicKeyData) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.subject_alt_names = vec![rcgen::SanType::URI(id.try_into().expect("ASCII"))];
        params.extended_key_usages = vec![
            rcgen::ExtendedKeyUsagePurpose::ClientAuth,
            rcgen::ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let now = SystemTime::now();
        let hour = Duration::from_secs(3600);
        (params.not_before, params.not_after) = ((now - hour).into(), (now + hour).into());
        params.signed_by(key, &self.issuer).expect("a leaf").der().to_vec()
    }

    fn service(&self, name: &str) -> IdentityHandle {
        let key = PrivateKey::generate().expect("a key");
        let leaf = self.sign(&format!("spiffe://test/ns/rulecast-system/sa/{name}"), key.pair());
        let svid = Svid::new(vec![leaf.into()], key, self.bundle.clone(), None);
        IdentityHandle::fixed(svid.expect("an identity"))
    }

    fn pem(&self) -> String {
        self.bundle.to_pem()
    }
}

/// [`Authority`] and plane on one port each.
struct Site {
    authority: Arc<Authority>,
    node: Arc<Mutex<Option<Node>>>,
    ca: SocketAddr,
    plane: SocketAddr,
    stop: CancellationToken,
}

struct Ca(Arc<Authority>);

#[tonic::async_trait]
impl IdentityService for Ca {
    async fn issue_certificate(
        &self,
        request: Request<IssueCertificateRequest>,
    ) -> Result<Response<IssueCertificateResponse>, Status> {
        let text = |name| request.metadata().get(name).and_then(|v| v.to_str().ok());
        let good = format!("Bearer {}", self.0.token);
        if text("authorization-type") != Some("rulecast-kubernetes-token")
            || text("authorization") != Some(&good)
        {
            return Err(Status::unauthenticated("RC0418: not this token"));
        }
        let csr = rcgen::CertificateSigningRequestParams::from_der(
            &request.get_ref().csr.to_vec().into(),
        )
        .map_err(|e| Status::invalid_argument(e.to_string()))?;
        let leaf = self.0.sign("spiffe://test/ns/shop/sa/web", &csr.public_key);
        Ok(Response::new(IssueCertificateResponse {
            chain: vec![leaf.into()],
            bundle: Some(self.0.bundle.to_proto()),
            ..IssueCertificateResponse::default()
        }))
    }

    async fn get_trust_bundle(
        &self,
        _: Request<GetTrustBundleRequest>,
    ) -> Result<Response<WireBundle>, Status> {
        Ok(Response::new(self.0.bundle.to_proto()))
    }
}

/// Has one rule.
struct Plane(Arc<Mutex<Option<Node>>>);

#[tonic::async_trait]
impl RuleService for Plane {
    type ObserveStream = ReceiverStream<Result<ObserveResponse, Status>>;

    async fn observe(
        &self,
        request: Request<Streaming<ObserveRequest>>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let mut requests = request.into_inner();
        let (out, responses) = tokio::sync::mpsc::channel(4);
        let node = self.0.clone();
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                if let Some(introduced) = request.node {
                    *node.lock().expect("lock") = Some(introduced);
                }
                if request.nonce.is_empty() && out.send(Ok(state(&request.r#type))).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(responses)))
    }
}

fn state(type_name: &str) -> ObserveResponse {
    let spec = ConditionRoute { conditions: vec!["=> region=a".into()], ..Default::default() };
    let rule = Rule {
        key: "a/shop".into(),
        target: Some(Target { scope: Scope::Service.into(), key: "com.A".into() }),
        spec: spec.encode_to_vec().into(),
        ..Rule::default()
    };
    let data =
        vec![prost_types::Any { type_url: RULE_TYPE_URL.into(), value: rule.encode_to_vec() }];
    ObserveResponse {
        nonce: "1".into(),
        r#type: type_name.into(),
        revision: 1,
        data,
        lineage: "one".into(),
        ..ObserveResponse::default()
    }
}

impl Site {
    async fn start(authority: Authority) -> Self {
        let authority = Arc::new(authority);
        let node = Arc::default();
        let stop = CancellationToken::new();
        let grace = ClientAuth::Optional { grace: Duration::ZERO };
        let ca = IdentityServiceServer::new(Ca(authority.clone()));
        let plane = RuleServiceServer::new(Plane(Arc::clone(&node)));
        let ca =
            serve(&authority, "rulecast-ca", grace, tonic::service::Routes::new(ca), &stop).await;
        let plane = serve(
            &authority,
            "rulecast-dds",
            ClientAuth::Required,
            tonic::service::Routes::new(plane),
            &stop,
        )
        .await;
        Self { authority, node, ca, plane, stop }
    }

    /// As the webhook sets it up.
    fn pod(&self, folder: &Path) -> HashMap<&'static str, OsString> {
        let file = |name: &str, text: &str| -> PathBuf {
            fs::write(folder.join(name), text).expect("written");
            folder.join(name)
        };
        let token = file("token", &self.authority.token);
        HashMap::from([
            ("RULECAST_CA_ADDRESS", self.ca.to_string().into()),
            ("RULECAST_DDS_ADDRESS", self.plane.to_string().into()),
            ("RULECAST_TRUST_BUNDLE", file("ca.crt", &self.authority.pem()).into()),
            ("RULECAST_TOKEN_FILE", token.into()),
            ("RULECAST_NAMESPACE", "shop".into()),
            ("RULECAST_POD_NAME", "web-1".into()),
            ("RULECAST_APP", "frontend".into()),
        ])
    }
}

async fn serve(
    authority: &Authority,
    name: &str,
    clients: ClientAuth,
    routes: tonic::service::Routes,
    stop: &CancellationToken,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let config = tls::server_config(&authority.service(name), clients, None).expect("TLS");
    let options = ServeOptions { drain: Duration::from_millis(10), ..ServeOptions::default() };
    tokio::spawn(serve_tls(listener, config, routes, stop.clone(), options));
    address
}

fn builder(vars: &HashMap<&'static str, OsString>) -> ClientBuilder {
    let builder = Rulecast::from_vars(|name| vars.get(name).cloned()).expect("complete");
    // The plane here has a rule of this type alone.
    builder.subscribe(["dubbo.apache.org/v1alpha1/ConditionRoute"])
}

/// A service-account token as far as a pod reads its own.
fn token(account: &str) -> String {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
    let claims = format!(r#"{{"sub":"system:serviceaccount:shop:{account}"}}"#);
    format!("{}.{}.sig", BASE64.encode("{}"), BASE64.encode(claims))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_connects_by_its_environment_and_starts_again_alone() {
    let site = Site::start(Authority::new(&token("web"))).await;
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let mut vars = site.pod(folder.path());
    vars.insert("RULECAST_STATE", state.clone().into());
    let client = builder(&vars).connect().await.expect("connected");
    let status = client.status();
    assert_eq!(status.identity.spiffe_id.as_deref(), Some("spiffe://test/ns/shop/sa/web"));
    assert_eq!((status.items(), status.kinds[0].source), (1, Some(Source::Plane)));
    let node = site.node.lock().expect("lock").take().expect("introduced");
    assert_eq!((&*node.instance, &*node.application), ("web-1", "frontend"));
    client.shutdown().await;
    drop(client);
    let mut files: Vec<_> = fs::read_dir(&state)
        .expect("there")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("a text"))
        .collect();
    files.sort();
    assert_eq!(files, ["rules.owner", "rules.snapshot"], "no key and no certificate");

    // Authority and plane are away, the container starts again.
    site.stop.cancel();
    let client =
        timeout(LIMIT, builder(&vars).connect()).await.expect("at once").expect("restored");
    let status = client.status();
    assert_eq!((status.items(), status.kinds[0].source), (1, Some(Source::Disk)), "{status}");
    client.shutdown().await;
    drop(client);

    // The same folder under another service account.
    fs::write(folder.path().join("token"), token("cart")).expect("written");
    let mut soon = Tuning::default();
    soon.startup_timeout = Some(Duration::from_millis(200));
    let error = builder(&vars).tuning(soon).connect().await.expect_err("not its rules");
    assert_eq!(error.code(), Code::NotReady);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_waited_out_and_told() {
    let site = Site::start(Authority::new("good")).await;
    let folder = tempfile::tempdir().expect("a folder");
    let vars = site.pod(folder.path());
    fs::write(folder.path().join("token"), "bad").expect("written");
    let client = builder(&vars).startup(Startup::Deny).connect().await.expect("runs");
    let mut changes = client.changes();
    let refused = changes.wait_for(|s| s.identity.last_error.is_some());
    let status = timeout(LIMIT, refused).await.expect("in time").expect("runs").clone();
    let error = status.identity.last_error.expect("told");
    assert!(error.contains(Code::ServiceAccountToken.as_str()), "{error}");
    fs::write(folder.path().join("token"), "good").expect("written");
    timeout(LIMIT, changes.wait_for(|s| s.ready)).await.expect("in time").expect("runs");
    client.shutdown().await;
}
