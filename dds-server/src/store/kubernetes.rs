//! Rules as objects of a Kubernetes API server.
//!
//! For each kind one follower reads a complete list and then a watch; what they learn
//! meets in one state, which decides what is in force and tells watchers. The parts:
//! `api` asks, `follow` knows when to list and when to watch, `object` reads one object,
//! `state` decides, `hub` tells, `write` writes.
//!
//! Revisions are the objects' resource versions, as numbers. Kubernetes promises since 1.35
//! that those of one kind can be compared; with etcd they always could, across kinds too.

mod api;
mod fault;
mod follow;
mod hub;
mod object;
mod state;
mod write;

use std::{sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use kube::Client;
use rulecast_api::{Kinds, Resource, ResourceId};
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Expected, Store, StoreError, Watch};
use api::Api;
use follow::{Failing, Follower};
use hub::Hub;
use write::Writer;

/// What a [`KubernetesStore`] goes by.
#[derive(Clone)]
pub struct KubernetesStoreConfig {
    /// Of the API server. It should notice a dead connection and follow its credentials,
    /// as that of `rulecast_cluster::connect` does.
    pub client: Client,
    /// The kinds that there are. Each needs its CRD: until all are served there is no
    /// complete list.
    pub kinds: Kinds,
    /// A list that lacks more than half of twenty or more rules of a kind is believed when
    /// another one still does after this.
    pub mass_doubt: Duration,
}

impl KubernetesStoreConfig {
    /// With the usual doubt of 3 s.
    pub fn new(client: Client, kinds: Kinds) -> Self {
        Self { client, kinds, mass_doubt: Duration::from_secs(3) }
    }
}

/// The rules of a cluster, watched in all namespaces. Dropping it ends its future.
pub struct KubernetesStore {
    hub: Arc<Hub>,
    writer: Writer,
    _stop: DropGuard,
}

impl KubernetesStore {
    /// A store, and the future that keeps it current until `shutdown`; spawn that. Neither
    /// waits for the API server: while it cannot be reached the store is down.
    pub fn open(
        config: KubernetesStoreConfig,
        shutdown: &CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let hub = Hub::new(config.kinds);
        let api = Api::new(config.client);
        let stop = shutdown.child_token();
        let writer = Writer { kinds: config.kinds, api: api.clone(), hub: hub.clone() };
        let followers: Vec<_> = config
            .kinds
            .iter()
            .map(|kind| Follower {
                kind: *kind,
                kinds: config.kinds,
                api: api.clone(),
                hub: hub.clone(),
                mass_doubt: config.mass_doubt,
                failing: Failing::default(),
                vanished: false,
                doubt: None,
                unpaged: false,
            })
            .collect();
        let store = Self { hub: hub.clone(), writer, _stop: stop.clone().drop_guard() };
        let run = async move {
            let ending = Ending(hub.clone());
            let follow = join_all(followers.into_iter().map(Follower::run));
            let all = futures_util::future::join3(follow, name(&api, &hub), hub.serve_lists());
            stop.run_until_cancelled(all).await;
            drop(ending);
        };
        (store, run)
    }
}

/// Ends the watches, also when the future is dropped.
struct Ending(Arc<Hub>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Finds out which cluster it is, at the start and whenever its storage was set back.
async fn name(api: &Api, hub: &Hub) {
    let mut epochs = hub.epoch();
    loop {
        let epoch = *epochs.borrow_and_update();
        let mut failing = Failing::default();
        loop {
            let began = Instant::now();
            match api.cluster().await {
                Ok(uid) => {
                    hub.with(|state| state.name(epoch, &uid));
                    break;
                }
                Err(fault) => {
                    let tell = failing.more(began);
                    tracing::debug!(?fault, "the cluster's name cannot be read");
                    if tell {
                        hub.with(|state| {
                            let problem = fault.problem(None, state.holds(None));
                            state.set_down(None, problem)
                        });
                    }
                    sleep(failing.pause()).await;
                }
            }
        }
        if epochs.wait_for(|now| *now != epoch).await.is_err() {
            return;
        }
    }
}

impl std::fmt::Debug for KubernetesStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubernetesStore").field("lineage", &self.lineage()).finish_non_exhaustive()
    }
}

impl Store for KubernetesStore {
    fn lineage(&self) -> Arc<str> {
        self.hub.read(|state| state.lineage().cloned()).unwrap_or_else(|| "".into())
    }

    fn watch(&self) -> Watch {
        self.hub.watch()
    }

    fn put(
        &self,
        resource: Resource,
        expected: Expected,
    ) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(self.writer.clone().put(resource, expected))
    }

    fn delete(&self, id: ResourceId, expected: Expected) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(self.writer.clone().delete(id, expected))
    }

    fn write_status(
        &self,
        id: ResourceId,
        status: serde_json::Value,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.writer.clone().write_status(id, status))
    }

    /// From what was seen or written last; asks nobody.
    fn read_status(
        &self,
        id: ResourceId,
    ) -> BoxFuture<'_, Result<Option<serde_json::Value>, StoreError>> {
        let status = self
            .hub
            .read(|state| state.status(&id).and_then(|status| serde_json::from_str(status).ok()));
        Box::pin(std::future::ready(Ok(status)))
    }
}

#[cfg(test)]
mod tests;
