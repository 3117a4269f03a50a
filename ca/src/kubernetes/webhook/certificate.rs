//! The webhook's serving certificate, replaced while it serves.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rulecast_identity::PrivateKey;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::CertificateDer;

use crate::CaError;

/// What the webhook shows the API server. Clones share it; a replaced one takes effect
/// with the next connection.
#[derive(Clone, Debug)]
pub struct ServingCertificate(Arc<ArcSwap<CertifiedKey>>);

impl ServingCertificate {
    /// Of a chain, leaf first, and the leaf's key.
    pub fn new(chain: Vec<CertificateDer<'static>>, key: &PrivateKey) -> Result<Self, CaError> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(certified(chain, key)?))))
    }

    /// Shows these from now on. On an error the old ones stay.
    pub fn replace(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: &PrivateKey,
    ) -> Result<(), CaError> {
        self.0.store(Arc::new(certified(chain, key)?));
        Ok(())
    }
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: &PrivateKey,
) -> Result<CertifiedKey, CaError> {
    let certified = CertifiedKey::new(chain, key.signing_key()?);
    certified.keys_match().map_err(|error| {
        CaError::authority(format!("the webhook's certificate and key do not fit: {error}"))
    })?;
    Ok(certified)
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}
