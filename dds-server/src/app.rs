//! The plane, wired: store → index → views → streams, and rollout beside them.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use rulecast_api::{Code, Kinds};
use rulecast_identity::{
    ClientAuth, DDS_APPLICATION, Expected, IdentityConfig, IdentityError, IdentityHandle,
    IdentityManager, SYSTEM_NAMESPACE, ServeOptions, TokenSource, serve_tls, tls::server_config,
};
use rulecast_runtime::{
    Readiness, Supervisor,
    http::{self, ListenError},
};
use tokio_util::sync::CancellationToken;
use tracing::info;

#[cfg(feature = "kubernetes")]
use crate::{
    pods::{Informed, Pods, inform},
    status::{self, StatusConfig},
    store::kubernetes::{KubernetesStore, KubernetesStoreConfig},
};
#[cfg(feature = "kubernetes")]
use rulecast_cluster::{ElectionConfig, campaign};

use crate::{
    admin::{self, Admin},
    index::Index,
    mapping::MappingService,
    observe::{DubboRuleService, Metrics, RuleService},
    reports::{ReportService, Reports},
    rollout::Rollout,
    scope::{Owners, Root},
    store::{FileStore, FileStoreConfig, Store, StoreError},
    stream::StreamConfig,
    views::{Debounce, Views},
};

/// Where the rules are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreConfig {
    /// A folder of files.
    Files {
        /// The folder.
        rules: PathBuf,
        /// Folder of what must outlive a restart, the plane's key among it; made when missing.
        state: PathBuf,
    },
    /// Objects of a Kubernetes API server. Nothing is kept on disk.
    #[cfg(feature = "kubernetes")]
    Kubernetes {
        /// Which one, and as whom.
        cluster: rulecast_cluster::ClusterConfig,
        /// Names this replica among those that may write status.
        replica: String,
    },
}

