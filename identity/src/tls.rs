//! TLS configurations in which both sides are known by their SPIFFE names.
//!
//! Configurations ask for the identity at every handshake: new
//! certificates and new roots take effect with the next connection, without a
//! new configuration. Sessions are never resumed, because a resumed session
//! would skip the verification. DNS names mean nothing here.

use std::{
    fmt,
    sync::{Arc, LazyLock, OnceLock},
    time::{Duration, SystemTime},
};

use rulecast_api::{Code, SpiffeId};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError,
    ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    server::{
        NoServerSessionStorage,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

use crate::{
    CA_APPLICATION, DDS_APPLICATION, IdentityError, IdentitySource, PeerIdentity, SYSTEM_NAMESPACE,
    TrustBundle, error::Chain, peer::fingerprint, svid::Current,
};

/// The cryptography of all of Rulecast.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    PROVIDER.clone()
}

/// Who may be at the other end of a connection. Its trust domain is the bundle's in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any identity of the trust domain.
    Any,
    /// The application or service account of this name.
    Workload {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl Expected {
    /// Rulecast's certificate authority.
    pub fn authority() -> Self {
        Self::system(CA_APPLICATION)
    }

    /// Rulecast's DDS server.
    pub fn dds() -> Self {
        Self::system(DDS_APPLICATION)
    }

    fn system(name: &str) -> Self {
        Self::Workload { namespace: SYSTEM_NAMESPACE.into(), name: name.into() }
    }

    /// [`Code::PeerIdentity`] when `peer` is another one.
    pub fn check(&self, peer: &SpiffeId) -> Result<(), IdentityError> {
        match self {
            Self::Workload { namespace, name }
                if peer.namespace != *namespace || peer.workload.name() != name =>
            {
                Err(IdentityError::new(
                    Code::PeerIdentity,
                    format!(
                        "the peer is {peer}, expected was {name} in namespace {namespace}; see \
                         that the address is right"
                    ),
                ))
            }
            _ => Ok(()),
        }
    }
}

/// What a certificate is shown as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// By the side that connects.
    Client,
    /// By the side that listens.
    Server,
}

/// Verifies a peer's chain against `bundle` at `now`: signatures, times, usage,
/// trust domain, one SPIFFE name. Each refusal has its own code:
/// [`Code::PeerTrustDomain`], [`Code::PeerExpired`], [`Code::PeerUntrusted`],
/// [`Code::PeerIdentity`].
pub fn verify_chain(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    bundle: &TrustBundle,
    now: SystemTime,
    role: Role,
) -> Result<PeerIdentity, IdentityError> {
    let named = PeerIdentity::from_der(leaf);
    // Another domain has another root as well; the name says more than the missing root.
    if let Ok(peer) = &named
        && peer.spiffe.trust_domain != bundle.trust_domain()
    {
        return Err(IdentityError::new(
            Code::PeerTrustDomain,
            format!("the peer {} is not of trust domain {}", peer.spiffe, bundle.trust_domain()),
        ));
    }
    let refuse = |error: webpki::Error| {
        let who = named.as_ref().map_or_else(|_| "the peer".to_owned(), |p| p.spiffe.to_string());
        match error {
            webpki::Error::CertExpired { .. }
            | webpki::Error::CertNotValidYet { .. }
            | webpki::Error::InvalidCertValidity => IdentityError::new(
                Code::PeerExpired,
                format!(
                    "the certificate of {who} or of its issuer is outside its time ({error}); \
                     renew it, and see that clocks agree"
                ),
            ),
            webpki::Error::UnknownIssuer => IdentityError::new(
                Code::PeerUntrusted,
                format!(
                    "the certificate of {who} is of an authority that trust domain {} does not \
                     know; use one of its own authority",
                    bundle.trust_domain()
                ),
            ),
            other => IdentityError::new(
                Code::PeerUntrusted,
                format!("the certificate of {who} does not verify: {other}"),
            ),
        }
    };
    let roots = bundle.root_store()?;
    let usage = match role {
        Role::Client => KeyUsage::client_auth(),
        Role::Server => KeyUsage::server_auth(),
    };
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    EndEntityCert::try_from(leaf)
        .and_then(|certificate| {
            certificate.verify_for_usage(
                provider().signature_verification_algorithms.all,
                &roots.roots,
                intermediates,
                UnixTime::since_unix_epoch(since),
                usage,
                None,
                None,
            )?;
            Ok(())
        })
        .map_err(refuse)?;
    named
}

