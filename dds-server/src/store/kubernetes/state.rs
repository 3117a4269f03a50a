//! What is known of the objects, and which rules are in force by that. Without I/O.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use rulecast_api::{Digest, Kind, Kinds, Resource, ResourceId, manifest::Problem};

use super::object::{Content, Reading, origin, problem};
use crate::store::{Event, StoreProblem, Stored, Version};

/// Removals that writers may still ask about.
const REMOVALS: usize = 1024;

/// A loss is great from so many rules of a kind on.
const MANY: usize = 20;

/// An object that is there.
struct Held {
    /// Its rule in force.
    stored: Option<Stored>,
    /// The newest state of the object that was seen.
    revision: i64,
    version: Version,
    status: Option<Box<str>>,
    /// An older state of the object says nothing about its status.
    status_revision: i64,
}

#[derive(Default)]
struct Known {
    /// A complete list was read in this epoch.
    listed: bool,
    /// The highest revision seen.
    high: i64,
    objects: BTreeMap<ResourceId, Held>,
}

/// A change that a watch tells.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives for a moment; a box would be made per event"
)]
pub(super) enum Change {
    /// An object is there, as it says.
    Upsert(Reading),
    /// An object is gone.
    Remove { id: ResourceId, revision: i64 },
}

/// A complete list of a kind.
pub(super) struct List {
    pub(super) at: i64,
    pub(super) readings: Vec<Reading>,
}

/// How much of a list is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// What looks like an accident must be seen twice: a great loss.
    Most,
    /// Any loss looks like one: the kind itself was gone.
    Little,
    /// It was seen twice.
    Full,
}

/// What became of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Whole,
    /// What is not on it stays until another list says the same.
    Doubted,
    /// It belongs to an earlier epoch, or begins a new one. Read it again.
    Outdated,
}

/// What watchers are to learn.
#[derive(Default)]
pub(super) struct Output {
    pub(super) events: Vec<Event>,
    /// Everybody needs a complete list.
    pub(super) all: bool,
}

/// An object as a writer asks for it.
pub(super) struct Seen {
    /// Of the object's newest state that a list or watch told.
    pub(super) revision: i64,
    /// The same, or of a later state that a writer of status has told of.
    pub(super) newest: i64,
    /// Of the rule in force: when its content last changed, and what it is.
    pub(super) stored: Option<(i64, Digest)>,
}

pub(super) struct State {
    kinds: BTreeMap<Kind, Known>,
    /// Which history the revisions belong to, once that is known.
    lineage: Option<Arc<str>>,
    /// Counts how often the storage was set back.
    epoch: u64,
    /// Tells this history from the one before the storage was set back.
    marker: Option<String>,
    /// A complete list of this epoch was given out.
    given: bool,
    revision: i64,
    bad: BTreeMap<ResourceId, Vec<StoreProblem>>,
    problems: Arc<[StoreProblem]>,
    /// Why a kind, or with `None` the cluster itself, cannot be read.
    down: BTreeMap<Option<Kind>, StoreProblem>,
    told_down: Option<StoreProblem>,
    removals: VecDeque<(ResourceId, i64)>,
    output: Output,
}

impl State {
    pub(super) fn new(kinds: Kinds) -> Self {
        Self {
            kinds: kinds.iter().map(|kind| (*kind, Known::default())).collect(),
            lineage: None,
            epoch: 0,
            marker: None,
            given: false,
            revision: 0,
            bad: BTreeMap::new(),
            problems: Arc::from([]),
            down: BTreeMap::new(),
            told_down: None,
            removals: VecDeque::new(),
            output: Output::default(),
        }
    }

    // ---- what others ask ----

