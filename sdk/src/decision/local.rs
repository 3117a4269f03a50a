//! What a thread keeps for its decisions, and how one kind's rules are evaluated with it.

use std::{
    cell::RefCell,
    sync::{Arc, Weak},
};

use super::{
    DecisionFault,
    engine::Engine,
    health::Health,
    limit::Takes,
    request::Call,
    rule_set::{KindRules, Matching},
    worker::{Sink, Try, Worker},
};
use crate::{
    endpoints::EndpointSet,
    host::{Fault, FaultKind},
    metrics::Verdict,
};

/// Most tries of one evaluation: one rule at fault is passed over with each.
const TRIES: usize = 4;

/// A thread's workers, and room that its decisions use again and again.
#[derive(Default)]
pub(super) struct Local {
    pub(super) workers: Workers,
    /// For the list of the rules that speak of a call.
    pub(super) list: Vec<u32>,
    /// For sets of endpoints.
    pub(super) candidates: Vec<u64>,
    pub(super) narrowed: Vec<u64>,
    /// For what rate limits want to take.
    pub(super) takes: Takes,
}

thread_local! {
    pub(super) static LOCAL: RefCell<Local> = RefCell::default();
}

/// One worker per engine.
#[derive(Default)]
pub(super) struct Workers(Vec<(u64, Weak<Engine>, Worker)>);

impl Workers {
    fn of(&mut self, engine: &Arc<Engine>) -> Result<&mut Worker, Fault> {
        let at = match self.0.iter().position(|(id, ..)| *id == engine.id) {
            Some(at) => at,
            None => {
                // Those whose engines are gone go with them.
                self.0.retain(|(_, engine, _)| engine.strong_count() > 0);
                let worker = Worker::new(engine.source()?.clone());
                self.0.push((engine.id, Arc::downgrade(engine), worker));
                self.0.len() - 1
            }
        };
        Ok(&mut self.0[at].2)
    }
}

/// What is to be evaluated.
pub(super) struct Asked<'a, C> {
    pub(super) type_name: &'static str,
    pub(super) engine: &'a Arc<Engine>,
    pub(super) rules: &'a KindRules,
    pub(super) matching: Matching<'a>,
    pub(super) call: &'a C,
    pub(super) endpoints: Option<&'a EndpointSet>,
    pub(super) candidates: &'a [u64],
    pub(super) draw: Option<u64>,
    pub(super) explain: bool,
}

/// How an evaluation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    /// The sink has the answer; the draw, when a rule needed it.
    Done(Option<u64>),
    /// All of its rules were passed over.
    PassedOver,
}

impl<C: Call> Asked<'_, C> {
    /// Evaluates. Never fails: rules at fault are passed over, and the faults say so.
    pub(super) fn run<S: Sink>(
        &self,
        workers: &mut Workers,
        sink: &mut S,
        faults: &mut Vec<DecisionFault>,
    ) -> Ran {
        let Asked { engine, rules, matching, .. } = self;
        let list = matching.list;
        let mut note = |key: Option<Arc<str>>, shadow: bool, fault: Fault, aside: bool| {
            let kind = self.type_name;
            faults.push(DecisionFault { kind: Some(kind), key, shadow, fault, aside });
        };
        if let Some(fault) = engine.health.aside() {
            note(None, false, fault, true);
            return Ran::PassedOver;
        }
        // Without faults it takes no memory.
        let mut without = Vec::new();
        for &index in if Health::some_ill() { list } else { &[] } {
            let Some(entry) = rules.entry(index) else { continue };
            if let Some(fault) = entry.health.aside() {
                without.push(index);
                entry.stats.rare(Verdict::Failed);
                note(Some(entry.key.clone()), entry.shadow, fault, true);
            }
        }
        for _ in 0..TRIES {
            if without.len() == list.len() {
                break;
            }
            let wanted = Try {
                rules,
                call: self.call,
                endpoints: self.endpoints,
                candidates: self.candidates,
                group: matching.group,
                list,
                without: &without,
                draw: self.draw,
                explain: self.explain,
            };
            let fault = match workers.of(engine).and_then(|worker| worker.run(&wanted, sink)) {
                Ok(draw) => {
                    if engine.health.is_ill() {
                        engine.health.succeeded();
                    }
                    return Ran::Done(draw);
                }
                Err(fault) => fault,
            };
            let owner = fault.rule.and_then(|id| {
                list.iter()
                    .filter_map(|&i| Some((i, rules.entry(i)?)))
                    .find(|(i, entry)| entry.id == id && !without.contains(i))
            });
            let key = owner.map(|(_, entry)| entry.key.clone());
            tracing::debug!(kind = self.type_name, rule = key.as_deref(), %fault, "a policy failed");
            match owner {
                Some((index, entry)) => {
                    entry.health.failed(&fault);
                    entry.stats.rare(Verdict::Failed);
                    without.push(index);
                    note(key, entry.shadow, fault, false);
                }
                None => {
                    // An oversized request is the call's doing and a missing instance this
                    // thread's: neither says anything about the module.
                    if !matches!(fault.kind, FaultKind::Oversize | FaultKind::Unavailable) {
                        engine.health.failed(&fault);
                    }
                    note(None, false, fault, false);
                    break;
                }
            }
        }
        // What the last try brought does not count.
        sink.begin();
        Ran::PassedOver
    }
}
