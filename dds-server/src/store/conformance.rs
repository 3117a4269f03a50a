//! What every store must do, as a test that runs against any of them, and a
//! small rule kind to do it with.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use rulecast_api::{
    Code, Kind, Kinds, Resource, ResourceId,
    kind::{FieldError, KindInfo, Phase, RuleSpec, Subject},
    proto::rules::v1::{Target, target},
};

use super::{Event, Expected, Origin, Store, StoreError, Stored, Version, Watch, digest};

/// The spec of the test kind: `key` and `scope` name the target, `value` is its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSpec {
    /// A service key, or an application where `application` is true.
    pub key: String,
    /// What `key` names.
    pub application: bool,
    /// Acts as no rule when false.
    pub enabled: bool,
    /// The content. At most 1,000,000.
    pub value: u32,
    /// Only for clients whose pod has all of these labels.
    pub labels: BTreeMap<String, String>,
}

impl RuleSpec for ProbeSpec {
    fn target(&self) -> Option<Target> {
        let scope =
            if self.application { target::Scope::Application } else { target::Scope::Service };
        Some(Target { scope: scope as i32, key: self.key.clone() })
    }

    fn enabled(&self) -> bool {
        self.enabled
    }

    fn priority(&self) -> i32 {
        0
    }

    fn encode(&self) -> Bytes {
        Bytes::copy_from_slice(&self.value.to_le_bytes())
    }

    fn to_json(&self) -> serde_json::Value {
        let mut spec = serde_json::json!({
            "key": self.key,
            "application": self.application,
            "enabled": self.enabled,
            "value": self.value,
        });
        if !self.labels.is_empty() {
            spec["labels"] = serde_json::json!(self.labels);
        }
        spec
    }

    fn selects(&self, subject: &Subject<'_>) -> bool {
        self.labels.iter().all(|(name, value)| subject.labels.get(name) == Some(value))
    }
}

fn parse(spec: serde_json::Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
    let error = |code, path: &str, message: &str, hint: &str| {
        vec![FieldError {
            code,
            path: path.into(),
            offset: None,
            value: None,
            message: message.into(),
            hint: hint.into(),
        }]
    };
    let map = spec
        .as_object()
        .ok_or_else(|| error(Code::FieldMissing, "spec", "there is none", "write one"))?;
    const KNOWN: [&str; 5] = ["key", "application", "enabled", "value", "labels"];
    if let Some(key) = map.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        return Err(error(
            Code::FieldUnknown,
            &format!("spec.{key}"),
            "no such field",
            "remove it",
        ));
    }
    let flag = |name: &str, default| match map.get(name) {
        None => Ok(default),
        Some(value) => value.as_bool().ok_or_else(|| {
            error(Code::FieldInvalid, &format!("spec.{name}"), "not a boolean", "true or false")
        }),
    };
    let value = map
        .get("value")
        .and_then(serde_json::Value::as_u64)
        .filter(|value| *value <= 1_000_000)
        .ok_or_else(|| {
            error(Code::FieldInvalid, "spec.value", "out of range", "write 0 to 1000000")
        })?;
    Ok(Arc::new(ProbeSpec {
        key: map
            .get("key")
            .and_then(serde_json::Value::as_str)
            .ok_or_else(|| error(Code::FieldMissing, "spec.key", "there is none", "name it"))?
            .to_owned(),
        application: flag("application", false)?,
        enabled: flag("enabled", true)?,
        value: u32::try_from(value).unwrap_or(u32::MAX),
        labels: match map.get("labels") {
            None => BTreeMap::new(),
            Some(labels) => serde_json::from_value(labels.clone()).map_err(|_| {
                error(Code::FieldInvalid, "spec.labels", "not a map of texts", "name: value")
            })?,
        },
    }))
}

static INFO: KindInfo = KindInfo {
    api_version: "rulecast.io/v1alpha1",
    name: "Probe",
    plural: "probes",
    short_names: &["pr"],
    type_name: "rulecast.io/v1alpha1/Probe",
    phase: Phase::Route,
    parse,
    crd: None,
};

/// The test kind.
pub const KIND: Kind = Kind(&INFO);

