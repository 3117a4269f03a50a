//! Views of the index, one per scope and kind, kept current.
//!
//! One task gathers the index's changes, encodes each changed rule once, and
//! gives every view that it concerns a new state, but only when the content of
//! the view is another one. Of some rules clients get parts; each part is encoded
//! once, however many views have it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use bytes::Bytes;
use rulecast_api::{
    Digest, Kind, ResourceId,
    kind::{Interest, Projection, RuleSpec},
    proto::rules::v1::{Enforcement, Rule},
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    index::{Index, Rules, Snapshot},
    scope::{Owners, Reach, Root, Scope},
    store::Stored,
    view::{Item, View},
};

#[cfg(test)]
mod tests;

/// How changes are gathered before views are made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debounce {
    /// Wait until there was no change for so long.
    pub quiet: Duration,
    /// But never longer than this after the first change.
    pub ceiling: Duration,
}

impl Default for Debounce {
    /// 10 ms and 200 ms.
    fn default() -> Self {
        Self { quiet: Duration::from_millis(10), ceiling: Duration::from_millis(200) }
    }
}

/// The views that somebody is subscribed to; clones share them.
#[derive(Clone)]
pub struct Views {
    inner: Arc<Inner>,
}

/// Somebody's place at a view. The view lives as long as anybody has one.
pub struct Subscription {
    receiver: Option<Receiver>,
    /// With all that is known of the client.
    scope: Scope,
    key: Key,
    inner: Arc<Inner>,
}

type Key = (Digest, Kind);
type Receiver = watch::Receiver<Option<Arc<View>>>;

struct Inner {
    index: Index,
    root: Root,
    debounce: Debounce,
    state: Mutex<State>,
    /// Counts the snapshots that the views have shown.
    advances: watch::Sender<u64>,
}

struct State {
    /// What `prepared` and all views show.
    snapshot: Arc<Snapshot>,
    /// With what that snapshot's rules register.
    owners: Owners,
    prepared: BTreeMap<Kind, BTreeMap<Arc<str>, Prepared>>,
    /// What the rules of a kind look at of clients; views are by scopes narrowed to it.
    interests: BTreeMap<Kind, Interest>,
    views: HashMap<Key, Shared>,
}

/// A consistent look at the views: what they show, and what each scope has of a kind.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The state of the index that the views show.
    pub snapshot: Arc<Snapshot>,
    /// The views that somebody is subscribed to, by kind and scope hash.
    pub views: BTreeMap<Kind, HashMap<Digest, Arc<View>>>,
}

/// A rule ready for delivery; disabled rules have none.
struct Prepared {
    reach: Reach,
    spec: Arc<dyn RuleSpec>,
    /// Not for clients of Dubbo's wire, which would enforce what they are sent.
    shadow: bool,
    rule: Rule,
    item: Arc<Item>,
    parts: Mutex<Parts>,
}

/// What is delivered of a rule in parts, each once for as long as a view has it.
#[derive(Default)]
struct Parts {
    by_spec: HashMap<Bytes, Weak<Item>>,
    /// With so many, those that no view has any more are let go.
    sweep_at: usize,
}

impl Prepared {
    /// What clients of a scope get of the rule.
    fn given(&self, scope: &Scope) -> Option<Arc<Item>> {
        let subject = scope.subject.selected();
        if !self.reach.includes(scope) || !self.spec.selects(&subject) {
            return None;
        }
        match self.spec.project(&subject, self.reach.namespace.as_deref()) {
            Projection::Whole => Some(self.item.clone()),
            Projection::Nothing => None,
            Projection::Spec(spec) => Some(self.part(spec)),
        }
    }

    fn part(&self, spec: Bytes) -> Arc<Item> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(item) = parts.by_spec.get(&spec).and_then(Weak::upgrade) {
            return item;
        }
        if parts.by_spec.len() >= parts.sweep_at {
            parts.by_spec.retain(|_, item| item.strong_count() > 0);
            parts.sweep_at = 2 * parts.by_spec.len() + 16;
        }
        let compat = self.spec.compat_of(&spec).filter(|_| !self.shadow);
        let rule = Rule { spec: spec.clone(), ..self.rule.clone() };
        let item = Arc::new(Item::part_of(&self.item, &rule).with_compat(compat));
        parts.by_spec.insert(spec, Arc::downgrade(&item));
        item
    }
}

struct Shared {
    scope: Scope,
    sender: watch::Sender<Option<Arc<View>>>,
}

