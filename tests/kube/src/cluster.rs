//! A server as a test sees it.

use std::{
    env,
    ffi::OsStr,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::sync::{Mutex, OnceCell};

use crate::{Output, Proxy, access::Access, kubectl, server::Server};

/// Names the folder of a server that runs for many processes.
pub const SHARED_ENV: &str = "RULECAST_TEST_KUBE";

/// How long the run's server may take to answer a process that begins to use it.
const ANSWER: Duration = Duration::from_secs(30);

/// A server that is ready. Clones are the same one. A private one ends with its last clone
/// and namespace; the run's with the run, that of a process with the process.
///
/// A handle belongs to the runtime in which it was made: its client works there.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    access: Access,
    client: RwLock<kube::Client>,
    /// The server, where it is this handle's to restart.
    private: Option<Mutex<Server>>,
}

impl Cluster {
    /// The server for everybody: that of the run, which `RULECAST_TEST_KUBE` names, or else
    /// one of this process. Its objects are everybody's too.
    pub async fn shared() -> Result<Self> {
        /// Lives as long as the process: a static is never dropped.
        static OF_THE_PROCESS: OnceCell<Server> = OnceCell::const_new();
        let access = match env::var_os(SHARED_ENV).filter(|folder| !folder.is_empty()) {
            Some(folder) => {
                let access = Access::new(Path::new(&folder));
                access.url().with_context(|| format!("{SHARED_ENV} is wrong or outdated"))?;
                access
            }
            None => OF_THE_PROCESS.get_or_try_init(|| Server::start(&[])).await?.access().clone(),
        };
        let cluster = Self::new(access, None).await?;
        let version = tokio::time::timeout(ANSWER, cluster.client().apiserver_version()).await;
        version.map_err(anyhow::Error::from).and_then(|answer| Ok(answer?)).with_context(|| {
            format!("the test server in {} does not answer", cluster.0.access.folder().display())
        })?;
        Ok(cluster)
    }

    /// A server of one's own, that one may restart and spoil. It takes about 10 seconds and
    /// 350 MB.
    pub async fn start() -> Result<Self> {
        Self::start_with(&[]).await
    }

    /// As [`Cluster::start`], with more arguments for kube-apiserver. `--watch-cache=false`
    /// makes watches read etcd itself, so that a compaction there shows at once.
    pub async fn start_with(arguments: &[&str]) -> Result<Self> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.into()).collect();
        let server = Server::start(&arguments).await?;
        Self::new(server.access().clone(), Some(Mutex::new(server))).await
    }

    async fn new(access: Access, private: Option<Mutex<Server>>) -> Result<Self> {
        let client = RwLock::new(access.client().await?);
        Ok(Self(Arc::new(Inner { access, client, private })))
    }

    /// A plain client, as the administrator.
    pub fn client(&self) -> kube::Client {
        self.0.client.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// The server's folder, as `RULECAST_TEST_KUBE` names it.
    pub fn folder(&self) -> &Path {
        self.0.access.folder()
    }

    /// `https://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        self.0.access.url().expect("the folder of a server has its address")
    }

    /// Where it listens, for a [`Proxy`].
    pub fn addr(&self) -> SocketAddr {
        let url = self.url();
        let addr = url.strip_prefix("https://").and_then(|addr| addr.parse().ok());
        addr.expect("the server's address is one")
    }

    /// The certificate of the authority that the server's own certificate is from now.
    pub fn ca_pem(&self) -> String {
        std::fs::read_to_string(self.ca_file()).expect("the folder of a server has its CA")
    }

    /// The file of [`Cluster::ca_pem`]. All kubeconfigs of the harness refer to it, and
    /// [`Cluster::rotate_serving_ca`] replaces it.
    pub fn ca_file(&self) -> PathBuf {
        self.0.access.ca_file()
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.0.access.kubeconfig()
    }

    /// A copy of the administrator's kubeconfig that goes through the proxy.
    pub fn kubeconfig_via(&self, proxy: &Proxy) -> PathBuf {
        self.kubeconfig_through(&self.kubeconfig(), proxy)
    }

    /// A copy of any kubeconfig of the harness that goes through the proxy.
    pub fn kubeconfig_through(&self, kubeconfig: &Path, proxy: &Proxy) -> PathBuf {
        let url = format!("https://{}", proxy.addr());
        let made = self.0.access.kubeconfig_at(kubeconfig, &url);
        made.expect("a kubeconfig of the harness can be copied")
    }

    /// Runs kubectl as the administrator, and waits for it. Whether it went well is in the
    /// answer.
    pub async fn kubectl<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<Output> {
        kubectl::run(&self.kubeconfig(), arguments, "").await
    }

    /// As [`Cluster::kubectl`], with text on its standard input (`-f -`).
    pub async fn kubectl_with<S: AsRef<OsStr>>(
        &self,
        arguments: &[S],
        input: &str,
    ) -> Result<Output> {
        kubectl::run(&self.kubeconfig(), arguments, input).await
    }

    pub(crate) fn access(&self) -> &Access {
        &self.0.access
    }
}

