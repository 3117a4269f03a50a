//! A webhook in this process, as the API server calls it: with the bundled configuration,
//! limited to the namespaces of one test.

use std::{net::SocketAddr, time::Duration};

use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    core::v1::Pod,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{Api, api::PostParams};
use prometheus_client::{encoding::text::encode, registry::Registry};
use rulecast_ca::{
    Authority,
    kubernetes::webhook::{self, ServingCertificate, WebhookConfig},
    metrics::Metrics,
};
use rulecast_cluster::ClusterConfig;
use rulecast_kube_tests::{Cluster, Namespace};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

/// For everything that a test waits for.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
/// Label of the namespaces of one site.
const SITE: &str = "webhook-test";
/// Account that the leader writes with, limited as the bundled role is.
const ACCOUNT: &str = "rulecast-ca";

/// A webhook, its authority, and the configuration by which it is called.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    /// Names the configuration, and is the value of the label [`SITE`].
    pub(crate) name: String,
    pub(crate) roots: watch::Sender<String>,
    pub(crate) certificate: ServingCertificate,
    address: SocketAddr,
    config: WebhookConfig,
    registry: Registry,
    metrics: Metrics,
    server: Option<(CancellationToken, JoinHandle<()>)>,
    keeper: CancellationToken,
}

/// An authority that is made for a test. Its folder may go: all is in memory.
pub(crate) fn authority() -> Authority {
    let parent = tempfile::tempdir().expect("a folder");
    let dir = parent.path().join("ca");
    rulecast_ca::init(&dir, "td.example").expect("an authority");
    Authority::open(&dir).expect("opens")
}

/// A serving certificate for the address of every site.
pub(crate) fn serving(authority: &Authority) -> rulecast_ca::authority::ServerCertificate {
    let hosts = ["127.0.0.1".to_owned()];
    authority.webhook_certificate(&hosts, Duration::from_secs(3600)).expect("a certificate")
}

impl Site {
    /// With webhook.yaml.
    pub(crate) async fn start() -> Self {
        Self::start_with("webhook.yaml", false).await
    }

    /// With a file of deploy/kubernetes. Returns once the API server calls the webhook.
    pub(crate) async fn start_with(file: &str, compat_dubbo: bool) -> Self {
        // What the webhook says is shown with a test that fails.
        let _ = tracing_subscriber::fmt().with_test_writer().try_init();
        let cluster = Cluster::shared().await.expect("a server");
        let home = cluster.namespace("webhook").await.expect("a namespace");
        let name = home.name().to_owned();
        let authority = authority();
        let first = serving(&authority);
        let certificate = ServingCertificate::new(first.chain, &first.key).expect("fits");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let config = WebhookConfig {
            configuration: name.clone(),
            ca_address: "ca.example:7443".into(),
            dds_address: "dds.example:7444".into(),
            compat_dubbo,
            ..WebhookConfig::in_namespace("rulecast-system")
        };
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let roots = watch::Sender::new(authority.roots_pem());
        let keeper = CancellationToken::new();
        let mut site = Self {
            cluster,
            name,
            roots,
            certificate,
            address,
            config,
            registry,
            metrics,
            server: None,
            keeper,
        };
        site.serve_on(listener);
        site.keep_ca_bundle().await;
        site.configure(file).await;
        site.settle().await;
        site
    }

    fn serve_on(&mut self, listener: TcpListener) {
        let shutdown = CancellationToken::new();
        let (config, certificate) = (self.config.clone(), self.certificate.clone());
        let serve = webhook::serve_on(
            listener,
            config,
            certificate,
            self.metrics.clone(),
            shutdown.clone(),
        );
        let task = tokio::spawn(async move { serve.await.expect("serves") });
        self.server = Some((shutdown, task));
    }

    /// Stops the webhook; its port answers nobody.
    pub(crate) async fn stop(&mut self) {
        let (shutdown, task) = self.server.take().expect("it runs");
        shutdown.cancel();
        timeout(DEADLINE, task).await.expect("it stops").expect("no panic");
    }

    /// Starts it again, on its old port.
    pub(crate) async fn start_again(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("the port is free");
        self.serve_on(listener);
    }

