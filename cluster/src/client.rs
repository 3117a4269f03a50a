//! A client of the API server.

mod follow;
mod source;
mod stack;

use std::path::PathBuf;

use self::{
    follow::Follow,
    source::{Environment, Source},
};
use crate::ClusterError;

/// Which API server, and as whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterConfig {
    /// A kubeconfig file; `None`: the pod's service account, or else the default kubeconfig
    /// (`KUBECONFIG`, or `~/.kube/config`).
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; `None`: its current one.
    pub context: Option<String>,
}

/// A client that follows its credentials on disk and notices a dead connection within 30 s.
///
/// Nothing is asked of the API server yet: it may be down.
///
/// **Files.** Kubeconfig, CA, token, client certificate and key are looked at again at the next
/// request when the last look is 10 s ago, and at once when a connection fails or the server
/// answers 401; then the request goes out again by what they say now. New requests go by the
/// new files; a watch that runs goes on until it breaks. Files that have become unreadable or
/// wrong change nothing. Credential plugins (`exec`) are asked again as their credentials end,
/// and when they are refused.
///
/// **Dead connections.** HTTP/2 where the server offers it: PINGs every 10 s, also without
/// requests, and 10 s for the answer; then whatever ran over the connection fails. A server
/// or proxy with HTTP/1.1 alone serves too, but there TCP notices only a dead host, and a
/// connection that stalls above TCP is given up after 90 s without a byte. Connections open
/// within 10 s or fail. A server that lives and does not answer is the caller's to give up; the
/// API server itself ends a request after a minute.
///
/// **Retries.** Answers 429, 503 and 504 are retried three times within some seconds; other
/// failures are the caller's.
///
/// HTTP proxies (`proxy-url`, `HTTPS_PROXY`) are not used; the first is an error, the second is
/// ignored. Calls that upgrade the connection (exec, attach, port-forward) need HTTP/1.1 and do
/// not work with this client.
///
/// # Errors
/// There is no configuration, or it names files that cannot be used; the message says what was
/// looked at.
pub async fn connect(config: &ClusterConfig) -> Result<kube::Client, ClusterError> {
    let source = Source::find(config, &Environment::of_process())?;
    let (follow, config) = Follow::start(source).await?;
    Ok(kube::Client::new(follow, config.default_namespace))
}
