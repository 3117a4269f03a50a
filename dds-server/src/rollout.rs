//! Who holds what.
//!
//! Per stream and kind the tracker keeps the view that the client should have,
//! the one that it acknowledged, and the few items that it rejected. Views are
//! shared, so what a thousand clients hold is counted once per view: there is
//! never a table of rules by clients.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use rulecast_api::{Digest, Kind};

use crate::view::View;

/// Shards of the table of streams; updates of different streams seldom meet.
const SHARDS: usize = 16;

/// An item that a client refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// `<name>/<namespace>`.
    pub key: String,
    /// Of the item.
    pub digest: Digest,
    /// The client's words, without control characters.
    pub reason: String,
}

/// A client by its own word; shown to people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Names its process.
    pub instance: String,
    /// Its application.
    pub application: String,
    /// What it runs.
    pub agent: String,
}

/// What a stream engine tells the tracker.
#[derive(Clone, Debug)]
pub enum Report {
    /// Who the client says that it is.
    Node(NodeInfo),
    /// The client wants a kind.
    Subscribed {
        /// Which.
        kind: Kind,
    },
    /// What the client should hold from now on.
    View {
        /// Of which kind.
        kind: Kind,
        /// The view.
        view: Arc<View>,
    },
    /// A response is under way.
    Sent {
        /// Of which kind.
        kind: Kind,
        /// The view that it brings.
        view: Arc<View>,
        /// As the client sees it.
        revision: i64,
    },
    /// The client applied a response.
    Applied {
        /// Of which kind.
        kind: Kind,
        /// The view that it brought.
        view: Arc<View>,
        /// As the client sees it.
        revision: i64,
        /// All items of the view that the client does not hold.
        rejected: Arc<[Rejected]>,
        /// From the view's coming to now.
        took: Duration,
    },
    /// The client applied nothing of a response.
    Refused {
        /// Of which kind.
        kind: Kind,
        /// The view that it brought.
        view: Arc<View>,
        /// The client's words.
        reason: String,
    },
}

/// A stream's client as the plane knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Attested.
    pub spiffe_id: String,
    /// Where it connects from, if that is known.
    pub address: Option<SocketAddr>,
    /// When the stream was opened.
    pub connected_at: SystemTime,
}

/// How a client stands with a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It holds what it should.
    Synced,
    /// It does not yet.
    Pending,
    /// It holds what it should but for what it rejected.
    Rejected,
}

impl State {
    /// In words, as `admin.proto` has them.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Synced => "synced",
            Self::Pending => "pending",
            Self::Rejected => "rejected",
        }
    }
}

/// One kind of a [`ClientStatus`].
#[derive(Clone, Debug)]
pub struct ClientKindStatus {
    /// Which kind.
    pub kind: Kind,
    /// Of the last response begun; 0 before any.
    pub sent_revision: i64,
    /// Of the last response applied; 0 before any.
    pub acked_revision: i64,
    /// How it stands.
    pub state: State,
    /// What the client rejected of what it should hold. A response refused whole
    /// is one entry without a key.
    pub rejected: Vec<(String, String)>,
}

/// A connected client.
#[derive(Clone, Debug)]
pub struct ClientStatus {
    /// As the plane knows it.
    pub peer: Peer,
    /// By its own word.
    pub node: NodeInfo,
    /// The kinds that it wants, by name.
    pub kinds: Vec<ClientKindStatus>,
}

#[derive(Debug, Default)]
struct KindRecord {
    current: Option<Arc<View>>,
    sent_revision: i64,
    acked: Option<(Arc<View>, i64)>,
    rejected: Arc<[Rejected]>,
    refused: Option<(Arc<View>, String)>,
}

impl KindRecord {
    fn state(&self) -> State {
        let Some(current) = &self.current else { return State::Pending };
        if let Some((refused, _)) = &self.refused
            && refused.set_digest == current.set_digest
        {
            return State::Rejected;
        }
        match &self.acked {
            Some((acked, _)) if acked.set_digest == current.set_digest => {
                if self.rejected.is_empty() { State::Synced } else { State::Rejected }
            }
            _ => State::Pending,
        }
    }
}

