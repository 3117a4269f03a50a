//! The plane, wired: store → index → views → streams, and rollout beside them.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use prometheus_client::registry::Registry;
use rulecast_api::{Code, Kinds};
use rulecast_identity::{
    ClientAuth, IdentityConfig, IdentityError, IdentityManager, ServeOptions, TokenSource,
    serve_tls, tls::server_config,
};
use rulecast_runtime::{
    Readiness, Supervisor,
    http::{self, ListenError},
};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    admin::{self, Admin},
    index::Index,
    observe::{Metrics, RuleService},
    rollout::Rollout,
    scope::{Owners, Root},
    store::{FileStore, FileStoreConfig, Store, StoreError},
    stream::StreamConfig,
    views::{Debounce, Views},
};

/// Where and how a plane runs.
#[derive(Clone, Debug)]
pub struct DdsConfig {
    /// Folder of rule files.
    pub rules: PathBuf,
    /// Folder of what must outlive a restart; made when missing.
    pub state: PathBuf,
    /// Address for applications, mutual TLS.
    pub listen: SocketAddr,
    /// The authority, `host:port`.
    pub ca: String,
    /// The plane's own join token; needed until `state` holds its certificate.
    pub join_token: Option<String>,
    /// Unix socket for local administration; made 0600.
    pub admin_socket: PathBuf,
    /// Address for probes and metrics, plain HTTP.
    pub http: SocketAddr,
    /// Namespace whose rules apply everywhere.
    pub root_namespace: String,
    /// Other names for it.
    pub root_aliases: Vec<String>,
    /// Which namespace owns a service or application.
    pub owners: BTreeMap<String, String>,
    /// A burst of changes is gathered until it is quiet for so long.
    pub quiet: Duration,
    /// But not longer than this.
    pub ceiling: Duration,
    /// How long open streams may finish at shutdown.
    pub drain: Duration,
}