/// A rule that changed.
struct Change {
    key: Arc<str>,
    /// Now in `prepared`.
    present: bool,
}

impl Views {
    /// Views of an index. They stay current while [`Views::run`] runs.
    pub fn new(index: Index, owners: Owners, root: Root, debounce: Debounce) -> Self {
        let snapshot = index.snapshot();
        let inner = Inner {
            state: Mutex::new(State {
                // Nothing is prepared yet, so begin from a snapshot with nothing in it.
                snapshot: Index::new(&[], snapshot.lineage.clone()).snapshot(),
                owners,
                prepared: BTreeMap::new(),
                interests: BTreeMap::new(),
                views: HashMap::new(),
            }),
            index,
            root,
            debounce,
            advances: watch::Sender::new(0),
        };
        inner.lock().advance(&inner, snapshot);
        Self { inner: Arc::new(inner) }
    }

    /// A place at the view of a scope and kind. It shows `None` until the index
    /// has its first complete list.
    pub fn subscribe(&self, scope: &Scope, kind: Kind) -> Subscription {
        let scope = scope.clone();
        let (key, receiver) = self.inner.lock().place(&scope, kind);
        Subscription { receiver: Some(receiver), scope, key, inner: self.inner.clone() }
    }

    /// How many views there are.
    pub fn len(&self) -> usize {
        self.inner.lock().views.len()
    }

    /// Whether nobody is subscribed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index that these are views of.
    pub fn index(&self) -> &Index {
        &self.inner.index
    }

    /// A rule as it is delivered, where it is as a whole; `None` when it is not in force or
    /// disabled.
    pub fn item(&self, id: &ResourceId) -> Option<Arc<Item>> {
        let state = self.inner.lock();
        let prepared = state.prepared.get(&id.kind)?.get(id.key().as_str())?;
        Some(prepared.item.clone())
    }

    /// Whether clients of a scope see a rule; false when it is not in force or disabled.
    pub fn sees(&self, scope: &Scope, id: &ResourceId) -> bool {
        self.given(scope, id.kind, &id.key()).is_some()
    }

    /// What clients of a scope get of a rule, by kind and key; `None` when they do not see it,
    /// or it is not in force or disabled.
    pub fn given(&self, scope: &Scope, kind: Kind, key: &str) -> Option<Arc<Item>> {
        self.inner.lock().prepared.get(&kind)?.get(key)?.given(scope)
    }

    /// The version of a rule that is in force ([`Item::version`]); `None` when there is none.
    pub fn version(&self, kind: Kind, key: &str) -> Option<Digest> {
        Some(self.inner.lock().prepared.get(&kind)?.get(key)?.item.version)
    }

    /// What the views show now.
    pub fn shown(&self) -> Shown {
        let state = self.inner.lock();
        let mut views: BTreeMap<Kind, HashMap<Digest, Arc<View>>> = BTreeMap::new();
        for ((scope, kind), shared) in &state.views {
            if let Some(view) = &*shared.sender.borrow() {
                views.entry(*kind).or_default().insert(*scope, view.clone());
            }
        }
        Shown { snapshot: state.snapshot.clone(), views }
    }

    /// Changes whenever the views have come to show another state of the index. The number
    /// only counts.
    pub fn advances(&self) -> watch::Receiver<u64> {
        self.inner.advances.subscribe()
    }

    /// Keeps the views current until shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        let Debounce { quiet, ceiling } = self.inner.debounce;
        let mut changes = self.inner.index.changes();
        // A change between `new` and now would otherwise wait for the next one.
        changes.mark_changed();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                // The sender lives in the index that `self` holds.
                _ = changes.changed() => {}
            }
            let latest = Instant::now() + ceiling;
            loop {
                let until = (Instant::now() + quiet).min(latest);
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep_until(until) => break,
                    _ = changes.changed() => {}
                }
                if Instant::now() >= latest {
                    break;
                }
            }
            self.refresh();
        }
    }

    /// Brings the views to the index's state at once. [`Views::run`] does it in time.
    pub fn refresh(&self) {
        let mut state = self.inner.lock();
        // Read under the lock, so that an older snapshot never follows a newer one.
        let snapshot = self.inner.index.snapshot();
        state.advance(&self.inner, snapshot);
        drop(state);
        self.inner.advances.send_modify(|count| *count += 1);
    }
}

