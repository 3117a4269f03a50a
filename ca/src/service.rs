//! The identity service: attests callers and issues certificates.

use std::{
    fmt::Display,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rulecast_api::{
    Code, SpiffeId,
    proto::identity::v1::{
        GetTrustBundleRequest, IssueCertificateRequest, IssueCertificateResponse, TrustBundle,
        identity_service_server::{IdentityService, IdentityServiceServer},
    },
    spiffe::Workload,
};
use rulecast_identity::{
    AttestedFacts, CA_APPLICATION, JoinToken, Peer, PeerIdentity, SYSTEM_NAMESPACE,
    client::{AUTHORIZATION_TYPE, JOIN_TOKEN},
    manager::RENEWAL_GRACE,
    token,
};
use tonic::{Request, Response, Status, metadata::MetadataMap};
use tracing::{error, info, warn};
use zeroize::Zeroizing;

#[cfg(feature = "kubernetes")]
use crate::kubernetes::attestor::{self, Look, PodAttestor};
use crate::{
    CaError, authority::AuthorityHandle, csr, metrics::Metrics, rpc::MAX_REQUEST, tokens::Tokens,
};
#[cfg(feature = "kubernetes")]
use rulecast_identity::client::{KUBERNETES_AUDIENCE, KUBERNETES_TOKEN};

/// `authorization-type` of a service-account token on the wire of the Dubbo control plane.
#[cfg(feature = "kubernetes")]
pub(crate) const DUBBO_TOKEN: &str = "dubbo-ca-token";
/// `authorization-type` of a token that the Dubbo control plane gave out with certificates.
const DUBBO_JWT: &str = "dubbo-jwt";

/// Scheme of the `authorization` metadata.
const BEARER: &str = "Bearer ";

/// Issues by what callers show. Clones share everything.
#[derive(Clone, Debug)]
pub struct Service {
    authority: AuthorityHandle,
    attestor: Attestor,
    ttl: Duration,
    max_ttl: Duration,
    metrics: Metrics,
}

/// What callers can show for their first certificate.
#[derive(Clone, Debug)]
pub enum Attestor {
    /// A join token.
    JoinTokens(Tokens),
    /// The service-account token of a pod.
    #[cfg(feature = "kubernetes")]
    Pods(PodAttestor),
}

/// What a caller speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// `rulecast.identity.v1`.
    Rulecast,
    /// What the clients of the Dubbo control plane speak.
    Dubbo {
        /// Whether their service-account tokens are taken.
        tokens: bool,
    },
}

/// A type of credentials: its name for people, and on the wire.
type Shown = (&'static str, &'static str);

impl Attestor {
    /// What is taken besides certificates; `None`: nothing.
    fn wanted(&self, wire: Wire) -> Option<Shown> {
        match (self, wire) {
            (Self::JoinTokens(_), _) => Some(("a join token", JOIN_TOKEN)),
            #[cfg(feature = "kubernetes")]
            (Self::Pods(_), Wire::Rulecast) => Some(("a service-account token", KUBERNETES_TOKEN)),
            #[cfg(feature = "kubernetes")]
            (Self::Pods(_), Wire::Dubbo { tokens: true }) => {
                Some(("a service-account token", DUBBO_TOKEN))
            }
            #[cfg(feature = "kubernetes")]
            (Self::Pods(_), Wire::Dubbo { tokens: false }) => None,
        }
    }
}

/// What a caller shows.
enum Credential {
    JoinToken(Zeroizing<[u8; 32]>),
    #[cfg(feature = "kubernetes")]
    Pod(Zeroizing<String>, &'static str),
    Certificate(Arc<PeerIdentity>),
}

/// Who a caller is.
enum Caller {
    /// Whoever the token is for. It is looked up where files may be read.
    JoinToken(Tokens, Zeroizing<[u8; 32]>),
    /// Known already.
    Known(SpiffeId, AttestedFacts),
}

impl Service {
    /// `ttl` is the life of a certificate when none is asked for, `max_ttl` the
    /// longest that may be asked for.
    pub fn new(
        authority: AuthorityHandle,
        attestor: Attestor,
        ttl: Duration,
        max_ttl: Duration,
        metrics: Metrics,
    ) -> Self {
        Self { authority, attestor, ttl, max_ttl, metrics }
    }

