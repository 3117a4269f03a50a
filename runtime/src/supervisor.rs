//! Long tasks under supervision: one that ends while the process should run
//! makes it unready, and says which it was.

use std::{fmt::Display, future::Future};

use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info};

use crate::Readiness;

/// Starts tasks and watches them end. Clones share it.
#[derive(Clone, Debug)]
pub struct Supervisor {
    readiness: Readiness,
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

impl Supervisor {
    /// Tasks may end once `shutdown` is cancelled; sooner is a fault.
    pub fn new(readiness: Readiness, shutdown: CancellationToken) -> Self {
        Self { readiness, shutdown, tasks: TaskTracker::new() }
    }

    /// Starts a task that should run as long as the process.
    pub fn spawn<F, E>(&self, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let Self { readiness, shutdown, .. } = self.clone();
        self.tasks.spawn(async move {
            let why = match tokio::spawn(task).await {
                Ok(Ok(())) => "ended".to_owned(),
                Ok(Err(error)) => format!("failed: {error}"),
                Err(error) => format!("panicked: {error}"),
            };
            if shutdown.is_cancelled() {
                info!(task = name, "stopped");
            } else {
                error!(task = name, %why, "a task that should run on has stopped");
                readiness.block(&format!("task {name}"), why);
            }
        });
    }

    /// Waits until every task has ended; call after `shutdown` was cancelled.
    pub async fn wait(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_early_end_blocks_readiness_by_name() {
        let readiness = Readiness::new();
        let supervisor = Supervisor::new(readiness.clone(), CancellationToken::new());
        supervisor.spawn("updater", async { Err::<(), _>("disk full") });
        supervisor.wait().await;
        assert_eq!(readiness.blockers(), ["task updater: failed: disk full"]);
    }

    #[tokio::test]
    async fn an_end_at_shutdown_is_none() {
        let (readiness, shutdown) = (Readiness::new(), CancellationToken::new());
        let supervisor = Supervisor::new(readiness.clone(), shutdown.clone());
        let token = shutdown.clone();
        supervisor.spawn("server", async move {
            token.cancelled().await;
            Ok::<_, String>(())
        });
        shutdown.cancel();
        supervisor.wait().await;
        assert!(readiness.is_ready());
    }
}
