//! Authorities in a cluster, and pods that want certificates of them.

use std::{
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use rulecast_api::{
    Code,
    proto::identity::v1::{
        GetTrustBundleRequest, IssueCertificateRequest, IssueCertificateResponse, TrustBundle,
        identity_service_client::IdentityServiceClient,
    },
};
use rulecast_ca::{
    CaConfig, CaError, Place,
    kubernetes::{BundlesConfig, KubernetesCa},
};
use rulecast_cluster::ClusterConfig;
use rulecast_identity::{
    ConnectOptions, Expected, IdentityClient, IdentityError, IdentityHandle, KubernetesCredential,
    PrivateKey, Svid, connect, tls,
};
use rulecast_kube_tests::{Cluster, Namespace};
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, transport::Channel};

pub(crate) const TRUST_DOMAIN: &str = "td.test";
pub(crate) const AUDIENCE: &str = "rulecast-ca";
pub(crate) const SECRET: &str = "rulecast-ca";
const HOUR: Duration = Duration::from_secs(3600);
/// For what must come, however slow the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What an authority may do in a cluster. docs/kubernetes.md says why.
const RULES: &str = r#"[
  {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
  {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
  {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]},
  {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
  {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["rulecast-trust-bundle"],
   "verbs": ["list", "watch", "patch"]},
  {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["mutatingwebhookconfigurations"],
   "resourceNames": ["rulecast-pod-trust"], "verbs": ["list", "watch", "patch"]}
]"#;
/// And in its own namespace.
const OWN_RULES: &str = r#"[
  {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
  {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["rulecast-ca"],
   "verbs": ["get", "update"]},
  {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
  {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
   "resourceNames": ["rulecast-ca"], "verbs": ["get", "update"]}
]"#;

/// A namespace for an authority, whose service account may do what one needs and no more.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: Namespace,
    pub(crate) kubeconfig: PathBuf,
}

impl Site {
    pub(crate) async fn new() -> Self {
        Self::on(Cluster::shared().await.expect("server")).await
    }

    pub(crate) async fn on(cluster: Cluster) -> Self {
        let namespace = cluster.namespace("authority").await.expect("namespace");
        let kubeconfig =
            cluster.kubeconfig_for(&namespace, "rulecast-ca").await.expect("kubeconfig");
        let name = namespace.name();
        let rules = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let mut cluster_rules = rules(RULES);
        // Here each site has a configuration of its own.
        cluster_rules[5]["resourceNames"][0] = name.into();
        let rbac = "rbac.authorization.k8s.io";
        let subject = json!([{"kind": "ServiceAccount", "name": "rulecast-ca", "namespace": name}]);
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole",
             "metadata": {"name": name}, "rules": cluster_rules},
            {"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding",
             "metadata": {"name": name}, "subjects": subject,
             "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name}},
            {"apiVersion": format!("{rbac}/v1"), "kind": "Role",
             "metadata": {"name": "rulecast-ca", "namespace": name}, "rules": rules(OWN_RULES)},
            {"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
             "metadata": {"name": "rulecast-ca", "namespace": name}, "subjects": subject,
             "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "rulecast-ca"}},
        ]});
        let applied = cluster.kubectl_with(&["apply", "-f", "-"], &objects.to_string()).await;
        applied.expect("kubectl").success().expect("roles");
        Self { cluster, namespace, kubeconfig }
    }

    /// For a replica, without bundles or webhook.
    pub(crate) fn config(&self) -> KubernetesCa {
        let mut config = KubernetesCa::new(TRUST_DOMAIN, "replica-0");
        let kubeconfig = Some(self.kubeconfig.clone());
        config.cluster = ClusterConfig { kubeconfig, context: None };
        config.namespace = self.namespace.name().into();
        config.bundles = None;
        config
    }

    /// Bundles for the namespaces that [`Site::labelled`] makes.
    pub(crate) fn bundles(&self) -> BundlesConfig {
        let selector = Some(format!("rulecast-test={}", self.namespace.name()));
        BundlesConfig { selector, ..BundlesConfig::default() }
    }

    /// A namespace that [`Site::bundles`] selects.
    pub(crate) async fn labelled(&self) -> Namespace {
        let labels = [("rulecast-test", self.namespace.name())];
        self.cluster.labelled_namespace("bundled", &labels).await.expect("namespace")
    }

    /// A replica with [`Site::config`].
    pub(crate) async fn start(&self) -> Ca {
        Ca::start(self.config()).await
    }

    pub(crate) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.cluster.client(), &self.namespace)
    }

    /// One part of the authority in the Secret, once it is there.
    pub(crate) async fn part(&self, name: &str) -> String {
        let secret =
            until("the Secret", async || self.secrets().get_opt(SECRET).await.expect("an answer"))
                .await;
        let data = secret.data.unwrap_or_default();
        String::from_utf8(data[name].0.clone()).expect("text")
    }

    pub(crate) async fn roots(&self) -> Vec<CertificateDer<'static>> {
        let root = pem::parse(self.part("root.pem").await).expect("PEM");
        vec![CertificateDer::from(root.into_contents())]
    }

    /// A pod's token for the authority.
    pub(crate) async fn token(&self, pod: &Pod) -> String {
        let (namespace, name, uid) = key(pod);
        let account = account(pod);
        let token =
            self.cluster.token(&namespace, &account, AUDIENCE, Some((&name, &uid)), 600).await;
        token.expect("a token")
    }

    /// A first certificate, by the token.
    pub(crate) async fn join(&self, ca: &Ca, token: &str) -> Result<Svid, IdentityError> {
        let credential =
            KubernetesCredential { token: token.to_owned().into(), roots: self.roots().await };
        ca.client().join_kubernetes(&credential, &new_key(), None).await
    }
}