/// Why a plane does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppError {
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The plane gets no identity, and waiting would not help.
    #[error("the plane has no identity: {0}")]
    Identity(#[from] IdentityError),
    /// An address is not to be had.
    #[error("{code}: {source}", code = Code::ListenFailed)]
    Listen {
        /// Which, and why.
        #[from]
        source: ListenError,
    },
    /// The admin socket is not to be had.
    #[error("{}: admin socket {}: {source}", Code::ListenFailed, path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Runs a plane until `shutdown`, then drains it.
pub async fn run(
    config: DdsConfig,
    kinds: Kinds,
    shutdown: CancellationToken,
) -> Result<(), AppError> {
    let readiness = Readiness::new();
    readiness.block("store", "the first complete list is not there yet");
    readiness.block("identity", "no certificate yet");
    let supervisor = Supervisor::new(readiness.clone(), shutdown.clone());
    let mut registry = Registry::with_prefix("rulecast_dds");
    let metrics = Metrics::register(&mut registry);

    // store → index → views
    let mut store_config = FileStoreConfig::new(&config.rules, config.state.join("store"), kinds);
    store_config.quiet = config.quiet;
    let store: Arc<dyn Store> = Arc::new(FileStore::open(store_config)?);
    let index = Index::new(kinds, store.lineage());
    let views = Views::new(
        index.clone(),
        Owners::new(config.owners.clone()),
        Root::new(std::iter::once(&config.root_namespace).chain(&config.root_aliases)),
        Debounce { quiet: config.quiet, ceiling: config.ceiling },
    );
    supervisor.spawn("index", index.clone().run(store, shutdown.clone()));
    supervisor.spawn("views", forever(views.clone().run(shutdown.clone())));
    supervisor.spawn(
        "store readiness",
        forever(follow(index.clone(), readiness.clone(), shutdown.clone())),
    );

    // streams, and rollout beside them
    let rollout = Rollout::new();
    let streams = RuleService::new(
        views.clone(),
        rollout.clone(),
        StreamConfig::default(),
        kinds,
        metrics,
        shutdown.clone(),
    );

    // for operators
    let probes = http::bind(config.http).await?;
    supervisor.spawn(
        "http",
        http::serve(probes, readiness.clone(), Arc::new(registry), shutdown.clone()),
    );
    let socket = admin::bind(&config.admin_socket)
        .map_err(|source| AppError::Socket { path: config.admin_socket.clone(), source })?;
    let admin = Admin::new(views, rollout, readiness.clone());
    supervisor.spawn("admin", admin::serve(socket, admin, shutdown.clone()));

    // for applications
    let listener = http::bind(config.listen).await?;
    let identity = tokio::select! {
        started = IdentityManager::start(identity_config(&config)) => started,
        () = shutdown.cancelled() => return Ok(()),
    };
    let (identity, renewal) = identity?;
    let stop = shutdown.clone();
    supervisor.spawn(
        "identity renewal",
        forever(async move { stop.run_until_cancelled(renewal).await.unwrap_or_default() }),
    );
    let tls = server_config(&identity, ClientAuth::Required, None)?;
    let routes = routes(streams, readiness.clone(), &supervisor, shutdown.clone()).await;
    info!(
        address = %config.listen, identity = %identity.current().spiffe,
        rules = %config.rules.display(), "the plane serves"
    );
    readiness.clear("identity");
    let options = ServeOptions { drain: config.drain, ..ServeOptions::default() };
    supervisor.spawn("streams", serve_tls(listener, tls, routes, shutdown.clone(), options));

    shutdown.cancelled().await;
    readiness.block("shutdown", "draining");
    supervisor.wait().await;
    remove_socket(&config.admin_socket);
    Ok(())
}

fn identity_config(config: &DdsConfig) -> IdentityConfig {
    let mut identity = IdentityConfig::new(config.ca.clone());
    identity.token = config.join_token.clone().map(TokenSource::Text);
    identity.state_dir = Some(config.state.join("identity"));
    identity
}

/// The services of the TLS port: rules, health and reflection.
async fn routes(
    streams: RuleService,
    readiness: Readiness,
    supervisor: &Supervisor,
    shutdown: CancellationToken,
) -> tonic::service::Routes {
    let (reporter, health) = tonic_health::server::health_reporter();
    let mut ready = readiness.watch();
    supervisor.spawn(
        "health",
        forever(async move {
            loop {
                let status = if *ready.borrow_and_update() {
                    tonic_health::ServingStatus::Serving
                } else {
                    tonic_health::ServingStatus::NotServing
                };
                reporter.set_service_status("", status).await;
                tokio::select! {
                    changed = ready.changed() => if changed.is_err() { return },
                    () = shutdown.cancelled() => return,
                }
            }
        }),
    );
    let mut routes = tonic::service::Routes::builder();
    routes.add_service(streams.into_server()).add_service(health);
    // The descriptors are compiled in; without them there is only no reflection.
    if let Ok(reflection) = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(rulecast_api::proto::DESCRIPTORS)
        .build_v1()
    {
        routes.add_service(reflection);
    }
    routes.routes()
}

/// Keeps the store's blocker as the index says.
async fn follow(index: Index, readiness: Readiness, shutdown: CancellationToken) {
    let mut changes = index.changes();
    loop {
        let snapshot = index.snapshot();
        match (&snapshot.down, snapshot.listed) {
            // What was listed once is served on: a store that is down makes status stale, not clients.
            (_, true) => readiness.clear("store"),
            (Some(problem), false) => readiness.block("store", problem.to_string()),
            (None, false) => {}
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = shutdown.cancelled() => return,
        }
    }
}

/// A task that has no error to tell.
async fn forever(task: impl Future<Output = ()>) -> Result<(), std::convert::Infallible> {
    task.await;
    Ok(())
}

fn remove_socket(path: &Path) {
    // It may be gone already; the next start replaces it anyway.
    let _ = std::fs::remove_file(path);
}
