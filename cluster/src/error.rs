//! Why a cluster cannot be used.

use std::path::PathBuf;

use rulecast_api::Code;

/// Why a cluster cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// There is no kubeconfig, and this is no pod with a service account.
    #[error(
        "{}: no Kubernetes API server is configured: {tried}; name a kubeconfig file, or run in \
         a pod with a service account",
        Code::ConfigInvalid
    )]
    NotConfigured {
        /// What was looked for, and what was found.
        tried: String,
    },
    /// The configuration cannot be used.
    #[error("{}: {what}: {reason}", Code::ConfigInvalid)]
    Config {
        /// Which.
        what: String,
        /// Why, and what would be right.
        reason: String,
    },
    /// A file of credentials cannot be used.
    #[error("{}: {}: {reason}", Code::ConfigInvalid, path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}