    pub(super) fn lineage(&self) -> Option<&Arc<str>> {
        self.lineage.as_ref()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn given(&self) -> bool {
        self.given
    }

    pub(super) fn seen(&self, id: &ResourceId) -> Option<Seen> {
        let held = self.kinds.get(&id.kind)?.objects.get(id)?;
        Some(Seen {
            revision: held.revision,
            newest: held.revision.max(held.status_revision),
            stored: held.stored.as_ref().map(|stored| (stored.revision, stored.digest)),
        })
    }

    /// When an object was removed, if that is not long ago and was after `after`.
    pub(super) fn removed(&self, id: &ResourceId, after: i64) -> Option<i64> {
        let mut found = self.removals.iter().rev().filter(|(other, _)| other == id);
        found.next().map(|(_, revision)| *revision).filter(|revision| *revision > after)
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) fn status(&self, id: &ResourceId) -> Option<&str> {
        self.kinds.get(&id.kind)?.objects.get(id)?.status.as_deref()
    }

    /// All there is, for somebody who knows nothing; nothing before the first complete list,
    /// but for why there is none.
    pub(super) fn list(&self) -> Vec<Event> {
        let mut events = Vec::new();
        if self.given {
            events.extend(self.lineage.clone().map(Event::Lineage));
            events.push(Event::Listing);
            let objects = self.kinds.values().flat_map(|known| known.objects.values());
            events.extend(objects.filter_map(|held| held.stored.clone()).map(Event::Upsert));
            events.push(Event::Listed { revision: self.revision });
            events.push(Event::Problems(self.problems.clone()));
        }
        events.extend(self.told_down.clone().map(Event::Down));
        events
    }
}

impl State {
    // ---- what is learnt ----

    /// The cluster's own name was read.
    pub(super) fn name(&mut self, epoch: u64, cluster: &str) {
        if epoch == self.epoch && self.lineage.is_none() {
            self.lineage = Some(match &self.marker {
                Some(marker) => format!("{cluster}.{marker}").into(),
                None => cluster.into(),
            });
            self.down.remove(&None);
            self.give();
        }
    }

    /// Keeps of what was read only what is new, so that a list is not held twice.
    pub(super) fn lighten(&self, reading: &mut Reading) {
        let held = self.kinds.get(&reading.id.kind).and_then(|k| k.objects.get(&reading.id));
        if let (Content::Good(_, digest), Some(Held { stored: Some(stored), version, .. })) =
            (&reading.content, held)
            && (stored.digest, &version.uid) == (*digest, &reading.version.uid)
        {
            reading.content = Content::Same;
        }
    }

    /// The rules in force that are not on a list.
    fn lost(&self, kind: Kind, list: &List) -> BTreeSet<ResourceId> {
        let there: BTreeSet<&ResourceId> = list.readings.iter().map(|r| &r.id).collect();
        let objects = self.kinds.get(&kind).into_iter().flat_map(|known| &known.objects);
        objects.filter(|(id, _)| !there.contains(id)).map(|(id, _)| id.clone()).collect()
    }

    /// Whether a list lacks something that is known.
    pub(super) fn lacks(&self, kind: Kind, list: &List) -> bool {
        !self.lost(kind, list).is_empty()
    }

    /// Takes a complete list.
    pub(super) fn complete(&mut self, kind: Kind, epoch: u64, list: List, trust: Trust) -> Taken {
        if self.moved(kind, epoch, list.at) {
            return Taken::Outdated;
        }
        let lost = self.lost(kind, &list);
        let Some(known) = self.kinds.get_mut(&kind) else { return Taken::Whole };
        let fresh = !known.listed;
        let in_force =
            |id: &&ResourceId| known.objects.get(*id).is_some_and(|h| h.stored.is_some());
        let rules = known.objects.values().filter(|held| held.stored.is_some()).count();
        let gone = lost.iter().filter(in_force).count();
        let doubted = match trust {
            Trust::Full => false,
            Trust::Most => rules >= MANY && gone * 2 > rules,
            Trust::Little => gone > 0,
        };
        known.listed = true;
        known.high = list.at;
        self.revision = self.revision.max(list.at);
        for id in lost {
            if !doubted {
                self.remove(&id, list.at);
            } else if fresh
                && let Some(Held { stored: Some(stored), revision, .. }) =
                    self.kinds.get_mut(&kind).and_then(|known| known.objects.get_mut(&id))
            {
                // Of another history; in this one it can only be older than the list.
                stored.revision = stored.revision.min(list.at);
                *revision = (*revision).min(list.at);
            }
        }
        for reading in list.readings {
            self.take(reading, fresh);
        }
        self.give();
        if doubted { Taken::Doubted } else { Taken::Whole }
    }

