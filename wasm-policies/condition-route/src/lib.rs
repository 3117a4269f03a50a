//! ConditionRoute as a Rulecast policy.
//!
//! What a condition asks of the caller and the call is looked at once per evaluation. What it
//! asks of the endpoints is computed once per (condition, endpoint set) and kept as bit sets,
//! so the cost of an evaluation does not grow with the endpoints' parameters.

mod compile;
mod evaluate;
mod ids;

use rulecast_policy::{
    Attributes, CommitError, Policy,
    endpoints::Table,
    outcome::{OutcomeWriter, tag},
    request::Request,
};

use crate::{
    compile::{Rule, Selected},
    evaluate::{Buffers, Quiet, Spoken, Trace},
    ids::Ids,
};

/// The policy.
#[derive(Debug, Default)]
pub struct ConditionRoute {
    rules: Ids<Rule>,
    sets: Ids<Set>,
    buffers: Buffers,
}

/// An endpoint set with what the rules select from it.
#[derive(Debug)]
struct Set {
    table: Table,
    selected: Ids<Vec<Selected>>,
}

impl Policy for ConditionRoute {
    fn commit(
        &mut self,
        id: u32,
        spec: &[u8],
        attributes: &mut Attributes,
    ) -> Result<(), CommitError> {
        let rule = Rule::compile(spec, attributes)?;
        for set in self.sets.values_mut() {
            set.selected.insert(id, rule.select(&set.table));
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
                let selected =
                    self.rules.iter().map(|(&id, rule)| (id, rule.select(&table))).collect();
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

impl ConditionRoute {
    /// Applies the rules in order. One way for both, so that an explanation tells of the
    /// decision itself.
    #[inline]
    fn decide<T: Trace>(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        let Some(set) = self.sets.get(&request.set) else { return };
        self.buffers.begin(request);
        for (index, reference) in request.rules().enumerate() {
            at_work(reference.id);
            let rule = self.rules.get(&reference.id);
            let Some((rule, selected)) = rule.zip(set.selected.get(&reference.id)) else {
                continue;
            };
            let mut trace = T::default();
            let done = evaluate::rule(
                rule,
                selected,
                &set.table,
                request,
                reference,
                &mut self.buffers,
                &mut trace,
            );
            outcome.rule(index, done);
            for line in trace.into_lines() {
                outcome.effect(tag::TEXT, index as u16, line.as_bytes());
            }
        }
        outcome.endpoints(&self.buffers.current);
    }
}

rulecast_policy::export!(ConditionRoute);
