//! Private keys: made, kept on disk, used for signing requests.

use std::{fmt, path::Path, sync::Arc};

use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _,
    SanType,
};
use rulecast_api::{Code, SpiffeId};
use rustls::{
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    sign::SigningKey,
};
use sha2::{Digest as _, Sha256};
use zeroize::{Zeroize as _, Zeroizing};

use crate::{IdentityError, files};

const PRIVATE_KEY: &str = "PRIVATE KEY";

/// A P-256 key of a workload. Clones share it; printing does not show it.
#[derive(Clone)]
pub struct PrivateKey(Arc<Wiped>);

/// Leaves no key behind in freed memory.
struct Wiped(KeyPair);

impl Drop for Wiped {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({})", &self.public_fingerprint()[..16])
    }
}

impl PrivateKey {
    /// A new key.
    pub fn generate() -> Result<Self, IdentityError> {
        let pair =
            KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|e| unusable(e.to_string()))?;
        Ok(Self(Arc::new(Wiped(pair))))
    }

    /// Reads PKCS#8 PEM.
    pub fn from_pem(text: &str) -> Result<Self, IdentityError> {
        let bad = |why: String| unusable(why);
        let block = pem::parse(text).map_err(|e| bad(format!("it is no PEM ({e})")))?;
        if block.tag() != PRIVATE_KEY {
            return Err(bad(format!("it is a {} block", block.tag())));
        }
        let der = Zeroizing::new(block.into_contents());
        let der = PrivatePkcs8KeyDer::from(der.as_slice());
        let pair = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256)
            .map_err(|e| bad(e.to_string()))?;
        Ok(Self(Arc::new(Wiped(pair))))
    }

    /// PKCS#8 PEM.
    pub fn to_pem(&self) -> Zeroizing<String> {
        Zeroizing::new(self.0.0.serialize_pem().replace("\r\n", "\n"))
    }

    /// PKCS#8 DER, for rustls.
    pub fn to_der(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.0.0.serialize_der()).into()
    }

    /// Reads a file that nobody else may read.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let text = Zeroizing::new(files::read_secret(path)?);
        Self::from_pem(&text)
    }

    /// Replaces the file as a whole, mode 0600, on disk when this returns.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        files::replace(path, self.to_pem().as_bytes())
    }

    /// The pair, for signing certificates.
    pub fn pair(&self) -> &KeyPair {
        &self.0.0
    }

    /// SubjectPublicKeyInfo, DER.
    pub fn public_key(&self) -> Vec<u8> {
        self.0.0.subject_public_key_info()
    }

    /// For rustls.
    pub fn signing_key(&self) -> Result<Arc<dyn SigningKey>, IdentityError> {
        aws_lc_rs::sign::any_ecdsa_type(&self.to_der()).map_err(|e| unusable(e.to_string()))
    }

    /// SHA-256 of the public key's SubjectPublicKeyInfo, lower-case hexadecimal.
    pub fn public_fingerprint(&self) -> String {
        hex::encode(Sha256::digest(self.public_key()))
    }

    /// A signing request (DER) with an empty subject; `identity`, if any, as URI SAN.
    pub fn csr(&self, identity: Option<&SpiffeId>) -> Result<Vec<u8>, IdentityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(identity) = identity {
            let uri = identity
                .to_string()
                .try_into()
                .map_err(|e: rcgen::Error| unusable(e.to_string()))?;
            params.subject_alt_names = vec![SanType::URI(uri)];
        }
        let csr = params.serialize_request(&self.0.0).map_err(|e| unusable(e.to_string()))?;
        Ok(csr.der().to_vec())
    }
}

fn unusable(why: impl fmt::Display) -> IdentityError {
    IdentityError::new(
        Code::IdentityState,
        format!("the private key cannot be used: {why}; it must be PKCS#8 with P-256"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    #[test]
    fn kept_on_disk_for_us_alone() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("key.pem");
        let key = PrivateKey::generate().expect("key");
        key.save(&path).expect("saved");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let again = PrivateKey::load(&path).expect("loads");
        assert_eq!(again.public_fingerprint(), key.public_fingerprint());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
        assert_eq!(PrivateKey::load(&path).expect_err("wide").code(), Code::KeyPermissions);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
        fs::write(&path, "no key").expect("written");
        assert_eq!(PrivateKey::load(&path).expect_err("no key").code(), Code::IdentityState);
    }

    #[test]
    fn printing_shows_no_secret() {
        let key = PrivateKey::generate().expect("key");
        assert!(!format!("{key:?}").contains("PRIVATE KEY"));
        assert!(format!("{key:?}").len() < 40);
    }
}