/// A table with the test kind alone.
pub static KINDS: Kinds = &[KIND];

/// The test kind under another group and version, for a store that many tests share.
/// Each call keeps a little memory for good.
pub fn kind_in(api_version: &str) -> Kind {
    let api_version: &'static str = String::leak(api_version.to_owned());
    let type_name = String::leak(format!("{api_version}/{}", INFO.name));
    Kind(Box::leak(Box::new(KindInfo { api_version, type_name, ..INFO })))
}

/// A resource of the test kind.
pub fn resource(name: &str, namespace: &str, key: &str, value: u32) -> Resource {
    resource_of(KIND, name, namespace, key, value)
}

/// A resource of a kind from [`kind_in`].
pub fn resource_of(kind: Kind, name: &str, namespace: &str, key: &str, value: u32) -> Resource {
    Resource {
        created: 0,
        id: ResourceId { kind, namespace: namespace.into(), name: name.into() },
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        spec: Arc::new(ProbeSpec {
            key: key.into(),
            application: false,
            enabled: true,
            value,
            labels: BTreeMap::new(),
        }),
    }
}

/// The same as a store says it.
pub fn stored(name: &str, namespace: &str, key: &str, value: u32, revision: i64) -> Stored {
    let resource = resource(name, namespace, key, value);
    Stored {
        digest: digest(&resource),
        resource,
        revision,
        origin: Origin { file: "test.yaml".into(), line: 1 },
        accepted: true,
        version: Version::default(),
    }
}

/// The value of a rule of the test kind.
pub fn value(stored: &Stored) -> Option<u64> {
    stored.resource.spec.to_json().get("value").and_then(serde_json::Value::as_u64)
}

/// How long a store may take for anything.
const DEADLINE: Duration = Duration::from_secs(10);

/// What a watcher has learnt, with the promises of the order checked.
struct Follower {
    watch: Watch,
    held: BTreeMap<ResourceId, (i64, u64)>,
    revision: i64,
    listed: bool,
}

impl Follower {
    fn new(store: &dyn Store) -> Self {
        Self { watch: store.watch(), held: BTreeMap::new(), revision: 0, listed: false }
    }

    /// Reads batches until the condition holds.
    async fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let all = async {
            while !condition(self) {
                let batch = self.watch.next().await.expect("the store ended");
                self.take(batch);
            }
        };
        if tokio::time::timeout(DEADLINE, all).await.is_err() {
            panic!("{what}: not within {DEADLINE:?}");
        }
    }

    fn take(&mut self, batch: Vec<Event>) {
        let mut listing = None;
        for event in batch {
            match event {
                Event::Listing => listing = Some(std::mem::take(&mut self.held)),
                Event::Upsert(stored) => {
                    let value = value(&stored).expect("a value");
                    let id = stored.resource.id.clone();
                    assert_eq!(stored.digest, digest(&stored.resource));
                    let old = self.held.get(&id).or_else(|| listing.as_ref()?.get(&id));
                    if let Some((revision, old)) = old {
                        assert!(stored.revision >= *revision, "{id} went back");
                        assert_eq!(
                            stored.revision > *revision,
                            value != *old,
                            "{id}: its revision changes exactly with its content"
                        );
                    }
                    if listing.is_none() {
                        self.revision = self.revision.max(stored.revision);
                    }
                    self.held.insert(id, (stored.revision, value));
                }
                Event::Remove { id, revision } => {
                    assert!(revision > self.revision, "a removal is a revision of its own");
                    self.revision = revision;
                    self.held.remove(&id);
                }
                Event::Listed { revision } => {
                    assert!(revision >= self.revision, "the store went back");
                    assert!(self.held.values().all(|(r, _)| *r <= revision));
                    self.revision = revision;
                    self.listed = true;
                    listing = None;
                }
                Event::Lineage(_) | Event::Problems(_) | Event::Down(_) | Event::Up => {}
            }
        }
    }

    fn value(&self, id: &ResourceId) -> Option<u64> {
        self.held.get(id).map(|(_, value)| *value)
    }
}