#[derive(Debug)]
struct Record {
    peer: Peer,
    node: NodeInfo,
    kinds: BTreeMap<Kind, KindRecord>,
}

type Shard = Mutex<HashMap<u64, Record>>;

/// The table of streams. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Rollout {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    shards: [Shard; SHARDS],
    next: AtomicU64,
}

impl Shared {
    fn shard(&self, id: u64) -> MutexGuard<'_, HashMap<u64, Record>> {
        lock(&self.shards[(id % SHARDS as u64) as usize])
    }
}

fn lock(shard: &Shard) -> MutexGuard<'_, HashMap<u64, Record>> {
    // Each change of a record is whole before anything can panic.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream's row; it leaves the table when this is dropped.
#[derive(Debug)]
pub struct Tracked {
    shared: Arc<Shared>,
    id: u64,
}

impl Tracked {
    /// Takes a report of the stream's engine.
    pub fn report(&self, report: Report) {
        let mut shard = self.shared.shard(self.id);
        let Some(record) = shard.get_mut(&self.id) else { return };
        match report {
            Report::Node(node) => record.node = node,
            Report::Subscribed { kind } => {
                record.kinds.entry(kind).or_default();
            }
            Report::View { kind, view } => {
                record.kinds.entry(kind).or_default().current = Some(view);
            }
            Report::Sent { kind, revision, .. } => {
                record.kinds.entry(kind).or_default().sent_revision = revision;
            }
            Report::Applied { kind, view, revision, rejected, took: _ } => {
                let kind = record.kinds.entry(kind).or_default();
                kind.acked = Some((view, revision));
                kind.rejected = rejected;
                kind.refused = None;
            }
            Report::Refused { kind, view, reason } => {
                record.kinds.entry(kind).or_default().refused = Some((view, reason));
            }
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.shared.shard(self.id).remove(&self.id);
    }
}

impl Rollout {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a stream.
    pub fn track(&self, peer: Peer) -> Tracked {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let record = Record { peer, node: NodeInfo::default(), kinds: BTreeMap::new() };
        self.shared.shard(id).insert(id, record);
        Tracked { shared: self.shared.clone(), id }
    }

    /// How many streams are connected.
    pub fn len(&self) -> usize {
        self.shared.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether no stream is connected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All clients, in the order in which they connected.
    pub fn clients(&self) -> Vec<ClientStatus> {
        let mut clients = Vec::new();
        for shard in &self.shared.shards {
            clients.extend(lock(shard).iter().map(|(id, record)| (*id, record.status())));
        }
        clients.sort_by_key(|(id, _)| *id);
        clients.into_iter().map(|(_, client)| client).collect()
    }

    /// What the clients of a kind hold now, for any number of questions.
    pub fn kind(&self, kind: Kind) -> KindRollout {
        let mut rollout = KindRollout::default();
        for shard in &self.shared.shards {
            for record in lock(shard).values() {
                if let Some(held) = record.kinds.get(&kind) {
                    rollout.add(record, held);
                }
            }
        }
        rollout
    }
}

impl Record {
    fn status(&self) -> ClientStatus {
        let kinds = self.kinds.iter().map(|(kind, held)| {
            let mut rejected: Vec<_> =
                held.rejected.iter().map(|r| (r.key.clone(), r.reason.clone())).collect();
            if let Some((_, reason)) = &held.refused {
                rejected.push((String::new(), reason.clone()));
            }
            ClientKindStatus {
                kind: *kind,
                sent_revision: held.sent_revision,
                acked_revision: held.acked.as_ref().map_or(0, |(_, revision)| *revision),
                state: held.state(),
                rejected,
            }
        });
        ClientStatus { peer: self.peer.clone(), node: self.node.clone(), kinds: kinds.collect() }
    }

