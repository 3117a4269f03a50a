//! What the tests here share: a rule kind of its own for each, and a store that is followed.

use std::{sync::Arc, time::Duration};

use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use rulecast_api::{Kind, ResourceId};
use rulecast_dds::{
    index::{Index, Snapshot},
    store::{
        Event, KubernetesStore, KubernetesStoreConfig, Store, StoreProblem, Stored, Watch,
        conformance::kind_in,
    },
};
use rulecast_kube_tests::{Cluster, Namespace};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// How long anything may take that is not said otherwise.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A namespace and a rule kind that no other test has.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: Namespace,
    pub(crate) kind: Kind,
}

/// How much a CRD says of its objects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Schema {
    /// Anything goes.
    Loose,
    /// As the kind has it.
    Strict,
}

impl Site {
    /// Without the CRD of its kind.
    pub(crate) async fn bare(cluster: &Cluster, name: &str) -> Self {
        let namespace = cluster.namespace(name).await.expect("namespace");
        let kind = kind_in(&format!("{}.example.test/v1", namespace.name()));
        Self { cluster: cluster.clone(), namespace, kind }
    }

    /// With it.
    pub(crate) async fn new(cluster: &Cluster, name: &str) -> Self {
        let site = Self::bare(cluster, name).await;
        site.define(Schema::Strict).await;
        site
    }

    fn resource(&self) -> ApiResource {
        let (group, version) = self.kind.api_version.split_once('/').expect("a version");
        ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: self.kind.api_version.into(),
            kind: self.kind.name.into(),
            plural: self.kind.plural.into(),
        }
    }

    /// The objects of the kind, as the administrator.
    pub(crate) fn api(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.cluster.client(), &self.namespace, &self.resource())
    }

    pub(crate) fn crd_name(&self) -> String {
        format!("{}.{}", self.kind.plural, self.resource().group)
    }

    /// Makes or replaces the CRD, and waits until the kind is served.
    pub(crate) async fn define(&self, schema: Schema) {
        let resource = self.resource();
        let schema = match schema {
            Schema::Loose => json!({
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": true,
            }),
            Schema::Strict => json!({
                "type": "object",
                "required": ["spec"],
                "properties": {
                    "spec": {
                        "type": "object",
                        "required": ["key", "value"],
                        "properties": {
                            "key": {"type": "string"},
                            "value": {"type": "integer", "minimum": 0},
                            "application": {"type": "boolean"},
                            "enabled": {"type": "boolean"},
                        },
                    },
                    "status": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": true,
                    },
                },
            }),
        };
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": self.crd_name() },
            "spec": {
                "group": resource.group,
                "scope": "Namespaced",
                "names": {
                    "plural": resource.plural, "singular": "probe", "kind": resource.kind,
                },
                "versions": [{
                    "name": resource.version, "served": true, "storage": true,
                    "subresources": { "status": {} },
                    "schema": { "openAPIV3Schema": schema },
                }],
            },
        });
        let applied = self.cluster.kubectl_with(&["apply", "-f", "-"], &crd.to_string()).await;
        let applied = applied.expect("kubectl");
        assert!(applied.status.success(), "{applied:?}");
        eventually("the kind is served", async || {
            self.api().list(&ListParams::default()).await.is_ok()
        })
        .await;
    }

    /// Removes the CRD, and all objects with it; does not wait.
    pub(crate) async fn undefine(&self) {
        let arguments = ["delete", "crd", &self.crd_name(), "--wait=false"];
        let deleted = self.cluster.kubectl(&arguments).await.expect("kubectl");
        assert!(deleted.status.success(), "{deleted:?}");
    }

    pub(crate) fn id(&self, name: &str) -> ResourceId {
        ResourceId { kind: self.kind, namespace: self.namespace.name().into(), name: name.into() }
    }
}

impl Site {
    pub(crate) fn object(&self, name: &str, spec: Value) -> DynamicObject {
        let mut object = DynamicObject::new(name, &self.resource()).within(&self.namespace);
        object.data = json!({ "spec": spec });
        object
    }

    pub(crate) async fn create(&self, name: &str, spec: Value) -> DynamicObject {
        let object = self.object(name, spec);
        self.api().create(&PostParams::default(), &object).await.expect("created")
    }

    /// A good rule with this content.
    pub(crate) async fn rule(&self, name: &str, value: u32) -> DynamicObject {
        self.create(name, json!({ "key": "com.A", "value": value })).await
    }

    /// Many rules, `<prefix>0` and so on.
    pub(crate) async fn rules(&self, prefix: &str, count: u32) {
        use futures_util::StreamExt as _;
        let all = (0..count).map(async |n| self.rule(&format!("{prefix}{n}"), n).await);
        futures_util::stream::iter(all).buffer_unordered(16).collect::<Vec<_>>().await;
    }

