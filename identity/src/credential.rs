//! What a process shows for its first certificate, and where it finds it.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rulecast_api::Code;
use rustls_pki_types::CertificateDer;
use zeroize::Zeroizing;

use crate::{IdentityError, JoinToken, bundle::roots_from_pem, files};

/// Longest service-account token in bytes; real ones have about 1,000.
const MAX_TOKEN: usize = 8 * 1024;

/// Where the credential for the first certificate comes from.
#[derive(Clone)]
pub enum TokenSource {
    /// A join token.
    Text(String),
    /// A file that holds a join token, read when it is needed.
    File(PathBuf),
    /// What a pod has. Both files are read anew for every attempt: the kubelet replaces them.
    Kubernetes {
        /// The service-account token of audience
        /// [`KUBERNETES_AUDIENCE`](crate::client::KUBERNETES_AUDIENCE).
        token: PathBuf,
        /// The authority's roots, PEM.
        bundle: PathBuf,
    },
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Kubernetes { token, bundle } => {
                f.debug_struct("Kubernetes").field("token", token).field("bundle", bundle).finish()
            }
        }
    }
}

/// A credential as it was read.
#[derive(Clone, Debug)]
pub enum Credential {
    /// A join token; it is used up by its first use.
    Join(JoinToken),
    /// A service account's.
    Kubernetes(KubernetesCredential),
}

/// A service-account token, and the roots by which the authority is known before the token
/// is sent to it. `Debug` does not show the token.
#[derive(Clone)]
pub struct KubernetesCredential {
    /// As it stands in the file, without space around it.
    pub token: Zeroizing<String>,
    /// The authority's roots.
    pub roots: Vec<CertificateDer<'static>>,
}

impl fmt::Debug for KubernetesCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesCredential")
            .field("roots", &self.roots.len())
            .finish_non_exhaustive()
    }
}

impl TokenSource {
    /// Whether it may be shown again and again: a pod's may, a join token serves once.
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Kubernetes { .. })
    }

    /// Reads it. [`Code::CredentialMissing`] for a token that cannot be read,
    /// [`Code::TokenInvalid`] or [`Code::ServiceAccountToken`] for a text that is none,
    /// [`Code::PeerUntrusted`] for a file of roots that cannot be used.
    pub async fn read(&self) -> Result<Credential, IdentityError> {
        match self {
            Self::Text(text) => text.parse().map(Credential::Join),
            Self::File(path) => {
                let text = text_of(path).await.map_err(|why| {
                    IdentityError::new(
                        Code::CredentialMissing,
                        format!("the join token {} cannot be read: {why}", path.display()),
                    )
                })?;
                text.parse().map(Credential::Join)
            }
            Self::Kubernetes { token, bundle } => {
                let roots = read_roots(bundle).await?;
                let token = read_service_account_token(token).await?;
                Ok(Credential::Kubernetes(KubernetesCredential { token, roots }))
            }
        }
    }
}

/// Namespace and name of the service account that a token says it is of. Nothing is verified:
/// good for what a process believes of itself, and for nothing that another one shows.
pub fn service_account_of(token: &str) -> Option<(String, String)> {
    let mut parts = token.trim().split('.');
    let (_, claims) = (parts.next()?, parts.next()?);
    let claims = URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
    let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
    let subject = claims.get("sub")?.as_str()?.strip_prefix("system:serviceaccount:")?;
    let (namespace, name) = subject.split_once(':')?;
    Some((namespace.to_owned(), name.to_owned()))
}

/// The roots in a PEM file. [`Code::PeerUntrusted`] when there are none to be had.
pub async fn read_roots(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let unusable = |why: String| {
        IdentityError::new(
            Code::PeerUntrusted,
            format!("the trust bundle {} cannot be used: {why}", path.display()),
        )
    };
    let text = text_of(path).await.map_err(unusable)?;
    roots_from_pem(&text).map_err(unusable)
}

async fn read_service_account_token(path: &Path) -> Result<Zeroizing<String>, IdentityError> {
    let text = text_of(path).await.map_err(|why| {
        IdentityError::new(
            Code::CredentialMissing,
            format!("the service-account token {} cannot be read: {why}", path.display()),
        )
    })?;
    let token = text.trim();
    // Said before it is sent: a header would not take it, and the authority not know it.
    if token.is_empty() || token.len() > MAX_TOKEN || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(IdentityError::new(
            Code::ServiceAccountToken,
            format!(
                "{} holds no service-account token; see that the pod has a projected one of \
                 audience {}",
                path.display(),
                crate::client::KUBERNETES_AUDIENCE
            ),
        ));
    }
    Ok(Zeroizing::new(token.to_owned()))
}

/// At most 1 MiB.
async fn text_of(path: &Path) -> Result<Zeroizing<String>, String> {
    let file = path.to_owned();
    let read = tokio::task::spawn_blocking(move || files::read_text(&file));
    match read.await {
        Ok(Ok(text)) => Ok(Zeroizing::new(text)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_service_account() {
        let token = |claims: &str| format!("e30.{}.sig\n", URL_SAFE_NO_PAD.encode(claims));
        let good = token(r#"{"sub":"system:serviceaccount:shop:web","exp":1}"#);
        assert_eq!(service_account_of(&good), Some(("shop".into(), "web".into())));
        for bad in [
            token(r#"{"sub":"kubernetes-admin"}"#),
            token(r#"{"sub":1}"#),
            token("no JSON"),
            "rcjt1.x".to_owned(),
            "a.%%.c".to_owned(),
            String::new(),
        ] {
            assert_eq!(service_account_of(&bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn what_is_no_token_is_not_sent() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("token");
        for text in ["", " \n", "two words", "a\u{e9}b", &"x".repeat(MAX_TOKEN + 1)] {
            std::fs::write(&path, text).expect("written");
            let error = read_service_account_token(&path).await.expect_err("no token");
            assert_eq!(error.code(), Code::ServiceAccountToken);
            assert!(text.len() < 3 || !error.message().contains(text), "{error}");
        }
        std::fs::write(&path, "ey.ey.sig\n").expect("written");
        assert_eq!(*read_service_account_token(&path).await.expect("a token"), "ey.ey.sig");
        std::fs::remove_file(&path).expect("removed");
        let error = read_service_account_token(&path).await.expect_err("missing");
        assert_eq!(error.code(), Code::CredentialMissing);
    }
}
