//! The stream engine: one client's state, without I/O.
//!
//! Events go in ([`Stream::on_request`], [`Stream::on_view`], [`Stream::on_tick`],
//! [`Stream::on_draining`]), actions come out ([`Stream::next_action`]), and
//! responses are pulled ([`Stream::next_frame`]) when there is room to send:
//! nothing is queued here. Per kind there is at most one response under way, and
//! what would follow is no more than the newest view, shared with everybody.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use rulecast_api::{
    Code, Digest, Kind, Kinds,
    proto::observe::v1::{ObserveRequest, ObserveResponse, RejectedItem},
};

use crate::{
    rollout::{NodeInfo, Rejected, Report},
    view::View,
};

mod bucket;
mod delivery;
pub mod limits;
#[cfg(test)]
mod tests;
mod wire;

use bucket::Bucket;
use delivery::{Asked, Delivery, read_token};
pub use limits::Services;
pub use wire::Wire;

/// How a stream behaves.
#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// Bytes of items in one chunk of a response; an item above goes alone.
    pub chunk_bytes: usize,
    /// Bytes of a response on [`Wire::Dubbo`], which knows no chunks.
    pub dubbo_bytes: usize,
    /// How long a stream may be silent before its first request.
    pub first_request: Duration,
    /// How long a view may stay behind a client's resume token.
    pub catch_up: Duration,
    /// Repeats and changes of subscription that a client gets at once.
    pub repeat_burst: u32,
    /// Above the burst, one is served in this time; what comes faster is gathered.
    pub repeat_every: Duration,
}

impl Default for StreamConfig {
    /// 1 MiB; 4 MiB, which is what gRPC clients take unless they are told otherwise; 10 s;
    /// 5 s; 4, then one a second.
    fn default() -> Self {
        Self {
            chunk_bytes: 1 << 20,
            dubbo_bytes: 4 << 20,
            first_request: Duration::from_secs(10),
            catch_up: Duration::from_secs(5),
            repeat_burst: 4,
            repeat_every: Duration::from_secs(1),
        }
    }
}

/// What the engine wants done.
#[derive(Clone, Debug)]
pub enum Action {
    /// Give the engine the view of this kind that the client's attested scope and these
    /// services make, now and whenever it changes. It replaces an earlier one of the kind.
    Subscribe {
        /// Of which kind.
        kind: Kind,
        /// Declared services.
        services: Services,
    },
    /// For the rollout tracker.
    Report(Report),
    /// End the stream. Nothing follows.
    Close(Close),
}

/// Why a stream ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Close {
    /// For `docs/errors.md`.
    pub code: Code,
    /// For gRPC.
    pub status: tonic::Code,
    /// For people.
    pub message: String,
}

/// What a stream has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Responses begun.
    pub responses: u64,
    /// Messages that left.
    pub chunks: u64,
    /// Responses applied whole.
    pub acks: u64,
    /// Responses not applied whole.
    pub nacks: u64,
    /// Answers to nothing that waited for one.
    pub stale_nonces: u64,
}

/// One client's stream.
#[derive(Debug)]
pub struct Stream {
    config: StreamConfig,
    kinds: Kinds,
    wire: Wire,
    opened: Instant,
    /// The client's engine, from its first request.
    engine: Option<Bytes>,
    deliveries: Vec<Delivery>,
    /// Whose turn it is to send.
    turn: usize,
    nonces: u64,
    bucket: Bucket,
    actions: VecDeque<Action>,
    closed: bool,
    counters: Counters,
}

impl Stream {
    /// A stream that has just been opened.
    pub fn new(config: StreamConfig, kinds: Kinds, now: Instant) -> Self {
        let bucket = Bucket::new(config.repeat_burst, config.repeat_every);
        Self {
            config,
            kinds,
            wire: Wire::default(),
            opened: now,
            engine: None,
            deliveries: Vec::new(),
            turn: 0,
            nonces: 0,
            bucket,
            actions: VecDeque::new(),
            closed: false,
            counters: Counters::default(),
        }
    }

    /// For a client that speaks `wire`. Its requests are those of the whole contract, with
    /// nothing in the fields that the wire does not have.
    pub fn on_wire(self, wire: Wire) -> Self {
        Self { wire, ..self }
    }

    /// What the stream has done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether the stream has ended.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The next thing to do. Ask after every input until there is none.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Stream::on_tick`] should be called, or [`Stream::wants_to_send`] asked again.
    pub fn deadline(&self) -> Option<Instant> {
        if self.closed {
            return None;
        }
        let first = self.engine.is_none().then(|| self.opened + self.config.first_request);
        let limited = self
            .deliveries
            .iter()
            .any(|d| d.wanted.is_some() || d.startable() == Some(Asked::Limited));
        self.deliveries
            .iter()
            .filter_map(|d| d.behind_until)
            .chain(first)
            .chain(limited.then(|| self.bucket.ready_at()).flatten())
            .min()
    }

