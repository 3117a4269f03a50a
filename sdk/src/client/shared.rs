//! What a client's decisions, its tasks and its readers share.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use rulecast_api::{
    Code, Digest, SpiffeId,
    proto::{report::v1::ReportRequest, rules::v1::Rule},
};
use rulecast_identity::IdentityHandle;
use tokio::{sync::watch, task};

use super::{ClientBuilder, ConnectError, Startup};
use crate::{
    breaker::{self, Attempt, BreakerStatus, Breakers},
    clock::Clock,
    decision::{
        Admission, Authorization, Decision, DecisionFault, EffectiveParameters, Entry, Explained,
        Explanation, Inbound, POLICIES, Policies, Reason, Request, RuleSet, TlsMode, is_hosted,
        slot,
    },
    disk::{StoredSnapshot, StoredType},
    endpoints::{EndpointSet, Params},
    host::{Fault, FaultKind},
    metrics::{InForce, Metrics, Recorder, Reporter, RuleMetrics},
    observe::Apply,
    snapshot::{KindSnapshot, Rejected},
    status::{Status, coded},
    tls::Counts,
    trace::Sampling,
};

/// Labels that a plane takes, and bytes of their names and values.
const MAX_LABELS: usize = 64;
const MAX_LABEL: usize = 1024;
/// Endpoint sets whose parameters are remembered.
const MAX_KNOWN: usize = 1024;

/// All that is in force at one moment. Immutable.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// By type; every subscribed type has its entry.
    pub(super) kinds: BTreeMap<String, Arc<KindSnapshot>>,
    /// Those of the kinds that have policies.
    rules: RuleSet,
    /// Every type is complete.
    ready: bool,
    /// Which types of [`POLICIES`] are complete, by slot; shorter: the others are not.
    complete: Vec<bool>,
}

impl Held {
    fn nothing(types: &[String]) -> Self {
        let kinds = types.iter().map(|t| (t.clone(), Arc::default())).collect();
        Self { kinds, ..Self::default() }
    }

    /// This with other states of some types.
    fn with(&self, changed: impl IntoIterator<Item = (String, KindSnapshot)>) -> Self {
        let (mut kinds, mut rules) = (self.kinds.clone(), self.rules.clone());
        for (type_name, kind) in changed {
            rules = rules.with(&type_name, kind.items.values().map(|i| &*i.rule));
            kinds.insert(type_name, Arc::new(kind));
        }
        let ready = kinds.values().all(|kind| kind.source.is_some());
        let complete = |type_name| kinds.get(type_name).is_some_and(|kind| kind.source.is_some());
        let complete = POLICIES.iter().map(|kind| complete(kind.type_name)).collect();
        Self { kinds, rules, ready, complete }
    }

    /// Whether the state of a type is complete, by slot.
    fn has(&self, slot: usize) -> bool {
        self.complete.get(slot).copied().unwrap_or_default()
    }

    /// For the disk: what is complete.
    pub(super) fn to_stored(&self, policies: &Policies) -> StoredSnapshot {
        let complete = self.kinds.iter().filter(|(_, kind)| kind.source.is_some());
        let types: Vec<StoredType> =
            complete.map(|(name, kind)| kind.to_stored(name, &engine(policies, name))).collect();
        StoredSnapshot { types }
    }
}

/// What refuses rules that need no policy.
const HOST: &[u8] = concat!("rulecast-sdk ", env!("CARGO_PKG_VERSION")).as_bytes();

/// What refuses rules of a type, and is remembered with the refusals.
fn engine(policies: &Policies, type_name: &str) -> Digest {
    policies.engine_digest(type_name).unwrap_or_else(|| Digest::of(HOST))
}

/// See the module.
pub(super) struct Shared {
    held: ArcSwap<Held>,
    pub(super) policies: Policies,
    /// Of all policies.
    pub(super) engine: Digest,
    pub(super) consumer: Params,
    startup: Startup,
    pub(super) sampling: Sampling,
    pub(super) types: Vec<String>,
    pub(super) status: watch::Sender<Status>,
    /// Whose rules are held.
    owner: Mutex<Option<SpiffeId>>,
    parameters: ArcSwap<Known>,
    breakers: Breakers,
    /// Of this process; none before the first certificate.
    pub(super) identity: ArcSwapOption<IdentityHandle>,
    pub(super) connections: Counts,
    /// Counts the decisions.
    pub(super) recorder: Recorder,
}

/// Parameters that were asked for before, by the rules of which they are.
#[derive(Default)]
struct Known {
    rules: u64,
    /// By endpoint set; each with its service.
    sets: HashMap<u32, Vec<(String, Arc<EffectiveParameters>)>>,
}