    /// For tonic, with the limits of its messages.
    pub fn into_server(self) -> IdentityServiceServer<Self> {
        IdentityServiceServer::new(self).max_decoding_message_size(MAX_REQUEST)
    }

    fn life(&self, seconds: u32) -> Duration {
        match seconds {
            0 => self.ttl,
            _ => Duration::from_secs(seconds.into()),
        }
        .min(self.max_ttl)
    }

    /// Finds out who shows `credential`, and whether that was checked against the
    /// pod itself; `None` for callers that are no pods.
    async fn attest(&self, credential: Credential) -> Result<(Caller, Option<bool>), CaError> {
        match (credential, &self.attestor) {
            (Credential::JoinToken(secret), Attestor::JoinTokens(tokens)) => {
                Ok((Caller::JoinToken(tokens.clone(), secret), None))
            }
            #[cfg(feature = "kubernetes")]
            (Credential::Pod(token, audience), Attestor::Pods(pods)) => {
                let trust_domain = self.authority.current().trust_domain().to_owned();
                let (spiffe, facts) = pods.attest(token, audience, &trust_domain).await?;
                Ok((Caller::Known(spiffe, facts), Some(true)))
            }
            (Credential::Certificate(peer), attestor) => {
                renewable(&peer, SystemTime::now())?;
                let mut facts = peer.facts.clone().unwrap_or_else(|| AttestedFacts {
                    namespace: peer.spiffe.namespace.clone(),
                    application: peer.spiffe.workload.name().into(),
                    method: "certificate".into(),
                    token_id: None,
                    pod: None,
                });
                let checked = match &peer.spiffe.workload {
                    Workload::Application(_) => None,
                    Workload::ServiceAccount(_) => {
                        Some(self.look(attestor, &peer, &mut facts).await?)
                    }
                };
                Ok((Caller::Known(peer.spiffe.clone(), facts), checked))
            }
            #[cfg(feature = "kubernetes")]
            (Credential::JoinToken(_) | Credential::Pod(..), _) => {
                Err(CaError::authority("a credential was read that is not taken here"))
            }
        }
    }

    /// Looks again for the pod of a certificate that is to be renewed. While the API
    /// server cannot be asked, what was attested before still counts: or else an
    /// outage of it would end every identity in the cluster. `false` says so.
    async fn look(
        &self,
        attestor: &Attestor,
        peer: &PeerIdentity,
        facts: &mut AttestedFacts,
    ) -> Result<bool, CaError> {
        let refused = |why: &str| {
            CaError::new(
                Code::PeerIdentity,
                format!("{} cannot be renewed here: {why}", peer.spiffe),
            )
        };
        match (attestor, &mut facts.pod) {
            (_, None) => Err(refused("its certificate names no pod")),
            (Attestor::JoinTokens(_), _) => Err(refused("this authority knows no pods")),
            #[cfg(feature = "kubernetes")]
            (Attestor::Pods(pods), Some(pod)) => {
                let spiffe = &peer.spiffe;
                match pods.look(&spiffe.namespace, spiffe.workload.name(), pod).await? {
                    Look::Found(now) => {
                        *pod = now;
                        Ok(true)
                    }
                    Look::Unknown(error) => {
                        warn!(spiffe = %peer.spiffe, %error, "renewed without a look at the pod");
                        self.metrics.unchecked();
                        Ok(false)
                    }
                }
            }
        }
    }

