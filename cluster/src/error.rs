//! Why a cluster cannot be used.

use std::path::PathBuf;

use rulecast_api::Code;

/// Why a cluster cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// There is no usable kubeconfig, and this is no pod.
    #[error(
        "{}: {what}: {reason}; give --kubeconfig, or run in a pod with a service account",
        Code::ConfigInvalid
    )]
    Config {
        /// What was tried.
        what: String,
        /// Why it failed.
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