/// Only for a private server; an error for another.
impl Cluster {
    fn private(&self) -> Result<&Mutex<Server>> {
        match &self.0.private {
            Some(server) => Ok(server),
            None => bail!("this server is everybody's; take a private one: Cluster::start()"),
        }
    }

    /// Kills kube-apiserver, as a crash would.
    pub async fn stop_api_server(&self) -> Result<()> {
        self.private()?.lock().await.stop_api_server();
        Ok(())
    }

    /// Starts kube-apiserver on its old port, and waits until it is ready.
    pub async fn start_api_server(&self) -> Result<()> {
        self.private()?.lock().await.start_api_server().await
    }

    /// Kills kube-apiserver and starts it again.
    pub async fn restart_api_server(&self) -> Result<()> {
        let mut server = self.private()?.lock().await;
        server.stop_api_server();
        server.start_api_server().await
    }

    /// Kills etcd. Its data stay.
    pub async fn kill_etcd(&self) -> Result<()> {
        self.private()?.lock().await.kill_etcd();
        Ok(())
    }

    /// Starts etcd on its old port, and waits until it answers. kube-apiserver takes some
    /// seconds more to come back, see [`Cluster::ready`].
    pub async fn start_etcd(&self) -> Result<()> {
        self.private()?.lock().await.start_etcd().await
    }

    /// Forgets the history of all objects in etcd: a watch there from before anything that
    /// changed until now ends with 410. kube-apiserver serves watches from its
    /// own memory and goes on, unless it is restarted or runs without (see
    /// [`Cluster::start_with`]).
    pub async fn compact_etcd(&self) -> Result<()> {
        self.private()?.lock().await.compact_etcd().await
    }

    /// Restarts kube-apiserver with a certificate of another authority, and replaces
    /// [`Cluster::ca_file`]. Clients from [`Cluster::client`] taken before do not trust it.
    pub async fn rotate_serving_ca(&self) -> Result<()> {
        self.private()?.lock().await.rotate_serving_ca().await?;
        let client = self.access().client().await?;
        *self.0.client.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = client;
        Ok(())
    }

    /// Ids of the processes that run for this server.
    pub async fn process_ids(&self) -> Result<Vec<u32>> {
        Ok(self.private()?.lock().await.process_ids())
    }
}

impl Cluster {
    /// Waits until `/readyz` says ok, at most a minute.
    pub async fn ready(&self) -> Result<()> {
        crate::server::ready(&self.client(), Duration::from_secs(60)).await
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        if let Some(server) = &mut self.private {
            let tails = server.get_mut().log_tails(40);
            eprintln!("the private server that this test had:\n{tails}");
        }
    }
}
