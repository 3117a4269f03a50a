//! Where an authority is kept, and what is read from there.

use std::path::PathBuf;

#[cfg(feature = "kubernetes")]
use crate::kubernetes::{KubernetesCa, keys::AuthoritySecret};
use crate::{Authority, CaError};

/// Where an authority is kept, which decides also whom it can attest.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a folder, made by [`init`](crate::init). Applications join by tokens.
    Folder(PathBuf),
    /// In a Secret of a cluster, made when it is missing. Pods join by the
    /// tokens of their service accounts.
    #[cfg(feature = "kubernetes")]
    Cluster(Box<KubernetesCa>),
}

/// What an authority is read from, again and again.
#[derive(Debug)]
pub(crate) enum Source {
    Folder(PathBuf),
    #[cfg(feature = "kubernetes")]
    Secret(Box<AuthoritySecret>),
}

impl Source {
    /// Opens what is there. A Secret is made when it is missing.
    pub(crate) async fn open(&mut self) -> Result<Authority, CaError> {
        match self {
            Self::Folder(dir) => open_folder(dir.clone()).await,
            #[cfg(feature = "kubernetes")]
            Self::Secret(secret) => secret.open().await,
        }
    }

    /// The authority that takes the place of `held`, if there is one: with a renewed
    /// intermediate, or one that somebody else put there.
    pub(crate) async fn look(&mut self, held: &Authority) -> Result<Option<Authority>, CaError> {
        match self {
            Self::Folder(dir) if held.is_due()? => open_folder(dir.clone()).await.map(Some),
            Self::Folder(_) => Ok(None),
            #[cfg(feature = "kubernetes")]
            Self::Secret(secret) => secret.look(held).await,
        }
    }
}

/// Runs what reads and writes files off the runtime's threads.
async fn open_folder(dir: PathBuf) -> Result<Authority, CaError> {
    tokio::task::spawn_blocking(move || Authority::open(&dir))
        .await
        .unwrap_or_else(|e| Err(CaError::authority(format!("a task broke off: {e}"))))
}