    /// The leader's part, as an account that may do no more than the bundled role allows.
    async fn keep_ca_bundle(&self) {
        let client = self.cluster.client();
        let post = PostParams::default();
        let role: ClusterRole = from(json!({
            "metadata": { "name": self.name },
            "rules": [{
                "apiGroups": ["admissionregistration.k8s.io"],
                "resources": ["mutatingwebhookconfigurations"],
                "resourceNames": [self.name],
                "verbs": ["list", "watch", "patch"],
            }],
        }));
        Api::all(client.clone()).create(&post, &role).await.expect("a role");
        let binding: ClusterRoleBinding = from(json!({
            "metadata": { "name": self.name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": self.name },
            "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": self.name }],
        }));
        Api::all(client).create(&post, &binding).await.expect("bound");
        let kubeconfig = self.cluster.kubeconfig_for(&self.name, ACCOUNT).await.expect("a token");
        let config = ClusterConfig { kubeconfig: Some(kubeconfig), context: None };
        let limited = rulecast_cluster::connect(&config).await.expect("a client");
        tokio::spawn(webhook::keep_ca_bundle(
            limited,
            self.config.configuration.clone(),
            self.roots.subscribe(),
            self.keeper.clone(),
        ));
    }

    /// Makes the configuration from the bundled file: other name, by URL, for the
    /// namespaces of this site only.
    pub(crate) async fn configure(&self, file: &str) {
        let mut configuration = bundled(&self.cluster, file).await;
        configuration["metadata"]["name"] = json!(self.name);
        for webhook in configuration["webhooks"].as_array_mut().expect("a list") {
            let path = webhook["clientConfig"]["service"]["path"].as_str().expect("a path");
            let url = format!("https://{}{path}", self.address);
            webhook["clientConfig"] = json!({ "url": url });
            let labels = &mut webhook["namespaceSelector"]["matchLabels"];
            labels[SITE] = json!(self.name);
        }
        let configuration: MutatingWebhookConfiguration = from(configuration);
        let api = self.configurations();
        api.create(&PostParams::default(), &configuration).await.expect("a configuration");
    }

    pub(crate) fn configurations(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.cluster.client())
    }

    /// Waits until the API server calls the webhook, and trusts it.
    pub(crate) async fn settle(&self) {
        let namespace = self.namespace(&[("rulecast.io/inject", "true")]).await;
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let pod = pod("probe");
        eventually("the webhook is called", async || {
            let made = self.pods(&namespace).create(&dry, &pod).await;
            made.ok().filter(|pod| !variables(pod, 0).is_empty())
        })
        .await;
    }

    /// A namespace that the site's configuration looks at, with labels.
    pub(crate) async fn namespace(&self, labels: &[(&str, &str)]) -> Namespace {
        let labels = [labels, &[(SITE, self.name.as_str())]].concat();
        self.cluster.labelled_namespace("pods", &labels).await.expect("a namespace")
    }

    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.cluster.client(), namespace)
    }

    /// Creates it, and returns what was stored.
    pub(crate) async fn create(&self, namespace: &str, pod: &Pod) -> Pod {
        self.pods(namespace).create(&PostParams::default(), pod).await.expect("created")
    }

    /// How often the webhook decided so.
    pub(crate) fn count(&self, verdict: &str) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("metrics");
        let line = format!("rulecast_ca_pods_total{{verdict=\"{verdict}\"}} ");
        let value = text.lines().find_map(|found| found.strip_prefix(&line));
        value.map_or(0, |value| value.parse().expect("a number"))
    }

    /// How often it was called at all.
    pub(crate) fn calls(&self) -> u64 {
        ["injected", "unchanged", "refused", "unread"].map(|v| self.count(v)).iter().sum()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.keeper.cancel();
        if let Some((shutdown, _)) = self.server.take() {
            shutdown.cancel();
        }
    }
}

/// A file of deploy/kubernetes as kubectl reads it.
pub(crate) async fn bundled(cluster: &Cluster, file: &str) -> Value {
    let path = format!("{}/../../deploy/kubernetes/{file}", env!("CARGO_MANIFEST_DIR"));
    let arguments = ["create", "--dry-run=client", "--output=json", "--filename", &path];
    let output = cluster.kubectl(&arguments).await.expect("kubectl runs");
    serde_json::from_str(&output.success().expect("it is a manifest")).expect("JSON")
}

pub(crate) fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of this kind")
}

/// A pod with one container. It names its account, as the admission plugin would that the
/// test server does not run.
pub(crate) fn pod(name: &str) -> Pod {
    labelled(name, &[])
}

/// As [`pod`], with labels.
pub(crate) fn labelled(name: &str, labels: &[(&str, &str)]) -> Pod {
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(key, value)| (key.to_string(), json!(value))).collect();
    from(json!({
        "metadata": { "name": name, "labels": labels },
        "spec": { "serviceAccountName": "default", "containers": [{ "name": "main", "image": "main:1" }] },
    }))
}

/// Names and values of the variables of a pod's n-th container.
pub(crate) fn variables(pod: &Pod, n: usize) -> Vec<(String, Option<String>)> {
    let containers = &pod.spec.as_ref().expect("a spec").containers;
    let env = containers[n].env.iter().flatten();
    env.map(|variable| (variable.name.clone(), variable.value.clone())).collect()
}

/// Asks until there is an answer, at most [`DEADLINE`].
pub(crate) async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let waiting = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}
