//! What is known about all objects at one moment.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use rulecast_api::{Digest, Kind, ResourceId};

use super::Key;
use crate::{
    index::Snapshot,
    rollout::{KindRollout, RuleRollout},
    store::{StoreProblem, Stored, Version},
};

/// Rules, problems, and who holds what.
#[derive(Debug)]
pub(super) struct World {
    snapshot: Arc<Snapshot>,
    rollouts: BTreeMap<Kind, KindRollout>,
    /// Places in the snapshot's list.
    problems: HashMap<Key, Vec<usize>>,
}

/// All that a wanted status comes from, in short: equal facts, equal status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    generation: i64,
    accepted: Option<bool>,
    content: Option<Digest>,
    counts: [usize; 6],
    words: u64,
}

impl World {
    pub(super) fn new(snapshot: Arc<Snapshot>, rollouts: BTreeMap<Kind, KindRollout>) -> Self {
        let mut problems: HashMap<Key, Vec<usize>> = HashMap::new();
        for (at, problem) in snapshot.problems.iter().enumerate() {
            if let Some((id, _)) = &problem.object {
                problems.entry((id.kind, id.key().into())).or_default().push(at);
            }
        }
        Self { snapshot, rollouts, problems }
    }

    /// All objects, each once, with the writing that is stored now.
    pub(super) fn objects(&self) -> impl Iterator<Item = (Key, &Version, Option<&Stored>)> {
        let rules = self.snapshot.kinds().flat_map(|kind| {
            let rules = self.snapshot.kind(kind).iter();
            rules.map(move |(key, stored)| {
                ((kind, key.clone()), &stored.version, Some(stored.as_ref()))
            })
        });
        let only_bad = self.problems.keys().filter(|key| self.stored(key).is_none());
        let only_bad = only_bad.filter_map(|key| {
            let problem = self.problems(key).into_iter().next()?;
            let (_, version) = problem.object.as_ref()?;
            Some((key.clone(), version, None))
        });
        rules.chain(only_bad)
    }

    pub(super) fn stored(&self, key: &Key) -> Option<&Stored> {
        self.snapshot.kind(key.0).get(&key.1).map(AsRef::as_ref)
    }

    pub(super) fn problems(&self, key: &Key) -> Vec<&StoreProblem> {
        let places = self.problems.get(key).into_iter().flatten();
        places.filter_map(|at| self.snapshot.problems.get(*at)).collect()
    }

    pub(super) fn id(&self, key: &Key) -> Option<ResourceId> {
        if let Some(stored) = self.stored(key) {
            return Some(stored.resource.id.clone());
        }
        let problem = self.problems(key).into_iter().next()?;
        problem.object.as_ref().map(|(id, _)| id.clone())
    }

    pub(super) fn rollout(&self, key: &Key) -> RuleRollout {
        match self.rollouts.get(&key.0) {
            Some(rollout) if self.stored(key).is_some() => rollout.current(&key.1),
            _ => RuleRollout::default(),
        }
    }

    pub(super) fn rollouts(&self) -> impl Iterator<Item = (Kind, &KindRollout)> {
        self.rollouts.iter().map(|(kind, rollout)| (*kind, rollout))
    }

    pub(super) fn facts(&self, key: &Key, generation: i64, rollout: &RuleRollout) -> Facts {
        let stored = self.stored(key);
        let mut words = DefaultHasher::new();
        rollout.reasons.hash(&mut words);
        rollout.laggards.hash(&mut words);
        for problem in self.problems(key) {
            (problem.code.to_string(), &problem.field, &problem.value).hash(&mut words);
            (&problem.message, &problem.hint).hash(&mut words);
        }
        Facts {
            generation,
            accepted: stored.map(|stored| stored.accepted),
            content: stored.map(|stored| stored.digest),
            counts: [
                rollout.matched,
                rollout.applied,
                rollout.rejected,
                rollout.lagging,
                rollout.leaving,
                rollout.lagging_leaving,
            ],
            words: words.finish(),
        }
    }
}
