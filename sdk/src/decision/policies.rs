use std::{
    cell::RefCell,
    fmt::Write as _,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use rulecast_api::{
    Code, Digest,
    proto::rules::v1::{Enforcement, Rule, target::Scope},
};
use rulecast_policy::Guest;

use super::{
    Decision, DecisionFault, Explanation,
    health::Health,
    request::Request,
    rule_set::{Matching, RuleSet},
    worker::{Source, Try, Worker},
};
use crate::{
    endpoints::EndpointSet,
    host::{Fault, FaultKind, Module, ModuleError, Runner},
};

/// ConditionRoute, as built from `wasm-policies/condition-route`.
const CONDITION_ROUTE: &[u8] = include_bytes!("../../../wasm-policies/dist/condition_route.wasm");

/// The type whose rules the built-in policy decides.
const CONDITION_ROUTE_TYPE: &str = "dubbo.apache.org/v1alpha1/ConditionRoute";

/// Most tries of one decision: one rule at fault is passed over with each.
const TRIES: usize = 4;

/// Why a rule is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code} {field}: {message}")]
pub struct Rejection {
    /// For `docs/errors.md`; a policy may have codes of its own.
    pub code: String,
    /// Path inside the rule; empty for the rule itself.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Rejection {
    fn new(code: Code, field: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_string(), field: field.to_owned(), message: message.into() }
    }
}

/// The policies that give rules their meaning. Cheap to clone; shared by all threads.
#[derive(Clone)]
pub struct Policies(Arc<Inner>);

struct Inner {
    id: u64,
    source: Source,
    digest: Digest,
    health: Health,
    /// For checking rules off the call path.
    checker: Mutex<Option<Runner>>,
}

impl std::fmt::Debug for Policies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Policies({})", self.0.digest.short())
    }
}

thread_local! {
    /// One worker per policies. A thread decides for one or two in its life.
    static WORKERS: RefCell<Vec<(u64, Weak<Inner>, Worker)>> = const { RefCell::new(Vec::new()) };
}

impl Policies {
    /// The policies that are built in. Compiled once per process, on the first call, which
    /// takes some hundred milliseconds.
    pub fn builtin() -> Result<Self, ModuleError> {
        static BUILTIN: OnceLock<Result<Policies, ModuleError>> = OnceLock::new();
        BUILTIN.get_or_init(|| Ok(Self::from_module(Module::new(CONDITION_ROUTE)?))).clone()
    }

    /// With another module for ConditionRoute.
    pub fn from_module(module: Module) -> Self {
        let digest = module.digest();
        Self::make(Source::Module(module), digest)
    }

    /// With a policy that runs natively, outside of any sandbox: for tests and debuggers.
    pub fn native(make: fn() -> Box<dyn Guest>) -> Self {
        Self::make(Source::Native(make), Digest::of(b"native"))
    }

