//! How each rule of a kind is held, counted in one pass.
//!
//! Clients that stand alike are one group, and a group's view is walked once. The cost is
//! that of groups by rules, not of clients by rules.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::{Hash, Hasher},
    sync::Arc,
    time::{Duration, Instant},
};

use rulecast_api::Digest;

use super::{KindRecord, State};
use crate::view::{Item, View};

/// Most names and reasons that are kept per rule; counts are exact.
pub const REASONS: usize = 5;

/// How one rule is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleRollout {
    /// Clients that should have it.
    pub matched: usize,
    /// Clients of these that hold exactly this version.
    pub applied: usize,
    /// Clients of these that refused this version.
    pub rejected: usize,
    /// Clients of these that have neither, and have not answered within the deadline.
    pub lagging: usize,
    /// Clients that still hold some version and should not.
    pub leaving: usize,
    /// Those of them that have not answered within the deadline.
    pub lagging_leaving: usize,
    /// Some of the rejections, ordered by client: client and reason.
    pub reasons: Vec<(String, String)>,
    /// Some of those that lag, in order.
    pub laggards: Vec<String>,
}

impl RuleRollout {
    /// How many clients have not answered yet for what they should have, late or not.
    pub fn pending(&self) -> usize {
        self.matched.saturating_sub(self.applied + self.rejected) + self.leaving
    }
}

/// Those that come first of all that were added.
#[derive(Clone, Debug)]
struct First<T>(Vec<T>);

impl<T> Default for First<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Ord + Clone> First<T> {
    fn add(&mut self, entry: &T) {
        if self.0.len() == REASONS && self.0.last().is_some_and(|last| last <= entry) {
            return;
        }
        let at = self.0.partition_point(|known| known <= entry);
        self.0.insert(at, entry.clone());
        self.0.truncate(REASONS);
    }

    fn add_all(&mut self, other: &Self) {
        other.0.iter().for_each(|entry| self.add(entry));
    }
}

/// A client's name and its words.
type Words = (Arc<str>, Arc<str>);

/// An item in a table, found by its key.
#[derive(Debug)]
struct ByKey(Arc<Item>);

impl Borrow<str> for ByKey {
    fn borrow(&self) -> &str {
        &self.0.key
    }
}
impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}
impl Eq for ByKey {}
impl Hash for ByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
    }
}

/// What clients of a group have in common.
#[derive(PartialEq, Eq, Hash)]
struct Standing {
    current: Option<Digest>,
    acked: Option<Digest>,
    refused: Option<Digest>,
    late: bool,
}

struct Group {
    current: Option<Arc<View>>,
    acked: Option<Arc<View>>,
    refused: Option<Arc<View>>,
    clients: usize,
    refusals: First<Words>,
    late: First<Arc<str>>,
}

/// One rule, of the version that clients should have.
#[derive(Debug, Default)]
struct Row {
    /// `None` while it is only known from clients that should not have it.
    version: Option<Digest>,
    matched: usize,
    applied: usize,
    rejected: usize,
    lagging: usize,
    leaving: usize,
    lagging_leaving: usize,
    reasons: First<Words>,
    laggards: First<Arc<str>>,
}

/// Rejections of one item.
#[derive(Default)]
struct Rejections {
    clients: usize,
    words: First<Words>,
}

/// Gathers the clients of a kind.
pub(super) struct Tally {
    now: Instant,
    ack_deadline: Duration,
    streams: usize,
    converged: usize,
    next_late: Option<Instant>,
    groups: HashMap<Standing, Group>,
    /// By the item's version.
    rejected: HashMap<Digest, Rejections>,
}

impl Tally {
    pub(super) fn new(now: Instant, ack_deadline: Duration) -> Self {
        Self {
            now,
            ack_deadline,
            streams: 0,
            converged: 0,
            next_late: None,
            groups: HashMap::new(),
            rejected: HashMap::new(),
        }
    }

    /// Adds a client that should hold `current`.
    pub(super) fn add(&mut self, name: &Arc<str>, held: &KindRecord, current: Option<&Arc<View>>) {
        self.streams += 1;
        self.converged += usize::from(held.state() != State::Pending);
        let due = held.owes_since.map(|since| since + self.ack_deadline);
        let late = due.is_some_and(|due| due <= self.now);
        if let Some(due) = due.filter(|_| !late) {
            self.next_late = Some(self.next_late.map_or(due, |next| next.min(due)));
        }
        let acked = held.acked.as_ref().map(|(view, _)| view);
        let refused = held.refused.as_ref().map(|(view, _)| view);
        let standing = Standing {
            current: current.map(|view| view.set_digest),
            acked: acked.map(|view| view.set_digest),
            refused: refused.map(|view| view.set_digest),
            late,
        };
        let group = self.groups.entry(standing).or_insert_with(|| Group {
            current: current.cloned(),
            acked: acked.cloned(),
            refused: refused.cloned(),
            clients: 0,
            refusals: First::default(),
            late: First::default(),
        });
        group.clients += 1;
        if late {
            group.late.add(name);
        }
        if let Some((_, reason)) = &held.refused {
            group.refusals.add(&(name.clone(), reason.as_str().into()));
        }
        let Some(current) = current.filter(|_| acked.is_some()) else { return };
        for rejected in held.rejected.iter() {
            // What was replaced since is nobody's concern.
            let item = current.get(&rejected.key).filter(|item| item.digest == rejected.digest);
            if let Some(item) = item {
                let known = self.rejected.entry(item.version).or_default();
                known.clients += 1;
                known.words.add(&(name.clone(), rejected.reason.as_str().into()));
            }
        }
    }

