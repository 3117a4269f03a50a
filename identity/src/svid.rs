//! The current certificate of a workload, and handles to it.

use std::{fmt, sync::Arc, time::SystemTime};

use rulecast_api::{Code, SpiffeId};
use rustls::{
    SignatureScheme,
    client::ResolvesClientCert,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;

use crate::{IdentityError, PeerIdentity, PrivateKey, TrustBundle};

/// A certificate with its key, and the bundle that its holder trusts.
#[derive(Clone)]
pub struct Svid {
    /// Leaf first, then intermediates.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's key.
    pub key: PrivateKey,
    /// Whose it is.
    pub spiffe: SpiffeId,
    /// Start of the leaf's time.
    pub not_before: SystemTime,
    /// End of the leaf's time.
    pub not_after: SystemTime,
    /// When to ask for the next one, before jitter.
    pub renew_at: SystemTime,
    /// What peers are verified against.
    pub bundle: Arc<TrustBundle>,
    certified: Arc<CertifiedKey>,
}

impl fmt::Debug for Svid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Svid")
            .field("spiffe", &self.spiffe.to_string())
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl Svid {
    /// Puts one together. Refuses a chain whose leaf has another key, no
    /// identity of ours or another trust domain than the bundle's. `renew_at`:
    /// `None` for half of the leaf's time. Verifies no signature.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKey,
        bundle: Arc<TrustBundle>,
        renew_at: Option<SystemTime>,
    ) -> Result<Self, IdentityError> {
        let leaf = chain.first().ok_or_else(|| {
            IdentityError::new(Code::PeerIdentity, "the certificate chain is empty")
        })?;
        let identity = PeerIdentity::from_der(leaf)?;
        if identity.public_key != key.public_key() {
            return Err(IdentityError::new(
                Code::PeerIdentity,
                "the certificate is for another key than ours",
            ));
        }
        if identity.spiffe.trust_domain != bundle.trust_domain() {
            return Err(IdentityError::new(
                Code::PeerTrustDomain,
                format!(
                    "the certificate of {} is not of trust domain {}",
                    identity.spiffe,
                    bundle.trust_domain()
                ),
            ));
        }
        let half = identity.not_after.duration_since(identity.not_before).unwrap_or_default() / 2;
        let certified = Arc::new(CertifiedKey::new(chain.clone(), key.signing_key()?));
        Ok(Self {
            chain,
            spiffe: identity.spiffe,
            not_before: identity.not_before,
            not_after: identity.not_after,
            renew_at: renew_at.unwrap_or(identity.not_before + half),
            key,
            bundle,
            certified,
        })
    }

    /// Whether `now` is within the leaf's time.
    pub fn is_valid_at(&self, now: SystemTime) -> bool {
        self.not_before <= now && now <= self.not_after
    }

    /// For rustls.
    pub fn certified_key(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }
}

/// The current [`Svid`] of this process, shared by everything that needs it.
/// TLS configurations made over it follow every change.
#[derive(Clone, Debug)]
pub struct IdentityHandle {
    current: watch::Receiver<Arc<Svid>>,
}

/// Replaces what the handles give.
#[derive(Debug)]
pub struct IdentityUpdater {
    current: watch::Sender<Arc<Svid>>,
}

impl IdentityHandle {
    /// A handle, and what replaces its content. A handle outlives its updater
    /// and goes on giving the last content.
    pub fn new(svid: Svid) -> (Self, IdentityUpdater) {
        let (sender, receiver) = watch::channel(Arc::new(svid));
        (Self { current: receiver }, IdentityUpdater { current: sender })
    }

    /// A handle whose content never changes.
    pub fn fixed(svid: Svid) -> Self {
        Self::new(svid).0
    }

    /// The current certificate, key and bundle.
    pub fn current(&self) -> Arc<Svid> {
        self.current.borrow().clone()
    }

    /// The current bundle.
    pub fn bundle(&self) -> Arc<TrustBundle> {
        self.current.borrow().bundle.clone()
    }

    /// To wait for changes.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Svid>> {
        self.current.clone()
    }
}

impl IdentityUpdater {
    /// Gives `svid` from now on.
    pub fn replace(&self, svid: Svid) {
        self.current.send_replace(Arc::new(svid));
    }
}

/// Where TLS configurations take the identity from, at every handshake.
pub trait IdentitySource: fmt::Debug + Send + Sync + 'static {
    /// The current certificate, key and bundle; `None` before the first.
    fn svid(&self) -> Option<Arc<Svid>>;
}

impl IdentitySource for IdentityHandle {
    fn svid(&self) -> Option<Arc<Svid>> {
        Some(self.current())
    }
}

/// What a source gives, for rustls.
#[derive(Clone, Debug)]
pub(crate) struct Current(pub(crate) Arc<dyn IdentitySource>);

impl Current {
    /// The current bundle; [`Code::CredentialMissing`] before the first certificate.
    pub(crate) fn bundle(&self) -> Result<Arc<TrustBundle>, IdentityError> {
        self.0.svid().map(|svid| svid.bundle.clone()).ok_or_else(|| {
            IdentityError::new(
                Code::CredentialMissing,
                "this process has no certificate yet; it gets one as soon as rulecast-ca \
                 answers, its status says what is in the way",
            )
        })
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.svid().map(|svid| svid.certified_key())
    }
}

impl ResolvesClientCert for Current {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.svid().map(|svid| svid.certified_key())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
