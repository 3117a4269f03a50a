//! The observe client: where a client stands with each type, without I/O.
//!
//! Whoever drives it opens a stream when [`Observer::connect_at`] says so, feeds
//! it what the plane sends, sends what [`Observer::next_request`] gives, and
//! brings about what [`Observer::next_apply`] gives. The rules themselves are in
//! a [`KindSnapshot`] that the driver keeps; only what the protocol needs is here.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use rulecast_api::{
    Code, Digest,
    proto::observe::v1::{
        ErrorDetail, Node, ObserveRequest, ObserveResponse, RejectedItem, Subscription,
    },
};

use crate::snapshot::{Change, Delivered, KindSnapshot, Rejected};

mod backoff;
#[cfg(test)]
mod tests;

use backoff::Backoff;

/// Rejections that one request tells, at most; the plane takes no more.
const MAX_REJECTED: usize = 4096;
/// Bytes of a reason that the plane takes.
const MAX_REASON: usize = 1024;
/// What an item costs in memory beside its bytes, about.
const ITEM_COST: usize = 64;
/// Responses of one type that may wait to be applied: more come only from a
/// plane that does not wait for answers.
const MAX_WAITING: usize = 2;

/// How an observer behaves.
#[derive(Clone, Debug)]
pub struct ObserverConfig {
    /// Largest response that is taken, over all its chunks, in bytes.
    pub max_response_bytes: usize,
    /// Shortest wait before connecting again.
    pub backoff_least: Duration,
    /// Longest wait before connecting again.
    pub backoff_most: Duration,
    /// Seeds the jitter.
    pub seed: u64,
}

impl Default for ObserverConfig {
    /// 256 MiB; 100 ms to 30 s; a seed of chance.
    fn default() -> Self {
        Self {
            max_response_bytes: 256 << 20,
            backoff_least: Duration::from_millis(100),
            backoff_most: Duration::from_secs(30),
            seed: fastrand::u64(..),
        }
    }
}

/// Something to bring about: then tell [`Observer::applied`] or [`Observer::refused`].
#[derive(Clone, Debug, PartialEq)]
pub struct Apply {
    /// Of which type.
    pub type_name: String,
    /// All at once.
    pub change: Change,
}

/// Why a stream must be given up: the plane's response breaks the contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A type that was not asked for.
    #[error("{code}: the plane sent type \"{0}\", which was not asked for", code = Code::ResponseInvalid)]
    Type(String),
    /// A response without nonce cannot be answered.
    #[error("{code}: the plane sent a response of {0} without a nonce", code = Code::ResponseInvalid)]
    Nonce(String),
    /// A chunk that belongs to another response than the one that is incomplete.
    #[error("{code}: the plane mixed the chunks of two responses of {0}", code = Code::ResponseInvalid)]
    Chunk(String),
    /// A change to a state that the client does not have.
    #[error(
        "{code}: the plane sent a change of {0} to a client that has no state of it",
        code = Code::ResponseInvalid
    )]
    Base(String),
    /// A response above the limit.
    #[error(
        "{}: a response of {type_name} is larger than {limit} bytes; declare the services that \
         the application calls, or raise the limit",
        Code::ResponseInvalid
    )]
    Size {
        /// Of which type.
        type_name: String,
        /// In bytes.
        limit: usize,
    },
    /// More responses than answers.
    #[error("{code}: the plane does not wait for answers of {0}", code = Code::ResponseInvalid)]
    Flood(String),
    /// An older state than the one that is held.
    #[error(
        "{}: the plane went back from revision {held} to {offered} of {type_name}; it is behind \
         what this client has seen",
        Code::ReplicaBehind
    )]
    WentBack {
        /// Of which type.
        type_name: String,
        /// The client's revision.
        held: i64,
        /// The plane's revision.
        offered: i64,
    },
}

impl ProtocolError {
    /// For `docs/errors.md`.
    pub fn code(&self) -> Code {
        match self {
            Self::WentBack { .. } => Code::ReplicaBehind,
            _ => Code::ResponseInvalid,
        }
    }
}

/// A response of which all chunks have not come, or that waits to be applied.
#[derive(Clone, Debug)]
struct Gathered {
    nonce: String,
    lineage: String,
    cost: usize,
    change: Change,
}

