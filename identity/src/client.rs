//! Asking the certificate authority.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use rulecast_api::{
    Code, SpiffeId,
    proto::identity::v1::{
        GetTrustBundleRequest, IssueCertificateRequest, IssueCertificateResponse,
        identity_service_client::IdentityServiceClient,
    },
};
use rustls::ClientConfig;
use rustls_pki_types::CertificateDer;
use tonic::{
    Request,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};
use zeroize::Zeroizing;

use crate::{
    ConnectOptions, Expected, IdentityError, IdentityHandle, JoinToken, KubernetesCredential,
    PrivateKey, Svid, TrustBundle, connect,
    peer::system_time,
    tls::{self, Role},
};

/// Metadata key that names the type of the credential in `authorization`.
pub const AUTHORIZATION_TYPE: &str = "authorization-type";
/// Value of [`AUTHORIZATION_TYPE`] for join tokens.
pub const JOIN_TOKEN: &str = "rulecast-join-token";
/// Value of [`AUTHORIZATION_TYPE`] for Kubernetes service-account tokens of audience
/// [`KUBERNETES_AUDIENCE`].
pub const KUBERNETES_TOKEN: &str = "rulecast-kubernetes-token";
/// Audience that a service-account token must have to be shown to the authority.
pub const KUBERNETES_AUDIENCE: &str = "rulecast-ca";

/// How long one call may take.
const CALL: Duration = Duration::from_secs(10);

/// A client of the certificate authority. Each call opens its own connection:
/// calls are rare, and each shows another certificate.
#[derive(Clone, Debug)]
pub struct IdentityClient {
    address: String,
    options: ConnectOptions,
}

impl IdentityClient {
    /// Of the authority at `address`, `host:port`.
    pub fn new(address: impl Into<String>, options: ConnectOptions) -> Self {
        Self { address: address.into(), options }
    }

    /// The first certificate, for a join token. The authority is authenticated
    /// by the fingerprint in the token before the token's secret is sent. May
    /// be repeated with the same key for 10 minutes.
    pub async fn join(
        &self,
        token: &JoinToken,
        key: &PrivateKey,
        ttl: Option<Duration>,
    ) -> Result<Svid, IdentityError> {
        let tls = tls::first_contact_config(
            &token.trust_domain,
            token.root_fingerprint,
            Expected::authority(),
        )?;
        let mut request = issue_request(key, None, ttl)?;
        show(&mut request, JOIN_TOKEN, &token.bearer())?;
        let svid = self.issue(tls, request, key, || Some(&token.trust_domain)).await?;
        if !svid.bundle.has_root(&hex::encode(token.root_fingerprint)) {
            return Err(IdentityError::new(
                Code::PeerUntrusted,
                "the authority's bundle lacks the root that the join token names",
            ));
        }
        Ok(svid)
    }

    /// A certificate for a pod's service-account token; may be asked for again with the same
    /// token while it lasts. The authority is authenticated by the roots before the token is
    /// sent; its trust domain is the one of its own identity.
    pub async fn join_kubernetes(
        &self,
        credential: &KubernetesCredential,
        key: &PrivateKey,
        ttl: Option<Duration>,
    ) -> Result<Svid, IdentityError> {
        let (tls, met) =
            tls::rooted_contact_config(credential.roots.clone(), Expected::authority())?;
        let mut request = issue_request(key, None, ttl)?;
        show(&mut request, KUBERNETES_TOKEN, &credential.token)?;
        self.issue(tls, request, key, || met.get()).await
    }

    /// The next certificate of the same identity, over mutual TLS with the current one.
    pub async fn renew(
        &self,
        current: &Svid,
        key: &PrivateKey,
        ttl: Option<Duration>,
    ) -> Result<Svid, IdentityError> {
        let identity = IdentityHandle::fixed(current.clone());
        let tls = tls::client_config(&identity, Expected::authority())?;
        let request = issue_request(key, Some(&current.spiffe), ttl)?;
        let svid = self.issue(tls, request, key, || Some(&current.spiffe.trust_domain)).await?;
        if svid.spiffe != current.spiffe {
            return Err(IdentityError::new(
                Code::OtherApplication,
                format!(
                    "asked for {}, the authority answered with {}",
                    current.spiffe, svid.spiffe
                ),
            ));
        }
        Ok(svid)
    }

