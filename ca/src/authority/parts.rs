//! What an authority is made of, as texts: the files of its folder, or the data of its
//! Secret, under the same names.
//!
//! | name | what |
//! |---|---|
//! | `authority.json` | trust domain, and the sequence of its bundle |
//! | `root.pem` | the root certificate |
//! | `root.key` | its key; needed at renewals of the intermediate only, and may be away between them |
//! | `intermediate.pem` | key and certificate of what signs leaves |

use std::sync::Arc;

use rcgen::{Certificate, Issuer};
use rulecast_api::{Code, spiffe::valid_trust_domain};
use rulecast_identity::{PrivateKey, TrustBundle};
use rustls_pki_types::{CertificateDer, UnixTime};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    Authority, INTERMEDIATE_DAYS, MIN_LEAF, ROOT_DAYS, ServerNames, ca_params, root_of, seconds,
    signing, validity,
};
use crate::CaError;

/// Name of the part with trust domain and sequence.
pub const ABOUT: &str = "authority.json";
/// Name of the part with the root certificate.
pub const ROOT: &str = "root.pem";
/// Name of the part with the root's key.
pub const ROOT_KEY: &str = "root.key";
/// Name of the part with key and certificate of the intermediate.
pub const INTERMEDIATE: &str = "intermediate.pem";

/// The parts of an authority. Keys are wiped from memory when they are dropped.
#[derive(Clone)]
pub struct Parts {
    /// [`ABOUT`]
    pub about: Zeroizing<String>,
    /// [`ROOT`]
    pub root: Zeroizing<String>,
    /// [`ROOT_KEY`]
    pub root_key: Option<Zeroizing<String>>,
    /// [`INTERMEDIATE`]
    pub intermediate: Zeroizing<String>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("about", &*self.about).finish_non_exhaustive()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct About {
    trust_domain: String,
    sequence: u64,
}

impl Parts {
    /// A new root and a new intermediate for `trust_domain`.
    pub fn generate(trust_domain: &str) -> Result<Self, CaError> {
        if !valid_trust_domain(trust_domain) {
            return Err(CaError::new(
                Code::ConfigInvalid,
                format!("\"{trust_domain}\" is no trust domain; use 1 to 255 of a-z0-9._-"),
            ));
        }
        let root_key = PrivateKey::generate()?;
        let params = ca_params(&format!("Rulecast root of {trust_domain}"), None, ROOT_DAYS)?;
        let root = params.self_signed(root_key.pair()).map_err(signing)?;
        let bundle = TrustBundle::new(trust_domain, vec![root.der().clone()], 1)?;
        let about = About { trust_domain: trust_domain.into(), sequence: bundle.sequence() };
        let about = serde_json::to_string_pretty(&about);
        Ok(Self {
            about: about.map_err(|e| CaError::authority(e.to_string()))?.into(),
            root: root.pem().replace("\r\n", "\n").into(),
            intermediate: intermediate(&bundle, &root_key)?,
            root_key: Some(root_key.to_pem()),
        })
    }

    /// Opens the authority, and proves by a trial that its parts fit together.
    /// `place` is for errors.
    pub fn open(&self, place: &Where<'_>) -> Result<Authority, CaError> {
        let authority = self.read(place)?;
        prove(&authority, place)?;
        Ok(authority)
    }

    /// With a new intermediate if the one that is held is past half of its time,
    /// or else `None`.
    pub fn renewed(&self, place: &Where<'_>) -> Result<Option<Self>, CaError> {
        let authority = self.read(place)?;
        if !authority.is_due()? {
            return Ok(None);
        }
        let key = self.root_key.as_ref().ok_or_else(|| {
            place.damaged(ROOT_KEY, "it is missing, and the intermediate must be renewed")
        })?;
        let key = PrivateKey::from_pem(key).map_err(|e| place.damaged(ROOT_KEY, e.message()))?;
        Ok(Some(Self { intermediate: intermediate(&authority.bundle, &key)?, ..self.clone() }))
    }

