//! The roots that vouch for a trust domain.

use rulecast_api::{Code, proto::identity::v1 as proto, spiffe::valid_trust_domain};
use rustls::{RootCertStore, pki_types::CertificateDer};

use crate::{IdentityError, peer::MAX_CERTIFICATE, peer::fingerprint};

/// Most roots that a bundle may have: two rotations at once and some room.
const MAX_ROOTS: usize = 16;
const CERTIFICATE: &str = "CERTIFICATE";
/// Header of the PEM blocks of a saved bundle.
const DOMAIN: &str = "Trust-Domain";
const SEQUENCE: &str = "Sequence";

/// The root certificates of one trust domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustBundle {
    trust_domain: String,
    roots: Vec<CertificateDer<'static>>,
    sequence: u64,
}

impl TrustBundle {
    /// A bundle of 1 to 16 readable root certificates.
    pub fn new(
        trust_domain: impl Into<String>,
        roots: Vec<CertificateDer<'static>>,
        sequence: u64,
    ) -> Result<Self, IdentityError> {
        let bundle = Self { trust_domain: trust_domain.into(), roots, sequence };
        if !valid_trust_domain(&bundle.trust_domain) {
            return Err(unusable("its trust domain is none"));
        }
        if bundle.roots.is_empty() || bundle.roots.len() > MAX_ROOTS {
            return Err(unusable(format!("{} roots", bundle.roots.len())));
        }
        if bundle.roots.iter().any(|r| r.len() > MAX_CERTIFICATE) {
            return Err(unusable("a root is too large"));
        }
        bundle.root_store()?;
        Ok(bundle)
    }

    /// The trust domain that it is of.
    pub fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    /// DER of the roots.
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// Grows with every change.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether a root has this SHA-256 (lower-case hexadecimal).
    pub fn has_root(&self, sha256: &str) -> bool {
        self.roots.iter().any(|r| fingerprint(r) == sha256)
    }

    pub(crate) fn root_store(&self) -> Result<RootCertStore, IdentityError> {
        let mut store = RootCertStore::empty();
        for root in &self.roots {
            store.add(root.clone()).map_err(|e| unusable(format!("a root is malformed ({e})")))?;
        }
        Ok(store)
    }

    /// As it travels.
    pub fn to_proto(&self) -> proto::TrustBundle {
        proto::TrustBundle {
            trust_domain: self.trust_domain.clone(),
            roots: self.roots.iter().map(|r| r.to_vec().into()).collect(),
            sequence: self.sequence,
        }
    }

    /// Reads what travelled.
    pub fn from_proto(bundle: proto::TrustBundle) -> Result<Self, IdentityError> {
        let roots = bundle.roots.into_iter().map(|r| CertificateDer::from(Vec::from(r))).collect();
        Self::new(bundle.trust_domain, roots, bundle.sequence)
    }

    /// As PEM; trust domain and sequence stand in headers of each block.
    pub fn to_pem(&self) -> String {
        let block = |root: &CertificateDer<'_>| {
            let mut block = pem::Pem::new(CERTIFICATE, root.to_vec());
            // Neither holds a line break or colon, so adding cannot fail.
            for (key, value) in
                [(DOMAIN, self.trust_domain.clone()), (SEQUENCE, self.sequence.to_string())]
            {
                let _ = block.headers_mut().add(key, &value);
            }
            block
        };
        let blocks: Vec<_> = self.roots.iter().map(block).collect();
        pem::encode_many_config(
            &blocks,
            pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
        )
    }

    /// Reads what [`to_pem`](Self::to_pem) wrote.
    pub fn from_pem(text: &str) -> Result<Self, IdentityError> {
        let bad = |why: &str| unusable(why);
        let blocks = pem::parse_many(text).map_err(|e| unusable(e.to_string()))?;
        let first = blocks.first().ok_or_else(|| bad("no certificate in it"))?;
        let domain =
            first.headers().get(DOMAIN).ok_or_else(|| bad("no trust domain in it"))?.to_owned();
        let sequence = first
            .headers()
            .get(SEQUENCE)
            .and_then(|s| s.parse().ok())
            .ok_or_else(|| bad("no sequence in it"))?;
        if blocks.iter().any(|b| b.tag() != CERTIFICATE) {
            return Err(bad("something else than certificates in it"));
        }
        let roots = blocks.into_iter().map(|b| CertificateDer::from(b.into_contents())).collect();
        Self::new(domain, roots, sequence)
    }
}