/// What is being applied.
#[derive(Clone, Debug)]
struct Applying {
    /// `None`: the stream that wanted an answer is gone.
    nonce: Option<String>,
    lineage: String,
    revision: i64,
}

/// Whether to subscribe, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    No,
    /// From where the client stands.
    Resume,
    /// Everything.
    Whole,
}

#[derive(Clone, Debug)]
struct TypeState {
    type_name: String,
    revision: i64,
    /// Empty: not known.
    lineage: String,
    resume_token: Bytes,
    rejected: Vec<Rejected>,
    /// There is a complete state, from whatever stream or from disk.
    complete: bool,
    /// This stream's state has been applied.
    synced: bool,
    /// The plane and this client do not agree; begin anew at the next stream.
    distrust: bool,
    ask: Ask,
    /// It was asked, and no response has come since: asking more often than the plane
    /// answers would only make responses wait here.
    asked: bool,
    answer: Option<ObserveRequest>,
    gathering: Option<Gathered>,
    waiting: VecDeque<Gathered>,
    applying: Option<Applying>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Apart { connect_at: Option<Instant> },
    Together { spoken: bool },
}

/// Where a client stands with each type. One per plane.
#[derive(Clone, Debug)]
pub struct Observer {
    config: ObserverConfig,
    node: Node,
    services: Vec<String>,
    types: Vec<TypeState>,
    phase: Phase,
    backoff: Backoff,
}

impl Observer {
    /// An observer of some types that has nothing yet and may connect at once.
    /// `services` are what the application calls; none: all that it may see.
    pub fn new<T: Into<String>>(
        config: ObserverConfig,
        node: Node,
        types: impl IntoIterator<Item = T>,
        services: Vec<String>,
    ) -> Self {
        let backoff = Backoff::new(config.backoff_least, config.backoff_most, config.seed);
        let types = types
            .into_iter()
            .map(|type_name| TypeState {
                type_name: type_name.into(),
                revision: 0,
                lineage: String::new(),
                resume_token: Bytes::new(),
                rejected: Vec::new(),
                complete: false,
                synced: false,
                distrust: false,
                ask: Ask::No,
                asked: false,
                answer: None,
                gathering: None,
                waiting: VecDeque::new(),
                applying: None,
            })
            .collect();
        let phase = Phase::Apart { connect_at: None };
        Self { config, node, services, types, phase, backoff }
    }

    fn state(&mut self, type_name: &str) -> Option<&mut TypeState> {
        self.types.iter_mut().find(|t| t.type_name == type_name)
    }

    /// Begins from what was kept of a type. Call before connecting.
    pub fn restore(&mut self, type_name: &str, held: &KindSnapshot) {
        if let Some(state) = self.state(type_name) {
            state.stand_at(held);
        }
    }

    /// When to open a stream; `None` while one is open. A moment that has passed: now.
    pub fn connect_at(&self, now: Instant) -> Option<Instant> {
        match self.phase {
            Phase::Apart { connect_at } => Some(connect_at.unwrap_or(now)),
            Phase::Together { .. } => None,
        }
    }

    /// A stream is open.
    pub fn connected(&mut self) {
        self.phase = Phase::Together { spoken: false };
        for state in &mut self.types {
            state.part();
            state.ask = if state.distrust { Ask::Whole } else { Ask::Resume };
        }
    }

    /// The stream has ended, or none could be opened. What was being applied may
    /// still be told with [`Observer::applied`].
    pub fn disconnected(&mut self, now: Instant) {
        self.phase = Phase::Apart { connect_at: Some(now + self.backoff.next()) };
        for state in &mut self.types {
            state.part();
        }
    }

    /// Declares other services; the plane then sends what they concern.
    pub fn set_services(&mut self, services: Vec<String>) {
        if services != self.services {
            self.services = services;
            self.ask_again(Ask::Resume);
        }
    }

    /// Asks the plane for the whole current state of all types.
    pub fn refresh(&mut self) {
        self.ask_again(Ask::Whole);
    }

    fn ask_again(&mut self, ask: Ask) {
        if matches!(self.phase, Phase::Together { .. }) {
            for state in &mut self.types {
                state.ask = ask;
            }
        }
    }

