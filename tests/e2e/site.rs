//! Authority and plane as processes, in a folder of their own.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use hyper_util::rt::TokioIo;
use rulecast_api::proto::admin::v1::{
    GetStatusRequest, GetStatusResponse, admin_service_client::AdminServiceClient,
};
use rulecast_sdk::client::{Client, ClientBuilder};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::Child,
};

/// How long anything may take before a test gives up.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// The program under test.
pub(crate) const RULECAST: &str = env!("CARGO_BIN_EXE_rulecast");

/// Runs the program to its end.
pub(crate) fn rulecast(args: &[&str]) -> Result<Output> {
    Command::new(RULECAST).args(args).stdin(Stdio::null()).output().context("rulecast does not run")
}

/// Its standard output; an error with all it said when it fails.
pub(crate) fn rulecast_ok(args: &[&str]) -> Result<String> {
    let out = rulecast(args)?;
    ensure!(
        out.status.success(),
        "rulecast {args:?}: {}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(String::from_utf8(out.stdout)?)
}

/// Asks again until it holds; the last error when it never does.
pub(crate) async fn eventually<T>(mut ask: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let since = Instant::now();
    loop {
        match ask().await {
            Ok(value) => return Ok(value),
            Err(error) if since.elapsed() > LIMIT => return Err(error.context("gave up waiting")),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

pub(crate) struct Site {
    dir: TempDir,
    pub(crate) ca: SocketAddr,
    pub(crate) dds: SocketAddr,
    pub(crate) http: SocketAddr,
    authority: Child,
    plane: Option<Child>,
}

impl Site {
    /// Starts both; the plane over an empty folder of rules.
    pub(crate) async fn start() -> Result<Self> {
        Self::start_with(&[]).await
    }

    /// As [`Site::start`], with further options of the authority.
    pub(crate) async fn start_with(authority_options: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let held: Vec<_> =
            (0..3).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<_>>()?;
        let ports: Vec<SocketAddr> =
            held.iter().map(TcpListener::local_addr).collect::<std::io::Result<_>>()?;
        drop(held);
        fs::create_dir(dir.path().join("rules"))?;
        let ca_dir = dir.path().join("ca");
        let ca_dir = ca_dir.to_str().context("path")?;
        rulecast_ok(&["ca", "init", "--dir", ca_dir, "--trust-domain", "e2e.test"])?;
        let listen = ports[0].to_string();
        let mut args = vec!["ca", "run", "--dir", ca_dir, "--listen", &listen];
        args.extend(authority_options);
        let authority = Self::spawn(dir.path(), "ca", &args)?;
        let mut site =
            Self { dir, ca: ports[0], dds: ports[1], http: ports[2], authority, plane: None };
        eventually(async || Ok(tokio::net::TcpStream::connect(site.ca).await?)).await?;
        site.write_token("dds.token", "rulecast-system", "rulecast-dds")?;
        site.start_plane().await?;
        Ok(site)
    }

    fn spawn(dir: &Path, name: &str, args: &[&str]) -> Result<Child> {
        let log =
            fs::File::options().create(true).append(true).open(dir.join(format!("{name}.log")))?;
        Ok(tokio::process::Command::new(RULECAST)
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> Result<String> {
        Ok(self.path(name).to_str().context("path")?.to_owned())
    }

    /// Starts the plane and waits until it is ready.
    pub(crate) async fn start_plane(&mut self) -> Result<()> {
        self.plane = Some(Self::spawn(
            self.dir.path(),
            "dds",
            &[
                "dds",
                "run",
                "--rules",
                &self.text("rules")?,
                "--state",
                &self.text("dds")?,
                "--ca",
                &self.ca.to_string(),
                "--token-file",
                &self.text("dds.token")?,
                "--listen",
                &self.dds.to_string(),
                "--http",
                &self.http.to_string(),
                "--admin-socket",
                &self.socket()?,
            ],
        )?);
        let ready = eventually(async || {
            let status = self.status().await?;
            ensure!(status.ready, "not ready: {:?}", status.blockers);
            Ok(())
        });
        ready.await.with_context(|| self.logs())
    }

    /// SIGKILL.
    pub(crate) async fn kill_plane(&mut self) -> Result<()> {
        self.plane.take().context("no plane runs")?.kill().await?;
        Ok(())
    }

    /// SIGTERM to the plane; its exit.
    pub(crate) async fn stop_plane(&mut self) -> Result<()> {
        let mut plane = self.plane.take().context("no plane runs")?;
        terminate(&plane)?;
        let exit =
            tokio::time::timeout(LIMIT, plane.wait()).await.context("it does not stop")??;
        ensure!(exit.success(), "the plane ended with {exit}\n{}", self.logs());
        Ok(())
    }

    /// SIGTERM to the authority; its exit.
    pub(crate) async fn stop_authority(&mut self) -> Result<()> {
        terminate(&self.authority)?;
        let exit =
            tokio::time::timeout(LIMIT, self.authority.wait()).await.context("does not stop")??;
        ensure!(exit.success(), "the authority ended with {exit}\n{}", self.logs());
        Ok(())
    }

    pub(crate) fn logs(&self) -> String {
        ["ca.log", "dds.log"]
            .map(|name| {
                let text = fs::read_to_string(self.path(name)).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                format!("--- {name}\n{}", lines[lines.len().saturating_sub(30)..].join("\n"))
            })
            .join("\n")
    }

    pub(crate) fn socket(&self) -> Result<String> {
        self.text("dds.sock")
    }

    pub(crate) fn token(&self, namespace: &str, app: &str) -> Result<String> {
        let dir = self.text("ca")?;
        let args = ["ca", "token", "create", "--dir", &dir, "--namespace", namespace, "--app", app];
        Ok(rulecast_ok(&args)?.trim().to_owned())
    }

    fn write_token(&self, file: &str, namespace: &str, app: &str) -> Result<()> {
        Ok(fs::write(self.path(file), self.token(namespace, app)?)?)
    }

    /// A client of this site, with a state folder of its own.
    pub(crate) fn client(&self, name: &str) -> Result<ClientBuilder> {
        Ok(Client::builder()
            .ca(self.ca.to_string())
            .plane(self.dds.to_string())
            .namespace("shop")
            .application("shop-frontend")
            .join_token(self.token("shop", "shop-frontend")?)
            .state_dir(self.path(&format!("client-{name}"))))
    }

    /// Writes a rule file as editors do: beside, then renamed over.
    pub(crate) fn write_rule(&self, file: &str, text: &str) -> Result<()> {
        let to = self.path("rules").join(file);
        let beside = self.path("rules").join(format!(".{file}.tmp"));
        fs::write(&beside, text)?;
        Ok(fs::rename(beside, to)?)
    }

    /// What the plane tells scrapers.
    pub(crate) async fn metrics(&self) -> Result<String> {
        let mut stream = tokio::net::TcpStream::connect(self.http).await?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    pub(crate) async fn status(&self) -> Result<GetStatusResponse> {
        let socket = self.path("dds.sock");
        let channel = tonic::transport::Endpoint::from_static("http://plane.local")
            .connect_with_connector(tower::service_fn(move |_| {
                let socket = socket.clone();
                async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
            }))
            .await?;
        let mut admin = AdminServiceClient::new(channel);
        Ok(admin.get_status(GetStatusRequest::default()).await?.into_inner())
    }
}

/// SIGTERM.
pub(crate) fn terminate(child: &Child) -> Result<()> {
    let Some(pid) = child.id().and_then(|id| rustix::process::Pid::from_raw(id as i32)) else {
        bail!("it has ended");
    };
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::TERM)?)
}

/// A v3.0 rule for the service `com.example.<name>`; `version` is its priority.
pub(crate) fn rule(name: &str, version: i32, condition: &str) -> String {
    format!(
        "apiVersion: dubbo.apache.org/v1alpha1\nkind: ConditionRoute\n\
         metadata: {{name: {name}, namespace: shop}}\n\
         spec: {{configVersion: v3.0, scope: service, key: com.example.{name}, \
         priority: {version}, conditions: [\"{condition}\"]}}\n"
    )
}
