//! The identity service: attests callers and issues certificates.

use std::{
    fmt::Display,
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use rulecast_api::{
    Code, SpiffeId,
    proto::identity::v1::{
        GetTrustBundleRequest, IssueCertificateRequest, IssueCertificateResponse, TrustBundle,
        identity_service_server::{IdentityService, IdentityServiceServer},
    },
    spiffe::Workload,
};
use rulecast_identity::{
    AttestedFacts, CA_APPLICATION, Peer, PeerIdentity, SYSTEM_NAMESPACE,
    client::{AUTHORIZATION_TYPE, JOIN_TOKEN},
    manager::RENEWAL_GRACE,
    token,
};
use tonic::{Request, Response, Status, metadata::MetadataMap};
use tracing::{error, info, warn};
use zeroize::Zeroizing;

use crate::{Authority, CaError, csr, metrics::Metrics, rpc::MAX_REQUEST, tokens::Tokens};

/// Scheme of the `authorization` metadata.
const BEARER: &str = "Bearer ";

/// Issues by join token or client certificate. Clones share everything.
#[derive(Clone, Debug)]
pub struct Service {
    authority: Arc<ArcSwap<Authority>>,
    tokens: Tokens,
    ttl: Duration,
    max_ttl: Duration,
    metrics: Metrics,
}

/// What a caller shows.
enum Credential {
    Token(Zeroizing<[u8; 32]>),
    Certificate(Arc<PeerIdentity>),
}

impl Service {
    /// `ttl` is the life of a certificate when none is asked for, `max_ttl` the
    /// longest that may be asked for.
    pub fn new(
        authority: Arc<ArcSwap<Authority>>,
        tokens: Tokens,
        ttl: Duration,
        max_ttl: Duration,
        metrics: Metrics,
    ) -> Self {
        Self { authority, tokens, ttl, max_ttl, metrics }
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

    /// Blocking: reads and writes token files, and signs.
    fn issue(
        &self,
        credential: Credential,
        request: &IssueCertificateRequest,
    ) -> Result<Answer, CaError> {
        let authority = self.authority.load();
        let application = |namespace: &str, application: &str| {
            SpiffeId::application(authority.trust_domain(), namespace, application)
                .map_err(|e| CaError::authority(e.to_string()))
        };
        let (spiffe, facts, checked) = match credential {
            Credential::Token(secret) => {
                let grant = self.tokens.look(&secret)?;
                let spiffe = application(&grant.namespace, &grant.application)?;
                // Before the token is used up: a bad request must not cost it.
                let checked = csr::check(&request.csr, &spiffe)?;
                let grant = self.tokens.redeem(&secret, &checked.key_hash())?;
                let facts = AttestedFacts {
                    namespace: grant.namespace,
                    application: grant.application,
                    method: "join-token".into(),
                    token_id: Some(grant.token_id),
                    pod: None,
                };
                (spiffe, facts, checked)
            }
            Credential::Certificate(peer) => {
                renewable(&peer, SystemTime::now())?;
                let checked = csr::check(&request.csr, &peer.spiffe)?;
                let facts = peer.facts.clone().unwrap_or_else(|| AttestedFacts {
                    namespace: peer.spiffe.namespace.clone(),
                    application: peer.spiffe.workload.name().into(),
                    method: "certificate".into(),
                    token_id: None,
                    pod: None,
                });
                (peer.spiffe.clone(), facts, checked)
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
        Ok(Answer { response, serial: issued.serial, token_id: facts.token_id })
    }

    fn refuse(&self, peer: &Peer, error: &CaError) -> Status {
        self.metrics.refused(error.code());
        let holder = peer.identity.as_ref().map(|p| p.spiffe.to_string());
        warn!(audit = true, address = %peer.address, holder, %error, "certificate refused");
        status(error)
    }
}

struct Answer {
    response: IssueCertificateResponse,
    serial: String,
    token_id: Option<String>,
}

#[tonic::async_trait]
impl IdentityService for Service {
    async fn issue_certificate(
        &self,
        request: Request<IssueCertificateRequest>,
    ) -> Result<Response<IssueCertificateResponse>, Status> {
        let peer = peer(&request)?;
        let credential =
            credential(request.metadata(), &peer).map_err(|e| self.refuse(&peer, &e))?;
        let method = match &credential {
            Credential::Token(_) => "join-token",
            Credential::Certificate(holder) if holder.not_after < SystemTime::now() => {
                "expired-certificate"
            }
            Credential::Certificate(_) => "certificate",
        };
        let (service, message) = (self.clone(), request.into_inner());
        let answer = tokio::task::spawn_blocking(move || service.issue(credential, &message)).await;
        let answer = answer
            .unwrap_or_else(|e| Err(CaError::authority(format!("issuing broke off: {e}"))))
            .map_err(|e| self.refuse(&peer, &e))?;
        self.metrics.issued(method);
        info!(
            audit = true,
            address = %peer.address,
            spiffe = answer.response.spiffe_id,
            method,
            serial = answer.serial,
            token = answer.token_id,
            not_after = answer.response.not_after,
            "certificate issued"
        );
        Ok(Response::new(answer.response))
    }

    async fn get_trust_bundle(
        &self,
        _: Request<GetTrustBundleRequest>,
    ) -> Result<Response<TrustBundle>, Status> {
        Ok(Response::new(self.authority.load().bundle().to_proto()))
    }
}

/// Which credential counts. One that is shown and bad is refused: there is no
/// falling back to the other.
fn credential(metadata: &MetadataMap, peer: &Peer) -> Result<Credential, CaError> {
    let missing = |why: &str| {
        CaError::new(
            Code::CredentialMissing,
            format!(
                "{why}; show a join token (authorization: Bearer, {AUTHORIZATION_TYPE}: {JOIN_TOKEN}) or a client certificate of this authority"
            ),
        )
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
    if kind.as_bytes() != JOIN_TOKEN.as_bytes() {
        return Err(missing("the type of the credential is unknown"));
    }
    if metadata.get_all("authorization").iter().count() > 1 {
        return Err(missing("there are several credentials"));
    }
    let secret = value
        .to_str()
        .ok()
        .and_then(|text| text.strip_prefix(BEARER))
        .ok_or_else(|| missing("the credential is not a bearer token"))?;
    Ok(Credential::Token(token::secret_of_bearer(secret)?))
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

fn peer<T>(request: &Request<T>) -> Result<Peer, Status> {
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
        | Code::PeerExpired
        | Code::PeerUntrusted
        | Code::PeerTrustDomain => Status::unauthenticated(message),
        Code::CsrIdentity | Code::CsrAuthority | Code::PeerIdentity | Code::OtherApplication => {
            Status::permission_denied(message)
        }
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
    use super::*;

    fn refused(entries: &[(&'static str, &str)]) -> Code {
        let mut metadata = MetadataMap::new();
        for (key, value) in entries {
            metadata.append(*key, value.parse().expect("ASCII"));
        }
        let peer = Peer { address: ([127, 0, 0, 1], 1).into(), identity: None };
        match credential(&metadata, &peer) {
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
        assert_eq!(refused(&[kind, ("authorization", "Basic AAAA")]), Code::CredentialMissing);
        assert_eq!(
            refused(&[kind, ("authorization", good), ("authorization", good)]),
            Code::CredentialMissing
        );
        assert_eq!(refused(&[kind, ("authorization", "Bearer AAAA")]), Code::TokenInvalid);
    }

    #[test]
    fn the_authoritys_troubles_stay_at_home() {
        let status = status(&CaError::authority("/var/lib/secret-place: damaged"));
        assert!(!status.message().contains("secret-place"));
        assert!(status.message().starts_with("RC0416: "));
    }
}
