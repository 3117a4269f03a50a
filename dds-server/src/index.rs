//! The index: all rules in force, typed and with digests.
//!
//! It holds one immutable [`Snapshot`] at a time and replaces it once per batch
//! of store events, so a reader never sees half of a change. Content equal by
//! digest changes nothing that views go by.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use rulecast_api::{Kind, Kinds, ResourceId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::store::{Event, Store, StoreProblem, Stored};

/// The rules of one kind, by their key `<name>/<namespace>`.
pub type Rules = BTreeMap<Arc<str>, Arc<Stored>>;

/// All that is known at one moment. Immutable.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Which history `revision` belongs to.
    pub lineage: Arc<str>,
    /// The store's revision that this shows; never goes back within a lineage.
    pub revision: i64,
    /// A complete list has been seen. Before that there is nothing to serve.
    pub listed: bool,
    /// Why the store cannot be read now; the rules are then the last known.
    pub down: Option<StoreProblem>,
    /// All that could not be taken.
    pub problems: Arc<[StoreProblem]>,
    rules: BTreeMap<Kind, Arc<Rules>>,
    empty: Arc<Rules>,
}

impl Snapshot {
    /// The rules of a kind. The same pointer as long as none of them changed.
    pub fn kind(&self, kind: Kind) -> &Arc<Rules> {
        self.rules.get(&kind).unwrap_or(&self.empty)
    }

    /// The kinds there may be rules of.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.rules.keys().copied()
    }

    /// All rules, ordered by kind and key.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Stored>> {
        self.rules.values().flat_map(|rules| rules.values())
    }

    /// One rule.
    pub fn get(&self, id: &ResourceId) -> Option<&Arc<Stored>> {
        self.kind(id.kind).get(id.key().as_str())
    }

    /// How many rules are in force.
    pub fn len(&self) -> usize {
        self.rules.values().map(|rules| rules.len()).sum()
    }

    /// Whether no rule is in force.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The store ended under the index.
#[derive(Debug, thiserror::Error)]
#[error("{}: the rule store has ended", rulecast_api::Code::StoreDown)]
pub struct StoreEnded;

/// A handle to the index; clones share it.
#[derive(Clone, Debug)]
pub struct Index {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    current: ArcSwap<Snapshot>,
    generation: watch::Sender<u64>,
    // One writer at a time; readers go by `current`.
    writer: Mutex<()>,
}

impl Index {
    /// An empty index that waits for its first complete list. A lineage that is not known
    /// yet is empty.
    pub fn new(kinds: Kinds, lineage: Arc<str>) -> Self {
        let snapshot = Snapshot {
            lineage,
            revision: 0,
            listed: false,
            down: None,
            problems: Arc::from([]),
            rules: kinds.iter().map(|kind| (*kind, Arc::default())).collect(),
            empty: Arc::default(),
        };
        Self {
            shared: Arc::new(Shared {
                current: ArcSwap::from_pointee(snapshot),
                generation: watch::Sender::new(0),
                writer: Mutex::new(()),
            }),
        }
    }

    /// What is known now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.current.load_full()
    }

    /// Changes whenever the snapshot does. The number only counts.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.generation.subscribe()
    }

    /// Applies a batch as a whole.
    pub fn apply(&self, batch: Vec<Event>) {
        if batch.is_empty() {
            return;
        }
        let guard = self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Snapshot::clone(&self.shared.current.load());
        let mut listing: Option<BTreeSet<ResourceId>> = None;
        let mut renewed = false;
        for event in batch {
            match event {
                Event::Lineage(lineage) if lineage == next.lineage => {}
                Event::Lineage(lineage) => {
                    next.lineage = lineage;
                    next.revision = 0;
                    renewed = true;
                }
                Event::Listing => listing = Some(BTreeSet::new()),
                Event::Upsert(stored) => {
                    if let Some(seen) = &mut listing {
                        seen.insert(stored.resource.id.clone());
                    }
                    next.upsert(stored, renewed);
                }
                Event::Remove { id, revision } => next.remove(&id, revision),
                Event::Problems(problems) => next.problems = problems,
                Event::Listed { revision } => {
                    if let Some(seen) = listing.take() {
                        let gone: Vec<_> = next
                            .rules()
                            .map(|s| s.resource.id.clone())
                            .filter(|id| !seen.contains(id))
                            .collect();
                        for id in gone {
                            next.remove(&id, revision);
                        }
                    }
                    next.revision = next.revision.max(revision);
                    next.listed = true;
                    next.down = None;
                }
                Event::Down(problem) => next.down = Some(problem),
                Event::Up => next.down = None,
            }
        }
        self.shared.current.store(Arc::new(next));
        self.shared.generation.send_modify(|generation| *generation += 1);
        drop(guard);
    }

    /// Follows a store until shutdown. An error means that the store has ended.
    pub async fn run(
        self,
        store: Arc<dyn Store>,
        shutdown: CancellationToken,
    ) -> Result<(), StoreEnded> {
        let mut watch = store.watch();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                batch = watch.next() => self.apply(batch.ok_or(StoreEnded)?),
            }
        }
    }
}