/// Where and how a plane runs.
#[derive(Clone, Debug)]
pub struct DdsConfig {
    /// Where the rules are.
    pub store: StoreConfig,
    /// Address for applications, mutual TLS.
    pub listen: SocketAddr,
    /// The authority, `host:port`.
    pub ca: String,
    /// The plane's own credential; needed until it has a certificate.
    pub token: Option<TokenSource>,
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
    /// The API server's address or our credentials are not to be found.
    #[cfg(feature = "kubernetes")]
    #[error(transparent)]
    Cluster(#[from] rulecast_cluster::ClusterError),
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

/// Name of the Lease by which replicas find the one that writes status.
#[cfg(feature = "kubernetes")]
pub const LEASE: &str = "rulecast-dds";

/// How long tasks may take to stop once nothing holds them.
const STOP: Duration = Duration::from_secs(1);

/// What the plane has and how it stands, for scrapers.
#[derive(Clone, Debug, Default)]
struct Gauges {
    rules: Gauge,
    problems: Gauge,
    revision: Gauge,
    store_up: Gauge,
    certificate_end: Gauge,
}

impl Gauges {
    fn register(registry: &mut Registry) -> Self {
        let gauges = Self::default();
        for (name, help, gauge) in [
            ("rules", "Rules in force", &gauges.rules),
            ("problems", "Documents that are refused", &gauges.problems),
            ("revision", "Revision of the store", &gauges.revision),
            ("store_up", "Whether the store can be read", &gauges.store_up),
            (
                "certificate_end_seconds",
                "End of the plane's own certificate, Unix seconds",
                &gauges.certificate_end,
            ),
        ] {
            registry.register(name, help, gauge.clone());
        }
        gauges
    }
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
    // Operators are answered until the streams have drained.
    let drained = CancellationToken::new();
    let operators = Supervisor::new(readiness.clone(), drained.clone());
    let mut registry = Registry::with_prefix("rulecast_dds");
    let metrics = Metrics::register(&mut registry);
    let gauges = Gauges::register(&mut registry);

    // store → index → views
    #[cfg(feature = "kubernetes")]
    let mut kube = None;
    let store: Arc<dyn Store> = match &config.store {
        StoreConfig::Files { rules, state } => {
            let mut store = FileStoreConfig::new(rules, state.join("store"), kinds);
            store.quiet = config.quiet;
            Arc::new(FileStore::open(store)?)
        }
        #[cfg(feature = "kubernetes")]
        StoreConfig::Kubernetes { cluster, .. } => {
            let client = rulecast_cluster::connect(cluster).await?;
            kube = Some(client.clone());
            let config = KubernetesStoreConfig::new(client, kinds);
            let (store, run) = KubernetesStore::open(config, &shutdown);
            supervisor.spawn("kubernetes store", forever(run));
            Arc::new(store)
        }
    };
    let index = Index::new(kinds, store.lineage());
    let views = Views::new(
        index.clone(),
        Owners::new(config.owners.clone()),
        Root::new(std::iter::once(&config.root_namespace).chain(&config.root_aliases)),
        Debounce { quiet: config.quiet, ceiling: config.ceiling },
    );
    supervisor.spawn("index", index.clone().run(store.clone(), shutdown.clone()));
    supervisor.spawn("views", forever(views.clone().run(shutdown.clone())));
    supervisor.spawn(
        "store readiness",
        forever(follow(index.clone(), readiness.clone(), gauges.clone(), shutdown.clone())),
    );

    // the labels of clients' pods
    #[cfg(feature = "kubernetes")]
    let pods = kube.clone().map(|client| {
        readiness.block("pods", "the first complete list is not there yet");
        let pods = Pods::new();
        supervisor.spawn("pods", inform(pods.clone(), client, shutdown.clone()));
        let informed = pods.state();
        let ready = pods_readiness(informed, readiness.clone(), shutdown.clone());
        supervisor.spawn("pods readiness", forever(ready));
        pods
    });
    #[cfg(not(feature = "kubernetes"))]
    let pods = None;

    // streams, and rollout beside them
    let rollout = Rollout::new();
    let reports = Reports::new(views.clone(), kinds);
    reports.register(&mut registry);
    let reporting = ReportService::new(reports.clone(), pods.clone(), rollout.clone());
    let streams = RuleService::new(
        views.clone(),
        pods,
        rollout.clone(),
        StreamConfig::default(),
        kinds,
        metrics,
        shutdown.clone(),
    );

    // for operators
    let probes = http::bind(config.http).await?;
    operators
        .spawn("http", http::serve(probes, readiness.clone(), Arc::new(registry), drained.clone()));
    let socket = admin::bind(&config.admin_socket)
        .map_err(|source| AppError::Socket { path: config.admin_socket.clone(), source })?;
    let admin = Admin::new(views.clone(), rollout.clone(), reports, readiness.clone());
    operators.spawn("admin", admin::serve(socket, admin, drained.clone()));
    let stop = async |drain: Duration| {
        readiness.block("shutdown", "draining");
        supervisor.wait(drain + STOP).await;
        drained.cancel();
        operators.wait(STOP).await;
        remove_socket(&config.admin_socket);
    };

    // for applications
    let listener = http::bind(config.listen).await?;
    let started = tokio::select! {
        started = start_identity(&config) => started,
        () = shutdown.cancelled() => {
            stop(Duration::ZERO).await;
            return Ok(());
        }
    };
    let (identity, renewal) = match started {
        Ok(started) => started,
        Err(error) => {
            shutdown.cancel();
            stop(Duration::ZERO).await;
            return Err(error.into());
        }
    };

    // status, on the rules themselves; a plane that serves nobody has nothing to say there
    #[cfg(feature = "kubernetes")]
    if let (Some(client), StoreConfig::Kubernetes { replica, .. }) = (&kube, &config.store) {
        let election = ElectionConfig::new(SYSTEM_NAMESPACE, LEASE, replica);
        let (lead, campaign) = campaign(client.clone(), election, shutdown.clone());
        supervisor.spawn("leader election", forever(campaign));
        let write = status::run(
            store.clone(),
            views.clone(),
            rollout.clone(),
            lead,
            StatusConfig::default(),
            shutdown.clone(),
        );
        supervisor.spawn("status", forever(write));
    }

    let stopped = shutdown.clone();
    supervisor.spawn(
        "identity renewal",
        forever(async move { stopped.run_until_cancelled(renewal).await.unwrap_or_default() }),
    );
    let tls = server_config(&identity, ClientAuth::Required, None)?;
    let mappings = MappingService::new(store, index, kinds);
    let mut services = tonic::service::Routes::builder();
    let dubbo = DubboRuleService::new(streams.clone());
    services.add_service(streams.into_server()).add_service(dubbo.into_server());
    services.add_service(reporting.into_server());
    if let Some(mappings) = mappings {
        services.add_service(mappings.into_server());
    }
    let routes = routes(services, readiness.clone(), &supervisor, shutdown.clone()).await;
    info!(
        address = %config.listen, identity = %identity.current().spiffe,
        "the plane serves"
    );
    supervisor.spawn(
        "certificate readiness",
        forever(certificate(identity.clone(), readiness.clone(), gauges, shutdown.clone())),
    );
    let options = ServeOptions { drain: config.drain, ..ServeOptions::default() };
    supervisor.spawn("streams", serve_tls(listener, tls, routes, shutdown.clone(), options));

    shutdown.cancelled().await;
    stop(config.drain).await;
    Ok(())
}

/// Waits for the plane's identity, and refuses another's: clients would not speak with it.
async fn start_identity(
    config: &DdsConfig,
) -> Result<(IdentityHandle, impl Future<Output = ()> + Send + 'static), IdentityError> {
    let (identity, renewal) = IdentityManager::start(identity_config(config)).await?;
    let spiffe = identity.current().spiffe.clone();
    if Expected::dds().check(&spiffe).is_err() {
        return Err(IdentityError::new(
            Code::OtherApplication,
            format!(
                "the credential is of {spiffe}; a plane needs one of {DDS_APPLICATION} in \
                 {SYSTEM_NAMESPACE}"
            ),
        ));
    }
    Ok((identity, renewal))
}

fn identity_config(config: &DdsConfig) -> IdentityConfig {
    let mut identity = IdentityConfig::new(config.ca.clone());
    identity.token = config.token.clone();
    match &config.store {
        StoreConfig::Files { state, .. } => identity.state_dir = Some(state.join("identity")),
        #[cfg(feature = "kubernetes")]
        StoreConfig::Kubernetes { .. } => {}
    }
    identity
}

/// The services of the TLS port, with health and reflection.
async fn routes(
    mut routes: tonic::service::RoutesBuilder,
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
                    () = shutdown.cancelled() => break,
                }
            }
            reporter.set_service_status("", tonic_health::ServingStatus::NotServing).await;
        }),
    );
    routes.add_service(health);
    // The descriptors are compiled in; without them there is only no reflection.
    if let Ok(reflection) = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(rulecast_api::proto::DESCRIPTORS)
        .with_service_name("rulecast.observe.v1.RuleService")
        .with_service_name("rulecast.report.v1.ReportService")
        .with_service_name("org.apache.dubbo.auth.v1alpha1.RuleService")
        .with_service_name("v1alpha1.ServiceNameMappingService")
        .build_v1()
    {
        routes.add_service(reflection);
    }
    routes.routes()
}

