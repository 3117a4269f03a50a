//! What chooses an endpoint for each call.

use std::{
    cell::RefCell,
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use rulecast_identity::ConnectOptions;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{Span, field};

use super::{
    Balance, GovernedChannel,
    balance::{Weighed, hash, rendezvous},
    budget::Budget,
    choice::{Choice, NoEndpoint, Tries},
    place::Place,
    plan::{Plan, Tuning, View},
    said::Said,
};
use crate::{
    breaker::Attempt,
    client::Client,
    decision::{Decision, Effect, Request},
    endpoints::EndpointSet,
    tls::{Expected, Wire},
    trace::TARGET,
};

thread_local! {
    /// Memory of decisions, used again.
    static DECISION: RefCell<Decision> = RefCell::default();
}

/// Sets up a [`Governor`].
#[derive(Debug)]
#[must_use = "build it"]
pub struct GovernorBuilder {
    client: Client,
    service: Arc<str>,
    endpoints: Endpoints,
    balance: Balance,
    wire: Wire,
    connect: ConnectOptions,
    otherwise: Tuning,
}

#[derive(Debug)]
enum Endpoints {
    Fixed(Option<EndpointSet>),
    Followed(watch::Receiver<EndpointSet>),
}

impl GovernorBuilder {
    /// The endpoints of the service. None by default; [`Governor::set_endpoints`] replaces them.
    pub fn endpoints(self, endpoints: EndpointSet) -> Self {
        Self { endpoints: Endpoints::Fixed(Some(endpoints)), ..self }
    }

    /// The endpoints of the service, as they change: what finds them sends each new set. When
    /// the sender is dropped, the last set stays. To be built in a tokio runtime.
    pub fn follow(self, endpoints: watch::Receiver<EndpointSet>) -> Self {
        Self { endpoints: Endpoints::Followed(endpoints), ..self }
    }

    /// How calls spread. Default [`Balance::RoundRobin`].
    pub fn balance(self, balance: Balance) -> Self {
        Self { balance, ..self }
    }

    /// How connections to endpoints are opened. Default mutual TLS with any identity of the
    /// trust domain.
    pub fn wire(self, wire: Wire) -> Self {
        Self { wire, ..self }
    }

    /// In the clear: [`Wire::Plaintext`], for services that take no TLS.
    pub fn plaintext(self) -> Self {
        self.wire(Wire::Plaintext)
    }

    /// Times of connections. By default 3 s to open one, and pings as usual.
    pub fn connect_options(self, options: ConnectOptions) -> Self {
        Self { connect: options, ..self }
    }

    /// How long a try may take until its answer begins, where neither a rule nor the endpoint
    /// has the parameter `timeout`. Default: no limit but the caller's own.
    pub fn timeout(self, timeout: Duration) -> Self {
        let otherwise = Tuning { timeout: Some(timeout), ..self.otherwise };
        Self { otherwise, ..self }
    }

    /// How often a call is tried again, where neither a rule nor the endpoint has the parameter
    /// `retries`. Default 2; more than 10 count as 10.
    pub fn retries(self, retries: u32) -> Self {
        Self { otherwise: Tuning { retries: retries.min(10), ..self.otherwise }, ..self }
    }

    /// Builds it.
    pub fn build(self) -> Governor {
        let Self { client, service, endpoints, balance, wire, connect, otherwise } = self;
        let (set, follow) = match endpoints {
            Endpoints::Fixed(set) => (set.unwrap_or_default(), None),
            Endpoints::Followed(receiver) => {
                let set = receiver.borrow().clone();
                (set, Some(receiver))
            }
        };
        let follow = follow.map(|receiver| (receiver, CancellationToken::new()));
        let stop = follow.as_ref().map(|(_, stop)| stop.clone().drop_guard());
        let view = ArcSwap::from_pointee(View::new(set, None, otherwise));
        let (budget, _stop) = (Budget::default(), stop);
        let inner =
            Inner { client, service, balance, wire, connect, otherwise, view, budget, _stop };
        let governor = Governor(Arc::new(inner));
        if let Some((receiver, stop)) = follow {
            tokio::spawn(following(Arc::downgrade(&governor.0), receiver, stop));
        }
        governor
    }

    /// Builds it, with a channel for tonic clients.
    pub fn channel(self) -> GovernedChannel {
        self.build().channel()
    }
}

/// Takes new endpoints over until the governor is gone, or what finds them.
async fn following(
    governor: Weak<Inner>,
    mut endpoints: watch::Receiver<EndpointSet>,
    stop: CancellationToken,
) {
    // What came before this task began was not seen yet.
    endpoints.mark_changed();
    while let Some(Ok(())) = stop.run_until_cancelled(endpoints.changed()).await {
        let Some(inner) = governor.upgrade() else { return };
        let set = endpoints.borrow_and_update().clone();
        if set.id() != inner.view.load().set.id() {
            Governor(inner).set_endpoints(set);
        }
    }
}

/// Chooses an endpoint for each call of one service: by the routing rules, the circuit breakers
/// and the balance, in this order; and knows how the call is to be made. Cheap to clone; all
/// clones are one.
///
/// [`GovernedChannel`] does this for tonic clients. Use it directly to govern calls of another
/// protocol: [`choose`](Self::choose), call, and say how it went.
#[derive(Clone, Debug)]
pub struct Governor(Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) client: Client,
    service: Arc<str>,
    balance: Balance,
    pub(super) wire: Wire,
    pub(super) connect: ConnectOptions,
    otherwise: Tuning,
    view: ArcSwap<View>,
    budget: Budget,
    _stop: Option<DropGuard>,
}

