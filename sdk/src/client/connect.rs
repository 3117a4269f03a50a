//! Starts a client, and keeps its parts running.

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rulecast_api::SpiffeId;
use rulecast_identity::{
    ConnectOptions, IdentityConfig, IdentityError, IdentityManager, IdentityStatus, TokenSource,
    credential::service_account_of, state::StateDir,
};
use tokio::{
    sync::{oneshot, watch},
    task::{self, JoinSet},
    time,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info, warn};
use zeroize::Zeroizing;

use super::{
    Client, ClientBuilder, ConnectError, Startup, owner, persist, session::Session, shared::Shared,
};
use crate::disk::SnapshotFile;

/// Before a part that broke, or an identity that was refused, is tried again.
const AGAIN: Duration = Duration::from_secs(30);

/// The tasks of one client: they end when this is dropped.
pub(super) struct Tasks {
    stop: CancellationToken,
    tracker: TaskTracker,
    timeout: Duration,
}

impl Tasks {
    pub(super) async fn shutdown(&self) {
        self.stop.cancel();
        self.tracker.close();
        if time::timeout(self.timeout, self.tracker.wait()).await.is_err() {
            warn!("the client's tasks did not end in {:?}", self.timeout);
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(super) async fn connect(builder: ClientBuilder) -> Result<Client, ConnectError> {
    let shared = Arc::new(Shared::new(&builder).await?);
    let tasks = Arc::new(Tasks {
        stop: CancellationToken::new(),
        tracker: TaskTracker::new(),
        timeout: builder.tuning.shutdown_timeout,
    });
    let client = Client { shared: shared.clone(), tasks: tasks.clone() };
    let (startup, limit) = (builder.startup, builder.tuning.startup_timeout);
    let (refused, refusal) = oneshot::channel();
    let runner = Runner { builder, shared: shared.clone(), stop: tasks.stop.clone() };
    runner.restore_stored().await;
    tasks.tracker.spawn(runner.run(refused));
    if startup != Startup::Wait {
        return Ok(client);
    }
    let mut status = client.changes();
    let synced = async {
        // The client holds the sender.
        let _ = status.wait_for(|s| s.ready).await;
    };
    tokio::select! {
        biased;
        () = synced => Ok(client),
        Ok(error) = refusal => Err(ConnectError::Identity(error)),
        waited = elapsed(limit) => Err(shared.not_ready(waited)),
    }
}

async fn elapsed(limit: Option<Duration>) -> Duration {
    match limit {
        Some(limit) => {
            time::sleep(limit).await;
            limit
        }
        None => std::future::pending().await,
    }
}

struct Runner {
    builder: ClientBuilder,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

impl Runner {
    fn file(&self) -> Option<SnapshotFile> {
        self.builder.state_dir.as_deref().map(SnapshotFile::new)
    }

    /// Restores the snapshot of the stored identity, even one that is too old to
    /// connect with: deciding goes on while authority and plane are away.
    async fn restore_stored(&self) {
        let Some(folder) = self.builder.state_dir.clone() else { return };
        let Self { builder: ClientBuilder { namespace, application, token, .. }, .. } = self;
        let (namespace, mut name) = (namespace.clone(), Some(application.clone()));
        let pod = match token {
            Some(TokenSource::Kubernetes { token, .. }) => Some(token.clone()),
            _ => None,
        };
        let stored = task::spawn_blocking(move || {
            let id = match pod {
                None => stored_identity(&folder),
                Some(token) => {
                    let token = Zeroizing::new(fs::read_to_string(token).ok()?);
                    name = service_account_of(&token).map(|(_, name)| name);
                    owner::load(&folder)
                }
            }?;
            let ours = id.namespace == namespace && Some(id.workload.name()) == name.as_deref();
            ours.then_some(id)
        });
        if let Ok(Some(id)) = stored.await {
            self.restore(&id).await;
        }
    }

    /// Where no certificate is kept beside the snapshot: notes whose it is.
    async fn note_owner(&self, id: &SpiffeId) {
        let pod = matches!(self.builder.token, Some(TokenSource::Kubernetes { .. }));
        let Some(folder) = self.builder.state_dir.clone().filter(|_| pod) else { return };
        let id = id.clone();
        let noted = task::spawn_blocking(move || owner::store(&folder, &id)).await;
        if let Ok(Err(error)) = noted {
            warn!(%error, "after a restart no rules are restored before there is an identity");
        }
    }

    /// Takes over what the state folder holds for `id`, unless that is done already.
    async fn restore(&self, id: &SpiffeId) {
        if !self.shared.adopt(id) {
            return;
        }
        let Some(file) = self.file() else { return };
        let shared = self.shared.clone();
        let (name, id) = (file.path().display().to_string(), id.clone());
        let restored = task::spawn_blocking(move || match file.load(&id) {
            Ok(Some(stored)) => Ok(Some(shared.restore(&stored))),
            Ok(None) => Ok(None),
            Err(e) => Err(e.to_string()),
        });
        match restored.await {
            Ok(Ok(Some(items))) => info!(file = %name, items, "rules restored from disk"),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => {
                warn!(%error, "no rules restored");
                self.shared.update(|status| status.snapshot_error = Some(error));
            }
            Err(e) => warn!(error = %e, "restoring rules broke off"),
        }
    }

    /// Runs until the client stops. `refused` gets the first identity error that waiting
    /// does not mend.
    async fn run(self, refused: oneshot::Sender<IdentityError>) {
        let mut refused = Some(refused);
        while let Err(reason) = self.once(&mut refused).await {
            error!(%reason, "the client begins anew in {} s", AGAIN.as_secs());
            if self.stop.run_until_cancelled(time::sleep(AGAIN)).await.is_none() {
                break;
            }
        }
        self.shared.update(|status| status.connected = false);
    }

    /// Gets an identity and runs all parts until the client stops, or one of them ends.
    async fn once(
        &self,
        refused: &mut Option<oneshot::Sender<IdentityError>>,
    ) -> Result<(), String> {
        let builder = &self.builder;
        let connect = ConnectOptions {
            connect_timeout: builder.tuning.connect_timeout,
            ..ConnectOptions::default()
        };
        let config = IdentityConfig {
            token: builder.token.clone(),
            state_dir: builder.state_dir.clone(),
            namespace: Some(builder.namespace.clone()),
            application: Some(builder.application.clone()),
            connect: connect.clone(),
            ..IdentityConfig::new(builder.ca.clone())
        };
        let follow = follow_identity(self.shared.clone(), config.status.subscribe());
        let mut parts = JoinSet::new();
        let stop = self.stop.child_token();
        // However this ends, the parts are told.
        let _guard = stop.clone().drop_guard();
        parts.spawn(named("identity status", stop.clone().run_until_cancelled_owned(follow)));
        let started = IdentityManager::start(config);
        let (handle, worker) = match self.stop.run_until_cancelled(started).await {
            None => return Ok(()),
            Some(Ok(started)) => started,
            Some(Err(e)) => {
                let reason = e.to_string();
                self.shared.update(|status| status.identity.last_error = Some(reason.clone()));
                if let Some(refused) = refused.take() {
                    // Nobody waits with Deny, Allow or restored rules.
                    let _ = refused.send(e);
                }
                return Err(reason);
            }
        };
        self.shared.identity.store(Some(Arc::new(handle.clone())));
        let id = handle.current().spiffe.clone();
        self.restore(&id).await;
        self.note_owner(&id).await;
        parts.spawn(named("identity", stop.clone().run_until_cancelled_owned(worker)));
        let (newest, written) = watch::channel(None);
        if let Some(file) = self.file() {
            let interval = builder.tuning.persist_interval;
            let run = persist::run(file, id, self.shared.clone(), written, interval);
            parts.spawn(named("snapshot", run));
        }
        let session = Session {
            shared: self.shared.clone(),
            identity: handle,
            plane: builder.plane.clone(),
            application: builder.application.clone(),
            instance: builder.instance.clone(),
            services: builder.services.clone(),
            connect,
            backoff: (builder.tuning.backoff_least, builder.tuning.backoff_most),
            newest,
            report: builder.tuning.report_interval,
            stop: stop.clone(),
        };
        parts.spawn(named("session", session.run()));
        let ended = parts.join_next().await;
        stop.cancel();
        while parts.join_next().await.is_some() {}
        match ended {
            _ if self.stop.is_cancelled() => Ok(()),
            Some(Ok(name)) => Err(format!("its part \"{name}\" ended")),
            Some(Err(e)) => Err(format!("a part of it broke off: {e}")),
            None => Err("it has no parts".into()),
        }
    }
}

async fn named<T>(name: &'static str, part: impl Future<Output = T>) -> &'static str {
    part.await;
    name
}

/// Whose certificate the folder holds, if it can be read. What is wrong with it
/// the identity manager says.
fn stored_identity(folder: &Path) -> Option<SpiffeId> {
    if !folder.is_dir() {
        return None;
    }
    let svid = StateDir::open(folder).ok()?.load().ok()??;
    Some(svid.spiffe.clone())
}

/// Shows the identity's state in the client's until its sender is gone.
async fn follow_identity(shared: Arc<Shared>, mut identity: watch::Receiver<IdentityStatus>) {
    loop {
        let now = identity.borrow_and_update().clone();
        let unix = |at: SystemTime| {
            let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        };
        shared.update(|status| {
            status.identity.spiffe_id = now.spiffe.as_ref().map(ToString::to_string);
            status.identity.not_after = now.not_after.map(unix);
            status.identity.last_error = now.last_error.as_ref().map(ToString::to_string);
        });
        if identity.changed().await.is_err() {
            // Not a reason to end: the last state stands.
            std::future::pending::<()>().await;
        }
    }
}