    /// The authority's current bundle, over mutual TLS with `identity`.
    pub async fn bundle(&self, identity: &IdentityHandle) -> Result<TrustBundle, IdentityError> {
        let tls = tls::client_config(identity, Expected::authority())?;
        let mut client = self.connect(tls).await?;
        let request = Request::new(GetTrustBundleRequest {});
        let answer = tokio::time::timeout(CALL, client.get_trust_bundle(request))
            .await
            .map_err(|_| self.slow())?
            .map_err(|status| IdentityError::from_status(&status))?;
        let bundle = TrustBundle::from_proto(answer.into_inner())?;
        if bundle.trust_domain() != identity.bundle().trust_domain() {
            return Err(IdentityError::new(
                Code::PeerTrustDomain,
                format!("the authority's bundle is of trust domain {}", bundle.trust_domain()),
            ));
        }
        Ok(bundle)
    }

    async fn connect(
        &self,
        tls: Arc<ClientConfig>,
    ) -> Result<IdentityServiceClient<Channel>, IdentityError> {
        let channel =
            connect(&self.address, tls, &self.options).await.map_err(|e| match e.code() {
                Code::PlaneUnreachable => IdentityError::new(
                    Code::AuthorityUnreachable,
                    format!("the certificate authority at {}", e.message()),
                ),
                _ => e,
            })?;
        Ok(IdentityServiceClient::new(channel).max_decoding_message_size(1 << 20))
    }

    fn slow(&self) -> IdentityError {
        IdentityError::new(
            Code::AuthorityUnreachable,
            format!("the certificate authority at {} did not answer within {CALL:?}", self.address),
        )
    }

    /// `trust_domain` is asked after the handshake, which may be what tells it.
    async fn issue<'a>(
        &self,
        tls: Arc<ClientConfig>,
        request: Request<IssueCertificateRequest>,
        key: &PrivateKey,
        trust_domain: impl FnOnce() -> Option<&'a str>,
    ) -> Result<Svid, IdentityError> {
        let mut client = self.connect(tls).await?;
        let answer = tokio::time::timeout(CALL, client.issue_certificate(request))
            .await
            .map_err(|_| self.slow())?
            .map_err(|status| IdentityError::from_status(&status))?;
        let trust_domain = trust_domain().ok_or_else(|| {
            IdentityError::new(Code::PeerUntrusted, "the authority showed no certificate")
        })?;
        check(answer.into_inner(), key, trust_domain)
    }
}

/// Puts a credential into the request's metadata, where it is not printed.
fn show(
    request: &mut Request<IssueCertificateRequest>,
    kind: &'static str,
    secret: &str,
) -> Result<(), IdentityError> {
    let text = Zeroizing::new(format!("Bearer {secret}"));
    let mut bearer: MetadataValue<Ascii> = text
        .parse()
        .map_err(|_| IdentityError::new(Code::TokenInvalid, "the token cannot be sent"))?;
    bearer.set_sensitive(true);
    request.metadata_mut().insert("authorization", bearer);
    request.metadata_mut().insert(AUTHORIZATION_TYPE, MetadataValue::from_static(kind));
    Ok(())
}

fn issue_request(
    key: &PrivateKey,
    name: Option<&SpiffeId>,
    ttl: Option<Duration>,
) -> Result<Request<IssueCertificateRequest>, IdentityError> {
    let ttl_seconds = ttl.map_or(0, |ttl| u32::try_from(ttl.as_secs().max(1)).unwrap_or(u32::MAX));
    Ok(Request::new(IssueCertificateRequest { csr: key.csr(name)?.into(), ttl_seconds }))
}

/// Takes nothing of the answer on trust: the chain must verify now, for our
/// key, in our trust domain, under the bundle that came with it.
fn check(
    answer: IssueCertificateResponse,
    key: &PrivateKey,
    trust_domain: &str,
) -> Result<Svid, IdentityError> {
    let bundle = answer.bundle.ok_or_else(|| {
        IdentityError::new(Code::PeerUntrusted, "the authority's answer has no trust bundle")
    })?;
    let bundle = Arc::new(TrustBundle::from_proto(bundle)?);
    if bundle.trust_domain() != trust_domain {
        return Err(IdentityError::new(
            Code::PeerTrustDomain,
            format!(
                "the authority's answer is of trust domain {}, ours is {trust_domain}",
                bundle.trust_domain()
            ),
        ));
    }
    let chain: Vec<CertificateDer<'static>> =
        answer.chain.into_iter().map(|der| Vec::from(der).into()).collect();
    let Some((leaf, intermediates)) = chain.split_first() else {
        return Err(IdentityError::new(
            Code::PeerIdentity,
            "the authority's answer has no certificate",
        ));
    };
    tls::verify_chain(leaf, intermediates, &bundle, SystemTime::now(), Role::Client)?;
    let renew_at = (answer.renew_at > 0).then(|| system_time(answer.renew_at));
    Svid::new(chain, key.clone(), bundle, renew_at)
}