/// The certificates of a PEM text of roots, 1 to 16 of them; what stands around the blocks
/// means nothing. The error says what is wrong.
pub(crate) fn roots_from_pem(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let blocks = pem::parse_many(text).map_err(|e| format!("it is no PEM ({e})"))?;
    if let Some(other) = blocks.iter().find(|b| b.tag() != CERTIFICATE) {
        return Err(format!("a {} block is in it; only certificates belong there", other.tag()));
    }
    if blocks.is_empty() {
        return Err("no certificate is in it".into());
    }
    if blocks.len() > MAX_ROOTS {
        return Err(format!("{} certificates are in it, {MAX_ROOTS} may be", blocks.len()));
    }
    let roots: Vec<_> =
        blocks.into_iter().map(|b| CertificateDer::from(b.into_contents())).collect();
    let mut store = RootCertStore::empty();
    for root in &roots {
        if root.len() > MAX_CERTIFICATE {
            return Err("a certificate in it is too large".into());
        }
        store.add(root.clone()).map_err(|e| format!("a certificate in it is malformed ({e})"))?;
    }
    Ok(roots)
}

fn unusable(why: impl std::fmt::Display) -> IdentityError {
    IdentityError::new(
        Code::PeerUntrusted,
        format!("the trust bundle cannot be used: {why}; ask the authority for it again"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::PrivateKey;

    #[test]
    fn round_trips() {
        let root = || {
            let key = PrivateKey::generate().expect("key");
            let mut params = rcgen::CertificateParams::default();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.self_signed(key.pair()).expect("signs").der().clone()
        };
        let bundle = TrustBundle::new("td.example", vec![root(), root()], 7).expect("good");
        assert_eq!(TrustBundle::from_pem(&bundle.to_pem()).expect("own PEM"), bundle);
        assert_eq!(TrustBundle::from_proto(bundle.to_proto()).expect("own message"), bundle);
        assert!(bundle.has_root(&fingerprint(&bundle.roots()[1])));
    }

    #[test]
    fn roots_are_read_from_plain_pem() {
        let key = PrivateKey::generate().expect("key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let root = params.self_signed(key.pair()).expect("signs").der().clone();
        let plain = pem::encode(&pem::Pem::new(CERTIFICATE, root.to_vec()));
        let noted = format!("# roots\n{plain}\nmore words\n{plain}");
        assert_eq!(roots_from_pem(&noted), Ok(vec![root.clone(), root.clone()]));
        let ours = TrustBundle::new("td", vec![root.clone()], 3).expect("good");
        assert_eq!(roots_from_pem(&ours.to_pem()), Ok(vec![root]));
        roots_from_pem("").expect_err("empty");
        roots_from_pem(&plain.repeat(MAX_ROOTS + 1)).expect_err("too many");
        roots_from_pem(&plain.replace("MI", "NI")).expect_err("malformed");
        let error = roots_from_pem(&key.to_pem()).expect_err("a key");
        assert!(!error.contains("MI"), "{error}");
    }

    #[test]
    fn refuses_empty_and_malformed() {
        TrustBundle::new("td", vec![], 1).expect_err("no roots");
        TrustBundle::new("td", vec![CertificateDer::from(vec![1, 2])], 1).expect_err("no DER");
        TrustBundle::from_pem("").expect_err("empty");
    }
}