/// Keeps the store's blocker as the index says.
async fn follow(index: Index, readiness: Readiness, gauges: Gauges, shutdown: CancellationToken) {
    let mut changes = index.changes();
    loop {
        let snapshot = index.snapshot();
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        gauges.rules.set(count(snapshot.len()));
        gauges.problems.set(count(snapshot.problems.len()));
        gauges.revision.set(snapshot.revision);
        gauges.store_up.set(i64::from(snapshot.listed && snapshot.down.is_none()));
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

/// Not ready before the first complete list of pods. What was known once is gone by.
#[cfg(feature = "kubernetes")]
async fn pods_readiness(
    mut informed: tokio::sync::watch::Receiver<Informed>,
    readiness: Readiness,
    shutdown: CancellationToken,
) {
    loop {
        let Informed { synced, problem } = informed.borrow_and_update().clone();
        match problem {
            _ if synced => {
                readiness.clear("pods");
                return shutdown.cancelled().await;
            }
            Some(problem) => readiness.block("pods", problem),
            None => {}
        }
        tokio::select! {
            changed = informed.changed() => if changed.is_err() { return },
            () = shutdown.cancelled() => return,
        }
    }
}

/// Not ready while the plane's own certificate is past its end: no client could verify it.
async fn certificate(
    identity: IdentityHandle,
    readiness: Readiness,
    gauges: Gauges,
    shutdown: CancellationToken,
) {
    /// The wall clock is looked at this often: it may be set, and the machine suspended.
    const LOOK: Duration = Duration::from_secs(10);
    let mut changes = identity.subscribe();
    loop {
        let svid = changes.borrow_and_update().clone();
        let end = svid.not_after.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        gauges.certificate_end.set(i64::try_from(end.as_secs()).unwrap_or(i64::MAX));
        let left = svid.not_after.duration_since(SystemTime::now()).unwrap_or_default();
        if left.is_zero() {
            let why = "the plane's certificate has ended; see its log for why it is not renewed";
            readiness.block("identity", why);
        } else {
            readiness.clear("identity");
        }
        let look = if left.is_zero() { LOOK } else { left.min(LOOK) };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(look) => {}
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
