//! etcd and kube-apiserver, as processes of this one.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};

use crate::{
    access::Access,
    binaries::Binaries,
    etcd, pki,
    ports::free_port,
    process::{Keeper, Program},
};

/// How long a program may take until it answers; far more than it needs.
const START: Duration = Duration::from_secs(120);

/// What `--service-account-issuer` and `--api-audiences` say.
const ISSUER: &str = "https://kubernetes.default.svc";

/// A server with its data. Dropped, it is gone.
#[derive(Debug)]
pub(crate) struct Server {
    // In this order: the programs end before the folder goes.
    api_server: Option<Program>,
    etcd: Option<Program>,
    access: Access,
    binaries: Binaries,
    ports: Ports,
    extra: Vec<String>,
    authority: u32,
    keeper: Keeper,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    api_server: u16,
    etcd: u16,
    peers: u16,
}

impl Server {
    /// Starts one, with more arguments for kube-apiserver, and waits until it is ready.
    pub(crate) async fn start(extra: &[String]) -> Result<Self> {
        let binaries = Binaries::find()?;
        let mut attempt = 1;
        loop {
            let mut server = Self::prepare(&binaries, extra)?;
            let Err(error) = server.start_all().await else { return Ok(server) };
            // Another process may have taken a port in the meantime.
            let taken = server.log_tails(200).contains("address already in use");
            if !taken || attempt == 5 {
                return Err(error);
            }
            attempt += 1;
        }
    }

    fn prepare(binaries: &Binaries, extra: &[String]) -> Result<Self> {
        let keeper = Keeper::new()?;
        let folder = keeper.folder();
        let ports = Ports { api_server: free_port()?, etcd: free_port()?, peers: free_port()? };
        pki::service_account_keys(folder)?;
        let ca = pki::serving_certificate(folder, 0)?;
        let token = pki::secret()?;
        std::fs::write(folder.join("tokens.csv"), format!("{token},admin,1,\"system:masters\"\n"))?;
        let url = format!("https://127.0.0.1:{}", ports.api_server);
        let access = Access::create(folder, &url, &ca, &token)?;
        let (binaries, extra) = (binaries.clone(), extra.to_vec());
        let (api_server, etcd, authority) = (None, None, 0);
        Ok(Self { api_server, etcd, access, binaries, ports, extra, authority, keeper })
    }

    async fn start_all(&mut self) -> Result<()> {
        self.start_etcd().await?;
        self.start_api_server().await
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// The ids of the programs that run.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        self.api_server.iter().chain(&self.etcd).map(Program::id).collect()
    }

    /// The ends of both logs.
    pub(crate) fn log_tails(&self, lines: usize) -> String {
        let folder = self.keeper.folder();
        let tail = |name: &str| crate::process::tail(&folder.join(name), lines);
        format!(
            "--- etcd.log\n{}\n--- kube-apiserver.log\n{}",
            tail("etcd.log"),
            tail("kube-apiserver.log")
        )
    }

    /// Kills it; nothing where it does not run.
    pub(crate) fn stop_api_server(&mut self) {
        self.api_server = None;
    }

    /// Kills it; nothing where it does not run.
    pub(crate) fn kill_etcd(&mut self) {
        self.etcd = None;
    }

    /// Starts etcd on its data and waits until it answers.
    pub(crate) async fn start_etcd(&mut self) -> Result<()> {
        ensure!(self.etcd.is_none(), "etcd runs already");
        let Ports { etcd: port, peers, .. } = self.ports;
        let program = &self.binaries.etcd;
        let mut args = vec![
            "--name=test".to_owned(),
            "--data-dir=etcd".to_owned(),
            format!("--listen-client-urls=http://127.0.0.1:{port}"),
            format!("--advertise-client-urls=http://127.0.0.1:{port}"),
            format!("--listen-peer-urls=http://127.0.0.1:{peers}"),
            format!("--initial-advertise-peer-urls=http://127.0.0.1:{peers}"),
            format!("--initial-cluster=test=http://127.0.0.1:{peers}"),
        ];
        // Old versions do not know it, and end at once.
        if knows(program, "--unsafe-no-fsync") {
            args.push("--unsafe-no-fsync".to_owned());
        }
        // etcd refuses to run on what it is not tested on, unless told.
        let env = [("ETCD_UNSUPPORTED_ARCH", go_arch())];
        let mut etcd = Program::start(self.keeper.folder(), "etcd", program, &args, &env)?;
        let since = Instant::now();
        while !etcd::is_healthy(port).await {
            still_starting(&mut etcd, "etcd", since).await?;
        }
        self.etcd = Some(etcd);
        Ok(())
    }

