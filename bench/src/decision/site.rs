//! An authority, a plane and a client that holds the plane's rules, in this process.

use std::{net::TcpListener, time::Duration};

use anyhow::{Context, Result};
use rulecast_api::kind::{KINDS, Kind};
use rulecast_ca::{CaConfig, Place};
use rulecast_dds::app::{DdsConfig, StoreConfig};
use rulecast_identity::{
    ConnectOptions, DDS_APPLICATION, IdentityClient, JoinToken, PeerIdentity, PrivateKey,
    SYSTEM_NAMESPACE, TokenSource,
};
use rulecast_sdk::{Client, Startup};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

const HOUR: Duration = Duration::from_secs(3600);
const TRUST_DOMAIN: &str = "cluster.local";

/// Runs until it is dropped.
pub(crate) struct Site {
    stop: CancellationToken,
    runtime: Runtime,
    folder: TempDir,
    ca: String,
    plane: String,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Site {
    /// With these rules, each in a namespace.
    pub(crate) fn new(rules: &[(&str, Kind, Value)]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let root = folder.path();
        std::fs::create_dir(root.join("rules"))?;
        for (at, (namespace, kind, spec)) in rules.iter().enumerate() {
            let document = json!({"apiVersion": kind.api_version, "kind": kind.name,
                "metadata": {"name": format!("r{at:04}"), "namespace": namespace}, "spec": spec});
            std::fs::write(root.join(format!("rules/r{at:04}.json")), document.to_string())?;
        }
        rulecast_ca::init(&root.join("ca"), TRUST_DOMAIN)?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let stop = CancellationToken::new();
        // Held until all are known, so that they differ.
        let held: Vec<_> =
            (0..2).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<_>>()?;
        let port = |at: usize| held[at].local_addr();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let ca = listener.local_addr()?;
        let config = CaConfig {
            place: Place::Folder(root.join("ca")),
            listen: ca,
            http: None,
            ttl: HOUR,
            max_ttl: HOUR,
            drain: Duration::from_secs(1),
            dubbo: Default::default(),
        };
        runtime.spawn(rulecast_ca::serve(config, listener, stop.clone()));
        let token =
            rulecast_ca::create_token(&root.join("ca"), SYSTEM_NAMESPACE, DDS_APPLICATION, HOUR)?;
        let config = DdsConfig {
            store: StoreConfig::Files { rules: root.join("rules"), state: root.join("state") },
            listen: port(0)?,
            ca: ca.to_string(),
            token: Some(TokenSource::Text(token)),
            admin_socket: root.join("admin.sock"),
            http: port(1)?,
            root_namespace: "root".into(),
            root_aliases: Vec::new(),
            owners: Default::default(),
            quiet: Duration::from_millis(10),
            ceiling: Duration::from_millis(50),
            drain: Duration::from_secs(1),
        };
        let plane = config.listen.to_string();
        drop(held);
        runtime.spawn(rulecast_dds::app::run(config, KINDS, stop.clone()));
        Ok(Self { stop, runtime, folder, ca: ca.to_string(), plane })
    }

    fn token(&self, namespace: &str, application: &str) -> Result<String> {
        let ca = self.folder.path().join("ca");
        Ok(rulecast_ca::create_token(&ca, namespace, application, HOUR)?)
    }

    /// What a server knows of a caller by its certificate.
    pub(crate) fn peer(&self, namespace: &str, application: &str) -> Result<PeerIdentity> {
        let token: JoinToken = self.token(namespace, application)?.parse()?;
        let authority = IdentityClient::new(self.ca.clone(), ConnectOptions::default());
        let key = PrivateKey::generate()?;
        let svid = self.runtime.block_on(authority.join(&token, &key, None))?;
        Ok(PeerIdentity::from_der(svid.chain.first().context("a certificate")?)?)
    }

    /// A client with all rules for its application.
    pub(crate) fn client(&self, namespace: &str, application: &str) -> Result<Client> {
        let token = self.token(namespace, application)?;
        let connect = Client::builder()
            .ca(&self.ca)
            .plane(&self.plane)
            .join_token(token)
            .namespace(namespace)
            .application(application)
            .startup(Startup::Wait)
            .connect();
        let connect = async { tokio::time::timeout(Duration::from_secs(60), connect).await };
        Ok(self.runtime.block_on(connect).context("no rules within a minute")??)
    }
}
