//! The state folder of an identity, so that it survives a restart of its process.
//!
//! - `identity.pem` (0600): key and chain, and when to renew;
//! - `bundle.pem`: the trust bundle;
//! - `join-key.pem` (0600): the key of a join whose answer has not come yet.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use rulecast_api::Code;
use rustls_pki_types::CertificateDer;

use crate::{
    IdentityError, PrivateKey, Svid, TrustBundle,
    bundle::note,
    files,
    peer::{time, unix},
    tls::{self, Role},
};

/// A folder with one identity.
#[derive(Clone, Debug)]
pub struct StateDir {
    dir: PathBuf,
}

impl StateDir {
    /// Makes the folder (0700) when it is missing.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, IdentityError> {
        let dir = dir.into();
        files::create_private_dir(&dir).map_err(|e| failed(&dir, "cannot be made", e))?;
        Ok(Self { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The identity, if there is one; it may have expired. A damaged one has
    /// [`Code::IdentityState`], a key that others may read [`Code::KeyPermissions`].
    pub fn load(&self) -> Result<Option<Svid>, IdentityError> {
        let path = self.path("identity.pem");
        let Some(text) = files::read_secret(&path, Code::IdentityState)? else { return Ok(None) };
        let bundle_path = self.path("bundle.pem");
        let bundle = fs::read_to_string(&bundle_path)
            .map_err(|e| failed(&bundle_path, "cannot be read", e))
            .and_then(|text| {
                TrustBundle::from_pem(&text)
                    .map_err(|e| failed(&bundle_path, "is damaged", e.message()))
            })?;
        let damaged = |e: IdentityError| failed(&path, "is damaged", e.message());
        let key = PrivateKey::from_pem(&text).map_err(damaged)?;
        let chain: Vec<CertificateDer<'static>> = pem::parse_many(text.as_str())
            .map_err(|e| failed(&path, "is damaged", e))?
            .into_iter()
            .filter(|block| block.tag() == "CERTIFICATE")
            .map(|block| block.into_contents().into())
            .collect();
        let renew_at = note(&text, "renew-at").and_then(|at| at.parse().ok()).map(time);
        let svid = Svid::new(chain, key, Arc::new(bundle), renew_at).map_err(damaged)?;
        // As of its last second: whether it is too old is a matter of its use.
        let (leaf, intermediates) = svid.chain.split_first().ok_or_else(|| {
            failed(&path, "is damaged", "it holds no certificate")
        })?;
        tls::verify_chain(leaf, intermediates, &svid.bundle, svid.not_after, Role::Client)
            .map_err(damaged)?;
        Ok(Some(svid))
    }

    /// Writes the identity. The bundle goes first: an old identity is valid
    /// under the new bundle, not the other way round.
    pub fn store(&self, svid: &Svid) -> Result<(), IdentityError> {
        let path = self.path("bundle.pem");
        files::write_public(&path, svid.bundle.to_pem().as_bytes())
            .map_err(|e| failed(&path, "cannot be written", e))?;
        let mut text = svid.key.to_pem();
        text.insert_str(0, &format!("# {}\n# renew-at: {}\n", svid.spiffe, unix(svid.renew_at)));
        for certificate in &svid.chain {
            text.push_str(&pem::encode(&pem::Pem::new("CERTIFICATE", certificate.to_vec())));
        }
        let path = self.path("identity.pem");
        files::write_secret(&path, text.as_bytes())
            .map_err(|e| failed(&path, "cannot be written", e))
    }

    /// The key to join with: on disk before its first use, and the same one
    /// until [`Self::joined`], so that a lost answer can be asked for again.
    pub fn join_key(&self) -> Result<PrivateKey, IdentityError> {
        let path = self.path("join-key.pem");
        match PrivateKey::load(&path) {
            Ok(Some(key)) => return Ok(key),
            Ok(None) => {}
            Err(error) if error.code() == Code::IdentityState => {
                tracing::warn!(%error, "a damaged join key is replaced");
            }
            Err(error) => return Err(error),
        }
        let key = PrivateKey::generate()?;
        key.save(&path)?;
        Ok(key)
    }

    /// The join is over and its certificate stored.
    pub fn joined(&self) -> Result<(), IdentityError> {
        let path = self.path("join-key.pem");
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(failed(&path, "cannot be removed", e))
            }
            _ => Ok(()),
        }
    }
}

fn failed(path: &Path, what: &str, why: impl std::fmt::Display) -> IdentityError {
    IdentityError::new(
        Code::IdentityState,
        format!("{} {what}: {why}; mend or remove it", path.display()),
    )
}
