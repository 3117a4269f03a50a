//! An authority made on the spot, which can also issue what a real one never would.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyUsagePurpose, PublicKeyData, SanType, SubjectPublicKeyInfo,
};
use rulecast_api::proto::identity::v1::{
    GetTrustBundleRequest, IssueCertificateRequest, IssueCertificateResponse,
    TrustBundle as WireBundle,
    identity_service_server::{IdentityService, IdentityServiceServer},
};
use rulecast_identity::{
    AttestedFacts, IdentityHandle, JoinToken, Peer, PrivateKey, ServeOptions, Svid, TrustBundle,
    client, facts, peer::PeerIdentity, serve_tls,
};
use rustls::{ServerConfig, pki_types::CertificateDer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, service::Routes};
use x509_parser::prelude::FromDer;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) struct Authority {
    pub(crate) domain: String,
    pub(crate) root: CertificateDer<'static>,
    intermediate: CertificateDer<'static>,
    issuer: Issuer<'static, rcgen::KeyPair>,
}

fn ca_params(name: &str, path: Option<u8>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca =
        IsCa::Ca(path.map_or(BasicConstraints::Unconstrained, BasicConstraints::Constrained));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

impl Authority {
    pub(crate) fn new(domain: &str) -> Arc<Self> {
        let root_key = rcgen::KeyPair::generate().expect("key");
        let root_params = ca_params("root", None);
        let root = root_params.self_signed(&root_key).expect("root").der().clone();
        let key = rcgen::KeyPair::generate().expect("key");
        let params = ca_params("intermediate", Some(0));
        let root_issuer = Issuer::new(root_params, root_key);
        let intermediate =
            params.signed_by(&key, &root_issuer).expect("intermediate").der().clone();
        let issuer = Issuer::new(params, key);
        Arc::new(Self { domain: domain.into(), root, intermediate, issuer })
    }

    pub(crate) fn bundle(&self) -> TrustBundle {
        TrustBundle::new(&*self.domain, vec![self.root.clone()], 1).expect("bundle")
    }

    pub(crate) fn id(&self, application: &str) -> String {
        format!("spiffe://{}/ns/default/app/{application}", self.domain)
    }

    pub(crate) fn service(&self, application: &str) -> String {
        format!("spiffe://{}/ns/rulecast-system/app/{application}", self.domain)
    }

    pub(crate) fn account(&self, name: &str) -> String {
        format!("spiffe://{}/ns/default/sa/{name}", self.domain)
    }

    /// The roots as plain PEM.
    pub(crate) fn pem(&self) -> String {
        pem::encode(&pem::Pem::new("CERTIFICATE", self.root.to_vec()))
    }

    pub(crate) fn token(&self) -> JoinToken {
        JoinToken {
            trust_domain: self.domain.clone(),
            root_fingerprint: fingerprint_of(&self.root),
            secret: [7; 32].into(),
        }
    }

    /// Leaf and intermediate for `key`, without the root.
    pub(crate) fn sign(
        &self,
        uri: &str,
        key: &impl PublicKeyData,
        not_before: SystemTime,
        not_after: SystemTime,
    ) -> Vec<CertificateDer<'static>> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().expect("ia5"))];
        params.is_ca = IsCa::ExplicitNoCa;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        (params.not_before, params.not_after) = (not_before.into(), not_after.into());
        let facts = AttestedFacts {
            namespace: "default".into(),
            application: "shop".into(),
            method: "test".into(),
            token_id: None,
            pod: None,
        };
        params.custom_extensions = vec![rcgen::CustomExtension::from_oid_content(
            facts::OID,
            facts.encode().expect("encodes"),
        )];
        let leaf = params.signed_by(key, &self.issuer).expect("leaf").der().clone();
        vec![leaf, self.intermediate.clone()]
    }

    pub(crate) fn svid_between(
        &self,
        uri: &str,
        not_before: SystemTime,
        not_after: SystemTime,
    ) -> Svid {
        let key = PrivateKey::generate().expect("key");
        let mut chain = self.sign(uri, key.pair(), not_before, not_after);
        chain.push(self.root.clone());
        Svid::new(chain, key, Arc::new(self.bundle()), None).expect("svid")
    }

    pub(crate) fn svid(&self, uri: &str) -> Svid {
        let now = SystemTime::now();
        self.svid_between(uri, now - HOUR, now + HOUR)
    }

    pub(crate) fn identity(&self, uri: &str) -> IdentityHandle {
        IdentityHandle::fixed(self.svid(uri))
    }
}

pub(crate) fn fingerprint_of(der: &[u8]) -> [u8; 32] {
    rulecast_identity::token::secret_hash(der)
}