impl fmt::Debug for Views {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Views").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prepare(&self, owners: &Owners, stored: &Stored) -> Option<Prepared> {
        let resource = &stored.resource;
        let spec = &resource.spec;
        if !spec.enabled() {
            return None;
        }
        let target = spec.target();
        let id = &resource.id;
        let reach = Reach::new(&self.root, owners, id.kind.phase, &id.namespace, target.as_ref());
        let rule = Rule {
            key: id.key(),
            target,
            tier: reach.tier,
            priority: spec.priority(),
            enforcement: resource.enforcement() as i32,
            spec: spec.encode(),
            created: resource.created,
        };
        let shadow = resource.enforcement() == Enforcement::Shadow;
        let item = Item::new(&rule).with_compat(spec.compat().filter(|_| !shadow));
        Some(Prepared {
            reach,
            spec: spec.clone(),
            shadow,
            rule: Rule { spec: Bytes::new(), ..rule },
            item: Arc::new(item),
            parts: Mutex::default(),
        })
    }
}

impl State {
    /// Prepares what changed and publishes the views that it concerns.
    fn advance(&mut self, inner: &Inner, snapshot: Arc<Snapshot>) {
        if Arc::ptr_eq(&self.snapshot, &snapshot) {
            return;
        }
        let before = std::mem::replace(&mut self.snapshot, snapshot.clone());
        let first = !before.listed && snapshot.listed;
        let kinds: BTreeSet<Kind> = snapshot.kinds().chain(before.kinds()).collect();
        let mut changes: BTreeMap<Kind, Vec<Change>> = BTreeMap::new();
        // Who owns what first: where a rule stands follows from it.
        let former = self.register(inner, &before);
        for kind in kinds {
            let (old, new) = (before.kind(kind), snapshot.kind(kind));
            if !Arc::ptr_eq(old, new) || former.is_some() {
                let prepared = self.prepared.entry(kind).or_default();
                let owners = (former.as_ref(), &self.owners);
                let changed = prepare_changed(inner, owners, prepared, old, new);
                if !changed.is_empty() {
                    self.regroup(kind);
                    changes.insert(kind, changed);
                }
            }
        }
        if !snapshot.listed {
            return;
        }
        for ((_, kind), shared) in &self.views {
            let current = shared.sender.borrow().clone();
            let next = match current {
                Some(current) if !first => {
                    let Some(changes) = changes.get(kind) else { continue };
                    match self.changed_view(&current, &shared.scope, changes) {
                        Some(next) => Some(next),
                        None => continue,
                    }
                }
                _ => self.view(&shared.scope, *kind),
            };
            shared.sender.send_if_modified(|current| {
                let same = match (&*current, &next) {
                    (Some(a), Some(b)) => a.set_digest == b.set_digest,
                    _ => false,
                };
                if !same {
                    *current = next;
                }
                !same
            });
        }
    }

    /// Learns who owns what by the rules of the snapshot; the former owners where it is
    /// something else than before.
    fn register(&mut self, inner: &Inner, before: &Snapshot) -> Option<Owners> {
        let kind = Kind::SERVICE_NAME_MAPPING;
        let mappings = self.snapshot.kind(kind);
        if Arc::ptr_eq(before.kind(kind), mappings) {
            return None;
        }
        let owners = self.owners.registered(mappings, &inner.root);
        (owners != self.owners).then(|| std::mem::replace(&mut self.owners, owners))
    }

    /// Looks at what the rules of a kind look at. Where it is something else than before, other
    /// clients belong together: the views end, and each subscription finds its new one.
    fn regroup(&mut self, kind: Kind) {
        let mut interest = Interest::default();
        for prepared in self.prepared.get(&kind).into_iter().flat_map(|rules| rules.values()) {
            interest.join(prepared.spec.interest());
        }
        let before = self.interests.entry(kind).or_default();
        if *before != interest {
            *before = interest;
            self.views.retain(|(_, of), _| *of != kind);
        }
    }

    /// A place at the view for a client of this scope.
    fn place(&mut self, scope: &Scope, kind: Kind) -> (Key, Receiver) {
        let scope = scope.narrowed(self.interests.entry(kind).or_default());
        let key = (scope.hash(), kind);
        if let Some(shared) = self.views.get(&key) {
            return (key, shared.sender.subscribe());
        }
        let sender = watch::Sender::new(self.view(&scope, kind));
        let receiver = sender.subscribe();
        self.views.insert(key, Shared { scope, sender });
        (key, receiver)
    }

