//! The trust bundle in every namespace, for pods to mount.
//!
//! The leader follows namespaces and bundles and writes where something lacks: into new
//! namespaces, and over what others changed or deleted. A namespace that cannot be written
//! to is tried again, ever later, and holds up no other.

mod ledger;

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client,
    api::{PartialObjectMeta, Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use sha2::{Digest as _, Sha256};
use tokio::{task::JoinSet, time::sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::ledger::{Digest, Ledger, Space, Step};
use super::{
    FIELD_MANAGER, MANAGED_BY, app::Parts, in_time, webhook::config::KUBERNETES_NAMESPACES,
};
use crate::Authority;

/// Name of the ConfigMap of trust.
pub const CONFIG_MAP: &str = "rulecast-trust-bundle";
/// Its entry with the roots, plain PEM.
pub const ROOTS: &str = "ca.crt";
/// Its entry with the trust domain.
pub const TRUST_DOMAIN: &str = "trust-domain";

/// Writes at a time.
const AT_ONCE: usize = 8;
/// How long one may take.
const WRITE: Duration = Duration::from_secs(10);

/// Which namespaces get the trust bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundlesConfig {
    /// Namespaces that get none.
    pub skip: Vec<String>,
    /// Label selector of those that get one, as for `kubectl get -l`; `None`: all.
    pub selector: Option<String>,
}

impl Default for BundlesConfig {
    fn default() -> Self {
        Self { skip: KUBERNETES_NAMESPACES.map(String::from).into(), selector: None }
    }
}

/// What a bundle holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    roots: String,
    trust_domain: String,
}

impl Content {
    fn of(authority: &Authority) -> Self {
        Self { roots: authority.roots_pem(), trust_domain: authority.trust_domain().into() }
    }

    fn digest(&self) -> Digest {
        digest(Some(&self.roots), Some(&self.trust_domain), true)
    }

    fn config_map(&self) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(CONFIG_MAP.into());
        map.metadata.labels = Some([MANAGED_BY].map(|(k, v)| (k.into(), v.into())).into());
        let data = [(ROOTS, &self.roots), (TRUST_DOMAIN, &self.trust_domain)];
        map.data = Some(data.map(|(k, v)| (k.into(), v.clone())).into());
        map
    }
}

/// Of what a ConfigMap holds of ours; other entries and labels are not our business.
fn digest_of(map: &ConfigMap) -> Digest {
    let data = |key: &str| map.data.as_ref().and_then(|data| data.get(key));
    let (label, value) = MANAGED_BY;
    let labels = map.metadata.labels.as_ref();
    let labelled = labels.and_then(|labels| labels.get(label)).is_some_and(|v| v == value);
    digest(data(ROOTS), data(TRUST_DOMAIN), labelled)
}

fn digest(roots: Option<&String>, trust_domain: Option<&String>, labelled: bool) -> Digest {
    let mut hash = Sha256::new();
    for text in [roots, trust_domain] {
        hash.update([u8::from(text.is_some())]);
        let text = text.map(String::as_str).unwrap_or_default();
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hash.update([u8::from(labelled)]);
    hash.finalize().into()
}

/// Keeps the trust bundle in every namespace until `term` ends. Only for the leader.
pub(super) async fn keep(parts: &Parts, config: &BundlesConfig, term: CancellationToken) {
    let mut changes = parts.authority.subscribe();
    let mut content = Arc::new(Content::of(&changes.borrow_and_update()));
    let mut ledger = Ledger::new(content.digest(), config.skip.iter().cloned());
    let client = &parts.client;
    let mut of_spaces = watcher::Config::default();
    of_spaces.label_selector.clone_from(&config.selector);
    let of_maps = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
    // Of namespaces only the metadata.
    let api = Api::<PartialObjectMeta<Namespace>>::all(client.clone());
    let mut spaces = pin!(watcher(api, of_spaces).default_backoff());
    let api = Api::<ConfigMap>::all(client.clone());
    let mut maps = pin!(watcher(api, of_maps).default_backoff());
    let mut writes = JoinSet::new();
    loop {
        while writes.len() < AT_ONCE
            && let Some(name) = ledger.pop(Instant::now())
        {
            writes.spawn(write(client.clone(), name, content.clone()));
        }
        let free = writes.len() < AT_ONCE;
        let due = ledger.due().filter(|_| free);
        let pause = async {
            match due {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = term.cancelled() => return,
            event = spaces.next() => match event {
                Some(Ok(event)) => ledger.space(step(event, space), Instant::now()),
                Some(Err(error)) => warn!(%error, "namespaces cannot be followed"),
                None => return,
            },
            event = maps.next() => match event {
                Some(Ok(event)) => ledger.bundle(step(event, map), Instant::now()),
                Some(Err(error)) => warn!(%error, "trust bundles cannot be followed"),
                None => return,
            },
            Some(done) = writes.join_next() => {
                // Nothing in a write panics; its namespace would only wait for the next term.
                if let Ok((name, result)) = done {
                    let written = result.as_ref().ok().copied();
                    let pause = ledger.done(&name, written, Instant::now());
                    match result {
                        Ok(_) => info!(namespace = name, "trust bundle written"),
                        Err(why) => {
                            warn!(namespace = name, why, again_in = ?pause,
                                "the trust bundle cannot be written");
                        }
                    }
                    parts.metrics.bundles_failing(ledger.failing());
                }
            }
            Ok(()) = changes.changed() => {
                content = Arc::new(Content::of(&changes.borrow_and_update()));
                ledger.want(content.digest(), Instant::now());
            }
            () = pause => {}
        }
    }
}

async fn write(
    client: Client,
    name: String,
    content: Arc<Content>,
) -> (String, Result<Digest, String>) {
    let api: Api<ConfigMap> = Api::namespaced(client, &name);
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let patch = Patch::Apply(content.config_map());
    let written = in_time(WRITE, api.patch(CONFIG_MAP, &params, &patch)).await;
    let result = written.map(|map| digest_of(&map)).map_err(|error| error.text());
    (name, result)
}

fn space(object: PartialObjectMeta<Namespace>) -> (Option<String>, Space) {
    let ending = object.metadata.deletion_timestamp.is_some();
    (object.metadata.name, if ending { Space::Terminating } else { Space::Open })
}

fn map(map: ConfigMap) -> (Option<String>, Digest) {
    let digest = digest_of(&map);
    (map.metadata.namespace, digest)
}

/// One event of a watch; `read` takes namespace and content out of an object.
fn step<K, T>(event: watcher::Event<K>, read: fn(K) -> (Option<String>, T)) -> Step<T> {
    let read = |object| {
        let (name, value) = read(object);
        // Every object of a cluster has one.
        (name.unwrap_or_default(), value)
    };
    match event {
        watcher::Event::Init => Step::Begin,
        watcher::Event::InitApply(object) => {
            let (name, value) = read(object);
            Step::Listed(name, value)
        }
        watcher::Event::InitDone => Step::End,
        watcher::Event::Apply(object) => {
            let (name, value) = read(object);
            Step::Changed(name, value)
        }
        watcher::Event::Delete(object) => Step::Gone(read(object).0),
    }
}