    /// Takes changes that a watch has told, up to the revision `at`. False: they are of an
    /// earlier epoch.
    pub(super) fn apply(&mut self, kind: Kind, epoch: u64, changes: Vec<Change>, at: i64) -> bool {
        if epoch != self.epoch {
            return false;
        }
        for change in changes {
            match change {
                Change::Upsert(reading) => self.take(reading, false),
                Change::Remove { id, revision } => {
                    let older = self.seen(&id).is_some_and(|seen| seen.revision <= revision);
                    if older {
                        self.remove(&id, revision);
                    }
                }
            }
        }
        if let Some(known) = self.kinds.get_mut(&kind) {
            known.high = known.high.max(at);
        }
        true
    }

    /// Whether the storage is no longer the one that was read: it has been set back, which
    /// begins a new epoch, or somebody else has seen that already.
    pub(super) fn moved(&mut self, kind: Kind, epoch: u64, at: i64) -> bool {
        if epoch != self.epoch {
            return true;
        }
        let high = self.kinds.get(&kind).map(|known| known.high).unwrap_or_default();
        if at >= high {
            return false;
        }
        tracing::warn!(
            %kind, seen = high, now = at,
            "the API server's storage was set back; its rules are read anew, as another lineage"
        );
        self.epoch += 1;
        self.lineage = None;
        self.marker = Some(format!("{:08x}", fastrand::u32(..)));
        self.given = false;
        self.revision = 0;
        self.removals.clear();
        for known in self.kinds.values_mut() {
            known.listed = false;
            known.high = 0;
            for held in known.objects.values_mut() {
                held.status_revision = 0;
            }
        }
        true
    }

    /// A status that was written, with the state of the object that it made.
    pub(super) fn note_status(&mut self, id: &ResourceId, status: &str, revision: i64) {
        let held = self.kinds.get_mut(&id.kind).and_then(|known| known.objects.get_mut(id));
        if let Some(held) = held.filter(|held| held.status_revision.max(held.revision) < revision) {
            held.status = Some(status.into());
            held.status_revision = revision;
        }
    }

    /// True: that is news.
    pub(super) fn set_down(&mut self, kind: Option<Kind>, problem: StoreProblem) -> bool {
        self.down.insert(kind, problem).is_none()
    }

    pub(super) fn set_up(&mut self, kind: Kind) {
        self.down.remove(&Some(kind));
    }

    /// Whether anything of a kind is in force.
    pub(super) fn holds(&self, kind: Option<Kind>) -> bool {
        self.kinds
            .iter()
            .filter(|(of, _)| kind.is_none_or(|kind| kind == **of))
            .any(|(_, known)| known.objects.values().any(|held| held.stored.is_some()))
    }
}

impl State {
    // ---- what follows ----