impl Governor {
    /// Sets one up for calls of a service, `[group/]interface[:version]`.
    pub fn builder(client: &Client, service: &str) -> GovernorBuilder {
        let connect_timeout = Duration::from_secs(3);
        GovernorBuilder {
            client: client.clone(),
            service: service.into(),
            endpoints: Endpoints::Fixed(None),
            balance: Balance::default(),
            wire: Wire::Tls(Expected::Any),
            connect: ConnectOptions { connect_timeout, ..ConnectOptions::default() },
            otherwise: Tuning::default(),
        }
    }

    /// A channel for tonic clients. All of this governor's are one.
    pub fn channel(&self) -> GovernedChannel {
        GovernedChannel::new(self.clone())
    }

    /// What makes HTTP calls by a client of reqwest that opens connections as this governor
    /// says. It follows no redirects, and takes no proxy from the environment.
    #[cfg(feature = "reqwest")]
    pub fn http(&self) -> Result<super::GovernedHttp, super::HttpError> {
        super::GovernedHttp::of(self.clone())
    }

    /// The service.
    pub fn service(&self) -> &str {
        &self.0.service
    }

    /// The endpoints that there are now.
    pub fn endpoints(&self) -> EndpointSet {
        self.0.view.load().set.clone()
    }

    /// Replaces the endpoints. Connections to addresses that stay are kept; those to others
    /// close when their calls have ended.
    pub fn set_endpoints(&self, endpoints: EndpointSet) {
        let otherwise = self.0.otherwise;
        self.0.view.rcu(|view| View::new(endpoints.clone(), Some(view), otherwise));
    }

    /// A request to the service, to be completed with what is known of the call.
    pub fn request(&self) -> Request<'_> {
        self.0.client.request(&*self.0.service)
    }

    /// Chooses an endpoint for a call, or for another try of it: then one that was not tried
    /// yet, if one is left. Waits for nothing. Allocates nothing once warm, except for another
    /// try, and when an endpoint is passed over because its breaker opens or its connection
    /// failed a moment ago.
    pub fn choose(&self, request: &Request<'_>, tries: &mut Tries) -> Result<Choice, NoEndpoint> {
        self.choose_within(request, tries, &Span::none())
    }

    /// The same, of a call with these headers, with a span if it is traced.
    pub(super) fn choose_for(
        &self,
        method: &str,
        said: &Said<'_>,
        tries: &mut Tries,
    ) -> Result<Choice, NoEndpoint> {
        let span = match self.0.client.sampling().takes(said.headers) {
            true => tracing::info_span!(
                target: TARGET,
                "rulecast.route",
                service = &*self.0.service,
                method,
                attempt = tries.count() + 1,
                endpoint = field::Empty,
                rules = field::Empty,
                remaining = field::Empty,
                draw = field::Empty,
            ),
            false => Span::none(),
        };
        let request = self.request().method(method).headers(said);
        span.in_scope(|| self.choose_within(&request, tries, &span))
    }

    fn choose_within(
        &self,
        request: &Request<'_>,
        tries: &mut Tries,
        span: &Span,
    ) -> Result<Choice, NoEndpoint> {
        let inner = &*self.0;
        let view = inner.view.load();
        let given = inner.client.parameters(&inner.service, &view.set);
        let plan = view.plan(given, inner.otherwise);
        if tries.count() == 0 {
            inner.budget.earn();
        }
        DECISION.with_borrow_mut(|decision| {
            match tries.draw {
                None => inner.client.route_into(request, &view.set, decision),
                // As the try before, so that chance does not lead elsewhere now.
                Some(draw) => {
                    inner.client.route_into(&request.clone().draw(draw), &view.set, decision);
                }
            }
            tries.draw = decision.draw;
            if !span.is_none() {
                let applied = decision.rules.iter().filter(|rule| rule.effect == Effect::Applied);
                let rules: Vec<&str> = applied.map(|rule| &*rule.key).collect();
                span.record("rules", rules.join(", "));
                span.record("remaining", decision.endpoints.len());
                span.record("draw", decision.draw);
            }
            let picked = inner.pick(request, &view, &plan, &decision.endpoints, tries);
            let Some((index, place, attempt)) = picked else {
                return Err(NoEndpoint::because(&inner.service, view.set.len(), decision));
            };
            span.record("endpoint", &*place.address);
            tries.add(place.clone());
            let set = view.set.clone();
            Ok(Choice::new(set, index, place, attempt, plan.tuning(index)))
        })
    }

    /// Whether a call may be tried again, of which it is sure that it did no harm: as often as
    /// `retries`, which the first choice said, and of all calls a fifth, with ten in reserve.
    /// Counts it.
    pub fn may_retry(&self, tries: &Tries, retries: u32) -> bool {
        tries.count() <= retries && self.0.budget.spend()
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.0
    }
}

