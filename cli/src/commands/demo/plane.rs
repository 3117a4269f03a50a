//! Processes of the demo: all of this same binary.

use std::{
    ffi::OsStr,
    fs::File,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rulecast_api::proto::admin::v1::{
    GetStatusRequest, GetStatusResponse, admin_service_client::AdminServiceClient,
};
use tokio::process::{Child, Command};
use tonic::transport::Channel;

use crate::{admin, commands::EXIT_WITH_PARENT};

/// The trust domain of the demo, which the example rules name.
pub(super) const TRUST_DOMAIN: &str = "shop.example";

/// How long a service may take to be ready.
const START: Duration = Duration::from_secs(60);

/// Where everything of one demo lies and listens.
pub(super) struct Site {
    pub(super) work: PathBuf,
    pub(super) rules: PathBuf,
    pub(super) ca: SocketAddr,
    pub(super) dds: SocketAddr,
    pub(super) http: SocketAddr,
    /// Where the shop listens.
    pub(super) shop: Vec<SocketAddr>,
}

impl Site {
    /// Takes free ports of loopback, `shop` of them for the shop. They are given back until the
    /// services bind them: who is faster takes them, and the service then says so.
    pub(super) fn new(work: PathBuf, rules: PathBuf, shop: usize) -> Result<Self> {
        let held: Vec<TcpListener> = (0..3 + shop)
            .map(|_| TcpListener::bind("127.0.0.1:0"))
            .collect::<std::io::Result<_>>()
            .context("no free port on loopback")?;
        let mut ports = held.iter().map(TcpListener::local_addr);
        let mut next = || ports.next().context("ports")?.context("port");
        let (ca, dds, http) = (next()?, next()?, next()?);
        Ok(Self { work, rules, ca, dds, http, shop: ports.collect::<std::io::Result<_>>()? })
    }

    /// The authority's folder.
    pub(super) fn ca_dir(&self) -> PathBuf {
        self.work.join("ca")
    }

    /// The plane's socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.work.join("dds.sock")
    }
}

/// A running service.
pub(super) struct Service {
    name: &'static str,
    log: PathBuf,
    child: Child,
}

impl Service {
    fn start(name: &'static str, work: &Path, args: &[&OsStr]) -> Result<Self> {
        Self::start_with(name, work, args, &[])
    }

    /// As `start`, with variables.
    pub(super) fn start_with(
        name: &'static str,
        work: &Path,
        args: &[&OsStr],
        variables: &[(&str, &OsStr)],
    ) -> Result<Self> {
        let log = work.join(format!("{name}.log"));
        let sink = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("log {}", log.display()))?;
        let child = Command::new(std::env::current_exe()?)
            .args(args)
            .env(EXIT_WITH_PARENT, "1")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(sink.try_clone()?)
            .stderr(sink)
            // The demo's own Ctrl-C stops them in order, not the terminal's.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name, log, child })
    }

    /// The authority.
    pub(super) async fn ca(site: &Site) -> Result<Self> {
        let (dir, listen) = (site.ca_dir(), site.ca.to_string());
        let mut service = Self::start(
            "ca",
            &site.work,
            &[
                "ca".as_ref(),
                "run".as_ref(),
                "--dir".as_ref(),
                dir.as_ref(),
                "--listen".as_ref(),
                listen.as_ref(),
            ],
        )?;
        let since = Instant::now();
        while tokio::net::TcpStream::connect(site.ca).await.is_err() {
            service.still_starting(since).await?;
        }
        Ok(service)
    }

    /// The plane. Returns when it is ready.
    pub(super) async fn dds(site: &Site, token: &Path) -> Result<(Self, Admin)> {
        let (state, socket) = (site.work.join("dds"), site.socket());
        let (ca, listen, http) = (site.ca.to_string(), site.dds.to_string(), site.http.to_string());
        let mut service = Self::start(
            "dds",
            &site.work,
            &[
                "dds".as_ref(),
                "run".as_ref(),
                "--rules".as_ref(),
                site.rules.as_ref(),
                "--state".as_ref(),
                state.as_ref(),
                "--ca".as_ref(),
                ca.as_ref(),
                "--token-file".as_ref(),
                token.as_ref(),
                "--listen".as_ref(),
                listen.as_ref(),
                "--http".as_ref(),
                http.as_ref(),
                "--admin-socket".as_ref(),
                socket.as_ref(),
            ],
        )?;
        let since = Instant::now();
        loop {
            if let Ok(mut admin) = Admin::connect(site).await
                && let Ok(status) = admin.status().await
                && status.ready
            {
                return Ok((service, admin));
            }
            service.still_starting(since).await?;
        }
    }

    /// Waits a moment, or says why it will not start.
    pub(super) async fn still_starting(&mut self, since: Instant) -> Result<()> {
        if let Ok(exit) = tokio::time::timeout(Duration::from_millis(5), self.child.wait()).await {
            bail!(
                "{} stopped at its start ({}); its log is {}:\n{}",
                self.name,
                exit?,
                self.log.display(),
                self.last_lines()
            );
        }
        if since.elapsed() > START {
            bail!(
                "{} is not ready after {START:?}; its log is {}:\n{}",
                self.name,
                self.log.display(),
                self.last_lines()
            );
        }
        Ok(())
    }

    fn last_lines(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    /// Its process id; `None` when it is known to have ended.
    pub(super) fn process(&self) -> Option<u32> {
        self.child.id()
    }

    /// SIGKILL: no goodbye.
    pub(super) async fn kill(&mut self) -> Result<()> {
        self.child.kill().await.with_context(|| format!("cannot kill {}", self.name))
    }

    /// SIGTERM, and waits for its end.
    pub(super) async fn stop(mut self) -> Result<()> {
        if let Some(pid) = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id as i32))
        {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        let exit = tokio::time::timeout(Duration::from_secs(15), self.child.wait())
            .await
            .with_context(|| format!("{} does not stop", self.name))??;
        if !exit.success() {
            bail!(
                "{} ended with {exit}; its log is {}:\n{}",
                self.name,
                self.log.display(),
                self.last_lines()
            );
        }
        Ok(())
    }
}

/// The plane's own word.
#[derive(Clone)]
pub(super) struct Admin(AdminServiceClient<Channel>);

impl Admin {
    pub(super) async fn connect(site: &Site) -> Result<Self> {
        Ok(Self(admin::connect(&site.socket()).await?))
    }

    pub(super) async fn status(&mut self) -> Result<GetStatusResponse> {
        Ok(self.0.get_status(GetStatusRequest::default()).await?.into_inner())
    }
}