impl Snapshot {
    /// `renewed`: the revisions known so far belong to another lineage.
    fn upsert(&mut self, mut stored: Stored, renewed: bool) {
        self.revision = self.revision.max(stored.revision);
        let rules = self.rules.entry(stored.resource.id.kind).or_default();
        let key: Arc<str> = stored.resource.id.key().into();
        let same = |old: &&Arc<Stored>| old.digest == stored.digest && !renewed;
        if let Some(old) = rules.get(&key).filter(same) {
            if (&old.origin, old.accepted, &old.version)
                == (&stored.origin, stored.accepted, &stored.version)
            {
                return;
            }
            // The same content keeps its revision, wherever it now stands.
            stored.revision = old.revision;
        }
        Arc::make_mut(rules).insert(key, Arc::new(stored));
    }

    fn remove(&mut self, id: &ResourceId, revision: i64) {
        self.revision = self.revision.max(revision);
        let key = id.key();
        if let Some(rules) = self.rules.get_mut(&id.kind)
            && rules.contains_key(key.as_str())
        {
            Arc::make_mut(rules).remove(key.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance::{KIND, KINDS, stored};

    #[test]
    fn a_batch_is_one_change_and_equal_content_is_none() {
        let index = Index::new(KINDS, "l".into());
        let mut changes = index.changes();
        assert!(!index.snapshot().listed);
        index.apply(vec![
            Event::Listing,
            Event::Upsert(stored("a", "default", "com.A", 1, 5)),
            Event::Upsert(stored("b", "default", "com.B", 1, 6)),
            Event::Listed { revision: 9 },
        ]);
        assert!(changes.has_changed().expect("open"));
        assert_eq!(*changes.borrow_and_update(), 1);
        let first = index.snapshot();
        assert_eq!((first.revision, first.len(), first.listed), (9, 2, true));

        // The same content at a later revision: the very same map.
        index.apply(vec![Event::Upsert(stored("a", "default", "com.A", 1, 12))]);
        let second = index.snapshot();
        assert!(Arc::ptr_eq(first.kind(KIND), second.kind(KIND)));
        assert_eq!(second.revision, 12);

        index.apply(vec![
            Event::Upsert(stored("a", "default", "com.A", 2, 13)),
            Event::Remove { id: stored("b", "default", "com.B", 1, 0).resource.id, revision: 14 },
        ]);
        let third = index.snapshot();
        assert_eq!((third.revision, third.len()), (14, 1));
        assert_eq!(first.len(), 2, "a snapshot never changes");
    }

    #[test]
    fn a_new_writing_is_told_and_keeps_the_revision() {
        let index = Index::new(KINDS, "l".into());
        let rule = stored("a", "default", "com.A", 1, 5);
        index.apply(vec![
            Event::Listing,
            Event::Upsert(rule.clone()),
            Event::Listed { revision: 5 },
        ]);
        let version = crate::store::Version { uid: "u".into(), generation: 7 };
        index.apply(vec![Event::Upsert(Stored { version: version.clone(), revision: 9, ..rule })]);
        let snapshot = index.snapshot();
        let now = snapshot.rules().next().expect("a rule");
        assert_eq!((&now.version, now.revision, snapshot.revision), (&version, 5, 9));
    }

    #[test]
    fn a_store_that_was_set_back_begins_its_revisions_anew() {
        let index = Index::new(KINDS, "".into());
        let list = |lineage: &str, value, revision| {
            vec![
                Event::Lineage(lineage.into()),
                Event::Listing,
                Event::Upsert(stored("a", "default", "com.A", value, revision)),
                Event::Listed { revision: revision + 1 },
            ]
        };
        index.apply(list("l", 1, 100));
        index.apply(list("l", 1, 110));
        let seen = |index: &Index| {
            let snapshot = index.snapshot();
            let rule = snapshot.rules().next().expect("a rule").revision;
            (snapshot.lineage.to_string(), snapshot.revision, rule)
        };
        assert_eq!(seen(&index), ("l".into(), 111, 100), "the same lineage again is none");
        index.apply(list("m", 1, 50));
        assert_eq!(seen(&index), ("m".into(), 51, 50));
    }

    #[test]
    fn a_new_list_replaces_and_a_store_that_is_down_keeps() {
        let index = Index::new(KINDS, "l".into());
        index.apply(vec![
            Event::Listing,
            Event::Upsert(stored("a", "default", "com.A", 1, 1)),
            Event::Upsert(stored("b", "default", "com.B", 1, 2)),
            Event::Listed { revision: 2 },
        ]);
        let problem = StoreProblem {
            file: String::new(),
            line: 0,
            column: 0,
            code: rulecast_api::Code::StoreDown,
            field: String::new(),
            value: None,
            message: "gone".into(),
            hint: String::new(),
            resource: String::new(),
            last_good_in_force: true,
            object: None,
        };
        index.apply(vec![Event::Down(problem.clone())]);
        assert_eq!((index.snapshot().len(), index.snapshot().down.clone()), (2, Some(problem)));
        index.apply(vec![
            Event::Up,
            Event::Listing,
            Event::Upsert(stored("b", "default", "com.B", 1, 2)),
            Event::Listed { revision: 3 },
        ]);
        let now = index.snapshot();
        assert_eq!((now.len(), now.down.is_none(), now.revision), (1, true, 3));
    }
}