/// As [`verify_chain`] for a client, but a leaf that expired less than `grace`
/// ago is verified as of its last second. The caller decides what it may do.
pub fn verify_client_with_grace(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    bundle: &TrustBundle,
    now: SystemTime,
    grace: Duration,
) -> Result<PeerIdentity, IdentityError> {
    let verified = verify_chain(leaf, intermediates, bundle, now, Role::Client);
    match (&verified, PeerIdentity::from_der(leaf)) {
        (Err(error), Ok(peer))
            if error.code() == Code::PeerExpired
                && peer.not_after < now
                && now.duration_since(peer.not_after).is_ok_and(|over| over <= grace) =>
        {
            verify_chain(leaf, intermediates, bundle, peer.not_after, Role::Client)
        }
        _ => verified,
    }
}

/// What a server wants of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// A valid certificate of its own trust domain.
    Required,
    /// None, or such a certificate; it may have expired up to `grace` ago. The
    /// certificate authority's: what the certificate is good for is checked per call.
    Optional {
        /// How long after its end a certificate still names its holder.
        grace: Duration,
    },
}

/// Called with every client that the handshake refuses, for logs and metrics.
pub type RefusalHook = Arc<dyn Fn(&IdentityError) + Send + Sync>;

/// A server's configuration over its identity: HTTP/2, TLS 1.3 or 1.2.
pub fn server_config(
    identity: &(impl IdentitySource + Clone),
    clients: ClientAuth,
    refused: Option<RefusalHook>,
) -> Result<Arc<ServerConfig>, IdentityError> {
    let identity = Current(Arc::new(identity.clone()));
    let verifier = ClientVerifier { identity: identity.clone(), clients, refused };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(identity));
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// A client's configuration over its identity: shows its certificate, and wants
/// `expected` of its own trust domain at the other end.
pub fn client_config(
    identity: &(impl IdentitySource + Clone),
    expected: Expected,
) -> Result<Arc<ClientConfig>, IdentityError> {
    let identity = Current(Arc::new(identity.clone()));
    let verifier = ServerVerifier { trust: Trust::Current(identity.clone()), expected };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(identity));
    finish(&mut config);
    Ok(Arc::new(config))
}

/// For the first contact, without a certificate: the server's chain must end in
/// a root with this SHA-256, which the server sends along, and be of
/// `expected` in `trust_domain`.
pub fn first_contact_config(
    trust_domain: &str,
    root_fingerprint: [u8; 32],
    expected: Expected,
) -> Result<Arc<ClientConfig>, IdentityError> {
    anonymous(Trust::Pinned { trust_domain: trust_domain.into(), root_fingerprint }, expected)
}

/// The trust domain of the server that was met, once it was.
#[derive(Clone, Debug, Default)]
pub struct MetDomain(Arc<OnceLock<String>>);

impl MetDomain {
    /// `None` before the first handshake that went well.
    pub fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// For the first contact, without a certificate, where the authority's roots are known: the
/// server's chain must end in one of them, and be of `expected`. Its trust domain is its own;
/// it is told, and a second server must have the same.
pub fn rooted_contact_config(
    roots: Vec<CertificateDer<'static>>,
    expected: Expected,
) -> Result<(Arc<ClientConfig>, MetDomain), IdentityError> {
    let met = MetDomain::default();
    let config = anonymous(Trust::Roots { roots, met: met.clone() }, expected)?;
    Ok((config, met))
}

fn anonymous(trust: Trust, expected: Expected) -> Result<Arc<ClientConfig>, IdentityError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerVerifier { trust, expected }))
        .with_no_client_auth();
    finish(&mut config);
    Ok(Arc::new(config))
}

fn finish(config: &mut ClientConfig) {
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.resumption = Resumption::disabled();
    // Servers have one identity, not one per name; addresses need not be told in the clear.
    config.enable_sni = false;
}

fn unusable(error: rustls::Error) -> IdentityError {
    IdentityError::new(Code::IdentityState, format!("TLS cannot be configured: {}", Chain(&error)))
}