    /// The whole view of a scope.
    fn view(&self, scope: &Scope, kind: Kind) -> Option<Arc<View>> {
        if !self.snapshot.listed {
            return None;
        }
        let items = self
            .prepared
            .get(&kind)
            .into_iter()
            .flat_map(|rules| rules.values())
            .filter_map(|prepared| prepared.given(scope))
            .collect();
        Some(Arc::new(self.make(kind, scope.hash(), items)))
    }

    /// The view after some changes; `None` when they do not concern its scope.
    fn changed_view(&self, view: &View, scope: &Scope, changes: &[Change]) -> Option<Arc<View>> {
        let rules = self.prepared.get(&view.kind)?;
        let mut items: Option<BTreeMap<&str, Arc<Item>>> = None;
        for change in changes {
            let before = view.get(&change.key);
            let now = change.present.then(|| rules.get(&change.key)?.given(scope)).flatten();
            if before.map(|item| item.digest) == now.as_ref().map(|item| item.digest) {
                continue;
            }
            let items = items.get_or_insert_with(|| {
                view.items.iter().map(|item| (item.key.as_str(), item.clone())).collect()
            });
            match now {
                Some(now) => items.insert(&change.key, now),
                None => items.remove(&*change.key),
            };
        }
        let items = items?.into_values().collect();
        Some(Arc::new(self.make(view.kind, view.scope_hash, items)))
    }

    fn make(&self, kind: Kind, scope_hash: Digest, items: Vec<Arc<Item>>) -> View {
        View::new(kind, self.snapshot.lineage.clone(), scope_hash, self.snapshot.revision, items)
    }
}

/// Brings `prepared` from one state of a kind to the next and says what changed. `owners`: the
/// former, where they are others than before, and those of now.
fn prepare_changed(
    inner: &Inner,
    (former, owners): (Option<&Owners>, &Owners),
    prepared: &mut BTreeMap<Arc<str>, Prepared>,
    old: &Rules,
    new: &Rules,
) -> Vec<Change> {
    let mut changes = Vec::new();
    for (key, stored) in new {
        let moved = || {
            let Some(former) = former else { return false };
            let target = stored.resource.spec.target();
            target.is_some_and(|target| former.of(&target) != owners.of(&target))
        };
        if old.get(key).is_some_and(|o| o.digest == stored.digest) && !moved() {
            continue;
        }
        let now = inner.prepare(owners, stored);
        let present = now.is_some();
        match now {
            Some(now) => prepared.insert(key.clone(), now),
            None => prepared.remove(key),
        };
        changes.push(Change { key: key.clone(), present });
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        prepared.remove(key);
        changes.push(Change { key: key.clone(), present: false });
    }
    changes
}

impl Subscription {
    /// The view now; `None` until the index has its first complete list. Marks it as seen.
    pub fn current(&mut self) -> Option<Arc<View>> {
        if self.receiver.as_ref().is_some_and(|receiver| receiver.has_changed().is_err()) {
            self.move_on();
        }
        self.receiver.as_mut().and_then(|receiver| receiver.borrow_and_update().clone())
    }

    /// Waits until the view is another than the one seen last, and returns it.
    /// Dropping the future loses nothing. Views skipped meanwhile are not shown.
    pub async fn changed(&mut self) -> Option<Arc<View>> {
        loop {
            let Some(receiver) = self.receiver.as_mut() else {
                // Only while it is dropped.
                return std::future::pending().await;
            };
            if receiver.changed().await.is_ok() {
                return receiver.borrow_and_update().clone();
            }
            // The view has ended, since clients are grouped otherwise now.
            self.move_on();
            if let Some(view) = self.current() {
                return Some(view);
            }
        }
    }

    /// Takes a place at the view that clients of the scope have now.
    fn move_on(&mut self) {
        let (key, receiver) = self.inner.lock().place(&self.scope, self.key.1);
        self.key = key;
        self.receiver = Some(receiver);
    }

    /// Of which kind.
    pub fn kind(&self) -> Kind {
        self.key.1
    }

    /// Of which scope, by its hash.
    pub fn scope_hash(&self) -> Digest {
        self.key.0
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        self.receiver = None;
        if state.views.get(&self.key).is_some_and(|shared| shared.sender.receiver_count() == 0) {
            state.views.remove(&self.key);
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("kind", &self.key.1).finish_non_exhaustive()
    }
}
