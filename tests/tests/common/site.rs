//! An authority and a plane in this process, in a folder of their own. The plane serves the
//! `KINDS` at the root of the test program.

// Each test program uses its part.
#![allow(dead_code)]

use std::{
    collections::BTreeMap,
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rulecast_api::proto::admin::v1::{
    Client, GetStatusRequest, GetStatusResponse, ListClientsRequest, RuleStatus,
    admin_service_client::AdminServiceClient,
};
use rulecast_ca::{CaConfig, Place};
use rulecast_dds::app::{self, AppError, DdsConfig, StoreConfig};
use rulecast_identity::{
    ConnectOptions, DDS_APPLICATION, IdentityClient, IdentityHandle, JoinToken, PrivateKey,
    SYSTEM_NAMESPACE, Svid, TokenSource,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

use crate::KINDS;

/// How long anything may take before a test gives up.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Within a time that only a fault passes.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("not in time: {what}"),
    }
}

/// A certificate authority that runs until it is dropped.
pub(crate) struct Authority {
    folder: TempDir,
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Authority {
    pub(crate) async fn start(trust_domain: &str) -> Self {
        Self::with_life(trust_domain, HOUR).await
    }

    /// Whose certificates live that long.
    pub(crate) async fn with_life(trust_domain: &str, life: Duration) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("ca");
        rulecast_ca::init(&dir, trust_domain).expect("made");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let config = CaConfig {
            place: Place::Folder(dir),
            listen: address,
            http: None,
            ttl: life,
            max_ttl: HOUR,
            drain: Duration::from_secs(1),
            dubbo: Default::default(),
        };
        let stop = CancellationToken::new();
        tokio::spawn(rulecast_ca::serve(config, listener, stop.clone()));
        Self { folder, address, stop }
    }

    pub(crate) fn token(&self, namespace: &str, application: &str) -> String {
        let dir = self.folder.path().join("ca");
        rulecast_ca::create_token(&dir, namespace, application, HOUR).expect("a token")
    }

    /// The certificate of an application that has just joined.
    pub(crate) async fn join(&self, namespace: &str, application: &str, ttl: Duration) -> Svid {
        let token: JoinToken = self.token(namespace, application).parse().expect("own token");
        let key = PrivateKey::generate().expect("a key");
        IdentityClient::new(self.address.to_string(), ConnectOptions::default())
            .join(&token, &key, Some(ttl))
            .await
            .expect("joined")
    }
}

/// A plane that runs. Dropping it tells it to stop.
pub(crate) struct Plane {
    pub(crate) address: SocketAddr,
    socket: PathBuf,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<Result<(), AppError>>,
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Plane {
    /// Ends it as a signal would, and says how long that took.
    pub(crate) async fn end(mut self) -> Duration {
        let since = Instant::now();
        self.stop.cancel();
        let ended = soon("the plane ends", &mut self.task).await;
        ended.expect("it does not panic").expect("it ends without error");
        since.elapsed()
    }

    async fn admin(&self) -> Option<AdminServiceClient<tonic::transport::Channel>> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", self.socket.display()));
        endpoint.expect("a path").connect().await.ok().map(AdminServiceClient::new)
    }

    pub(crate) async fn status(&self) -> Option<GetStatusResponse> {
        let request = GetStatusRequest::default();
        self.admin().await?.get_status(request).await.ok().map(tonic::Response::into_inner)
    }

    /// Asks of a rule until what is told of it is right.
    pub(crate) async fn rule(&self, key: &str, right: impl Fn(&RuleStatus) -> bool) -> RuleStatus {
        let since = Instant::now();
        loop {
            let status = self.status().await.unwrap_or_default();
            let rule = status.rules.into_iter().find(|rule| rule.key == key);
            match rule {
                Some(rule) if right(&rule) => return rule,
                rule => assert!(since.elapsed() < LIMIT, "not in time: {rule:?}"),
            }
            pause().await;
        }
    }

    /// As [`Plane::rule`], of the connected clients.
    pub(crate) async fn clients(&self, right: impl Fn(&[Client]) -> bool) -> Vec<Client> {
        let since = Instant::now();
        loop {
            let mut admin = self.admin().await.expect("the plane answers");
            let clients = admin.list_clients(ListClientsRequest {}).await.expect("listed");
            let clients = clients.into_inner().clients;
            if right(&clients) {
                return clients;
            }
            assert!(since.elapsed() < LIMIT, "not in time: {clients:?}");
            pause().await;
        }
    }
}

/// Between two questions to the plane.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// Everything that a test has: an authority, a folder of rules, and where a plane keeps its state.
pub(crate) struct Site {
    dir: TempDir,
    pub(crate) authority: Authority,
    /// Which namespace owns what.
    pub(crate) owners: BTreeMap<String, String>,
    /// How long a plane's streams may finish at its end.
    pub(crate) drain: Duration,
}

impl Site {
    pub(crate) async fn new() -> Self {
        Self::with_life(HOUR).await
    }

    /// Where certificates live that long.
    pub(crate) async fn with_life(life: Duration) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        fs::create_dir(dir.path().join("rules")).expect("a folder");
        let authority = Authority::with_life("td.test", life).await;
        Self { dir, authority, owners: BTreeMap::new(), drain: Duration::from_secs(1) }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Puts a document in the folder of rules, whole.
    pub(crate) fn write(&self, name: &str, document: &Value) {
        let rules = self.dir.path().join("rules");
        let aside = rules.join(format!(".{name}"));
        fs::write(&aside, document.to_string()).expect("written");
        fs::rename(aside, rules.join(format!("{name}.json"))).expect("moved");
    }

    fn config(&self) -> DdsConfig {
        // Both are held until both are known, so that they differ.
        let held: Vec<_> =
            (0..2).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let port = |n: usize| held[n].local_addr().expect("bound");
        DdsConfig {
            store: StoreConfig::Files {
                rules: self.dir.path().join("rules"),
                state: self.dir.path().join("state"),
            },
            listen: port(0),
            ca: self.authority.address.to_string(),
            token: Some(TokenSource::Text(self.authority.token(SYSTEM_NAMESPACE, DDS_APPLICATION))),
            admin_socket: self.dir.path().join("admin.sock"),
            http: port(1),
            root_namespace: "root".into(),
            root_aliases: Vec::new(),
            owners: self.owners.clone(),
            quiet: Duration::from_millis(10),
            ceiling: Duration::from_millis(50),
            drain: self.drain,
        }
    }

    /// Starts a plane over the folders and waits until it is ready.
    pub(crate) async fn plane(&self) -> Plane {
        let since = Instant::now();
        loop {
            let config = self.config();
            let stop = CancellationToken::new();
            let mut plane = Plane {
                address: config.listen,
                socket: config.admin_socket.clone(),
                stop: stop.clone(),
                task: tokio::spawn(app::run(config, KINDS, stop)),
            };
            while !plane.task.is_finished() {
                if plane.status().await.is_some_and(|status| status.ready) {
                    return plane;
                }
                assert!(since.elapsed() < LIMIT, "the plane is not ready in time");
                pause().await;
            }
            match (&mut plane.task).await.expect("it does not panic") {
                // Somebody took the port meanwhile.
                Err(AppError::Listen { .. }) if since.elapsed() < LIMIT => {}
                ended => panic!("the plane has ended: {ended:?}"),
            }
        }
    }

    pub(crate) async fn identity(&self, namespace: &str, application: &str) -> IdentityHandle {
        IdentityHandle::fixed(self.authority.join(namespace, application, HOUR).await)
    }
}