/// Runs the suite. `open` gives a store of [`KINDS`], at first an empty one; it is
/// called again after the store was dropped, and must then give the same content.
/// Panics where a promise is broken.
pub async fn run<S, F, Fut>(open: F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    run_with(KIND, ["default", "other"], open).await;
}

/// As [`run`], with a store of one kind from [`kind_in`] and two namespaces that are there.
pub async fn run_with<S, F, Fut>(kind: Kind, namespaces: [&str; 2], open: F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    let [default, other] = namespaces;
    let resource = |name: &str, namespace: &str, key: &str, value| {
        resource_of(kind, name, namespace, key, value)
    };
    let store = open().await;
    let mut follower = Follower::new(&store);
    follower.until("an empty store lists", |f| f.listed).await;
    assert!(follower.held.is_empty());
    let lineage = store.lineage();
    assert!(!lineage.is_empty(), "a store that lists knows its lineage");

    // A new resource is seen, by watchers that are there and by later ones.
    let a = resource("a", default, "com.A", 1);
    let id = a.id.clone();
    let first = store.put(a.clone(), Expected::Absent).await.expect("put");
    follower.until("a put is seen", |f| f.value(&id) == Some(1)).await;
    assert_eq!(follower.held[&id].0, first);
    let mut late = Follower::new(&store);
    late.until("a later watcher lists", |f| f.listed).await;
    assert_eq!(late.held, follower.held);

    // The same content is no change.
    let again = store.put(a.clone(), Expected::Any).await.expect("put again");
    assert_eq!(again, first);

    // Writes are conditional.
    let changed = resource("a", default, "com.A", 2);
    let conflict = |result: Result<i64, StoreError>| {
        assert_eq!(result.expect_err("a conflict").code(), Code::StoreConflict);
    };
    conflict(store.put(changed.clone(), Expected::Absent).await);
    conflict(store.put(changed.clone(), Expected::Revision(first + 1)).await);
    let second = store.put(changed, Expected::Revision(first)).await.expect("conditional put");
    assert!(second > first);
    follower.until("a change is seen", |f| f.value(&id) == Some(2)).await;
    conflict(store.delete(id.clone(), Expected::Revision(first)).await);

    // Namespaces are apart, and a status changes nothing.
    let elsewhere = resource("a", other, "com.A", 7);
    store.put(elsewhere.clone(), Expected::Absent).await.expect("put in another namespace");
    follower.until("both are held", |f| f.held.len() == 2).await;
    assert_eq!(store.read_status(id.clone()).await.expect("read"), None);
    let status = serde_json::json!({"conditions": [{"type": "Accepted", "status": "True"}]});
    store.write_status(id.clone(), status.clone()).await.expect("write status");
    assert_eq!(store.read_status(id.clone()).await.expect("read"), Some(status));
    assert_eq!(store.put(elsewhere.clone(), Expected::Any).await.expect("put"), follower.revision);

    // A deletion is a revision of its own.
    let deleted = store.delete(id.clone(), Expected::Revision(second)).await.expect("delete");
    assert!(deleted > second);
    follower.until("a deletion is seen", |f| f.value(&id).is_none()).await;
    conflict(store.delete(id.clone(), Expected::Revision(second)).await);
    store.delete(id.clone(), Expected::Absent).await.expect("already absent");

    // Many at once arrive complete, also at a watcher that reads late.
    let lazy = Follower::new(&store);
    for n in 0..100 {
        let many = resource(&format!("m{n}"), default, "com.M", n);
        store.put(many, Expected::Absent).await.expect("put");
    }
    follower.until("all are held", |f| f.held.len() == 101).await;
    let mut lazy = lazy;
    lazy.until("a late reader catches up", |f| f.held == follower.held).await;

    // A restart keeps content, revisions and lineage, and never goes back.
    let before = (follower.held.clone(), follower.revision);
    drop((follower, late, lazy, store));
    let store = open().await;
    let mut follower = Follower::new(&store);
    follower.until("a restarted store lists", |f| f.listed).await;
    assert_eq!(store.lineage(), lineage);
    assert_eq!(follower.held, before.0);
    assert!(follower.revision >= before.1);
    let next = store.put(resource("z", default, "com.Z", 1), Expected::Any).await.expect("put");
    assert!(next > before.1);
}