impl Shared {
    /// With nothing held. Loads the policies off the runtime's threads.
    pub(super) async fn new(builder: &ClientBuilder) -> Result<Self, ConnectError> {
        let load = || Policies::builtin().map(|policies| (policies.digest(), policies));
        let (engine, policies) = match task::spawn_blocking(load).await {
            Ok(Ok(loaded)) => loaded,
            Ok(Err(e)) => {
                return Err(ConnectError::Policies { code: e.code(), message: e.to_string() });
            }
            Err(e) => {
                let (code, message) = (Code::ModuleInvalid, e.to_string());
                return Err(ConnectError::Policies { code, message });
            }
        };
        Ok(Self::with(builder, policies, engine))
    }

    fn with(builder: &ClientBuilder, policies: Policies, engine: Digest) -> Self {
        let mut types = builder.types.clone();
        types.sort_unstable();
        types.dedup();
        let own = [("application".to_owned(), builder.application.clone())];
        let parameters = builder.parameters.iter().map(|(n, v)| (n.clone(), v.clone()));
        let held = Held::nothing(&types);
        let status = Status { kinds: kinds(&held), ..Status::default() };
        Self {
            held: ArcSwap::from_pointee(held),
            engine,
            // Clients of one process have different rules.
            policies: policies.apart(),
            consumer: own.into_iter().chain(parameters).collect(),
            startup: builder.startup,
            sampling: Sampling::new(builder.traced),
            types,
            status: watch::Sender::new(status),
            owner: Mutex::new(None),
            parameters: ArcSwap::default(),
            breakers: Breakers::new(Clock::system()),
            identity: ArcSwapOption::empty(),
            connections: Counts::default(),
            recorder: Recorder::default(),
        }
    }

    pub(super) fn held(&self) -> Arc<Held> {
        self.held.load_full()
    }

    /// For the plane's lists of clients.
    pub(super) fn labels(&self) -> HashMap<String, String> {
        let short = |(n, v): &(&str, &str)| n.len() <= MAX_LABEL && v.len() <= MAX_LABEL;
        let labels = self.consumer.iter().filter(short).take(MAX_LABELS);
        labels.map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
    }

    /// Changes the status; readers are told only when that makes a difference.
    pub(super) fn update(&self, change: impl FnOnce(&mut Status)) {
        self.status.send_if_modified(|status| {
            let before = status.clone();
            change(status);
            *status != before
        });
    }

    /// Puts other rules in force, and says so.
    fn install(&self, held: Held) -> Arc<Held> {
        let decisions = self.recorder.decisions();
        for (kind, entry) in held.rules.entries() {
            if let Some(decisions) = decisions.of(kind.phase) {
                entry.stats.begin(decisions);
            }
        }
        let held = Arc::new(held);
        self.held.store(held.clone());
        self.update(|status| {
            status.kinds = kinds(&held);
            status.ready = held.ready;
        });
        held
    }

    /// Says whose rules are held. True: another's than before, so that there are none now.
    pub(super) fn adopt(&self, id: &SpiffeId) -> bool {
        let mut owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        match owner.replace(id.clone()) {
            Some(before) if before == *id => false,
            None => true,
            Some(before) => {
                tracing::warn!(%before, now = %id, "another identity; the rules held are let go");
                self.install(Held::nothing(&self.types));
                true
            }
        }
    }

    fn check(&self, type_name: &str, rule: &Rule) -> Result<(), String> {
        let checked = match is_hosted(type_name) {
            true => breaker::check(rule),
            false => self.policies.check(type_name, rule),
        };
        checked.map_err(|rejection| coded(Code::RuleRefused, &rejection.to_string()))
    }

    /// What speaks without any rule must be ready before a call comes. Blocks.
    fn prepare(&self, type_name: &str) {
        if type_name == POLICIES[slot::TAG_ROUTE].type_name
            && let Err(error) = self.policies.prepare(type_name)
        {
            tracing::warn!(%type_name, %error, "a policy cannot be loaded");
        }
    }

    /// Puts in force what was kept on disk; gives how many rules. Blocks.
    pub(super) fn restore(&self, stored: &StoredSnapshot) -> usize {
        let ours = stored.types.iter().filter(|t| self.types.contains(&t.type_name));
        let kinds = ours.map(|stored| {
            let check = |rule: &Rule| self.check(&stored.type_name, rule);
            let engine = engine(&self.policies, &stored.type_name);
            let kind = KindSnapshot::from_stored(stored, &engine, check);
            self.prepare(&stored.type_name);
            (stored.type_name.clone(), kind)
        });
        let held = self.install(self.held().with(kinds));
        held.kinds.values().map(|kind| kind.items.len()).sum()
    }

