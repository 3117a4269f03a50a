//! The client: what an application holds to have its calls decided.

use std::{borrow::Cow, fmt, sync::Arc, time::Instant};

use rulecast_identity::{IdentityHandle, serve::Event};
use tokio::sync::watch;

mod builder;
mod connect;
mod error;
mod owner;
mod persist;
mod report;
mod session;
mod shared;

pub(crate) use builder::endpoint;
pub use builder::{ClientBuilder, Startup, TYPES, Tuning};
pub use error::ConnectError;

use crate::{
    breaker::{Attempt, BreakerStatus},
    decision::{
        Admission, Authorization, Decision, EffectiveParameters, Explained, Explanation, Inbound,
        Request, TlsMode,
    },
    endpoints::{EndpointSet, Params},
    metrics::Metrics,
    status::Status,
    tls::ConnectionCounts,
    trace::Sampling,
};
use connect::Tasks;
use shared::Shared;

/// An application's connection to its rules. Cheap to clone; all clones are one
/// client, and dropping the last one ends its tasks.
///
/// Decisions take no lock and never wait: they use the rules that are in force
/// at that moment, whether or not the plane can be reached.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    tasks: Arc<Tasks>,
}

impl Client {
    /// Sets up a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A request to a service (`[group/]interface[:version]`) by this consumer.
    pub fn request<'a>(&'a self, service: impl Into<Cow<'a, str>>) -> Request<'a> {
        Request::new(service, self.consumer())
    }

    /// The parameters of this consumer.
    pub fn consumer(&self) -> &Params {
        &self.shared.consumer
    }

    /// Decides a call: which of `endpoints` may be used. A request made by
    /// [`request`](Self::request) costs least; the consumer parameters of others win
    /// over the client's. Before the first complete rules the startup policy decides,
    /// and the decision carries a fault of kind [`FaultKind::NotReady`](crate::host::FaultKind).
    pub fn route(&self, request: &Request<'_>, endpoints: &EndpointSet) -> Decision {
        let mut decision = Decision::default();
        self.route_into(request, endpoints, &mut decision);
        decision
    }

    /// Decides as [`route`](Self::route), into a decision whose memory is used again: once it
    /// is warm, a call allocates nothing.
    pub fn route_into(
        &self,
        request: &Request<'_>,
        endpoints: &EndpointSet,
        decision: &mut Decision,
    ) {
        let recorder = &self.shared.recorder;
        let route = || {
            self.shared.route_into(request, endpoints, decision);
            decision
        };
        recorder.counted(route, |decision| decision.outcome());
    }

    /// Decides whether a call that came in may be taken, by the AuthorizationPolicies for this
    /// application: a matching DENY policy denies it; else, when there are ALLOW policies, one
    /// of them must match. It is denied, too, before the first complete rules and when a policy
    /// fails; the reason says so. What is not said of the call matches no rule.
    ///
    /// Takes no lock; and of a call that is allowed, allocates nothing.
    pub fn authorize(&self, call: &Inbound<'_>) -> Authorization {
        self.shared.recorder.counted(|| self.shared.authorize(call), Authorization::outcome)
    }

    /// Decides whether a call that came in is taken now, by the RateLimits for this application,
    /// and counts it: all of them must have room for it, and the answer says when to come again.
    /// All threads count together; another process counts for itself. What cannot be decided is
    /// taken: before the first complete rules, and when a policy fails.
    ///
    /// Takes a lock that calls with other keys rarely share; once warm it allocates nothing.
    pub fn admit(&self, call: &Inbound<'_>) -> Admission {
        let admit = || self.shared.admit(call, Instant::now());
        self.shared.recorder.counted(admit, Admission::outcome)
    }

    /// Decides as [`authorize`](Self::authorize) and says why: which rules of which policies
    /// hold, and of what others what does not. For people; it costs more.
    pub fn explain_authorize(&self, call: &Inbound<'_>) -> Explained<Authorization> {
        self.shared.explain_authorize(call)
    }

    /// Decides as [`admit`](Self::admit) and says why: which limits count the call, and in which
    /// bucket. Counts nothing. For people; it costs more.
    pub fn explain_admit(&self, call: &Inbound<'_>) -> Explained<Admission> {
        self.shared.explain_admit(call, Instant::now())
    }

    /// Begins a call to an endpoint, one that [`route`](Self::route) left. `None`: its circuit
    /// breaker has opened meanwhile, or lets no more calls through to try; choose another.
    ///
    /// The endpoints are those that were routed, and the service is named as it was there. Takes
    /// no lock once the service was called with these endpoints.
    pub fn attempt(
        &self,
        service: &str,
        endpoints: &EndpointSet,
        endpoint: u32,
    ) -> Option<Attempt> {
        self.shared.attempt(service, endpoints, endpoint)
    }

    /// Where the circuit breakers stand, by rule, service and endpoint. For people and metrics;
    /// it takes locks.
    pub fn breakers(&self) -> Vec<BreakerStatus> {
        self.shared.breakers()
    }

    /// The certificate, key and trust bundle of this process, replaced as they are renewed.
    /// `None` before the first certificate.
    pub fn identity(&self) -> Option<IdentityHandle> {
        self.shared.identity.load_full().map(|handle| IdentityHandle::clone(&handle))
    }

    /// What became of the connections that [`tls`](crate::tls) was to take.
    pub fn connections(&self) -> ConnectionCounts {
        self.shared.connections.now()
    }

    pub(crate) fn count_connection(&self, event: Event) {
        self.shared.connections.count(event);
    }

    /// Which calls are traced.
    #[inline]
    pub(crate) fn sampling(&self) -> Sampling {
        self.shared.sampling
    }

    /// How connections at a port are to be taken, by the AuthenticationPolicies for this
    /// application. [`TlsMode::Strict`] before the first complete rules and when a policy
    /// fails. Ask for each connection: the answer changes with the rules.
    pub fn tls_mode(&self, port: u16) -> TlsMode {
        self.shared.tls_mode(port)
    }

    /// The parameters that DynamicConfig gives to calls of a service (`[group/]interface
    /// [:version]`) and its endpoints. Evaluated when the rules or the endpoints are others
    /// than before, else remembered; empty before there are rules.
    pub fn parameters(&self, service: &str, endpoints: &EndpointSet) -> Arc<EffectiveParameters> {
        self.shared.parameters(service, endpoints)
    }

    /// Decides as [`route`](Self::route) and says why: which rules and conditions
    /// matched, and which draw was used. For people; it costs more.
    pub fn explain(&self, request: &Request<'_>, endpoints: &EndpointSet) -> Explanation {
        self.shared.explain(request, endpoints)
    }

    /// What was counted of the decisions and of the rules in force, added up from all threads.
    /// Calls that are only explained do not count.
    pub fn metrics(&self) -> Metrics {
        self.shared.metrics()
    }

    /// How the client fares now.
    pub fn status(&self) -> Status {
        self.shared.status.borrow().clone()
    }

    /// Follows [`status`](Self::status). A reader that is slow sees the newest, not each one.
    /// It ends with the client.
    pub fn changes(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// Ends the tasks of this client and its clones, with what was not yet written
    /// of the snapshot. Decisions go on by the rules held.
    pub async fn shutdown(&self) {
        self.tasks.shutdown().await;
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("status", &*self.shared.status.borrow()).finish()
    }
}
