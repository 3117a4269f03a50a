//! A policy that keeps some of a call's endpoints: what all such policies do alike.

use std::fmt;

use crate::{
    bits,
    endpoints::Table,
    ids::Ids,
    outcome::{Did, OutcomeWriter, RuleOutcome, tag},
    policy::{Attributes, CommitError, Policy},
    request::{Request, RuleRef, SHADOW},
    trace::{Quiet, Spoken, Trace},
};

/// What a rule does to a list of endpoints.
///
/// What it asks of the endpoints alone is computed once per rule and set, so that the cost of an
/// evaluation does not grow with the endpoints' parameters.
pub trait Route {
    /// A rule, ready to be evaluated.
    type Rule: fmt::Debug;
    /// What a rule knows of a set before any call.
    type Selected: fmt::Debug;
    /// Memory that evaluations reuse.
    type Buffers: Default + fmt::Debug;

    /// Reads a rule.
    fn compile(spec: &[u8], attributes: &mut Attributes) -> Result<Self::Rule, CommitError>;

    /// Looks at a set.
    fn select(rule: &Self::Rule, table: &Table) -> Self::Selected;

    /// Takes away from `list` what the rule does not keep.
    fn apply(
        step: &Step<'_, Self>,
        list: &mut Vec<u64>,
        buffers: &mut Self::Buffers,
        trace: &mut impl Trace,
    ) -> Did;
}

/// A rule at work on a call.
#[derive(Debug)]
pub struct Step<'a, R: Route + ?Sized> {
    /// The rule.
    pub rule: &'a R::Rule,
    /// What it knows of the set.
    pub selected: &'a R::Selected,
    /// The set.
    pub table: &'a Table,
    /// The call.
    pub request: &'a Request<'a>,
    /// Where the rule stands among those of the call.
    pub reference: RuleRef,
}

/// The policy: rules and sets as they come and go, and the rules of a call in their order.
#[derive(Debug)]
pub struct Router<R: Route> {
    rules: Ids<R::Rule>,
    sets: Ids<Set<R>>,
    /// The candidates that are left.
    current: Vec<u64>,
    /// The list of the rule at work.
    list: Vec<u64>,
    buffers: R::Buffers,
}

/// An endpoint set with what the rules know of it.
#[derive(Debug)]
struct Set<R: Route> {
    table: Table,
    selected: Ids<R::Selected>,
}

impl<R: Route> Default for Router<R> {
    fn default() -> Self {
        Self {
            rules: Ids::default(),
            sets: Ids::default(),
            current: Vec::new(),
            list: Vec::new(),
            buffers: R::Buffers::default(),
        }
    }
}

impl<R: Route> Policy for Router<R> {
    fn commit(
        &mut self,
        id: u32,
        spec: &[u8],
        attributes: &mut Attributes,
    ) -> Result<(), CommitError> {
        let rule = R::compile(spec, attributes)?;
        for set in self.sets.values_mut() {
            set.selected.insert(id, R::select(&rule, &set.table));
        }
        self.rules.insert(id, rule);
        Ok(())
    }

    fn remove(&mut self, id: u32) {
        self.rules.remove(&id);
        for set in self.sets.values_mut() {
            set.selected.remove(&id);
        }
    }

    fn endpoints(&mut self, set: u32, table: Option<Table>) -> Result<(), CommitError> {
        match table {
            Some(table) => {
                let rules = self.rules.iter();
                let selected = rules.map(|(&id, rule)| (id, R::select(rule, &table))).collect();
                self.sets.insert(set, Set { table, selected });
            }
            None => {
                self.sets.remove(&set);
            }
        }
        Ok(())
    }

    fn has_rule(&self, id: u32) -> bool {
        self.rules.contains_key(&id)
    }

    fn has_set(&self, set: u32) -> bool {
        self.sets.contains_key(&set)
    }

    fn evaluate(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        self.decide::<Quiet>(request, outcome, at_work);
    }

    fn explain(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        self.decide::<Spoken>(request, outcome, at_work);
    }
}

impl<R: Route> Router<R> {
    #[inline]
    fn decide<T: Trace>(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        let Some(set) = self.sets.get(&request.set) else { return };
        self.current.clear();
        self.current.extend(request.candidates());
        for (index, reference) in request.rules().enumerate() {
            at_work(reference.id);
            let rule = self.rules.get(&reference.id);
            let Some((rule, selected)) = rule.zip(set.selected.get(&reference.id)) else {
                continue;
            };
            let shadow = reference.flags & SHADOW != 0;
            if shadow {
                self.list.clone_from(&self.current);
            } else {
                std::mem::swap(&mut self.list, &mut self.current);
            }
            let mut trace = T::default();
            let step = Step { rule, selected, table: &set.table, request, reference };
            let did = R::apply(&step, &mut self.list, &mut self.buffers, &mut trace);
            outcome.rule(index, RuleOutcome { did, remaining: bits::count(&self.list) as u32 });
            if !shadow {
                std::mem::swap(&mut self.list, &mut self.current);
            }
            for line in trace.into_lines() {
                outcome.effect(tag::TEXT, index as u16, line.as_bytes());
            }
        }
        outcome.endpoints(&self.current);
    }
}