    /// Blocking: may read and write token files, and signs.
    fn issue(&self, caller: Caller, request: &IssueCertificateRequest) -> Result<Answer, CaError> {
        let authority = self.authority.current();
        let (spiffe, facts, checked) = match caller {
            Caller::JoinToken(tokens, secret) => {
                let grant = tokens.look(&secret)?;
                let (namespace, name) = (&grant.namespace, &grant.application);
                let spiffe = SpiffeId::application(authority.trust_domain(), namespace, name)
                    .map_err(|e| CaError::authority(e.to_string()))?;
                // Before the token is used up: a bad request must not cost it.
                let checked = csr::check(&request.csr, &spiffe)?;
                let grant = tokens.redeem(&secret, &checked.key_hash())?;
                let facts = AttestedFacts {
                    namespace: grant.namespace,
                    application: grant.application,
                    method: "join-token".into(),
                    token_id: Some(grant.token_id),
                    pod: None,
                };
                (spiffe, facts, checked)
            }
            Caller::Known(spiffe, facts) => {
                let checked = csr::check(&request.csr, &spiffe)?;
                (spiffe, facts, checked)
            }
        };
        let life = self.life(request.ttl_seconds);
        let issued = authority.issue(&checked.public_key, &spiffe, &facts, life)?;
        let response = IssueCertificateResponse {
            chain: issued.chain.iter().map(|der| der.to_vec().into()).collect(),
            bundle: Some(authority.bundle().to_proto()),
            not_before: unix(issued.not_before),
            not_after: unix(issued.not_after),
            renew_at: unix(issued.renew_at),
            spiffe_id: spiffe.to_string(),
        };
        let pod = facts.pod.map(|pod| format!("{} ({})", pod.name, pod.uid));
        Ok(Answer { response, serial: issued.serial, token_id: facts.token_id, pod })
    }

    /// Attests whoever makes a call, issues, and tells the audit log of it. `message` may
    /// be refused already.
    pub(crate) async fn certify(
        &self,
        wire: Wire,
        metadata: &MetadataMap,
        peer: &Peer,
        message: Result<IssueCertificateRequest, CaError>,
    ) -> Result<IssueCertificateResponse, CaError> {
        let certified = self.try_certify(wire, metadata, peer, message).await;
        certified.inspect_err(|error| {
            self.metrics.refused(error.code());
            let holder = peer.identity.as_ref().map(|p| p.spiffe.to_string());
            warn!(audit = true, address = %peer.address, holder, %error, "certificate refused");
        })
    }

    async fn try_certify(
        &self,
        wire: Wire,
        metadata: &MetadataMap,
        peer: &Peer,
        message: Result<IssueCertificateRequest, CaError>,
    ) -> Result<IssueCertificateResponse, CaError> {
        let credential = credential(metadata, peer, &self.attestor, wire)?;
        let message = message?;
        let method = match &credential {
            Credential::JoinToken(_) => "join-token",
            #[cfg(feature = "kubernetes")]
            Credential::Pod(..) => attestor::METHOD,
            Credential::Certificate(holder) if holder.not_after < SystemTime::now() => {
                "expired-certificate"
            }
            Credential::Certificate(_) => "certificate",
        };
        let (caller, pod_checked) = self.attest(credential).await?;
        let service = self.clone();
        let answer = tokio::task::spawn_blocking(move || service.issue(caller, &message)).await;
        let answer = answer
            .unwrap_or_else(|e| Err(CaError::authority(format!("issuing broke off: {e}"))))?;
        self.metrics.issued(method);
        info!(
            audit = true,
            address = %peer.address,
            spiffe = answer.response.spiffe_id,
            method,
            serial = answer.serial,
            token = answer.token_id,
            pod = answer.pod,
            pod_checked,
            not_after = answer.response.not_after,
            "certificate issued"
        );
        Ok(answer.response)
    }
}

struct Answer {
    response: IssueCertificateResponse,
    serial: String,
    token_id: Option<String>,
    pod: Option<String>,
}

#[tonic::async_trait]
impl IdentityService for Service {
    async fn issue_certificate(
        &self,
        request: Request<IssueCertificateRequest>,
    ) -> Result<Response<IssueCertificateResponse>, Status> {
        let peer = peer(&request)?;
        let (metadata, _, message) = request.into_parts();
        let issued = self.certify(Wire::Rulecast, &metadata, &peer, Ok(message)).await;
        issued.map(Response::new).map_err(|error| status(&error))
    }