    /// Brings a change about, off the runtime's threads. Gives what is in force then, and
    /// what of the change is not.
    pub(super) async fn apply(
        self: &Arc<Self>,
        apply: Apply,
    ) -> Result<(Arc<Held>, Vec<Rejected>), String> {
        let shared = self.clone();
        let work = move || {
            let held = shared.held();
            let Apply { type_name, change } = apply;
            let before = held.kinds.get(&type_name).cloned().unwrap_or_default();
            let (kind, refused) = before.apply(&change, |rule| shared.check(&type_name, rule));
            for rejected in &refused {
                let Rejected { key, digest, reason } = rejected;
                tracing::warn!(%type_name, %key, digest = %digest.short(), %reason, "rule rejected");
            }
            shared.prepare(&type_name);
            (shared.install(held.with([(type_name, kind)])), refused)
        };
        task::spawn_blocking(work).await.map_err(|e| format!("applying it broke off: {e}"))
    }

    pub(super) fn route_into(
        &self,
        request: &Request<'_>,
        endpoints: &EndpointSet,
        decision: &mut Decision,
    ) {
        let held = self.held.load();
        if !held.ready {
            *decision = self.unready(endpoints);
            return;
        }
        match self.merged(request) {
            None => self.policies.route_into(&held.rules, request, endpoints, decision),
            Some(merged) => self.policies.route_into(&held.rules, &merged, endpoints, decision),
        }
        self.breakers.narrow(&held.rules, &request.service, endpoints, decision);
    }

    pub(super) fn attempt(
        &self,
        service: &str,
        endpoints: &EndpointSet,
        endpoint: u32,
    ) -> Option<Attempt> {
        self.breakers.attempt(&self.held.load().rules, service, endpoints, endpoint)
    }

    pub(super) fn breakers(&self) -> Vec<BreakerStatus> {
        self.breakers.status(&self.held.load().rules)
    }

    pub(super) fn metrics(&self) -> Metrics {
        let (held, decisions) = (self.held.load(), self.recorder.decisions());
        let rules = held.rules.entries().filter_map(|(kind, entry)| {
            let Entry { key, shadow, stats, .. } = entry;
            RuleMetrics::of(kind.type_name, key, *shadow, stats, decisions.of(kind.phase))
        });
        Metrics::new(&self.recorder, rules.collect(), self.connections.now())
    }

    /// What the plane is to be told of the rules.
    pub(super) fn report(&self, reporter: &mut Reporter) -> Option<ReportRequest> {
        let (held, decisions) = (self.held(), self.recorder.decisions());
        let rules = held.rules.entries().filter_map(|(kind, entry)| {
            let Entry { key, shadow, stats, .. } = entry;
            let digest = held.kinds.get(kind.type_name)?.items.get(&**key)?.digest;
            let (kind, decisions) = (kind.type_name, decisions.of(kind.phase));
            Some(InForce { kind, key, digest, shadow: *shadow, stats, decisions })
        });
        reporter.report(rules)
    }

    /// Denies what cannot be decided.
    pub(super) fn authorize(&self, call: &Inbound<'_>) -> Authorization {
        let held = self.held.load();
        match self.before_policies(&held) {
            Some(denied) => denied,
            None => self.policies.authorize(&held.rules, &self.called(call)),
        }
    }

    pub(super) fn explain_authorize(&self, call: &Inbound<'_>) -> Explained<Authorization> {
        let held = self.held.load();
        match self.before_policies(&held) {
            Some(denied) => Explained::bare(denied),
            None => self.policies.explain_authorize(&held.rules, &self.called(call)),
        }
    }

    fn before_policies(&self, held: &Held) -> Option<Authorization> {
        if held.has(slot::AUTHORIZATION) {
            return None;
        }
        let message = match self.follows(slot::AUTHORIZATION) {
            true => "no rules have come yet that say who may call",
            false => "the client does not subscribe to AuthorizationPolicy",
        };
        let fault = Fault::new(FaultKind::NotReady, message);
        Some(Authorization::of(Reason::Fault(fault)))
    }

    /// Takes what cannot be decided.
    pub(super) fn admit(&self, call: &Inbound<'_>, now: Instant) -> Admission {
        let held = self.held.load();
        match self.before_limits(&held) {
            Some(taken) => taken,
            None => self.policies.admit(&held.rules, &self.called(call), now),
        }
    }

    pub(super) fn explain_admit(&self, call: &Inbound<'_>, now: Instant) -> Explained<Admission> {
        let held = self.held.load();
        match self.before_limits(&held) {
            Some(taken) => Explained::bare(taken),
            None => self.policies.explain_admit(&held.rules, &self.called(call), now),
        }
    }