    /// A message of the client.
    pub fn on_request(&mut self, now: Instant, request: ObserveRequest) {
        if self.closed {
            return;
        }
        let checked = limits::check(&request)
            .and_then(|()| request.subscription.as_ref().map(limits::services).transpose());
        let services = match checked {
            Ok(services) => services,
            Err(reason) => {
                return self.close(Code::RequestInvalid, tonic::Code::InvalidArgument, reason);
            }
        };
        let wire = self.wire;
        let known = Kind::by_type(self.kinds, &request.r#type);
        let Some(kind) = known.filter(|kind| wire.has(*kind)) else {
            let served = self.kinds.iter().filter(|kind| wire.has(**kind));
            let served: Vec<_> = served.map(|kind| kind.type_name).collect();
            let message = format!(
                "type \"{}\" is not served here; served: {}",
                limits::clean(&request.r#type),
                served.join(", ")
            );
            return self.close(Code::TypeUnsupported, tonic::Code::InvalidArgument, message);
        };
        if self.engine.is_none() {
            let node = request.node.clone().unwrap_or_default();
            let info = NodeInfo {
                instance: limits::clean(&node.instance),
                application: limits::clean(&node.application),
                agent: limits::clean(&node.agent),
            };
            self.engine = Some(node.engine_digest);
            self.report(Report::Node(info));
        }
        if request.nonce.is_empty() {
            self.on_subscribe(kind, services, request);
        } else {
            self.on_answer(now, kind, services, request);
        }
        self.rescope(now);
        self.watch_lag(now);
    }

    /// The newest view of a kind that is subscribed to.
    pub fn on_view(&mut self, now: Instant, view: Arc<View>) {
        if self.closed {
            return;
        }
        let kind = view.kind;
        if let Some(delivery) = self.deliveries.iter_mut().find(|d| d.kind == kind)
            && delivery.take_view(now, view.clone())
        {
            self.report(Report::View { kind, view });
            self.watch_lag(now);
        }
    }

    /// Time has passed; see [`Stream::deadline`].
    pub fn on_tick(&mut self, now: Instant) {
        if self.closed {
            return;
        }
        if self.engine.is_none() && now >= self.opened + self.config.first_request {
            let message = format!("no request within {:?}", self.config.first_request);
            return self.close(Code::RequestInvalid, tonic::Code::DeadlineExceeded, message);
        }
        if self.deliveries.iter().any(|d| d.behind() && d.behind_until.is_some_and(|t| t <= now)) {
            let message = "this replica has not seen yet what the client has; connect again";
            return self.close(Code::ReplicaBehind, tonic::Code::Unavailable, message.into());
        }
        self.rescope(now);
    }

    /// The plane is shutting down.
    pub fn on_draining(&mut self) {
        let message = "the plane is shutting down; connect again, to another replica";
        self.close(Code::Draining, tonic::Code::Unavailable, message.into());
    }

    /// Ends the stream for a reason from outside, unless it has ended.
    pub fn close(&mut self, code: Code, status: tonic::Code, message: String) {
        if !self.closed {
            self.closed = true;
            self.actions.push_back(Action::Close(Close { code, status, message }));
        }
    }

    /// Whether [`Stream::next_frame`] would give something.
    pub fn wants_to_send(&mut self, now: Instant) -> bool {
        if self.closed {
            return false;
        }
        let bucket = self.bucket.ready(now);
        self.deliveries.iter().any(|d| {
            d.flight.as_ref().is_some_and(|flight| !flight.left)
                || d.startable().is_some_and(|asked| asked != Asked::Limited || bucket)
        })
    }

    /// The next message to send. Kinds take turns, message by message.
    pub fn next_frame(&mut self, now: Instant) -> Option<ObserveResponse> {
        if self.closed {
            return None;
        }
        let count = self.deliveries.len();
        for step in 0..count {
            let at = (self.turn + step) % count;
            if let Some(frame) = self.frame_of(now, at) {
                self.turn = (at + 1) % count;
                self.counters.chunks += 1;
                return Some(frame);
            }
        }
        None
    }

    fn frame_of(&mut self, now: Instant, at: usize) -> Option<ObserveResponse> {
        let delivery = self.deliveries.get_mut(at)?;
        if delivery.flight.as_ref().is_none_or(|flight| flight.left) {
            let asked = delivery.startable()?;
            if asked == Asked::Limited && !self.bucket.take(now) {
                return None;
            }
            self.nonces += 1;
            self.counters.responses += 1;
            let kind = delivery.kind;
            let flight = delivery.start(self.nonces.to_string())?;
            let (view, revision) = (flight.view.clone(), flight.revision);
            if self.wire == Wire::Dubbo && !self.fits(&view) {
                return None;
            }
            self.actions.push_back(Action::Report(Report::Sent { kind, view, revision }));
        }
        let delivery = self.deliveries.get_mut(at)?;
        match self.wire {
            Wire::Rulecast => delivery.chunk(self.config.chunk_bytes),
            Wire::Dubbo => delivery.whole_state(),
        }
    }

    /// Whether a view fits into one message. What does not ends the stream.
    fn fits(&mut self, view: &Arc<View>) -> bool {
        let (size, limit) = (wire::size(view), self.config.dubbo_bytes);
        if size > limit {
            let reason = format!(
                "the {} rules that this client sees take {size} bytes; its wire has them in one \
                 message, of at most {limit}",
                view.kind
            );
            let (kind, view) = (view.kind, view.clone());
            self.report(Report::Refused { kind, view, reason: reason.clone() });
            self.close(Code::StateTooLarge, tonic::Code::ResourceExhausted, reason);
        }
        size <= limit
    }

    fn report(&mut self, report: Report) {
        self.actions.push_back(Action::Report(report));
    }

    fn add_rejected(delivery: &mut Delivery, item: &RejectedItem) {
        // The length was checked with the request.
        if let Some(digest) = Digest::from_bytes(&item.item_digest) {
            let (key, reason) = (limits::clean(&item.key), limits::clean(&item.reason));
            delivery.rejections.add(Rejected { key, digest, reason });
        }
    }

    fn on_subscribe(&mut self, kind: Kind, services: Option<Services>, request: ObserveRequest) {
        let engine = self.engine.clone().unwrap_or_default();
        let at = match self.deliveries.iter().position(|d| d.kind == kind) {
            Some(at) => {
                self.want(at, services);
                at
            }
            None => {
                let services = services.unwrap_or_default();
                self.deliveries.push(Delivery::new(kind, services.clone()));
                self.actions.push_back(Action::Subscribe { kind, services });
                self.report(Report::Subscribed { kind });
                self.deliveries.len() - 1
            }
        };
        let delivery = &mut self.deliveries[at];
        let (same, other): (Vec<_>, Vec<_>) =
            request.rejected.iter().partition(|item| item.engine_digest == engine);
        for item in same {
            let digest = Digest::from_bytes(&item.item_digest);
            if digest.is_some_and(|digest| delivery.concerns(&item.key, &digest)) {
                Self::add_rejected(delivery, item);
            }
        }
        // What another engine rejected is missing there, whatever the token says. A token
        // still tells how far the client is: asking for everything takes nothing back.
        match read_token(&request.resume_token) {
            Some(token) => {
                delivery.resume = Some(token);
                delivery.whole = !other.is_empty();
            }
            None => delivery.whole = true,
        }
        delivery.behind_until = None;
        // With other services, their view is the answer.
        if delivery.asked == Asked::No && delivery.wanted.is_none() {
            delivery.asked = Asked::Limited;
        }
    }

    fn on_answer(
        &mut self,
        now: Instant,
        kind: Kind,
        services: Option<Services>,
        request: ObserveRequest,
    ) {
        let Some(at) = self.deliveries.iter().position(|d| d.kind == kind) else {
            self.counters.stale_nonces += 1;
            return;
        };
        self.want(at, services);
        let delivery = &mut self.deliveries[at];
        // Before the last chunk has left there is nothing to answer.
        let Some(flight) = delivery.flight.take_if(|f| f.left && f.nonce == request.nonce) else {
            self.counters.stale_nonces += 1;
            return;
        };
        let took = now.saturating_duration_since(flight.seen_at);
        for item in &request.rejected {
            Self::add_rejected(delivery, item);
        }
        if request.error_detail.is_none() && request.rejected.is_empty() {
            self.counters.acks += 1;
        } else {
            self.counters.nacks += 1;
        }
        let (view, revision) = (flight.view, flight.revision);
        match request.error_detail {
            // Nothing of it was applied.
            Some(error) if request.rejected.is_empty() => {
                let reason = limits::clean(&format!("{} {}", error.code, error.message));
                self.report(Report::Refused { kind, view, reason: reason.trim().to_owned() });
            }
            _ => {
                let rejected = match self.wire {
                    Wire::Rulecast => delivery.rejections.within(&view),
                    Wire::Dubbo => wire::unsaid(&view),
                };
                let rejected = rejected.into();
                self.report(Report::Applied { kind, view, revision, rejected, took });
            }
        }
    }

    /// Notes a change of subscription.
    fn want(&mut self, at: usize, services: Option<Services>) {
        if let Some(services) = services
            && let Some(delivery) = self.deliveries.get_mut(at)
        {
            delivery.wanted = (services != delivery.services).then_some(services);
        }
    }

    /// Brings changes of subscription about, as fast as the rate allows.
    fn rescope(&mut self, now: Instant) {
        for delivery in &mut self.deliveries {
            if delivery.wanted.is_some() && !self.bucket.take(now) {
                return;
            }
            if let Some(services) = delivery.wanted.take() {
                let kind = delivery.kind;
                delivery.rescope(services.clone());
                self.actions.push_back(Action::Subscribe { kind, services });
            }
        }
    }

    /// Begins or ends the wait for views that are behind their client.
    fn watch_lag(&mut self, now: Instant) {
        for delivery in &mut self.deliveries {
            if !delivery.behind() {
                delivery.behind_until = None;
            } else if delivery.behind_until.is_none() {
                delivery.behind_until = Some(now + self.config.catch_up);
            }
        }
    }
}