    fn read(&self, place: &Where<'_>) -> Result<Authority, CaError> {
        let about: About =
            serde_json::from_str(&self.about).map_err(|e| place.damaged(ABOUT, &e.to_string()))?;
        let root = pem::parse(&*self.root).map_err(|e| place.damaged(ROOT, &e.to_string()))?;
        let roots = vec![CertificateDer::from(root.into_contents())];
        let bundle = TrustBundle::new(about.trust_domain, roots, about.sequence)
            .map_err(|e| place.damaged(ROOT, e.message()))?;
        let bad = |why: &str| place.damaged(INTERMEDIATE, why);
        let blocks = pem::parse_many(&*self.intermediate).map_err(|e| bad(&e.to_string()))?;
        let [key, certificate] = &blocks[..] else {
            return Err(bad("it must hold a key and a certificate"));
        };
        if certificate.tag() != "CERTIFICATE" {
            return Err(bad("its second block is no certificate"));
        }
        let key = Zeroizing::new(pem::encode(key));
        let intermediate_key = PrivateKey::from_pem(&key).map_err(|e| bad(e.message()))?;
        let intermediate = CertificateDer::from(certificate.contents().to_vec());
        let (_, not_after) = validity(&intermediate).map_err(|e| bad(e.message()))?;
        Ok(Authority {
            bundle: Arc::new(bundle),
            intermediate,
            intermediate_key,
            not_after,
            names: ServerNames::default(),
        })
    }
}

/// Where parts are kept, for errors.
#[derive(Clone, Copy, Debug)]
pub struct Where<'a> {
    /// What the name of a part is put behind: `ca/` of a folder.
    pub prefix: &'a str,
    /// What to do when a part is damaged.
    pub remedy: &'a str,
}

impl Where<'_> {
    /// The error of a part that is missing or cannot be used.
    pub(crate) fn damaged(&self, name: &str, why: &str) -> CaError {
        CaError::authority(format!("{}{name}: {why}; {}", self.prefix, self.remedy))
    }
}

/// A new intermediate with a new key: both in one text, so that a crash cannot part them.
fn intermediate(bundle: &TrustBundle, root_key: &PrivateKey) -> Result<Zeroizing<String>, CaError> {
    let root = root_of(bundle)?;
    let key = PrivateKey::generate()?;
    let name = format!("Rulecast intermediate of {}", bundle.trust_domain());
    let mut params = ca_params(&name, Some(0), INTERMEDIATE_DAYS)?;
    let (_, end) = validity(root)?;
    params.not_after = params.not_after.min(seconds(end));
    let issuer = Issuer::from_ca_cert_der(root, root_key.pair()).map_err(signing)?;
    let certificate: Certificate = params.signed_by(key.pair(), &issuer).map_err(signing)?;
    Ok(Zeroizing::new(format!("{}{}", *key.to_pem(), certificate.pem()).replace("\r\n", "\n")))
}

/// A leaf of the authority must verify under its own root.
fn prove(authority: &Authority, place: &Where<'_>) -> Result<(), CaError> {
    let svid = authority.own_svid(MIN_LEAF)?;
    let bad = |why: String| place.damaged(INTERMEDIATE, &why);
    let [leaf, intermediates @ ..] = &svid.chain[..] else {
        return Err(bad("the chain is empty".into()));
    };
    let leaf = webpki::EndEntityCert::try_from(leaf).map_err(|e| bad(e.to_string()))?;
    let anchors = authority
        .bundle
        .roots()
        .iter()
        .map(webpki::anchor_from_trusted_cert)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| place.damaged(ROOT, &e.to_string()))?;
    leaf.verify_for_usage(
        webpki::ALL_VERIFICATION_ALGS,
        &anchors,
        intermediates,
        UnixTime::now(),
        webpki::KeyUsage::server_auth(),
        None,
        None,
    )
    .map_err(|e| bad(format!("what it signs does not verify under the root ({e})")))?;
    Ok(())
}