    /// The next request to send; ask after every input until there is none.
    pub fn next_request(&mut self) -> Option<ObserveRequest> {
        let Phase::Together { spoken } = &mut self.phase else { return None };
        for state in &mut self.types {
            if let Some(answer) = state.answer.take() {
                return Some(answer);
            }
            // Until it is known what is held, there is no saying where to resume from.
            let settled = state.applying.is_none() && state.waiting.is_empty() && !state.asked;
            if state.ask == Ask::No || !settled {
                continue;
            }
            state.asked = true;
            let ask = std::mem::replace(&mut state.ask, Ask::No);
            let node = (!std::mem::replace(spoken, true)).then(|| self.node.clone());
            return Some(ObserveRequest {
                r#type: state.type_name.clone(),
                node,
                resume_token: match ask {
                    Ask::Resume => state.resume_token.clone(),
                    _ => Bytes::new(),
                },
                rejected: tell(&state.rejected, &self.node.engine_digest),
                subscription: Some(Subscription { services: self.services.clone() }),
                ..ObserveRequest::default()
            });
        }
        None
    }

    /// A message of the plane. After an error the stream is to be given up, and
    /// [`Observer::disconnected`] called.
    pub fn on_response(&mut self, response: ObserveResponse) -> Result<(), ProtocolError> {
        if !matches!(self.phase, Phase::Together { .. }) {
            return Ok(());
        }
        let limit = self.config.max_response_bytes;
        let Some(state) = self.state(&response.r#type) else {
            let type_name: String = response.r#type.chars().take(200).collect();
            return Err(ProtocolError::Type(type_name));
        };
        let taken = state.take(response, limit);
        if taken.is_err() {
            state.distrust = true;
            state.gathering = None;
        }
        taken
    }

    /// The next complete change to apply. A type's next one comes after its last
    /// one was told to be applied or refused.
    pub fn next_apply(&mut self) -> Option<Apply> {
        self.types.iter_mut().find_map(|state| {
            if state.applying.is_some() {
                return None;
            }
            let Gathered { nonce, lineage, change, .. } = state.waiting.pop_front()?;
            state.applying =
                Some(Applying { nonce: Some(nonce), lineage, revision: change.revision });
            Some(Apply { type_name: state.type_name.clone(), change })
        })
    }

    /// What [`Observer::next_apply`] gave was applied: `held` is the state now, and
    /// `refused` what of the change is not in force.
    pub fn applied(&mut self, type_name: &str, held: &KindSnapshot, refused: &[Rejected]) {
        let engine = self.node.engine_digest.clone();
        let Some(state) = self.state(type_name) else { return };
        let Some(applying) = state.applying.take() else { return };
        state.stand_at(held);
        state.lineage = applying.lineage;
        if let Some(nonce) = applying.nonce {
            state.synced = true;
            state.distrust = false;
            let error_detail = refused.first().map(|first| {
                let more = match refused.len() {
                    1 => String::new(),
                    more => format!("; {} more", more - 1),
                };
                // A reason begins with its code.
                let code = first.reason.split(' ').next().unwrap_or_default();
                ErrorDetail {
                    code: if code.starts_with("RC") { shorten(code) } else { String::new() },
                    message: shorten(&format!("{}: {}{more}", first.key, first.reason)),
                }
            });
            state.answer = Some(ObserveRequest {
                nonce,
                r#type: state.type_name.clone(),
                error_detail,
                rejected: tell(refused, &engine),
                ..ObserveRequest::default()
            });
        }
        if self.types.iter().all(|t| t.synced) {
            self.backoff.reset();
        }
    }

    /// What [`Observer::next_apply`] gave could not be applied at all.
    pub fn refused(&mut self, type_name: &str, code: Code, message: &str) {
        let Some(state) = self.state(type_name) else { return };
        if let Some(nonce) = state.applying.take().and_then(|applying| applying.nonce) {
            state.answer = Some(ObserveRequest {
                nonce,
                r#type: state.type_name.clone(),
                error_detail: Some(ErrorDetail {
                    code: code.as_str().to_owned(),
                    message: shorten(message),
                }),
                ..ObserveRequest::default()
            });
        }
    }