    /// Starts kube-apiserver and waits until it is ready.
    pub(crate) async fn start_api_server(&mut self) -> Result<()> {
        ensure!(self.api_server.is_none(), "kube-apiserver runs already");
        let args = self.api_server_args();
        let program = &self.binaries.kube_apiserver;
        let mut server =
            Program::start(self.keeper.folder(), "kube-apiserver", program, &args, &[])?;
        let client = self.access.client().await?;
        let since = Instant::now();
        while !is_ready(&client).await {
            still_starting(&mut server, "kube-apiserver", since).await?;
        }
        self.api_server = Some(server);
        Ok(())
    }

    fn api_server_args(&self) -> Vec<String> {
        let mut args = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.ports.etcd),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.ports.api_server),
            "--advertise-address=127.0.0.1".to_owned(),
            // Nobody looks for the server by its own Service.
            "--endpoint-reconciler-type=none".to_owned(),
            "--cert-dir=certificates".to_owned(),
            "--tls-cert-file=serving.crt".to_owned(),
            "--tls-private-key-file=serving.key".to_owned(),
            "--service-account-key-file=sa.pub".to_owned(),
            "--service-account-signing-key-file=sa.key".to_owned(),
            format!("--service-account-issuer={ISSUER}"),
            format!("--api-audiences={ISSUER}"),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--token-auth-file=tokens.csv".to_owned(),
            // Without a controller manager nobody makes the accounts that it asks for.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--allow-privileged=true".to_owned(),
        ];
        args.extend(self.extra.iter().cloned());
        args
    }

    /// Forgets the history of all objects in etcd.
    pub(crate) async fn compact_etcd(&self) -> Result<()> {
        ensure!(self.etcd.is_some(), "etcd does not run");
        etcd::compact(self.ports.etcd).await
    }

    /// Starts kube-apiserver anew with a certificate of another authority, and puts that
    /// into the file that kubeconfigs refer to.
    pub(crate) async fn rotate_serving_ca(&mut self) -> Result<()> {
        self.authority += 1;
        let ca = pki::serving_certificate(self.keeper.folder(), self.authority)?;
        self.stop_api_server();
        self.access.set_ca(&ca)?;
        self.start_api_server().await
    }
}

/// Pauses, unless the program has ended or takes too long.
async fn still_starting(program: &mut Program, name: &str, since: Instant) -> Result<()> {
    if let Some(status) = program.ended()? {
        bail!("{name} ended with {status}; the end of its log:\n{}", program.tail(30));
    }
    ensure!(
        since.elapsed() < START,
        "{name} did not get ready in {} s; the end of its log:\n{}",
        START.as_secs(),
        program.tail(30)
    );
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(())
}

/// Waits until the server says that it is ready.
pub(crate) async fn ready(client: &kube::Client, limit: Duration) -> Result<()> {
    let since = Instant::now();
    while !is_ready(client).await {
        ensure!(since.elapsed() < limit, "the server is not ready after {} s", limit.as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

async fn is_ready(client: &kube::Client) -> bool {
    let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else { return false };
    let answer = tokio::time::timeout(Duration::from_secs(5), client.request_text(request)).await;
    matches!(answer, Ok(Ok(text)) if text == "ok")
}

/// Whether the program takes an argument.
fn knows(program: &Path, argument: &str) -> bool {
    Command::new(program)
        .args([argument, "--version"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "x86_64" => "amd64",
        other => other,
    }
}