    fn name(&self) -> String {
        if self.node.instance.is_empty() {
            self.peer.spiffe_id.clone()
        } else {
            format!("{} {}", self.peer.spiffe_id, self.node.instance)
        }
    }
}

/// Clients that stand at one view.
#[derive(Debug)]
struct Group {
    view: Arc<View>,
    clients: usize,
}

#[derive(Debug)]
struct Refusal {
    client: String,
    /// What the client holds instead.
    acked: Option<Arc<View>>,
    refused: Arc<View>,
    reason: String,
}

/// What the clients of one kind hold: a snapshot.
#[derive(Debug, Default)]
pub struct KindRollout {
    streams: usize,
    converged: usize,
    current: HashMap<Digest, Group>,
    acked: HashMap<Digest, Group>,
    /// By item: who rejected it, and why.
    rejected: HashMap<Digest, Vec<(String, String)>>,
    refusals: Vec<Refusal>,
}

/// How one rule is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleRollout {
    /// Clients that should have it.
    pub matched: usize,
    /// Clients that hold exactly this version.
    pub applied: usize,
    /// Clients that refused this version.
    pub rejected: usize,
    /// Some of those: client and reason.
    pub reasons: Vec<(String, String)>,
}

impl KindRollout {
    fn add(&mut self, record: &Record, held: &KindRecord) {
        self.streams += 1;
        self.converged += usize::from(held.state() != State::Pending);
        let count = |groups: &mut HashMap<_, Group>, view: &Arc<View>| {
            let group = Group { view: view.clone(), clients: 0 };
            groups.entry(view.set_digest).or_insert(group).clients += 1;
        };
        if let Some(view) = &held.current {
            count(&mut self.current, view);
        }
        if let Some((view, _)) = &held.acked {
            count(&mut self.acked, view);
            for rejected in held.rejected.iter() {
                let reasons = self.rejected.entry(rejected.digest).or_default();
                reasons.push((record.name(), rejected.reason.clone()));
            }
        }
        if let Some((refused, reason)) = &held.refused {
            self.refusals.push(Refusal {
                client: record.name(),
                acked: held.acked.as_ref().map(|(view, _)| view.clone()),
                refused: refused.clone(),
                reason: reason.clone(),
            });
        }
    }

    /// Streams that want the kind.
    pub fn streams(&self) -> usize {
        self.streams
    }

    /// Those of them that have answered for what they should hold.
    pub fn converged(&self) -> usize {
        self.converged
    }