/// A running replica.
pub(crate) struct Ca {
    pub(crate) address: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: JoinHandle<Result<(), CaError>>,
}

impl Drop for Ca {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Ca {
    pub(crate) async fn start(config: KubernetesCa) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        // Free again before it is taken; nobody else is given it soon.
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let http = free.local_addr().expect("bound");
        drop(free);
        let shutdown = CancellationToken::new();
        let config = CaConfig {
            place: Place::Cluster(Box::new(config)),
            listen: address,
            http: Some(http),
            ttl: HOUR,
            max_ttl: 24 * HOUR,
            drain: Duration::from_millis(100),
            dubbo: Default::default(),
        };
        let task = tokio::spawn(rulecast_ca::serve(config, listener, shutdown.clone()));
        Self { address, http, shutdown, task }
    }

    /// Stops it, and waits until it has.
    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        let ended = tokio::time::timeout(PATIENCE, &mut self.task).await;
        ended.expect("in time").expect("no panic").expect("ends well");
    }

    /// What an operator sees at `path`, head and body; `None` while it does not listen.
    pub(crate) async fn page(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.http).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: ca\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        Some(text)
    }

    /// Waits until it is ready.
    pub(crate) async fn ready(&self) {
        until("readiness", async || {
            self.page("/readyz").await.filter(|page| page.starts_with("HTTP/1.1 200"))
        })
        .await;
    }

    /// The value of a metric.
    pub(crate) async fn metric(&self, name: &str) -> i64 {
        let page = self.page("/metrics").await.expect("metrics");
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).trim().parse().expect("a number")
    }

    pub(crate) fn client(&self) -> IdentityClient {
        IdentityClient::new(self.address.to_string(), ConnectOptions::default())
    }

    async fn channel(&self, roots: Vec<CertificateDer<'static>>, svid: Option<&Svid>) -> Channel {
        let config = match svid {
            Some(svid) => {
                let identity = IdentityHandle::fixed(svid.clone());
                tls::client_config(&identity, Expected::authority()).expect("TLS")
            }
            None => tls::rooted_contact_config(roots, Expected::authority()).expect("TLS").0,
        };
        connect(&self.address.to_string(), config, &ConnectOptions::default()).await.expect("open")
    }

    /// Asks with anything: metadata, a request, a certificate.
    pub(crate) async fn ask(
        &self,
        site: &Site,
        metadata: &[(&'static str, &str)],
        csr: Vec<u8>,
        svid: Option<&Svid>,
    ) -> Result<IssueCertificateResponse, IdentityError> {
        let channel = self.channel(site.roots().await, svid).await;
        let mut request = Request::new(IssueCertificateRequest { csr: csr.into(), ttl_seconds: 0 });
        for (key, value) in metadata {
            request.metadata_mut().append(*key, value.parse().expect("ASCII"));
        }
        let answer = IdentityServiceClient::new(channel).issue_certificate(request).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| IdentityError::from_status(&status))
    }

    /// The bundle that it gives to anybody.
    pub(crate) async fn bundle(&self, site: &Site) -> TrustBundle {
        let channel = self.channel(site.roots().await, None).await;
        let request = GetTrustBundleRequest {};
        let answer = IdentityServiceClient::new(channel).get_trust_bundle(request).await;
        answer.expect("public").into_inner()
    }
}

/// A pod of `account`; without a node the API server deletes it at once.
pub(crate) async fn pod(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    account: &str,
    node: Option<&str>,
) -> Pod {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "serviceAccountName": account,
            "nodeName": node,
            "containers": [{"name": "main", "image": "none.invalid/none"}],
        },
    });
    let pod = serde_json::from_value(pod).expect("a pod");
    pods(cluster, namespace).create(&PostParams::default(), &pod).await.expect("made")
}

pub(crate) fn pods(cluster: &Cluster, namespace: &str) -> Api<Pod> {
    Api::namespaced(cluster.client(), namespace)
}

pub(crate) async fn delete(cluster: &Cluster, pod: &Pod, grace: u32) {
    let (namespace, name, _) = key(pod);
    let params = DeleteParams { grace_period_seconds: Some(grace), ..DeleteParams::default() };
    pods(cluster, &namespace).delete(&name, &params).await.expect("deleted");
}

/// Namespace, name and UID.
pub(crate) fn key(pod: &Pod) -> (String, String, String) {
    let metadata = pod.metadata.clone();
    let all = (metadata.namespace, metadata.name, metadata.uid);
    (all.0.expect("a namespace"), all.1.expect("a name"), all.2.expect("a UID"))
}

pub(crate) fn account(pod: &Pod) -> String {
    let spec = pod.spec.as_ref().expect("a spec");
    spec.service_account_name.clone().expect("an account")
}

pub(crate) fn new_key() -> PrivateKey {
    PrivateKey::generate().expect("key")
}

pub(crate) fn code<T>(result: Result<T, IdentityError>) -> Code {
    match result {
        Ok(_) => panic!("not refused"),
        Err(error) => error.code(),
    }
}

/// Waits until `look` finds something.
pub(crate) async fn until<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what} did not come");
        sleep(Duration::from_millis(50)).await;
    }
}
