//! Pods that get their identity of a real authority by tokens of a real API server, as the
//! kubelet and the webhook would set them up.
#![cfg(feature = "kube")]

#[allow(dead_code, reason = "shared with the tests of the authority, which use the rest")]
#[path = "authority/site.rs"]
mod site;

use std::{
    collections::HashMap,
    ffi::OsString,
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use rulecast_api::Code;
use rulecast_ca::{CaConfig, Place};
use rulecast_identity::{
    IdentityConfig, IdentityHandle, IdentityManager, IdentityStatus, Svid, TokenSource,
};
use rulecast_kube_tests::Proxy;
use rulecast_sdk::{Rulecast, Startup};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::site::{AUDIENCE, PATIENCE, SECRET, Site, TRUST_DOMAIN, key, pod};

/// A pod with its mounted files.
struct Mounted {
    pod: Pod,
    folder: tempfile::TempDir,
}

impl Mounted {
    async fn new(site: &Site, name: &str) -> Self {
        let pod = pod(&site.cluster, &site.namespace, name, "web", Some("node-a")).await;
        let mounted = Self { pod, folder: tempfile::tempdir().expect("a folder") };
        mounted.write("token", &site.token(&mounted.pod).await);
        mounted.write("ca.crt", &site.part("root.pem").await);
        mounted
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// As the kubelet replaces it.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.path("new"), text).expect("written");
        fs::rename(self.path("new"), self.path(name)).expect("renamed");
    }

    fn config(&self, ca: impl ToString, ttl: u64) -> IdentityConfig {
        let (token, bundle) = (self.path("token"), self.path("ca.crt"));
        IdentityConfig {
            token: Some(TokenSource::Kubernetes { token, bundle }),
            namespace: self.pod.metadata.namespace.clone(),
            ttl: Some(Duration::from_secs(ttl)),
            ..IdentityConfig::new(ca.to_string())
        }
    }
}

type Starting = JoinHandle<IdentityHandle>;

/// Starts a manager with its worker.
fn start(config: IdentityConfig) -> (watch::Receiver<IdentityStatus>, Starting) {
    let status = config.status.subscribe();
    let started = async {
        let (handle, worker) = IdentityManager::start(config).await.expect("starts");
        tokio::spawn(worker);
        handle
    };
    (status, tokio::spawn(started))
}

async fn started(starting: Starting) -> IdentityHandle {
    timeout(PATIENCE, starting).await.expect("in time").expect("no panic")
}

async fn fails(status: &mut watch::Receiver<IdentityStatus>, code: Code) {
    let failed = status.wait_for(|s| s.last_error.as_ref().is_some_and(|e| e.code() == code));
    timeout(PATIENCE, failed).await.expect("in time").expect("runs");
}

async fn next(handle: &IdentityHandle, before: &Arc<Svid>) -> Arc<Svid> {
    let mut changes = handle.subscribe();
    let changed = timeout(PATIENCE, changes.wait_for(|svid| !Arc::ptr_eq(svid, before))).await;
    changed.expect("in time").expect("runs").clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_gets_its_identity_by_its_environment() {
    let site = Site::new().await;
    let ca = site.start().await;
    let web = Mounted::new(&site, "web-0").await;
    let (namespace, name, _) = key(&web.pod);
    let vars = HashMap::<&str, OsString>::from([
        ("RULECAST_CA_ADDRESS", ca.address.to_string().into()),
        // No plane: this is about identity.
        ("RULECAST_DDS_ADDRESS", "127.0.0.1:1".into()),
        ("RULECAST_TRUST_BUNDLE", web.path("ca.crt").into()),
        ("RULECAST_TOKEN_FILE", web.path("token").into()),
        ("RULECAST_NAMESPACE", namespace.clone().into()),
        ("RULECAST_POD_NAME", name.into()),
        ("RULECAST_APP", "frontend".into()),
    ]);
    // For another audience: no credential for the authority, until the kubelet replaces it.
    let other = site.cluster.token(&namespace, "web", "elsewhere", None, 600).await;
    web.write("token", &other.expect("a token"));
    let builder = Rulecast::from_vars(|name| vars.get(name).cloned()).expect("complete");
    let client = builder.startup(Startup::Deny).connect().await.expect("runs");
    let mut changes = client.changes();
    let refused = changes.wait_for(|s| s.identity.last_error.is_some());
    let status = timeout(PATIENCE, refused).await.expect("in time").expect("runs").clone();
    let error = status.identity.last_error.expect("told");
    assert!(error.contains(Code::ServiceAccountToken.as_str()), "{error}");
    web.write("token", &site.token(&web.pod).await);
    let there = changes.wait_for(|s| s.identity.spiffe_id.is_some());
    let status = timeout(PATIENCE, there).await.expect("in time").expect("runs").clone();
    let spiffe = format!("spiffe://{TRUST_DOMAIN}/ns/{namespace}/sa/web");
    assert_eq!(status.identity.spiffe_id, Some(spiffe));
    client.shutdown().await;
    ca.stop().await;
}

#[tokio::test]
async fn a_certificate_that_ends_while_the_authority_is_away_is_joined_for_anew() {
    let site = Site::new().await;
    let ca = site.start().await;
    let proxy = Proxy::start(ca.address).await.expect("a proxy");
    let web = Mounted::new(&site, "web-0").await;
    let (mut status, starting) = start(web.config(proxy.addr(), 4));
    let handle = started(starting).await;
    // Renewal needs no token.
    web.write("token", "spoilt");
    let first = handle.current();
    let second = next(&handle, &first).await;
    assert_eq!(second.spiffe, first.spiffe);
    proxy.refuse(true);
    proxy.cut();
    fails(&mut status, Code::AuthorityUnreachable).await;
    let ended = async {
        while handle.current().is_valid_at(SystemTime::now()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, ended).await.expect("it ends");
    let last = handle.current();
    web.write("token", &site.token(&web.pod).await);
    proxy.refuse(false);
    let healed = next(&handle, &last).await;
    assert!(healed.is_valid_at(SystemTime::now()) && healed.spiffe == first.spiffe);
    ca.stop().await;
}

#[tokio::test]
async fn another_root_is_followed_when_the_file_has_it() {
    let site = Site::new().await;
    let ca = site.start().await;
    let (address, web) = (ca.address, Mounted::new(&site, "web-0").await);
    let (_, starting) = start(web.config(address, 60));
    let handle = started(starting).await;
    let first = handle.current();
    // The Secret is lost; the next authority makes another root, at the same address.
    ca.stop().await;
    site.secrets().delete(SECRET, &DeleteParams::default()).await.expect("deleted");
    let shutdown = CancellationToken::new();
    let config = CaConfig {
        place: Place::Cluster(Box::new(site.config())),
        listen: address,
        http: None,
        ttl: Duration::from_secs(3600),
        max_ttl: Duration::from_secs(3600),
        drain: Duration::from_millis(100),
        dubbo: Default::default(),
    };
    let _stop = shutdown.clone().drop_guard();
    tokio::spawn(rulecast_ca::run(config, shutdown));
    let root = pem::parse(site.part("root.pem").await).expect("PEM").into_contents();
    assert!(!first.bundle.roots().contains(&root.clone().into()), "another root");
    // Whoever starts meanwhile with the old roots does not show its token to the new authority.
    let late = Mounted::new(&site, "web-1").await;
    late.write("ca.crt", &first.bundle.to_pem());
    let (mut status, starting) = start(late.config(address, 60));
    fails(&mut status, Code::PeerUntrusted).await;
    // The bundle reaches the pods: one joins at last, the other before its renewal is due.
    for mounted in [&web, &late] {
        mounted.write("ca.crt", &site.part("root.pem").await);
    }
    let healed = next(&handle, &first).await;
    assert_eq!((healed.bundle.roots(), &healed.spiffe), (&[root.into()][..], &first.spiffe));
    let joined = started(starting).await.current();
    assert_eq!(joined.bundle.roots(), healed.bundle.roots());
}

#[tokio::test]
async fn tokens_of_other_audiences_and_accounts_get_nothing() {
    let site = Site::new().await;
    let ca = site.start().await;
    let web = Mounted::new(&site, "web-0").await;
    // Of another namespace than this pod's.
    let elsewhere = IdentityConfig { namespace: Some("prod".into()), ..web.config(ca.address, 60) };
    let refused = IdentityManager::start(elsewhere).await.map(drop).expect_err("not ours");
    assert_eq!(refused.code(), Code::OtherApplication);
    // Bound to no pod.
    let unbound = site.cluster.token(&site.namespace, "web", AUDIENCE, None, 600).await;
    web.write("token", &unbound.expect("a token"));
    let (mut status, starting) = start(web.config(ca.address, 60));
    fails(&mut status, Code::ServiceAccountToken).await;
    web.write("token", &site.token(&web.pod).await);
    started(starting).await;
    ca.stop().await;
}