    pub(crate) async fn set(&self, name: &str, value: u32) {
        self.merge(name, json!({ "spec": { "value": value } })).await;
    }

    pub(crate) async fn merge(&self, name: &str, patch: Value) -> DynamicObject {
        let patch = Patch::Merge(patch);
        self.api().patch(name, &PatchParams::default(), &patch).await.expect("patched")
    }

    pub(crate) async fn remove(&self, name: &str) {
        self.api().delete(name, &Default::default()).await.expect("deleted");
    }

    /// As the writer of status would.
    pub(crate) async fn set_status(&self, name: &str, status: Value) -> DynamicObject {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api().patch_status(name, &PatchParams::default(), &patch).await.expect("patched")
    }

    /// A store of the kind, followed.
    pub(crate) fn open(&self, client: kube::Client) -> Followed {
        Followed::open(client, Box::leak(Box::new([self.kind])))
    }

    pub(crate) fn open_plainly(&self) -> Followed {
        self.open(self.cluster.client())
    }
}

/// A store under an index, with all that it has told.
pub(crate) struct Followed {
    pub(crate) store: Arc<KubernetesStore>,
    pub(crate) index: Index,
    told: Arc<std::sync::Mutex<Vec<Event>>>,
    stop: CancellationToken,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Followed {
    pub(crate) fn open(client: kube::Client, kinds: rulecast_api::Kinds) -> Self {
        let stop = CancellationToken::new();
        let config = KubernetesStoreConfig::new(client, kinds);
        let (store, run) = KubernetesStore::open(config, &stop);
        tokio::spawn(run);
        let index = Index::new(kinds, store.lineage());
        let told = Arc::default();
        let (watch, follow, log) = (store.watch(), index.clone(), Arc::clone(&told));
        tokio::spawn(stop.clone().run_until_cancelled_owned(follow_into(watch, follow, log)));
        Self { store: Arc::new(store), index, told, stop }
    }

    pub(crate) fn now(&self) -> Arc<Snapshot> {
        self.index.snapshot()
    }

    /// Waits until the index is so.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Snapshot) -> bool) {
        self.until_within(DEADLINE, what, holds).await;
    }

    pub(crate) async fn until_within(
        &self,
        limit: Duration,
        what: &str,
        holds: impl Fn(&Snapshot) -> bool,
    ) {
        let mut changes = self.index.changes();
        let wait = async {
            while !holds(&self.now()) {
                changes.changed().await.expect("the index is there");
            }
        };
        if tokio::time::timeout(limit, wait).await.is_err() {
            let now = self.now();
            panic!(
                "not within {limit:?}: {what}; there is: {:?}, problems {:?}, down {:?}",
                values(&now),
                now.problems,
                now.down
            );
        }
    }

    pub(crate) async fn listed(self) -> Self {
        self.until("a first list", |now| now.listed && now.down.is_none()).await;
        self
    }

    /// From here on the store learns nothing.
    pub(crate) async fn freeze(&self) {
        self.stop.cancel();
        let mut watch = self.store.watch();
        while watch.next().await.is_some() {}
    }

    /// What was told since the last call.
    pub(crate) fn told(&self) -> Vec<Event> {
        std::mem::take(&mut *self.told.lock().expect("not poisoned"))
    }
}

async fn follow_into(mut watch: Watch, index: Index, log: Arc<std::sync::Mutex<Vec<Event>>>) {
    while let Some(batch) = watch.next().await {
        log.lock().expect("not poisoned").extend(batch.iter().cloned());
        index.apply(batch);
    }
}

/// The rules' contents by name.
pub(crate) fn values(snapshot: &Snapshot) -> Vec<(String, u64)> {
    let value = |stored: &Stored| {
        rulecast_dds::store::conformance::value(stored).expect("every rule of the kind has one")
    };
    snapshot.rules().map(|rule| (rule.resource.id.name.clone(), value(rule))).collect()
}

pub(crate) fn holds(snapshot: &Snapshot, wanted: &[(&str, u64)]) -> bool {
    let wanted: Vec<_> = wanted.iter().map(|(name, value)| (name.to_string(), *value)).collect();
    values(snapshot) == wanted
}

pub(crate) fn problems_of<'a>(snapshot: &'a Snapshot, name: &str) -> Vec<&'a StoreProblem> {
    let of =
        |problem: &&StoreProblem| problem.object.as_ref().is_some_and(|(id, _)| id.name == name);
    snapshot.problems.iter().filter(of).collect()
}

/// Asks again until it holds.
pub(crate) async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(DEADLINE, wait).await.is_err() {
        panic!("not within {DEADLINE:?}: {what}");
    }
}

/// The version of an object, as the index has it.
pub(crate) fn version(object: &DynamicObject) -> (String, i64) {
    let generation = object.metadata.generation.expect("a generation");
    (object.uid().expect("a uid"), generation)
}