struct ClientVerifier {
    identity: Current,
    clients: ClientAuth,
    refused: Option<RefusalHook>,
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientVerifier").field("clients", &self.clients).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.clients == ClientAuth::Required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
        let grace = match self.clients {
            ClientAuth::Required => Duration::ZERO,
            ClientAuth::Optional { grace } => grace,
        };
        let verified = self.identity.bundle().and_then(|bundle| {
            verify_client_with_grace(end_entity, intermediates, &bundle, now, grace)
        });
        match verified {
            Ok(_) => Ok(ClientCertVerified::assertion()),
            Err(error) => {
                if let Some(refused) = &self.refused {
                    refused(&error);
                }
                // Not our error itself: these decide which alert tells the client why.
                Err(rustls::Error::InvalidCertificate(match error.code() {
                    Code::PeerExpired => CertificateError::Expired,
                    Code::PeerTrustDomain => CertificateError::ApplicationVerificationFailure,
                    Code::PeerUntrusted => CertificateError::UnknownIssuer,
                    _ => CertificateError::Other(OtherError(Arc::new(error))),
                }))
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

#[derive(Debug)]
enum Trust {
    Current(Current),
    Pinned { trust_domain: String, root_fingerprint: [u8; 32] },
    Roots { roots: Vec<CertificateDer<'static>>, met: MetDomain },
}

#[derive(Debug)]
struct ServerVerifier {
    trust: Trust,
    expected: Expected,
}

impl ServerVerifier {
    fn bundle(
        &self,
        leaf: &CertificateDer<'_>,
        presented: &[CertificateDer<'_>],
    ) -> Result<Arc<TrustBundle>, IdentityError> {
        match &self.trust {
            Trust::Current(identity) => identity.bundle(),
            Trust::Roots { roots, met } => {
                // Its own word; the roots vouch for it when the chain is verified.
                let domain = match met.get() {
                    Some(domain) => domain.to_owned(),
                    None => PeerIdentity::from_der(leaf)?.spiffe.trust_domain,
                };
                TrustBundle::new(domain, roots.clone(), 0).map(Arc::new)
            }
            Trust::Pinned { trust_domain, root_fingerprint } => {
                let root = presented
                    .iter()
                    .find(|certificate| fingerprint(certificate) == hex::encode(root_fingerprint))
                    .ok_or_else(|| {
                        IdentityError::new(
                            Code::PeerUntrusted,
                            format!(
                                "the server is not of the authority that the join token names \
                                 (no root with SHA-256 {}); see that the address and the token \
                                 belong together",
                                hex::encode(root_fingerprint)
                            ),
                        )
                    })?;
                let roots = vec![root.clone().into_owned()];
                TrustBundle::new(trust_domain.clone(), roots, 0).map(Arc::new)
            }
        }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
        self.bundle(end_entity, intermediates)
            .and_then(|bundle| verify_chain(end_entity, intermediates, &bundle, now, Role::Server))
            .and_then(|peer| {
                self.expected.check(&peer.spiffe)?;
                if let Trust::Roots { met, .. } = &self.trust {
                    met.0.get_or_init(|| peer.spiffe.trust_domain);
                }
                Ok(ServerCertVerified::assertion())
            })
            .map_err(|error| {
                rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(
                    error,
                ))))
            })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_services_are_known_by_name_on_kubernetes_and_off_it() {
        let of = |text: &str| text.parse::<SpiffeId>().expect(text);
        for (expected, name) in
            [(Expected::dds(), "rulecast-dds"), (Expected::authority(), "rulecast-ca")]
        {
            for shape in ["app", "sa"] {
                let good = of(&format!("spiffe://td/ns/rulecast-system/{shape}/{name}"));
                assert_eq!(expected.check(&good), Ok(()));
                let elsewhere = of(&format!("spiffe://td/ns/default/{shape}/{name}"));
                assert_eq!(expected.check(&elsewhere).expect_err("ns").code(), Code::PeerIdentity);
                let other = of(&format!("spiffe://td/ns/rulecast-system/{shape}/default"));
                assert_eq!(expected.check(&other).expect_err("name").code(), Code::PeerIdentity);
            }
        }
    }
}