/// What the authority in the tests does with calls.
pub(crate) struct Service {
    pub(crate) authority: Mutex<Arc<Authority>>,
    /// Of whom a join token is.
    pub(crate) joins_as: String,
    /// The service-account tokens that are good now, and whose they are.
    pub(crate) accounts: Mutex<HashMap<String, String>>,
    /// How long before its end a certificate should be renewed; `None`: at half of its life.
    pub(crate) renew_before_end: Mutex<Option<Duration>>,
    /// Takes no certificate for a credential.
    pub(crate) refuses_renewals: AtomicBool,
    /// Life of certificates.
    pub(crate) ttl: Mutex<Duration>,
    /// Signs, but its answer is lost.
    pub(crate) loses_answers: AtomicBool,
    /// Refuses everything, as if it was down.
    pub(crate) down: AtomicBool,
    pub(crate) calls: AtomicUsize,
    /// Public keys that were signed, in order.
    pub(crate) keys: Mutex<Vec<Vec<u8>>>,
    /// The client certificates of calls.
    pub(crate) peers: Mutex<Vec<Option<Arc<PeerIdentity>>>>,
}

impl Service {
    pub(crate) fn new(authority: &Arc<Authority>, application: &str) -> Arc<Self> {
        Arc::new(Self {
            authority: Mutex::new(authority.clone()),
            joins_as: authority.id(application),
            accounts: Mutex::default(),
            renew_before_end: Mutex::default(),
            refuses_renewals: AtomicBool::new(false),
            ttl: Mutex::new(HOUR),
            loses_answers: AtomicBool::new(false),
            down: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            keys: Mutex::default(),
            peers: Mutex::default(),
        })
    }
}

#[tonic::async_trait]
impl IdentityService for Service {
    async fn issue_certificate(
        &self,
        request: Request<IssueCertificateRequest>,
    ) -> Result<Response<IssueCertificateResponse>, Status> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.down.load(Ordering::SeqCst) {
            return Err(Status::unavailable("down"));
        }
        let peer = request.extensions().get::<Peer>().expect("served by serve_tls").clone();
        let text = |name| request.metadata().get(name).map(|v| v.to_str().expect("ASCII"));
        let uri = match (&peer.identity, text(client::AUTHORIZATION_TYPE)) {
            (Some(_), None) if self.refuses_renewals.load(Ordering::SeqCst) => {
                return Err(Status::permission_denied("RC0405: not this one"));
            }
            (Some(peer), None) => peer.spiffe.to_string(),
            (_, Some(client::JOIN_TOKEN)) => self.joins_as.clone(),
            (None, Some(client::KUBERNETES_TOKEN)) => {
                let token = text("authorization").and_then(|t| t.strip_prefix("Bearer "));
                let accounts = self.accounts.lock().expect("lock");
                token.and_then(|token| accounts.get(token)).cloned().ok_or_else(|| {
                    Status::unauthenticated("RC0418: the API server does not know this token")
                })?
            }
            _ => return Err(Status::unauthenticated("RC0401: no credential")),
        };
        self.peers.lock().expect("lock").push(peer.identity);
        let csr = request.into_inner().csr;
        let (_, csr) = x509_parser::certification_request::X509CertificationRequest::from_der(&csr)
            .map_err(|_| Status::invalid_argument("RC0404: malformed"))?;
        let public = csr.certification_request_info.subject_pki.raw.to_vec();
        let key = SubjectPublicKeyInfo::from_der(&public).expect("key");
        self.keys.lock().expect("lock").push(public);
        let (now, ttl) = (SystemTime::now(), *self.ttl.lock().expect("lock"));
        let authority = self.authority.lock().expect("lock").clone();
        let chain = authority.sign(&uri, &key, now - HOUR, now + ttl);
        let before_end = self.renew_before_end.lock().expect("lock").unwrap_or(ttl / 2);
        if self.loses_answers.load(Ordering::SeqCst) {
            return Err(Status::unavailable("lost"));
        }
        let unix = |t: SystemTime| {
            t.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs() as i64
        };
        Ok(Response::new(IssueCertificateResponse {
            chain: chain.into_iter().map(|c| c.to_vec().into()).collect(),
            bundle: Some(authority.bundle().to_proto()),
            not_before: unix(now - HOUR),
            not_after: unix(now + ttl),
            renew_at: unix(now + ttl - before_end),
            spiffe_id: uri,
        }))
    }

    async fn get_trust_bundle(
        &self,
        _: Request<GetTrustBundleRequest>,
    ) -> Result<Response<WireBundle>, Status> {
        let authority = self.authority.lock().expect("lock").clone();
        Ok(Response::new(authority.bundle().to_proto()))
    }
}

/// A server on a loopback port, stopped when dropped.
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Server {
    pub(crate) async fn start(
        tls: Arc<ServerConfig>,
        service: Arc<Service>,
        options: ServeOptions,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("address").to_string();
        let shutdown = CancellationToken::new();
        let routes = Routes::new(IdentityServiceServer::from_arc(service));
        let task = tokio::spawn(serve_tls(listener, tls, routes, shutdown.clone(), options));
        Self { address, shutdown, task }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}
