//! Rulecast in a cluster, as `deploy/kubernetes` installs it, with its services as processes
//! of this machine: under their own service accounts, with no more than their own rights.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use rulecast_kube_tests::Cluster;
use rulecast_sdk::{Rulecast, client::Client};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Child;

use super::kubelet::Sandbox;

/// How long anything may take before a test gives up.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The program under test.
const RULECAST: &str = env!("CARGO_BIN_EXE_rulecast");

/// Rulecast's own namespace.
pub(crate) const SYSTEM: &str = "rulecast-system";

/// Asks again until it holds; the last error when it never does.
pub(crate) async fn eventually<T>(ask: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    within(LIMIT, ask).await
}

/// As [`eventually`], within another time.
pub(crate) async fn within<T>(
    limit: Duration,
    mut ask: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let since = Instant::now();
    loop {
        match ask().await {
            Ok(value) => return Ok(value),
            Err(error) if since.elapsed() > limit => return Err(error.context("gave up waiting")),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// One service as a process.
pub(crate) struct Service {
    args: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    pub(crate) http: SocketAddr,
}

impl Service {
    /// Starts it, or starts it anew.
    pub(crate) fn start(&mut self) -> Result<()> {
        let log = fs::File::options().create(true).append(true).open(&self.log)?;
        let child = tokio::process::Command::new(RULECAST)
            .args(&self.args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("RULECAST_EXIT_WITH_PARENT", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        self.child = Some(child);
        Ok(())
    }

    /// Kills it as a machine's end would.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().await?;
        }
        Ok(())
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Waits until it says that it is ready; with its log when it does not.
    pub(crate) async fn ready(&self) -> Result<()> {
        eventually(async || {
            let (status, body) = get(self.http, "/readyz").await?;
            ensure!(status == 200, "not ready: {body}");
            Ok(())
        })
        .await
        .with_context(|| format!("{}:\n{}", self.log.display(), self.log_tail()))
    }

    /// The end of what it logged.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// All that it logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// A plain HTTP request; status and body.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let (head, body) = text.split_once("\r\n\r\n").context("an answer without a body")?;
    let status = head.split(' ').nth(1).context("an answer without a status")?;
    Ok((status.parse()?, body.to_owned()))
}

/// An installation.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) authorities: Vec<Service>,
    pub(crate) planes: Vec<Service>,
    /// Where the first authority listens.
    pub(crate) authority: SocketAddr,
    /// Where the planes listen.
    pub(crate) listen: Vec<SocketAddr>,
    dir: TempDir,
}

impl Site {
    /// A cluster of its own, with everything installed and ready.
    pub(crate) async fn start(authorities: usize, planes: usize) -> Result<Self> {
        Self::start_with(authorities, planes, &[]).await
    }

    /// As [`Site::start`], with further options of the authorities.
    pub(crate) async fn start_with(
        authorities: usize,
        planes: usize,
        authority_options: &[&str],
    ) -> Result<Self> {
        let cluster = Cluster::start().await?;
        cluster.apply_crds().await?;
        for file in ["namespace.yaml", "ca.yaml", "dds.yaml"] {
            let path = repository().join("deploy/kubernetes").join(file);
            ok(&cluster, &["apply", "--server-side", "-f", &path.to_string_lossy()]).await?;
        }
        let dir = tempfile::tempdir()?;
        let ports = ports(3 * authorities + 2 * planes)?;
        let (of_authorities, of_planes) = ports.split_at(3 * authorities);
        // Clients, pods and the API server are told the first replica's.
        let (ca, webhook) = (of_authorities[0], of_authorities[1]);
        let dds = of_planes[0];
        webhook_by_url(&cluster, dir.path(), webhook).await?;

        let mut site = Self {
            cluster,
            authorities: Vec::new(),
            planes: Vec::new(),
            authority: ca,
            listen: of_planes.chunks(2).map(|ports| ports[0]).collect(),
            dir,
        };
        let config = site.cluster.kubeconfig_for(SYSTEM, "rulecast-ca").await?;
        for (n, ports) in of_authorities.chunks(3).enumerate() {
            let args = [
                "ca",
                "run",
                "--store",
                "kubernetes",
                "--trust-domain",
                "kube.test",
                "--kubeconfig",
                &config.to_string_lossy(),
                "--replica",
                &format!("ca-{n}"),
                "--listen",
                &ports[0].to_string(),
                "--webhook-listen",
                &ports[1].to_string(),
                "--http",
                &ports[2].to_string(),
                "--webhook-hosts",
                "127.0.0.1",
                "--ca-address",
                &ca.to_string(),
                "--dds-address",
                &dds.to_string(),
            ];
            let args = [&args[..], authority_options].concat();
            let mut service = site.service(&format!("ca-{n}"), &args, ports[2]);
            service.start()?;
            site.authorities.push(service);
        }
        for authority in &site.authorities {
            authority.ready().await?;
        }
        let bundle = site.bundle(SYSTEM).await?;
        let bundle_file = site.dir.path().join("ca.crt");
        fs::write(&bundle_file, bundle)?;
        let config = site.cluster.kubeconfig_for(SYSTEM, "rulecast-dds").await?;
        for (n, ports) in of_planes.chunks(2).enumerate() {
            let name = format!("dds-{n}");
            let token = site.plane_token(&name).await?;
            let socket = site.dir.path().join(format!("{name}.sock"));
            let args = [
                "dds",
                "run",
                "--store",
                "kubernetes",
                "--kubeconfig",
                &config.to_string_lossy(),
                "--replica",
                &name,
                "--listen",
                &ports[0].to_string(),
                "--http",
                &ports[1].to_string(),
                "--ca",
                &ca.to_string(),
                "--trust-bundle",
                &bundle_file.to_string_lossy(),
                "--token-file",
                &token.to_string_lossy(),
                "--admin-socket",
                &socket.to_string_lossy(),
            ];
            let mut service = site.service(&name, &args, ports[1]);
            service.start()?;
            site.planes.push(service);
        }
        for plane in &site.planes {
            plane.ready().await?;
        }
        Ok(site)
    }

    fn service(&self, name: &str, args: &[&str], http: SocketAddr) -> Service {
        Service {
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            log: self.dir.path().join(format!("{name}.log")),
            child: None,
            http,
        }
    }

    /// The token that a kubelet would mount into the plane's pod.
    async fn plane_token(&self, name: &str) -> Result<PathBuf> {
        let pod = self.create_pod(SYSTEM, &json!({ "metadata": { "name": name } })).await?;
        let uid = pod.uid().context("uid")?;
        let token = self
            .cluster
            .token(SYSTEM, "rulecast-dds", "rulecast-ca", Some((name, &uid)), 3600)
            .await?;
        let path = self.dir.path().join(format!("{name}.token"));
        fs::write(&path, token)?;
        Ok(path)
    }

    /// The roots as published in a namespace.
    pub(crate) async fn bundle(&self, namespace: &str) -> Result<String> {
        let maps: Api<ConfigMap> = Api::namespaced(self.cluster.client(), namespace);
        eventually(async || {
            let map = maps.get("rulecast-trust-bundle").await?;
            map.data.and_then(|mut data| data.remove("ca.crt")).context("no ca.crt")
        })
        .await
    }

    /// A namespace whose pods get trust.
    pub(crate) async fn namespace(&self, name: &str) -> Result<()> {
        let labels = json!({ "rulecast.io/inject": "true", "kubernetes.io/metadata.name": name });
        let namespace = json!({ "metadata": { "name": name, "labels": labels } });
        let api: Api<Namespace> = Api::all(self.cluster.client());
        api.create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
        Ok(())
    }

    /// Creates a pod of `account` in `namespace` through the API server, and with it its
    /// webhooks. `extra` is merged into the pod.
    pub(crate) async fn create_pod(&self, namespace: &str, extra: &Value) -> Result<Pod> {
        let account = if namespace == SYSTEM { "rulecast-dds" } else { "app" };
        let mut pod = json!({
            "metadata": {},
            "spec": {
                "serviceAccountName": account,
                "containers": [{ "name": "app", "image": "app" }],
            },
        });
        merge(&mut pod, extra);
        let api: Api<Pod> = Api::namespaced(self.cluster.client(), namespace);
        Ok(api.create(&PostParams::default(), &serde_json::from_value(pod)?).await?)
    }

    /// An application in a pod of its own: what its container would be.
    pub(crate) async fn sandbox(&self, namespace: &str, extra: &Value) -> Result<Sandbox> {
        let pod = eventually(async || self.create_pod(namespace, extra).await).await?;
        Sandbox::new(&self.cluster, pod).await
    }

    /// A rule of `namespace` for `service`.
    pub(crate) fn rules(&self, namespace: &str) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk("dubbo.apache.org", "v1alpha1", "ConditionRoute");
        let resource = ApiResource::from_gvk_with_plural(&gvk, "conditionroutes");
        Api::namespaced_with(self.cluster.client(), namespace, &resource)
    }

    /// What the services logged last, for a failed test.
    pub(crate) fn logs(&self) -> String {
        let services = self.authorities.iter().chain(&self.planes);
        services.map(|s| format!("== {}\n{}\n", s.log.display(), s.log_tail())).collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}

/// Starts an SDK client as an application in that sandbox would.
pub(crate) async fn connect(sandbox: &Sandbox) -> Result<Client> {
    Ok(Rulecast::from_vars(|name| sandbox.var(name).map(Into::into))?.connect().await?)
}

/// A ConditionRoute that sends calls of `service` to endpoints of a region.
pub(crate) fn rule(namespace: &str, name: &str, service: &str, region: &str) -> DynamicObject {
    let gvk = GroupVersionKind::gvk("dubbo.apache.org", "v1alpha1", "ConditionRoute");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "conditionroutes");
    DynamicObject::new(name, &resource).within(namespace).data(json!({ "spec": {
        "configVersion": "v3.0",
        "scope": "service",
        "key": service,
        "conditions": [format!("=> region={region}")],
    }}))
}

/// Runs kubectl; what it printed, or an error with all it said.
pub(crate) async fn ok(cluster: &Cluster, args: &[&str]) -> Result<String> {
    let output = cluster.kubectl(args).await?;
    let (out, err) = (output.stdout, output.stderr);
    ensure!(output.status.success(), "kubectl {args:?}: {}\n{out}{err}", output.status);
    Ok(out)
}

/// The webhook of the installation, called by URL: there is no Service network here.
async fn webhook_by_url(cluster: &Cluster, dir: &Path, address: SocketAddr) -> Result<()> {
    let file = repository().join("deploy/kubernetes/webhook.yaml");
    let text =
        ok(cluster, &["create", "--dry-run=client", "-o", "json", "-f", &file.to_string_lossy()])
            .await?;
    let mut configuration: Value = serde_json::from_str(&text)?;
    for webhook in configuration["webhooks"].as_array_mut().context("webhooks")? {
        let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap_or("/").to_owned();
        webhook["clientConfig"] = json!({ "url": format!("https://{address}{path}") });
    }
    let file = dir.join("webhook.json");
    fs::write(&file, configuration.to_string())?;
    ok(cluster, &["apply", "--server-side", "-f", &file.to_string_lossy()]).await?;
    Ok(())
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn ports(count: usize) -> Result<Vec<SocketAddr>> {
    // All are held until all are known, so that they differ.
    let held: Vec<_> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<_>>()?;
    Ok(held.iter().map(TcpListener::local_addr).collect::<std::io::Result<_>>()?)
}