    /// How a version of a rule is held, with at most `sample` reasons.
    pub fn rule(&self, key: &str, digest: &Digest, sample: usize) -> RuleRollout {
        let has = |view: &View| view.get(key).is_some_and(|item| item.digest == *digest);
        let mut rule = RuleRollout::default();
        for group in self.current.values().filter(|g| g.view.get(key).is_some()) {
            rule.matched += group.clients;
        }
        for group in self.acked.values().filter(|g| has(&g.view)) {
            rule.applied += group.clients;
        }
        if let Some(rejected) = self.rejected.get(digest) {
            // Whoever rejected it acknowledged a view with it.
            rule.applied = rule.applied.saturating_sub(rejected.len());
            rule.rejected += rejected.len();
            rule.reasons.extend(rejected.iter().take(sample).cloned());
        }
        for refusal in &self.refusals {
            if has(&refusal.refused) && !refusal.acked.as_deref().is_some_and(has) {
                rule.rejected += 1;
                if rule.reasons.len() < sample {
                    rule.reasons.push((refusal.client.clone(), refusal.reason.clone()));
                }
            }
        }
        rule
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Item;
    use rulecast_api::proto::rules::v1::Rule;

    const KIND: Kind = Kind::CONDITION_ROUTE;

    fn item(key: &str, version: u8) -> Arc<Item> {
        let spec = vec![version].into();
        Arc::new(Item::new(&Rule { key: key.into(), spec, ..Rule::default() }))
    }

    fn view(revision: i64, items: &[&Arc<Item>]) -> Arc<View> {
        let items = items.iter().map(|&i| i.clone()).collect();
        Arc::new(View::new(KIND, "l".into(), Digest::default(), revision, items))
    }

    fn peer(name: &str) -> Peer {
        let connected_at = SystemTime::UNIX_EPOCH;
        Peer { spiffe_id: name.into(), address: None, connected_at }
    }

    fn should_have(client: &Tracked, view: &Arc<View>) {
        client.report(Report::View { kind: KIND, view: view.clone() });
        let revision = view.revision;
        client.report(Report::Sent { kind: KIND, view: view.clone(), revision });
    }

    fn applies(client: &Tracked, view: &Arc<View>, rejected: &[(&Arc<Item>, &str)]) {
        let rejected = rejected.iter().map(|(item, reason)| Rejected {
            key: item.key.clone(),
            digest: item.digest,
            reason: (*reason).into(),
        });
        client.report(Report::Applied {
            kind: KIND,
            view: view.clone(),
            revision: view.revision,
            rejected: rejected.collect(),
            took: Duration::ZERO,
        });
    }

    #[test]
    fn counts_who_should_have_has_and_refuses() {
        let rollout = Rollout::new();
        let (a1, a2, b) = (item("a", 1), item("a", 2), item("b", 1));
        let (old, new) = (view(1, &[&a1, &b]), view(2, &[&a2, &b]));
        let clients: Vec<_> =
            ["x", "y", "z", "w"].iter().map(|name| rollout.track(peer(name))).collect();
        for client in &clients {
            client.report(Report::Subscribed { kind: KIND });
            should_have(client, &old);
            applies(client, &old, &[]);
        }
        let counts = |key: &str, item: &Arc<Item>| {
            let rule = rollout.kind(KIND).rule(key, &item.digest, 8);
            (rule.matched, rule.applied, rule.rejected)
        };
        assert_eq!(counts("a", &a1), (4, 4, 0));
        for client in &clients {
            should_have(client, &new);
        }
        assert_eq!((counts("a", &a2), counts("b", &b)), ((4, 0, 0), (4, 4, 0)));
        assert_eq!((rollout.kind(KIND).converged(), rollout.kind(KIND).streams()), (0, 4));
        applies(&clients[0], &new, &[]);
        applies(&clients[1], &new, &[(&a2, "bad")]);
        let (kind, reason) = (KIND, "RC0601 none of it".to_owned());
        clients[2].report(Report::Refused { kind, view: new.clone(), reason });
        let rule = rollout.kind(KIND).rule("a", &a2.digest, 8);
        assert_eq!((rule.matched, rule.applied, rule.rejected), (4, 1, 2));
        assert!(rule.reasons.contains(&("y".into(), "bad".into())));
        assert!(rule.reasons.contains(&("z".into(), "RC0601 none of it".into())));
        // Who refused the whole still holds what it had.
        assert_eq!(counts("b", &b), (4, 4, 0));
        assert_eq!(rollout.kind(KIND).converged(), 3);
        let states: Vec<_> = rollout.clients().iter().map(|c| c.kinds[0].state).collect();
        assert_eq!(states, [State::Synced, State::Rejected, State::Rejected, State::Pending]);
        let acked: Vec<_> = rollout.clients().iter().map(|c| c.kinds[0].acked_revision).collect();
        assert_eq!(acked, [2, 2, 1, 1]);
        drop(clients);
        assert!(rollout.is_empty() && rollout.kind(KIND).streams() == 0);
    }

    #[test]
    fn clients_at_one_state_are_one_group() {
        let rollout = Rollout::new();
        let a = item("a", 1);
        let clients: Vec<_> = (0..100).map(|n| rollout.track(peer(&n.to_string()))).collect();
        for client in &clients {
            // Equal content, whether or not it is the same pointer.
            let view = view(1, &[&a]);
            should_have(client, &view);
            applies(client, &view, &[]);
        }
        let kind = rollout.kind(KIND);
        assert_eq!((kind.acked.len(), kind.rule("a", &a.digest, 1).applied), (1, 100));
    }
}
