//! RateLimit as a Rulecast policy: how many calls a server takes.
//!
//! The policy says which calls count and names their bucket; the host keeps the buckets, shared
//! by all threads and instances, and refuses what finds one empty.

mod compile;

use rulecast_policy::{
    Attributes, CommitError, Policy,
    endpoints::Table,
    ids::Ids,
    outcome::{Did, OutcomeWriter, RuleOutcome, tag},
    request::Request,
    trace::{Quiet, Spoken, Trace},
};

use crate::compile::Limit;

/// The policy.
#[derive(Debug, Default)]
pub struct RateLimit {
    limits: Ids<Limit>,
    /// Room for a key.
    key: Vec<u8>,
}

impl Policy for RateLimit {
    fn commit(
        &mut self,
        id: u32,
        spec: &[u8],
        attributes: &mut Attributes,
    ) -> Result<(), CommitError> {
        let limit = Limit::compile(spec, attributes)?;
        self.limits.insert(id, limit);
        Ok(())
    }

    fn remove(&mut self, id: u32) {
        self.limits.remove(&id);
    }

    fn endpoints(&mut self, _: u32, _: Option<Table>) -> Result<(), CommitError> {
        Ok(())
    }

    fn has_rule(&self, id: u32) -> bool {
        self.limits.contains_key(&id)
    }

    fn has_set(&self, _: u32) -> bool {
        false
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

impl RateLimit {
    /// One way for both, so that an explanation tells of the decision itself.
    fn decide<T: Trace>(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        let Self { limits, key } = self;
        for (index, reference) in request.rules().enumerate() {
            at_work(reference.id);
            let Some(limit) = limits.get(&reference.id) else { continue };
            let mut trace = T::default();
            if limit.counts(request, &mut trace) {
                key.clear();
                limit.key(request, key, &mut trace);
                outcome.rule(index, RuleOutcome { did: Did::Applied, remaining: 0 });
                outcome.take(index as u16, 1, key);
            }
            for line in trace.into_lines() {
                outcome.effect(tag::TEXT, index as u16, line.as_bytes());
            }
        }
    }
}

rulecast_policy::export!(RateLimit);
