//! What the tests here share: ConditionRoute under a group of its own for each test, so that
//! nobody else's plane writes on its rules, and planes that write status.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
};
use rulecast_api::{
    Kind, Kinds, Resource, ResourceId, SpiffeId,
    kind::KindInfo,
    rule_status::{Condition, RuleStatus},
};
use rulecast_dds::{
    index::Index,
    rollout::{Peer, Rejected, Report, Rollout, Tracked},
    scope::{Owners, Root, Scope},
    status::{self, Lead, StatusConfig},
    store::{Expected, KubernetesStore, KubernetesStoreConfig, Store, StoreError, Watch},
    view::View,
    views::{Debounce, Subscription, Views},
};
use rulecast_kube_tests::{Cluster, Namespace};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// How long anything may take that is not said otherwise.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until something holds.
pub(crate) async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("in time: {what}"));
}

/// A namespace and a rule kind that no other test has.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: Namespace,
    pub(crate) kind: Kind,
}

impl Site {
    pub(crate) async fn new(name: &str) -> Self {
        let cluster = Cluster::shared().await.expect("server");
        let namespace = cluster.namespace(name).await.expect("namespace");
        let known = Kind::CONDITION_ROUTE;
        let group = format!("{}.example.test", namespace.name());
        let api_version = String::leak(format!("{group}/v1alpha1"));
        let type_name = String::leak(format!("{api_version}/{}", known.name));
        let kind = Kind(Box::leak(Box::new(KindInfo { api_version, type_name, ..*known.0 })));
        let crds = cluster.crds().await.expect("the project's CRDs");
        let mut crd = crds
            .into_iter()
            .find(|crd| crd["spec"]["names"]["kind"] == known.name)
            .expect("the CRD of ConditionRoute");
        crd["metadata"]["name"] = json!(format!("{}.{group}", known.plural));
        crd["spec"]["group"] = json!(group);
        cluster.apply_crd(crd).await.expect("the CRD");
        let site = Self { cluster, namespace, kind };
        eventually("the kind is served", async || {
            site.api().list(&ListParams::default()).await.is_ok()
        })
        .await;
        site
    }

    pub(crate) fn resource(&self) -> ApiResource {
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

    /// For kubectl.
    pub(crate) fn named(&self, name: &str) -> String {
        format!("{}.{}/{name}", self.kind.plural, self.resource().group)
    }

    /// As people do it.
    pub(crate) async fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        let namespace = ["--namespace", &self.namespace];
        let arguments = [arguments, &namespace].concat();
        let done = self.cluster.kubectl_with(&arguments, input).await.expect("kubectl");
        done.success().expect("it works")
    }

    /// Writes a rule with these conditions.
    pub(crate) async fn rule(&self, name: &str, condition: &str) -> DynamicObject {
        let mut rule = DynamicObject::new(name, &self.resource()).within(&self.namespace);
        rule.data = json!({ "spec": {
            "configVersion": "v3.0", "scope": "service", "key": "com.example.Orders",
            "force": false, "runtime": true, "enabled": true, "conditions": [condition],
        }});
        let params = PatchParams::apply("people").force();
        self.api().patch(name, &params, &Patch::Apply(&rule)).await.expect("applied")
    }

    pub(crate) async fn object(&self, name: &str) -> DynamicObject {
        self.api().get(name).await.expect("the object")
    }

    pub(crate) async fn status(&self, name: &str) -> Option<RuleStatus> {
        status_of(&self.object(name).await)
    }

    /// Waits until the status is so.
    pub(crate) async fn until(
        &self,
        name: &str,
        holds: impl Fn(&RuleStatus) -> bool,
    ) -> RuleStatus {
        eventually(&format!("the status of {name}"), async || {
            self.status(name).await.is_some_and(|status| holds(&status))
        })
        .await;
        self.status(name).await.expect("a status")
    }
}

pub(crate) fn status_of(object: &DynamicObject) -> Option<RuleStatus> {
    let status = object.data.get("status")?.clone();
    Some(serde_json::from_value(status).expect("a rule's status"))
}

pub(crate) fn condition<'a>(status: &'a RuleStatus, kind: &str) -> &'a Condition {
    status.conditions.iter().find(|c| c.kind == kind).expect("the condition")
}

/// Reason of Programmed and the generation that it speaks of.
pub(crate) fn programmed(status: &RuleStatus) -> (&str, i64) {
    let programmed = status.conditions.iter().find(|c| c.kind == "Programmed");
    programmed.map_or(("", 0), |c| (c.reason.as_str(), c.observed_generation))
}

/// The store, with a note of each write of status.
pub(crate) struct Noted {
    store: Arc<KubernetesStore>,
    pub(crate) writes: Mutex<Vec<(Instant, String)>>,
}

impl Store for Noted {
    fn lineage(&self) -> Arc<str> {
        self.store.lineage()
    }

    fn watch(&self) -> Watch {
        self.store.watch()
    }

