//! rulecast-cluster against the real server: the client, and leader election.
#![cfg(feature = "kube")]

#[path = "cluster/client.rs"]
mod client;
#[path = "cluster/election.rs"]
mod election;
#[path = "cluster/http1.rs"]
mod http1;

use std::{path::Path, time::Duration};

use rulecast_cluster::ClusterConfig;
use tokio::time::Instant;

/// The client of a kubeconfig.
async fn connect(kubeconfig: &Path) -> kube::Client {
    let config = ClusterConfig { kubeconfig: Some(kubeconfig.to_owned()), context: None };
    rulecast_cluster::connect(&config).await.expect("the kubeconfig can be used")
}

/// Asks again until it holds, at most `limit`.
async fn eventually<F: Future<Output = bool>>(
    what: &str,
    limit: Duration,
    mut holds: impl FnMut() -> F,
) -> Duration {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    start.elapsed()
}