    /// One object as it is now. `fresh`: revisions known so far belong to another history.
    fn take(&mut self, reading: Reading, fresh: bool) {
        let Reading { id, version, revision, content, status } = reading;
        let Some(known) = self.kinds.get_mut(&id.kind) else { return };
        let old = known.objects.get_mut(&id);
        if !fresh && old.as_ref().is_some_and(|old| old.revision >= revision) {
            return;
        }
        let mut held = Held { stored: None, revision, version, status, status_revision: 0 };
        let (mut before, mut same_object) = (None, false);
        if let Some(old) = old {
            same_object = old.version.uid == held.version.uid;
            if old.status_revision > revision && same_object {
                held.status = old.status.take();
                held.status_revision = old.status_revision;
            }
            before = old.stored.take();
        }
        // The same content keeps the revision at which it came.
        let since = |digest: Digest| match &before {
            Some(before) if !fresh && before.digest == digest => before.revision,
            _ => revision,
        };
        let mut problems = Vec::new();
        held.stored = match content {
            Content::Good(resource, digest) => {
                Some(stored(resource, digest, since(digest), held.version.clone()))
            }
            Content::Same => before.clone().map(|before| Stored {
                revision: since(before.digest),
                accepted: true,
                version: held.version.clone(),
                ..before
            }),
            Content::Bad(found, last) => {
                let kept = match (&before, last) {
                    (Some(before), _) if same_object => Some(before.clone()),
                    (_, Some((resource, digest))) => {
                        Some(stored(resource, digest, revision, held.version.clone()))
                    }
                    _ => None,
                };
                problems = found;
                kept.map(|kept| Stored {
                    revision: since(kept.digest),
                    accepted: false,
                    version: held.version.clone(),
                    ..kept
                })
            }
        };
        self.refuse(&id, &held, problems);
        let event = match (&before, &held.stored) {
            (None, None) => None,
            (Some(_), None) => Some(Event::Remove { id: id.clone(), revision }),
            (Some(before), Some(now)) if same(before, now) => None,
            (_, Some(now)) => Some(Event::Upsert(now.clone())),
        };
        if let Some(known) = self.kinds.get_mut(&id.kind) {
            known.high = known.high.max(revision);
            known.objects.insert(id, held);
        }
        self.revision = self.revision.max(revision);
        self.tell(event);
    }

    fn remove(&mut self, id: &ResourceId, revision: i64) {
        let Some(known) = self.kinds.get_mut(&id.kind) else { return };
        let Some(held) = known.objects.remove(id) else { return };
        self.bad.remove(id);
        self.revision = self.revision.max(revision);
        if self.removals.len() == REMOVALS {
            self.removals.pop_front();
        }
        self.removals.push_back((id.clone(), revision));
        self.tell(held.stored.map(|_| Event::Remove { id: id.clone(), revision }));
    }

    fn refuse(&mut self, id: &ResourceId, held: &Held, problems: Vec<Problem>) {
        let kept = held.stored.is_some();
        let problems: Vec<StoreProblem> =
            problems.into_iter().map(|found| problem(id, &held.version, found, kept)).collect();
        if problems.is_empty() {
            self.bad.remove(id);
        } else {
            for problem in &problems {
                tracing::warn!(%problem, last_good_in_force = kept, "rule refused");
            }
            self.bad.insert(id.clone(), problems);
        }
    }

    fn tell(&mut self, event: Option<Event>) {
        if self.given {
            self.output.events.extend(event);
        }
    }

    /// Gives out the first complete list, once there is one of every kind.
    fn give(&mut self) {
        if !self.given && self.lineage.is_some() && self.kinds.values().all(|known| known.listed) {
            self.given = true;
            self.output.all = true;
            self.output.events.clear();
        }
    }

    /// What watchers are to learn since the last call.
    pub(super) fn output(&mut self) -> Output {
        let mut output = std::mem::take(&mut self.output);
        let problems = || self.bad.values().flatten();
        if self.given && !problems().eq(self.problems.iter()) {
            self.problems = problems().cloned().collect();
            output.events.push(Event::Problems(self.problems.clone()));
        }
        let down = self.down.values().next();
        if down != self.told_down.as_ref() {
            self.told_down = down.cloned();
            output.events.push(self.told_down.clone().map_or(Event::Up, Event::Down));
        }
        output
    }
}

fn stored(resource: Resource, digest: Digest, revision: i64, version: Version) -> Stored {
    let origin = origin(&resource.id);
    Stored { resource, revision, digest, origin, accepted: true, version }
}

/// Whether two states of a rule are the same for whoever watches.
fn same(a: &Stored, b: &Stored) -> bool {
    (a.digest, a.accepted, &a.version) == (b.digest, b.accepted, &b.version)
}
