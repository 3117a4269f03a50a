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
    time::{Duration, Instant, SystemTime},
};

use rulecast_api::{Digest, Kind};
use tokio::sync::watch;

use crate::view::View;

mod tally;
#[cfg(test)]
mod tests;

pub use tally::{KindRollout, REASONS, RuleRollout};

/// How long a client may take to answer before it counts as lagging, unless told otherwise.
pub const ACK_DEADLINE: Duration = Duration::from_secs(10);

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
    /// Since when the client owes an answer: it should hold something else than what it
    /// answered for last. `None`: it owes none.
    owes_since: Option<Instant>,
}

impl KindRecord {
    /// Notes that the client has a new view before it.
    fn on_view(&mut self, now: Instant, view: Arc<View>) {
        self.current = Some(view);
        // A client that is silent stays so, however many views go by.
        let since = self.owes_since.unwrap_or(now);
        self.owes_since = (self.state() == State::Pending).then_some(since);
    }

    /// Notes that the client has answered for something.
    fn on_answer(&mut self, now: Instant) {
        self.owes_since = (self.state() == State::Pending).then_some(now);
    }

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
    /// For people, made once.
    name: Arc<str>,
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
    changes: watch::Sender<u64>,
}

impl Shared {
    fn shard(&self, id: u64) -> MutexGuard<'_, HashMap<u64, Record>> {
        lock(&self.shards[(id % SHARDS as u64) as usize])
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
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
        // Tokio's clock, which a test can hold.
        self.report_at(tokio::time::Instant::now().into_std(), report);
    }

    /// Takes a report that was made at a certain time.
    pub fn report_at(&self, now: Instant, report: Report) {
        // What was sent changes nobody's standing.
        let counts = !matches!(report, Report::Sent { .. });
        {
            let mut shard = self.shared.shard(self.id);
            let Some(record) = shard.get_mut(&self.id) else { return };
            record.take(now, report);
        }
        if counts {
            self.shared.changed();
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.shared.shard(self.id).remove(&self.id);
        self.shared.changed();
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
        let name = peer.spiffe_id.as_str().into();
        let record = Record { peer, node: NodeInfo::default(), name, kinds: BTreeMap::new() };
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

    /// Changes whenever somebody's standing may have changed. The number only counts.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// What the clients of a kind hold now, for any number of questions.
    pub fn kind(&self, kind: Kind) -> KindRollout {
        self.kind_at(kind, &HashMap::new(), tokio::time::Instant::now().into_std(), ACK_DEADLINE)
    }

    /// What the clients of a kind hold, measured by the views that their scopes have now, by
    /// scope hash. A stream may not have heard of its newest view yet; without it nobody could
    /// tell whether a new rule matches nobody or is on its way. Who owes an answer for
    /// `ack_deadline` or longer lags.
    pub fn kind_at(
        &self,
        kind: Kind,
        views: &HashMap<Digest, Arc<View>>,
        now: Instant,
        ack_deadline: Duration,
    ) -> KindRollout {
        let mut tally = tally::Tally::new(now, ack_deadline);
        for shard in &self.shared.shards {
            for record in lock(shard).values() {
                if let Some(held) = record.kinds.get(&kind) {
                    let own = held.current.as_ref();
                    let newest = own.and_then(|view| views.get(&view.scope_hash));
                    tally.add(&record.name, held, newest.or(own));
                }
            }
        }
        tally.finish()
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

    fn take(&mut self, now: Instant, report: Report) {
        match report {
            Report::Node(node) => {
                if !node.instance.is_empty() {
                    self.name = format!("{} {}", self.peer.spiffe_id, node.instance).into();
                }
                self.node = node;
            }
            Report::Subscribed { kind } => {
                self.kinds.entry(kind).or_default();
            }
            Report::View { kind, view } => self.kinds.entry(kind).or_default().on_view(now, view),
            Report::Sent { kind, revision, .. } => {
                self.kinds.entry(kind).or_default().sent_revision = revision;
            }
            Report::Applied { kind, view, revision, rejected, took: _ } => {
                let kind = self.kinds.entry(kind).or_default();
                kind.acked = Some((view, revision));
                kind.rejected = rejected;
                kind.refused = None;
                kind.on_answer(now);
            }
            Report::Refused { kind, view, reason } => {
                let kind = self.kinds.entry(kind).or_default();
                kind.refused = Some((view, reason));
                kind.on_answer(now);
            }
        }
    }
}