    async fn get_trust_bundle(
        &self,
        _: Request<GetTrustBundleRequest>,
    ) -> Result<Response<TrustBundle>, Status> {
        Ok(Response::new(self.authority.current().bundle().to_proto()))
    }
}

/// Which credential counts. One that is shown and bad is refused: there is no
/// falling back to the other.
fn credential(
    metadata: &MetadataMap,
    peer: &Peer,
    attestor: &Attestor,
    wire: Wire,
) -> Result<Credential, CaError> {
    let wanted = attestor.wanted(wire);
    let missing = |why: &str| {
        let token = wanted.map_or_else(String::new, |(name, kind)| {
            format!("{name} (authorization: Bearer, {AUTHORIZATION_TYPE}: {kind}) or ")
        });
        let message = format!("{why}; show {token}a client certificate of this authority");
        CaError::new(Code::CredentialMissing, message)
    };
    let (kind, value) = (metadata.get(AUTHORIZATION_TYPE), metadata.get("authorization"));
    let (kind, value) = match (kind, value) {
        (None, None) => {
            let holder = peer.identity.clone().ok_or_else(|| missing("there is no credential"))?;
            return Ok(Credential::Certificate(holder));
        }
        (Some(kind), Some(value)) => (kind, value),
        (None, Some(_)) => return Err(missing("the type of the credential is missing")),
        (Some(_), None) => return Err(missing("the credential itself is missing")),
    };
    let several = |key| metadata.get_all(key).iter().count() > 1;
    if several("authorization") || several(AUTHORIZATION_TYPE) {
        return Err(missing("there are several credentials"));
    }
    let kind = kind.as_bytes();
    if wanted.is_none_or(|(_, wanted)| kind != wanted.as_bytes()) {
        return Err(missing(if kind == DUBBO_JWT.as_bytes() {
            "a token that buys certificates which buy tokens would never end, so it is not taken"
        } else {
            "this authority takes no credential of this type"
        }));
    }
    let bearer = value
        .to_str()
        .ok()
        .and_then(|text| text.strip_prefix(BEARER))
        .ok_or_else(|| missing("the credential is not a bearer token"))?;
    match (attestor, wire) {
        // Other clients know nothing of its parts, so they show it as it was given to them.
        (Attestor::JoinTokens(_), Wire::Dubbo { .. }) if bearer.contains('.') => {
            Ok(Credential::JoinToken(bearer.parse::<JoinToken>()?.secret))
        }
        (Attestor::JoinTokens(_), _) => Ok(Credential::JoinToken(token::secret_of_bearer(bearer)?)),
        #[cfg(feature = "kubernetes")]
        (Attestor::Pods(_), wire) => {
            let audience = match wire {
                Wire::Rulecast => KUBERNETES_AUDIENCE,
                Wire::Dubbo { .. } => attestor::DUBBO_AUDIENCE,
            };
            Ok(Credential::Pod(Zeroizing::new(bearer.to_owned()), audience))
        }
    }
}

/// Whether the holder of a certificate that TLS verified may have the next one.
fn renewable(peer: &PeerIdentity, now: SystemTime) -> Result<(), CaError> {
    if is_own(&peer.spiffe.namespace, peer.spiffe.workload.name()) {
        return Err(CaError::new(
            Code::PeerIdentity,
            "the authority's own identity is renewed by itself alone",
        ));
    }
    // A connection may outlive the certificate that it was opened with.
    let grace = match peer.spiffe.workload {
        Workload::Application(_) => RENEWAL_GRACE,
        Workload::ServiceAccount(_) => Duration::ZERO,
    };
    match now.duration_since(peer.not_after) {
        Ok(over) if over > grace => Err(CaError::new(
            Code::PeerExpired,
            "the certificate has ended too long ago to be renewed; join with a new token",
        )),
        _ => Ok(()),
    }
}

/// Whether a name is that of the authority itself, which nobody else may get.
pub(crate) fn is_own(namespace: &str, application: &str) -> bool {
    namespace == SYSTEM_NAMESPACE && application == CA_APPLICATION
}

pub(crate) fn peer<T>(request: &Request<T>) -> Result<Peer, Status> {
    request.extensions().get::<Peer>().cloned().ok_or_else(|| {
        status(&CaError::authority("a call came without a connection; serve with serve_tls"))
    })
}

/// What the caller is told. Of the authority's own troubles only that there are
/// some: the rest is for its log.
pub(crate) fn status(error: &CaError) -> Status {
    let text = |code: Code, message: &dyn Display| format!("{code}: {message}");
    let message = text(error.code(), &error.message());
    match error.code() {
        Code::CredentialMissing
        | Code::TokenInvalid
        | Code::TokenExpired
        | Code::ServiceAccountToken
        | Code::PeerExpired
        | Code::PeerUntrusted
        | Code::PeerTrustDomain => Status::unauthenticated(message),
        Code::CsrIdentity
        | Code::CsrAuthority
        | Code::PeerIdentity
        | Code::PodGone
        | Code::OtherApplication => Status::permission_denied(message),
        Code::CsrInvalid | Code::CsrKey => Status::invalid_argument(message),
        Code::RateLimited => Status::resource_exhausted(message),
        _ => {
            error!(%error, "the authority cannot answer");
            let message = "the authority cannot issue now; its log says why";
            Status::unavailable(text(Code::AuthorityUnreachable, &message))
        }
    }
}

fn unix(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use rulecast_identity::PodFacts;

    use super::*;

    fn refused(entries: &[(&'static str, &str)]) -> Code {
        let mut metadata = MetadataMap::new();
        for (key, value) in entries {
            metadata.append(*key, value.parse().expect("ASCII"));
        }
        let peer = Peer::new(([127, 0, 0, 1], 1).into(), None);
        let attestor = Attestor::JoinTokens(Tokens::new("tokens"));
        match credential(&metadata, &peer, &attestor, Wire::Rulecast) {
            Ok(_) => panic!("accepted"),
            Err(error) => error.code(),
        }
    }

    #[test]
    fn a_bad_credential_is_refused() {
        let kind = (AUTHORIZATION_TYPE, JOIN_TOKEN);
        let good = "Bearer AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        assert_eq!(refused(&[]), Code::CredentialMissing);
        assert_eq!(refused(&[kind]), Code::CredentialMissing);
        assert_eq!(refused(&[("authorization", good)]), Code::CredentialMissing);
        assert_eq!(
            refused(&[(AUTHORIZATION_TYPE, "other"), ("authorization", good)]),
            Code::CredentialMissing
        );
        // It is another authority's to take.
        let pods = (AUTHORIZATION_TYPE, "rulecast-kubernetes-token");
        assert_eq!(refused(&[pods, ("authorization", "Bearer a.b.c")]), Code::CredentialMissing);
        assert_eq!(refused(&[kind, ("authorization", "Basic AAAA")]), Code::CredentialMissing);
        assert_eq!(
            refused(&[kind, ("authorization", good), ("authorization", good)]),
            Code::CredentialMissing
        );
        assert_eq!(refused(&[kind, kind, ("authorization", good)]), Code::CredentialMissing);
        assert_eq!(refused(&[kind, ("authorization", "Bearer AAAA")]), Code::TokenInvalid);
    }

    #[tokio::test]
    async fn a_pod_is_not_renewed_where_no_pods_are_known() {
        let parent = tempfile::tempdir().expect("folder");
        let dir = parent.path().join("ca");
        crate::init(&dir, "td.example").expect("made");
        let authority = crate::Authority::open(&dir).expect("opens");
        let own = authority.own_svid(Duration::from_secs(60)).expect("issued");
        let own = PeerIdentity::from_der(&own.chain[0]).expect("ours");
        let (authority, _updater) = AuthorityHandle::new(authority);
        let attestor = Attestor::JoinTokens(Tokens::new(dir.join("tokens")));
        let hour = Duration::from_secs(3600);
        let service = Service::new(authority, attestor, hour, hour, Metrics::default());
        let attest = async |spiffe: &str, pod: Option<PodFacts>| {
            let facts = own.facts.clone().map(|facts| AttestedFacts { pod, ..facts });
            let spiffe = spiffe.parse().expect("an identity");
            let peer = PeerIdentity { spiffe, facts, ..own.clone() };
            let attested = service.attest(Credential::Certificate(Arc::new(peer))).await;
            attested.map(|_| ()).map_err(|error| error.code())
        };
        let pod = PodFacts { name: "web-0".into(), uid: "u".into(), node: None };
        assert_eq!(attest("spiffe://td.example/ns/shop/app/web", None).await, Ok(()));
        for pod in [None, Some(pod)] {
            let account = attest("spiffe://td.example/ns/shop/sa/web", pod).await;
            assert_eq!(account, Err(Code::PeerIdentity));
        }
    }

    #[test]
    fn the_authoritys_troubles_stay_at_home() {
        let status = status(&CaError::authority("/var/lib/secret-place: damaged"));
        assert!(!status.message().contains("secret-place"));
        assert!(status.message().starts_with("RC0416: "));
    }
}