    fn put(&self, rule: Resource, expected: Expected) -> BoxFuture<'_, Result<i64, StoreError>> {
        self.store.put(rule, expected)
    }

    fn delete(&self, id: ResourceId, expected: Expected) -> BoxFuture<'_, Result<i64, StoreError>> {
        self.store.delete(id, expected)
    }

    fn write_status(&self, id: ResourceId, status: Value) -> BoxFuture<'_, Result<(), StoreError>> {
        self.writes.lock().expect("whole").push((Instant::now(), id.name.clone()));
        self.store.write_status(id, status)
    }

    fn read_status(&self, id: ResourceId) -> BoxFuture<'_, Result<Option<Value>, StoreError>> {
        self.store.read_status(id)
    }
}

/// The parts of a plane from the store to status. Streams are the test's to play.
pub(crate) struct Plane {
    pub(crate) store: Arc<Noted>,
    pub(crate) views: Views,
    pub(crate) rollout: Rollout,
    kind: Kind,
    stop: CancellationToken,
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Plane {
    /// A plane whose store has been read.
    pub(crate) async fn start(site: &Site, lead: impl Lead) -> Self {
        let kinds: Kinds = Box::leak(Box::new([site.kind]));
        let stop = CancellationToken::new();
        let config = KubernetesStoreConfig::new(site.cluster.client(), kinds);
        let (store, run) = KubernetesStore::open(config, &stop);
        tokio::spawn(run);
        let store = Arc::new(Noted { store: Arc::new(store), writes: Mutex::default() });
        let index = Index::new(kinds, store.lineage());
        tokio::spawn(index.clone().run(store.clone(), stop.clone()));
        let none: [(String, String); 0] = [];
        let (owners, root) = (Owners::new(none), Root::new(["rulecast-root"]));
        let views = Views::new(index.clone(), owners, root, Debounce::default());
        tokio::spawn(views.clone().run(stop.clone()));
        let rollout = Rollout::new();
        let config = StatusConfig::default();
        let (dyn_store, all) = (store.clone() as Arc<dyn Store>, (views.clone(), rollout.clone()));
        tokio::spawn(status::run(dyn_store, all.0, all.1, lead, config, stop.clone()));
        eventually("the rules are listed", async || index.snapshot().listed).await;
        Self { store, views, rollout, kind: site.kind, stop }
    }

    /// Names of the rules whose status it has written, in order.
    pub(crate) fn written(&self) -> Vec<String> {
        let writes = self.store.writes.lock().expect("whole");
        writes.iter().map(|(_, name)| name.clone()).collect()
    }

    pub(crate) fn client(&self, site: &Site, name: &str) -> Client {
        let spiffe = SpiffeId::application("td", &site.namespace, name).expect("an identity");
        let peer = Peer {
            spiffe_id: spiffe.to_string(),
            address: None,
            connected_at: std::time::SystemTime::now(),
        };
        let tracked = self.rollout.track(peer);
        tracked.report(Report::Subscribed { kind: self.kind });
        let place = self.views.subscribe(&Scope::new(&spiffe, None), self.kind);
        Client { place, tracked, kind: self.kind }
    }
}

/// A client as its stream would report it.
pub(crate) struct Client {
    place: Subscription,
    tracked: Tracked,
    kind: Kind,
}

impl Client {
    /// Waits for a view with so many rules, and lets the stream report it.
    pub(crate) async fn sees(&mut self, rules: usize) -> Arc<View> {
        let wait = async {
            let mut view = self.place.current();
            while view.as_ref().is_none_or(|view| view.items.len() != rules) {
                view = self.place.changed().await;
            }
            view.expect("a view")
        };
        let view = tokio::time::timeout(DEADLINE, wait).await.expect("the view in time");
        self.tracked.report(Report::View { kind: self.kind, view: view.clone() });
        view
    }

    /// Waits for another view, and lets the stream report it.
    pub(crate) async fn sees_another(&mut self) -> Arc<View> {
        let view = tokio::time::timeout(DEADLINE, self.place.changed()).await;
        let view = view.expect("the view in time").expect("a view");
        self.tracked.report(Report::View { kind: self.kind, view: view.clone() });
        view
    }

    /// The view as it is, once more.
    pub(crate) fn sees_now(&mut self) -> Arc<View> {
        self.place.current().expect("a view")
    }

    /// Applies a view but for the rules named.
    pub(crate) fn applies(&self, view: Arc<View>, but: &[&str]) {
        let rejected = view.items.iter().filter(|item| but.contains(&item.key.as_str()));
        let rejected = rejected.map(|item| Rejected {
            key: item.key.clone(),
            digest: item.digest,
            reason: "RC0601 cannot".into(),
        });
        let rejected = rejected.collect();
        let (kind, revision, took) = (self.kind, view.revision, Duration::ZERO);
        self.tracked.report(Report::Applied { kind, view, revision, rejected, took });
    }
}

/// Resource versions of all objects, by name.
pub(crate) async fn versions(site: &Site) -> Vec<(String, String)> {
    let list = site.api().list(&ListParams::default()).await.expect("listed");
    list.iter().map(|o| (o.name_any(), o.resource_version().expect("a version"))).collect()
}