impl Inner {
    fn pick(
        &self,
        request: &Request<'_>,
        view: &View,
        plan: &Plan,
        candidates: &[u32],
        tries: &Tries,
    ) -> Option<(u32, Arc<Place>, Attempt)> {
        if candidates.is_empty() {
            return None;
        }
        let place = |index: u32| view.places.get(index as usize);
        let tried = |index: u32| place(index).is_some_and(|place| tries.has(place));
        let rests = |index: u32| place(index).is_some_and(|place| place.rests());
        let begin = |index: u32| {
            let attempt = self.client.attempt(&self.service, &view.set, index)?;
            Some((index, place(index)?.clone(), attempt))
        };
        // Another try takes nobody's turn, or the calls after it would begin where it ended.
        if tries.count() == 0 {
            let first = self.balanced(request, view, plan, candidates, false)?;
            if place(first).is_some_and(|place| place.takes_calls())
                && let Some(begun) = begin(first)
            {
                return Some(begun);
            }
        }
        // The best of those that are left.
        let mut left = candidates.to_vec();
        loop {
            let fresh: Vec<u32> =
                left.iter().copied().filter(|at| !tried(*at) && !rests(*at)).collect();
            let untried: Vec<u32> = left.iter().copied().filter(|at| !tried(*at)).collect();
            let best = [&fresh, &untried, &left].into_iter().find(|list| !list.is_empty())?;
            let index = self.balanced(request, view, plan, best, true)?;
            if let Some(begun) = begin(index) {
                return Some(begun);
            }
            left.retain(|at| *at != index);
        }
    }

    /// Which of these endpoints; `once`: the list is not likely to come again.
    fn balanced(
        &self,
        request: &Request<'_>,
        view: &View,
        plan: &Plan,
        candidates: &[u32],
        once: bool,
    ) -> Option<u32> {
        if let Balance::Hash(name) = &self.balance
            && let Some(value) = request.attached(name)
        {
            let weighed = candidates.iter().map(|&index| {
                let hash = view.places.get(index as usize).map_or(0, |place| place.hash);
                (index, hash, plan.tuning(index).weight)
            });
            return rendezvous(hash(value), weighed);
        }
        let lane = match once {
            true => Arc::new(plan.passing(candidates)),
            false => plan.lane(candidates),
        };
        match self.balance {
            Balance::LeastRequest => {
                let (first, second) = lane.two()?;
                let load = |(index, weight): Weighed, by: u32| {
                    let open = view.places.get(index as usize).map_or(0, |place| place.open());
                    (index, weight, u64::from(open) * u64::from(by))
                };
                Some(match second {
                    // Calls for the weight, without a division.
                    Some(second) if load(second, first.1).2 < load(first, second.1).2 => second.0,
                    _ => first.0,
                })
            }
            Balance::RoundRobin | Balance::Hash(_) => lane.next(),
        }
    }
}