    fn before_limits(&self, held: &Held) -> Option<Admission> {
        match (held.has(slot::RATE_LIMIT), self.follows(slot::RATE_LIMIT)) {
            (true, _) => None,
            (false, true) => {
                Some(Admission::fault(FaultKind::NotReady, "no rate limits have come yet"))
            }
            (false, false) => Some(Admission::default()),
        }
    }

    /// The call, with the application that is called.
    fn called<'c>(&'c self, call: &Inbound<'c>) -> Inbound<'c> {
        call.or_application(self.consumer.get("application"))
    }

    pub(super) fn tls_mode(&self, port: u16) -> TlsMode {
        let held = self.held.load();
        match held.has(slot::AUTHENTICATION) {
            true => self.policies.authenticate(&held.rules, port),
            false if self.follows(slot::AUTHENTICATION) => TlsMode::Strict,
            false => TlsMode::Undecided,
        }
    }

    fn follows(&self, slot: usize) -> bool {
        self.types.iter().any(|t| t == POLICIES[slot].type_name)
    }

    pub(super) fn parameters(
        &self,
        service: &str,
        endpoints: &EndpointSet,
    ) -> Arc<EffectiveParameters> {
        let held = self.held.load();
        let (rules, set) = (held.rules.kind(slot::DYNAMIC_CONFIG).id(), endpoints.id());
        let known = self.parameters.load();
        let found = known.sets.get(&set).filter(|_| known.rules == rules);
        if let Some((_, given)) = found.and_then(|list| list.iter().find(|(s, _)| s == service)) {
            return given.clone();
        }
        let request = Request::new(service, &self.consumer);
        let given = Arc::new(self.policies.parameters(&held.rules, &request, endpoints));
        // What failed may go better the next time.
        if given.faults.is_empty() {
            self.parameters.rcu(|known| {
                let full = known.sets.len() >= MAX_KNOWN;
                let mut sets = match known.rules == rules && !full {
                    true => known.sets.clone(),
                    false => HashMap::new(),
                };
                sets.entry(set).or_default().push((service.to_owned(), given.clone()));
                Known { rules, sets }
            });
        }
        given
    }

    pub(super) fn explain(&self, request: &Request<'_>, endpoints: &EndpointSet) -> Explanation {
        let held = self.held.load();
        if !held.ready {
            let decision = self.unready(endpoints);
            let text = match decision.faults.first() {
                Some(f) => format!("{}\nremaining: {:?}\n", f.fault, decision.endpoints),
                None => String::new(),
            };
            return Explanation { decision, text };
        }
        let mut explanation = match self.merged(request) {
            None => self.policies.explain(&held.rules, request, endpoints),
            Some(merged) => self.policies.explain(&held.rules, &merged, endpoints),
        };
        self.breakers.explain(&held.rules, &request.service, endpoints, &mut explanation);
        explanation
    }

    /// The request with the client's parameters under its own; `None` when it has these already.
    fn merged<'r>(&'r self, request: &'r Request<'_>) -> Option<Request<'r>> {
        if std::ptr::eq(&*request.consumer, &self.consumer) {
            return None;
        }
        let own = request.consumer.iter();
        let consumer = match own.len() {
            0 => Cow::Borrowed(&self.consumer),
            _ => Cow::Owned(self.consumer.iter().chain(own).collect()),
        };
        Some(Request { consumer, ..request.clone() })
    }

    /// A decision by the startup policy.
    fn unready(&self, endpoints: &EndpointSet) -> Decision {
        let (kept, does) = match self.startup {
            Startup::Allow => (0..endpoints.len() as u32, "allows every endpoint"),
            // With Wait only after the rules were let go.
            Startup::Deny | Startup::Wait => (0..0, "denies every endpoint"),
        };
        let message = format!("no rules have come yet, and the startup policy {does}");
        let fault = Fault { kind: FaultKind::NotReady, rule: None, message };
        Decision {
            endpoints: kept.collect(),
            faults: vec![DecisionFault {
                kind: None,
                key: None,
                shadow: false,
                fault,
                aside: false,
            }],
            ..Decision::default()
        }
    }

    /// Why `connect()` waited in vain.
    pub(super) fn not_ready(&self, waited: Duration) -> ConnectError {
        let status = self.status.borrow();
        let missing: Vec<_> =
            status.kinds.iter().filter(|k| !k.synced).map(|k| &*k.type_name).collect();
        let last = [&status.plane_error, &status.identity.last_error, &status.snapshot_error];
        let reason = last.into_iter().flatten().next();
        ConnectError::NotReady {
            waited,
            missing: missing.join(", "),
            reason: reason.map_or("the plane has not answered", |r| r).to_owned(),
        }
    }
}

fn kinds(held: &Held) -> Vec<crate::status::KindStatus> {
    held.kinds.iter().map(|(name, kind)| kind.status(name)).collect()
}

#[cfg(test)]
mod tests;
