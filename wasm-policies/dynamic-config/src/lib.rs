//! DynamicConfig as a Rulecast policy: the parameters that rules give to the calls of a consumer
//! and to endpoints.
//!
//! It is asked when rules or endpoints change, not for each call. Rules come in the order of
//! their application; of two values for one parameter the later one counts. A value for all
//! endpoints is said once; where an earlier rule gave single endpoints another one, they are
//! told again.

mod compile;
mod evaluate;

use rulecast_policy::{
    Attributes, CommitError, Policy,
    endpoints::Table,
    ids::Ids,
    outcome::{OutcomeWriter, tag},
    request::Request,
};

use crate::compile::Rule;

/// The policy.
#[derive(Debug, Default)]
pub struct DynamicConfig {
    rules: Ids<Rule>,
    sets: Ids<Table>,
}

impl Policy for DynamicConfig {
    fn commit(
        &mut self,
        id: u32,
        spec: &[u8],
        attributes: &mut Attributes,
    ) -> Result<(), CommitError> {
        let rule = Rule::compile(spec, attributes)?;
        self.rules.insert(id, rule);
        Ok(())
    }

    fn remove(&mut self, id: u32) {
        self.rules.remove(&id);
    }

    fn endpoints(&mut self, set: u32, table: Option<Table>) -> Result<(), CommitError> {
        match table {
            Some(table) => self.sets.insert(set, table),
            None => self.sets.remove(&set),
        };
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
        self.give(request, outcome, at_work, |_, _, _| {});
    }

    fn explain(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        self.give(request, outcome, at_work, |outcome, index, line| {
            outcome.effect(tag::TEXT, index, line().as_bytes());
        });
    }
}

rulecast_policy::export!(DynamicConfig);
