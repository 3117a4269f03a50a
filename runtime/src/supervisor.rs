//! Long tasks under supervision: one that ends while the process should run
//! makes it unready, and says which it was.

use std::{fmt::Display, future::Future, time::Duration};

use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info, warn};

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

    /// Waits until every task has ended, but no longer than `limit`; call after `shutdown`
    /// was cancelled. What has not ended by then ends with the process.
    pub async fn wait(&self, limit: Duration) {
        self.tasks.close();
        if tokio::time::timeout(limit, self.tasks.wait()).await.is_err() {
            warn!(tasks = self.tasks.len(), ?limit, "tasks did not stop in time and are cut");
        }
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
        supervisor.wait(Duration::from_secs(10)).await;
        assert_eq!(readiness.blockers(), ["task updater: failed: disk full"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_stop_holds_nothing_up() {
        let supervisor = Supervisor::new(Readiness::new(), CancellationToken::new());
        supervisor.spawn("stuck", std::future::pending::<Result<(), String>>());
        supervisor.wait(Duration::from_secs(5)).await;
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
        supervisor.wait(Duration::from_secs(10)).await;
        assert!(readiness.is_ready());
    }
}