    fn make(source: Source, digest: Digest) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(Arc::new(Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            source,
            digest,
            health: Health::default(),
            checker: Mutex::new(None),
        }))
    }

    /// Digest of the module that decides.
    pub fn engine_digest(&self) -> Digest {
        self.0.digest
    }

    /// Whether a rule of this type can be obeyed: gives it to an instance set aside for that.
    pub fn check(&self, type_name: &str, rule: &Rule) -> Result<(), Rejection> {
        if type_name != CONDITION_ROUTE_TYPE {
            let message = format!("no policy decides {type_name}");
            return Err(Rejection::new(Code::TypeUnsupported, "", message));
        }
        let invalid = |field, message: String| Rejection::new(Code::ItemInvalid, field, message);
        if rule.key.is_empty() {
            return Err(invalid("key", "is empty; <name>/<namespace> is wanted".to_owned()));
        }
        if Enforcement::try_from(rule.enforcement).is_err() {
            let message = format!("{} is unknown to this version", rule.enforcement);
            return Err(invalid("enforcement", message));
        }
        if let Some(target) = &rule.target
            && !matches!(Scope::try_from(target.scope), Ok(Scope::Service | Scope::Application))
        {
            let message = format!("{} is unknown to this version", target.scope);
            return Err(invalid("target.scope", message));
        }
        let mut checker = self.0.checker.lock().unwrap_or_else(PoisonError::into_inner);
        let by_fault =
            |fault: Fault| Rejection::new(fault.kind.code(), "spec", fault.message.clone());
        // Taken out: after a fault it is not put back.
        let mut runner = match checker.take() {
            Some(runner) => runner,
            None => self.0.source.runner().map_err(by_fault)?,
        };
        let answer = runner.commit(0, &rule.spec).map_err(by_fault)?;
        runner.remove(0).map_err(by_fault)?;
        *checker = Some(runner);
        answer.map(drop).map_err(|e| Rejection {
            code: e.code,
            field: if e.field.is_empty() { "spec".into() } else { format!("spec.{}", e.field) },
            message: e.message,
        })
    }

    /// Decides which endpoints a call may use. Never fails: a policy at fault is passed over,
    /// and the decision says so.
    pub fn route(
        &self,
        rules: &RuleSet,
        request: &Request<'_>,
        endpoints: &EndpointSet,
    ) -> Decision {
        self.decide(rules, request, endpoints, None)
    }

    /// Decides the same, and says why.
    pub fn explain(
        &self,
        rules: &RuleSet,
        request: &Request<'_>,
        endpoints: &EndpointSet,
    ) -> Explanation {
        let mut lines = Vec::new();
        let decision = self.decide(rules, request, endpoints, Some(&mut lines));
        let text = describe(rules, &decision, &lines, endpoints.len());
        Explanation { decision, text }
    }

    fn decide(
        &self,
        rules: &RuleSet,
        request: &Request<'_>,
        endpoints: &EndpointSet,
        lines: Option<&mut Vec<(u32, String)>>,
    ) -> Decision {
        let matching = rules.matching(request, endpoints);
        let (group, list) = match &matching {
            Matching::Group(group, list) => (Some(*group), *list),
            Matching::List(list) => (None, list.as_slice()),
        };
        let mut decision = Decision::default();
        if list.is_empty() {
            decision.endpoints.extend(0..endpoints.len() as u32);
            return decision;
        }
        if let Some(fault) = self.0.health.aside() {
            decision.endpoints.extend(0..endpoints.len() as u32);
            decision.faults.push(DecisionFault { key: None, fault, aside: true });
            return decision;
        }
        let mut without = Vec::new();
        for &index in list {
            let Some(entry) = rules.entry(index) else { continue };
            if let Some(fault) = entry.health.aside() {
                without.push(index);
                let key = Some(entry.key.clone());
                decision.faults.push(DecisionFault { key, fault, aside: true });
            }
        }
        let mut silent = Vec::new();
        let explain = lines.is_some();
        let lines = lines.unwrap_or(&mut silent);
        WORKERS.with_borrow_mut(|workers| {
            let worker = self.worker(workers);
            for _ in 0..TRIES {
                if without.len() == list.len() {
                    break;
                }
                lines.clear();
                let wanted = Try {
                    rule_set: rules,
                    request,
                    endpoints,
                    group,
                    list,
                    without: &without,
                    draw: request.draw,
                    explain,
                };
                let Err(fault) = worker.run(&wanted, &mut decision, lines) else {
                    if self.0.health.is_ill() {
                        self.0.health.succeeded();
                    }
                    return;
                };
                let owner = fault.rule.and_then(|id| {
                    list.iter()
                        .filter_map(|&i| Some((i, rules.entry(i)?)))
                        .find(|(i, entry)| entry.id == id && !without.contains(i))
                });
                let key = owner.map(|(_, entry)| entry.key.clone());
                tracing::debug!(rule = key.as_deref(), %fault, "a policy failed");
                match owner {
                    Some((index, entry)) => {
                        entry.health.failed(&fault);
                        without.push(index);
                        decision.faults.push(DecisionFault { key, fault, aside: false });
                    }
                    None => {
                        // An oversized request is the call's doing and a missing instance this
                        // thread's: neither says anything about the module.
                        if !matches!(fault.kind, FaultKind::Oversize | FaultKind::Unavailable) {
                            self.0.health.failed(&fault);
                        }
                        decision.faults.push(DecisionFault { key, fault, aside: false });
                        break;
                    }
                }
            }
            // The default route.
            lines.clear();
            decision.rules.clear();
            decision.draw = None;
            decision.endpoints.clear();
            decision.endpoints.extend(0..endpoints.len() as u32);
        });
        decision
    }

    fn worker<'w>(&self, workers: &'w mut Vec<(u64, Weak<Inner>, Worker)>) -> &'w mut Worker {
        let at = match workers.iter().position(|(id, ..)| *id == self.0.id) {
            Some(at) => at,
            None => {
                // Those whose policies are gone go with them.
                workers.retain(|(_, policies, _)| policies.strong_count() > 0);
                let worker = Worker::new(self.0.source.clone());
                workers.push((self.0.id, Arc::downgrade(&self.0), worker));
                workers.len() - 1
            }
        };
        &mut workers[at].2
    }
}

fn describe(
    rules: &RuleSet,
    decision: &Decision,
    lines: &[(u32, String)],
    endpoints: usize,
) -> String {
    let mut text = String::new();
    let mut write = |line: std::fmt::Arguments<'_>| {
        let _ = text.write_fmt(format_args!("{line}\n"));
    };
    match decision.draw {
        Some(draw) => write(format_args!("{endpoints} endpoints, draw {draw}")),
        None => write(format_args!("{endpoints} endpoints, no draw needed")),
    }
    if decision.rules.is_empty() && decision.faults.is_empty() {
        write(format_args!("no rule speaks of this call"));
    }
    for rule in &decision.rules {
        let of = rules.keys().position(|key| key == &*rule.key);
        write(format_args!("rule {}: {}, {} remain", rule.key, rule.effect, rule.remaining));
        for (_, line) in lines.iter().filter(|(index, _)| Some(*index as usize) == of) {
            write(format_args!("  {line}"));
        }
    }
    for fault in &decision.faults {
        let aside = if fault.aside { " (set aside for a while)" } else { "" };
        match &fault.key {
            Some(key) => write(format_args!("rule {key} is passed over: {}{aside}", fault.fault)),
            None => write(format_args!("all rules are passed over: {}{aside}", fault.fault)),
        }
    }
    write(format_args!("remaining: {:?}", decision.endpoints));
    text
}