    /// Counts.
    pub(super) fn finish(self) -> KindRollout {
        let mut groups: Vec<_> = self.groups.into_values().collect();
        // Where streams differ on what a rule is, the newest view says it.
        let revision = |group: &Group| group.current.as_ref().map_or(i64::MIN, |v| v.revision);
        groups.sort_by_key(|group| std::cmp::Reverse(revision(group)));
        let mut rules: HashMap<ByKey, Row> = HashMap::new();
        for group in &groups {
            group.count(&mut rules);
        }
        for group in &groups {
            group.count_leaving(&mut rules);
        }
        for row in rules.values_mut() {
            if let Some(rejections) = row.version.and_then(|version| self.rejected.get(&version)) {
                // Whoever rejected it acknowledged a view with it.
                row.applied = row.applied.saturating_sub(rejections.clients);
                row.rejected += rejections.clients;
                row.reasons.add_all(&rejections.words);
            }
        }
        KindRollout {
            streams: self.streams,
            converged: self.converged,
            next_late: self.next_late,
            rules,
        }
    }
}

impl Group {
    /// Counts the group at all rules that it should have.
    fn count(&self, rules: &mut HashMap<ByKey, Row>) {
        let Some(current) = &self.current else { return };
        // Of the version that clients should have, what these should have of it.
        let held = |view: &Option<Arc<View>>, wanted: &Item, version: Digest| {
            view.as_ref().and_then(|view| view.get(&wanted.key)).is_some_and(|item| {
                item.version == version
                    && (wanted.version != version || item.digest == wanted.digest)
            })
        };
        let same = self.acked.as_ref().is_some_and(|a| a.set_digest == current.set_digest);
        for item in &current.items {
            let row = match rules.get_mut(item.key.as_str()) {
                Some(row) => row,
                None => rules.entry(ByKey(item.clone())).or_default(),
            };
            row.matched += self.clients;
            let version = *row.version.get_or_insert(item.version);
            if same && version == item.version || held(&self.acked, item, version) {
                row.applied += self.clients;
            } else if held(&self.refused, item, version) {
                row.rejected += self.clients;
                row.reasons.add_all(&self.refusals);
            } else if !self.late.0.is_empty() {
                row.lagging += self.clients;
                row.laggards.add_all(&self.late);
            }
        }
    }

    /// Counts the group at all rules that it has and should not.
    fn count_leaving(&self, rules: &mut HashMap<ByKey, Row>) {
        let (Some(current), Some(acked)) = (&self.current, &self.acked) else { return };
        if current.set_digest == acked.set_digest {
            return;
        }
        for item in acked.items.iter().filter(|item| current.get(&item.key).is_none()) {
            let row = rules.entry(ByKey(item.clone())).or_default();
            row.leaving += self.clients;
            if !self.late.0.is_empty() {
                row.lagging_leaving += self.clients;
                row.laggards.add_all(&self.late);
            }
        }
    }
}

/// What the clients of one kind hold: a snapshot.
#[derive(Debug, Default)]
pub struct KindRollout {
    streams: usize,
    converged: usize,
    next_late: Option<Instant>,
    rules: HashMap<ByKey, Row>,
}

impl KindRollout {
    /// Streams that want the kind.
    pub fn streams(&self) -> usize {
        self.streams
    }

    /// Those of them that have answered for what they should hold.
    pub fn converged(&self) -> usize {
        self.converged
    }

    /// When the next client will count as lagging, unless it answers.
    pub fn next_late(&self) -> Option<Instant> {
        self.next_late
    }

    /// How the version of a rule that clients should have is held.
    pub fn current(&self, key: &str) -> RuleRollout {
        let Some(row) = self.rules.get(key) else { return RuleRollout::default() };
        RuleRollout {
            matched: row.matched,
            applied: row.applied,
            rejected: row.rejected,
            lagging: row.lagging,
            leaving: row.leaving,
            lagging_leaving: row.lagging_leaving,
            reasons: row.reasons.0.iter().map(|(c, r)| (c.to_string(), r.to_string())).collect(),
            laggards: row.laggards.0.iter().map(ToString::to_string).collect(),
        }
    }

    /// How a certain version of a rule is held. Of one that no client should have any more it
    /// says only how many clients should have the rule.
    pub fn rule(&self, key: &str, version: &Digest) -> RuleRollout {
        let rule = self.current(key);
        if self.rules.get(key).is_none_or(|row| row.version == Some(*version)) {
            return rule;
        }
        RuleRollout { matched: rule.matched, ..RuleRollout::default() }
    }
}
