//! A client of the API server.

use std::path::PathBuf;

use crate::ClusterError;

/// Which API server, and as whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterConfig {
    /// A kubeconfig file; `None`: the pod's service account, or else the default kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; `None`: its current one.
    pub context: Option<String>,
}

/// A client that follows its credentials on disk and notices a dead connection within 30 s.
pub async fn connect(config: &ClusterConfig) -> Result<kube::Client, ClusterError> {
    let _ = config;
    Err(ClusterError::Config { what: "client".into(), reason: "not built".into() })
}
