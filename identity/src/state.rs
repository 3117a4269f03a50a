//! The state folder of an identity, so that it survives a restart of its process.
//!
//! - `identity.pem`: key and chain, and when to renew;
//! - `bundle.pem`: the trust bundle;
//! - `join-key.pem`: the key of a join whose answer has not come yet.
//!
//! All with mode 0600, in a folder with mode 0700.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use rulecast_api::Code;
use rustls_pki_types::CertificateDer;
use zeroize::Zeroizing;

use crate::{
    IdentityError, PrivateKey, Svid, TrustBundle, files,
    peer::{system_time, unix},
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
        files::make_folder(&dir)?;
        Ok(Self { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The identity, if there is one; it may have expired. A damaged one has
    /// [`Code::IdentityState`], a key that others may read [`Code::KeyPermissions`].
    pub fn load(&self) -> Result<Option<Svid>, IdentityError> {
        let path = self.path("identity.pem");
        if !exists(&path)? {
            return Ok(None);
        }
        let text = Zeroizing::new(files::read_secret(&path)?);
        let bundle_path = self.path("bundle.pem");
        let bundle = TrustBundle::from_pem(&files::read(&bundle_path)?)
            .map_err(|e| damaged(&bundle_path, e.message()))?;
        let of_file = |e: IdentityError| damaged(&path, e.message());
        let key = PrivateKey::from_pem(&text).map_err(of_file)?;
        let chain: Vec<CertificateDer<'static>> = pem::parse_many(text.as_str())
            .map_err(|e| damaged(&path, e))?
            .into_iter()
            .filter(|block| block.tag() == "CERTIFICATE")
            .map(|block| block.into_contents().into())
            .collect();
        let renew_at = text
            .lines()
            .find_map(|line| line.strip_prefix("# renew-at: "))
            .and_then(|at| at.trim().parse().ok())
            .map(system_time);
        let svid = Svid::new(chain, key, Arc::new(bundle), renew_at).map_err(of_file)?;
        let Some((leaf, intermediates)) = svid.chain.split_first() else {
            return Err(damaged(&path, "it holds no certificate"));
        };
        // As of its last second: whether it is too old is a matter of its use.
        tls::verify_chain(leaf, intermediates, &svid.bundle, svid.not_after, Role::Client)
            .map_err(of_file)?;
        Ok(Some(svid))
    }

    /// Writes the identity. The bundle goes first: an old identity is valid
    /// under the new bundle, not the other way round.
    pub fn store(&self, svid: &Svid) -> Result<(), IdentityError> {
        files::replace(&self.path("bundle.pem"), svid.bundle.to_pem().as_bytes())?;
        let note = format!("# {}\n# renew-at: {}\n", svid.spiffe, unix(svid.renew_at));
        let mut text = Zeroizing::new(note + &svid.key.to_pem());
        for certificate in &svid.chain {
            text.push_str(&pem::encode(&pem::Pem::new("CERTIFICATE", certificate.to_vec())));
        }
        files::replace(&self.path("identity.pem"), text.as_bytes())
    }

    /// The key to join with: on disk before its first use, and the same one
    /// until [`Self::joined`], so that a lost answer can be asked for again.
    pub fn join_key(&self) -> Result<PrivateKey, IdentityError> {
        let path = self.path("join-key.pem");
        if exists(&path)? {
            match PrivateKey::load(&path) {
                Err(error) if error.code() == Code::IdentityState => {
                    tracing::warn!(%error, "a damaged join key is replaced");
                }
                loaded => return loaded,
            }
        }
        let key = PrivateKey::generate()?;
        key.save(&path)?;
        Ok(key)
    }

    /// The join is over and its certificate stored.
    pub fn joined(&self) -> Result<(), IdentityError> {
        let path = self.path("join-key.pem");
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(failed(&path, format_args!("cannot be removed: {e}")))
            }
            _ => Ok(()),
        }
    }
}

fn exists(path: &Path) -> Result<bool, IdentityError> {
    path.try_exists().map_err(|e| failed(path, format_args!("cannot be looked for: {e}")))
}

fn damaged(path: &Path, why: impl std::fmt::Display) -> IdentityError {
    failed(path, format_args!("is damaged: {why}; restore it, or empty the folder and join anew"))
}

fn failed(path: &Path, what: impl std::fmt::Display) -> IdentityError {
    IdentityError::new(Code::IdentityState, format!("{} {what}", path.display()))
}