    /// Whether a stream is open.
    pub fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Together { .. })
    }

    /// Whether every type's state came complete over the stream that is open.
    pub fn is_synced(&self) -> bool {
        self.is_connected() && self.types.iter().all(|t| t.synced)
    }

    /// Whether there is a complete state of every type, however old.
    pub fn is_complete(&self) -> bool {
        self.types.iter().all(|t| t.complete)
    }

    /// The history that a type's revision belongs to, if the plane told.
    pub fn lineage(&self, type_name: &str) -> Option<&str> {
        let state = self.types.iter().find(|t| t.type_name == type_name)?;
        (!state.lineage.is_empty()).then_some(&state.lineage)
    }
}

impl TypeState {
    fn stand_at(&mut self, held: &KindSnapshot) {
        self.revision = held.revision;
        self.resume_token = held.resume_token.clone();
        self.rejected = held.rejected.values().cloned().collect();
        self.complete = held.source.is_some();
    }

    /// Forgets what belongs to one stream.
    fn part(&mut self) {
        self.synced = false;
        self.ask = Ask::No;
        self.asked = false;
        self.answer = None;
        self.gathering = None;
        self.waiting.clear();
        if let Some(applying) = &mut self.applying {
            applying.nonce = None;
        }
    }

    /// The newest state that is held or on its way to be.
    fn newest(&self) -> (&str, i64) {
        match (self.waiting.back(), &self.applying) {
            (Some(waiting), _) => (&waiting.lineage, waiting.change.revision),
            (None, Some(applying)) => (&applying.lineage, applying.revision),
            (None, None) => (&self.lineage, self.revision),
        }
    }

    fn take(&mut self, response: ObserveResponse, limit: usize) -> Result<(), ProtocolError> {
        let ObserveResponse { nonce, revision, delta, lineage, .. } = response;
        let name = || self.type_name.clone();
        if nonce.is_empty() {
            return Err(ProtocolError::Nonce(name()));
        }
        let mut gathered = match self.gathering.take() {
            None => {
                if self.waiting.len() >= MAX_WAITING {
                    return Err(ProtocolError::Flood(name()));
                }
                let change = Change { revision, full: !delta, ..Change::default() };
                Gathered { nonce, lineage, cost: 0, change }
            }
            Some(begun)
                if begun.nonce == nonce
                    && begun.lineage == lineage
                    && begun.change.revision == revision
                    && begun.change.full != delta =>
            {
                begun
            }
            Some(_) => return Err(ProtocolError::Chunk(name())),
        };
        let change = &mut gathered.change;
        for item in response.data {
            gathered.cost += ITEM_COST + item.type_url.len() + item.value.len();
            change.items.push(Delivered { type_url: item.type_url, bytes: item.value.into() });
        }
        for key in response.removed.into_iter().filter(|_| delta) {
            gathered.cost += ITEM_COST + key.len();
            change.removed.push(key);
        }
        for item in response.withheld {
            gathered.cost += ITEM_COST + item.key.len();
            change.withheld.push(item.key);
        }
        if gathered.cost > limit {
            return Err(ProtocolError::Size { type_name: name(), limit });
        }
        if response.more_chunks {
            self.gathering = Some(gathered);
            return Ok(());
        }
        change.resume_token = response.resume_token;
        // Without a lineage there is nothing to compare by.
        let (held_lineage, held) = self.newest();
        if !held_lineage.is_empty() && held_lineage == gathered.lineage && revision < held {
            let type_name = name();
            return Err(ProtocolError::WentBack { type_name, held, offered: revision });
        }
        if delta && !self.complete && self.waiting.is_empty() && self.applying.is_none() {
            return Err(ProtocolError::Base(name()));
        }
        self.asked = false;
        self.waiting.push_back(gathered);
        Ok(())
    }
}

/// Rejections as the plane is told.
fn tell(rejected: &[Rejected], engine: &Bytes) -> Vec<RejectedItem> {
    let tell = |rejected: &Rejected| RejectedItem {
        key: if rejected.key.len() <= MAX_REASON { rejected.key.clone() } else { String::new() },
        item_digest: Digest::to_bytes(&rejected.digest),
        engine_digest: engine.clone(),
        reason: shorten(&rejected.reason),
    };
    rejected.iter().take(MAX_REJECTED).map(tell).collect()
}

/// Cuts a text at a limit of bytes.
fn shorten(text: &str) -> String {
    let mut end = text.len().min(MAX_REASON);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
