//! The gRPC service: a thin shell around the stream engine.
//!
//! One task per stream. It waits for whatever comes first (a request, a view, a
//! deadline, room to send) and lets the [`Stream`] decide. At most one message
//! waits for the transport; while it does, the engine is asked for none.
//!
//! A client in a pod is subscribed once its pod's labels are known, and again when they
//! change; the stream stays open. When the pod is no more, the stream ends.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use futures_util::{StreamExt as _, future::ready, stream};
use rulecast_api::{
    Code, Kind, Kinds,
    proto::observe::v1::{
        ObserveRequest, ObserveResponse,
        rule_service_server::{self, RuleServiceServer},
    },
};
use tokio::{
    sync::{mpsc, oneshot},
    time,
};
use tokio_stream::{StreamMap, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use tracing::{Instrument as _, debug, info, info_span, warn};

use crate::{
    pods::{Place, Pods, Standing},
    rollout::{self, Report, Rollout, Tracked},
    scope::Subject,
    stream::{Action, Close, Counters, Services, Stream, StreamConfig, Wire},
    view::View,
    views::Views,
};

mod caller;
mod dubbo;
mod metrics;
mod source;
#[cfg(test)]
mod tests;

pub use caller::Caller;
pub use dubbo::DubboRuleService;
pub use metrics::Metrics;
pub use source::{ViewSource, ViewSubscription};

/// Largest request that is read, in bytes. The engine's own limits are narrower.
pub const MAX_REQUEST: usize = 8 << 20;
/// Largest response that is sent, in bytes: one item may pass the chunk size.
pub const MAX_RESPONSE: usize = 32 << 20;

/// How often the wall clock is compared with a certificate's end: the clock may
/// be set while the stream is open.
const EXPIRY_CHECK: Duration = Duration::from_secs(30);

/// How long a client may wait for its pod to become known.
const POD_WAIT: Duration = Duration::from_secs(5);

type ResponseStream =
    Pin<Box<dyn stream::Stream<Item = Result<ObserveResponse, Status>> + Send + 'static>>;
type ViewStream = Pin<Box<dyn stream::Stream<Item = Arc<View>> + Send + 'static>>;

/// `rulecast.observe.v1.RuleService`. Clones share everything.
///
/// Requests must carry a verified [`Peer`](rulecast_identity::Peer) in their extensions, as
/// [`rulecast_identity::serve_tls`] puts it there.
#[derive(Debug)]
pub struct RuleService<V = Views> {
    shared: Arc<Shared<V>>,
}

impl<V> Clone for RuleService<V> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

#[derive(Debug)]
struct Shared<V> {
    views: V,
    pods: Option<Pods>,
    rollout: Rollout,
    config: StreamConfig,
    kinds: Kinds,
    metrics: Metrics,
    drain: CancellationToken,
}

impl<V: ViewSource> RuleService<V> {
    /// A service of `kinds` over `views`, to clients that are joined with `pods` where they
    /// run in one; without the table they are served as if their pods had no labels. When
    /// `drain` is cancelled all streams end, and new ones are refused.
    pub fn new(
        views: V,
        pods: Option<Pods>,
        rollout: Rollout,
        config: StreamConfig,
        kinds: Kinds,
        metrics: Metrics,
        drain: CancellationToken,
    ) -> Self {
        Self { shared: Arc::new(Shared { views, pods, rollout, config, kinds, metrics, drain }) }
    }

    /// For a router, with the limits on messages set.
    pub fn into_server(self) -> RuleServiceServer<Self> {
        RuleServiceServer::new(self)
            .max_decoding_message_size(MAX_REQUEST)
            .max_encoding_message_size(MAX_RESPONSE)
    }

    /// Serves one client that has been authenticated. `requests` may be any source of
    /// requests.
    pub fn serve<R>(&self, caller: Caller, requests: R) -> ResponseStream
    where
        R: stream::Stream<Item = Result<ObserveRequest, Status>> + Send + Unpin + 'static,
    {
        self.serve_on(Wire::Rulecast, caller, requests)
    }

    /// As [`RuleService::serve`], for a client that speaks `wire`.
    fn serve_on<R>(&self, wire: Wire, caller: Caller, requests: R) -> ResponseStream
    where
        R: stream::Stream<Item = Result<ObserveRequest, Status>> + Send + Unpin + 'static,
    {
        let (out, responses) = mpsc::channel(1);
        let (end, ended) = oneshot::channel();
        let Caller { identity, pod, not_after, address } = caller;
        let span =
            info_span!("stream", client = %identity, peer = address.map(tracing::field::display));
        let tracked = self.shared.rollout.track(rollout::Peer {
            spiffe_id: identity.to_string(),
            address,
            connected_at: SystemTime::now(),
        });
        let now = Instant::now();
        let pod = pod.zip(self.shared.pods.as_ref()).map(|(pod, pods)| Joined {
            place: pods.follow(pod),
            known: false,
            until: now + POD_WAIT,
        });
        let session = Session {
            engine: Stream::new(self.shared.config.clone(), self.shared.kinds, now).on_wire(wire),
            shared: self.shared.clone(),
            subject: Subject::new(&identity),
            pod,
            not_after,
            tracked,
            subscribed: BTreeMap::new(),
            views: StreamMap::new(),
            counters: Counters::default(),
        };
        let open = self.shared.metrics.opened();
        tokio::spawn(
            async move {
                let _open = open;
                if let Some(close) = session.run(requests, out).await {
                    // The client may be gone.
                    let _ = end.send(Status::new(close.status, close.to_string()));
                }
            }
            .instrument(span),
        );
        // The status stands beside the channel, so that ending waits for no slow reader.
        let status = stream::once(ended).filter_map(|status| ready(status.ok().map(Err)));
        Box::pin(ReceiverStream::new(responses).map(Ok).chain(status))
    }
}

#[tonic::async_trait]
impl<V: ViewSource> rule_service_server::RuleService for RuleService<V> {
    type ObserveStream = ResponseStream;

    async fn observe(
        &self,
        request: Request<Streaming<ObserveRequest>>,
    ) -> Result<Response<ResponseStream>, Status> {
        let caller = Caller::of(request.extensions())?;
        Ok(Response::new(self.serve(caller, request.into_inner())))
    }
}

/// One stream.
struct Session<V> {
    shared: Arc<Shared<V>>,
    engine: Stream,
    subject: Subject,
    /// The client's pod, where it is joined with one.
    pod: Option<Joined>,
    not_after: SystemTime,
    tracked: Tracked,
    /// What the client wants, also while its pod is not known.
    subscribed: BTreeMap<Kind, Services>,
    views: StreamMap<Kind, ViewStream>,
    counters: Counters,
}

/// The pod of a stream's client.
struct Joined {
    place: Place,
    /// Its traits have been known.
    known: bool,
    /// When the client has waited long enough for that.
    until: Instant,
}

/// Waits until it stands otherwise with a pod.
async fn moved(pod: &mut Option<Joined>) {
    match pod {
        Some(joined) => joined.place.changed().await,
        None => std::future::pending().await,
    }
}

impl<V: ViewSource> Session<V> {
    /// Runs until the client leaves (`None`) or the plane ends the stream.
    async fn run<R>(mut self, mut requests: R, out: mpsc::Sender<ObserveResponse>) -> Option<Close>
    where
        R: stream::Stream<Item = Result<ObserveRequest, Status>> + Send + Unpin,
    {
        debug!("the stream is open");
        let drain = self.shared.drain.clone();
        loop {
            if let Some(close) = self.act() {
                return Some(close);
            }
            // Looked at before anything else: nothing leaves for an identity that has ended.
            if SystemTime::now() >= self.not_after {
                let message = "the client's certificate has expired; renew it and connect again";
                self.engine.close(
                    Code::IdentityEnded,
                    tonic::Code::Unauthenticated,
                    message.into(),
                );
                continue;
            }
            if self.join() {
                continue;
            }
            let now = Instant::now();
            let sends = self.engine.wants_to_send(now);
            let tick = self.engine.deadline().unwrap_or(now + EXPIRY_CHECK);
            let wake = self.wake(now, tick);
            tokio::select! {
                () = drain.cancelled() => self.engine.on_draining(),
                () = moved(&mut self.pod) => {}
                () = time::sleep_until(wake.into()) => {
                    self.engine.on_tick(Instant::now());
                }
                request = requests.next() => match request {
                    Some(Ok(request)) => self.engine.on_request(Instant::now(), request),
                    Some(Err(status)) => {
                        debug!(%status, "the client's side of the stream has failed");
                        return None;
                    }
                    None => {
                        debug!("the client has ended the stream");
                        return None;
                    }
                },
                Some((_, view)) = self.views.next(), if !self.views.is_empty() => {
                    self.engine.on_view(Instant::now(), view);
                }
                place = out.reserve(), if sends => match place {
                    Ok(place) => {
                        if let Some(frame) = self.engine.next_frame(Instant::now()) {
                            place.send(frame);
                        }
                    }
                    Err(_) => {
                        debug!("the client has gone");
                        return None;
                    }
                },
                // Also while there is nothing to send.
                () = out.closed(), if !sends => {
                    debug!("the client has gone");
                    return None;
                }
            }
        }
    }

    /// When to look at the clocks again.
    fn wake(&self, now: Instant, tick: Instant) -> Instant {
        let left = self.not_after.duration_since(SystemTime::now()).unwrap_or_default();
        let pod = self.pod.as_ref().filter(|pod| !pod.known).map(|pod| pod.until);
        tick.min(now + left.min(EXPIRY_CHECK)).min(pod.unwrap_or(tick))
    }

    /// Goes by what is known of the client's pod now. True when that gave the engine
    /// something to say.
    fn join(&mut self) -> bool {
        let Some(pod) = &mut self.pod else { return false };
        let (code, status, message) = match pod.place.standing() {
            Standing::Present(traits) => {
                let same = std::mem::replace(&mut pod.known, true) && traits == self.subject.pod;
                if same {
                    return false;
                }
                debug!(?traits, "the pod");
                self.subject.pod = traits;
                for (kind, services) in self.subscribed.clone() {
                    self.subscribe(kind, services);
                }
                return true;
            }
            Standing::Gone => (
                Code::PodGone,
                tonic::Code::Unauthenticated,
                "the client's pod has been deleted; its certificate opens no stream any more",
            ),
            Standing::Unknown if !pod.known && Instant::now() >= pod.until => (
                Code::PodUnknown,
                tonic::Code::Unavailable,
                "the client's pod is not known here yet; connect again",
            ),
            Standing::Unknown => return false,
        };
        self.engine.close(code, status, message.into());
        true
    }

    /// Gives the engine the view that the client sees, now and whenever it changes, in place
    /// of an earlier one of the kind.
    fn subscribe(&mut self, kind: Kind, services: Services) {
        let mut place = self.shared.views.subscribe(&self.subject, services, kind);
        let current = place.current();
        let views = stream::unfold(place, async |mut place| {
            let view = place.changed().await;
            Some((view, place))
        });
        self.views.insert(kind, Box::pin(views.filter_map(ready)));
        if let Some(view) = current {
            self.engine.on_view(Instant::now(), view);
        }
    }

    /// Does what the engine wants done; gives the reason when it wants an end.
    fn act(&mut self) -> Option<Close> {
        let mut end = None;
        while let Some(action) = self.engine.next_action() {
            match action {
                Action::Subscribe { kind, services } => {
                    self.subscribed.insert(kind, services.clone());
                    // Rules may select by labels, so they are not guessed at.
                    if self.pod.as_ref().is_none_or(|pod| pod.known) {
                        self.subscribe(kind, services);
                    }
                }
                Action::Report(report) => self.report(report),
                Action::Close(close) => end = Some(close),
            }
        }
        let counters = self.engine.counters();
        self.shared.metrics.advance(self.counters, counters);
        self.counters = counters;
        if let Some(close) = &end {
            info!(code = %close.code, reason = %close.message, "the stream ends");
            self.shared.metrics.ended(close.code);
        }
        end
    }

    fn report(&self, report: Report) {
        match &report {
            Report::Applied { kind, view, rejected, took, .. } => {
                self.shared.metrics.converged(*kind, *took);
                if rejected.is_empty() {
                    debug!(%kind, revision = view.revision, ?took, "applied");
                } else {
                    for rejected in rejected.iter() {
                        info!(%kind, rule = %rejected.key, reason = %rejected.reason, "rejected");
                    }
                }
            }
            Report::Refused { kind, view, reason } => {
                warn!(%kind, revision = view.revision, %reason, "refused whole");
            }
            _ => {}
        }
        self.tracked.report(report);
    }
}
