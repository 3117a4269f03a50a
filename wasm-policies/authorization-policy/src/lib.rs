//! AuthorizationPolicy as a Rulecast policy: who may call a server.
//!
//! Each policy speaks for itself: DENY that matches denies, ALLOW that matches allows, ALLOW that
//! does not says that it is there. The host combines them. AUDIT only notes that it matched.

mod compile;
mod evaluate;

use rulecast_policy::{
    Attributes, CommitError, Policy,
    endpoints::Table,
    ids::Ids,
    outcome::{Did, OutcomeWriter, RuleOutcome, tag, verdict},
    request::Request,
    trace::{Quiet, Spoken, Trace},
};

use crate::{
    compile::{Action, Rules},
    evaluate::Call,
};

/// The policy.
#[derive(Debug, Default)]
pub struct AuthorizationPolicy {
    rules: Ids<Rules>,
}

impl Policy for AuthorizationPolicy {
    fn commit(
        &mut self,
        id: u32,
        spec: &[u8],
        attributes: &mut Attributes,
    ) -> Result<(), CommitError> {
        let rules = Rules::compile(spec, attributes)?;
        self.rules.insert(id, rules);
        Ok(())
    }

    fn remove(&mut self, id: u32) {
        self.rules.remove(&id);
    }

    fn endpoints(&mut self, _: u32, _: Option<Table>) -> Result<(), CommitError> {
        Ok(())
    }

    fn has_rule(&self, id: u32) -> bool {
        self.rules.contains_key(&id)
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

impl AuthorizationPolicy {
    /// One way for both, so that an explanation tells of the decision itself.
    fn decide<T: Trace>(
        &self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        let mut call = Call::new(request);
        for (index, reference) in request.rules().enumerate() {
            at_work(reference.id);
            let Some(rules) = self.rules.get(&reference.id) else { continue };
            let mut trace = T::default();
            let looked_at = call.is_sampled(rules, &mut trace);
            let matches = looked_at && call.matches(rules, &mut trace);
            if matches {
                outcome.rule(index, RuleOutcome { did: Did::Applied, remaining: 0 });
            }
            let index = index as u16;
            match (rules.action, matches) {
                (Action::Allow, true) => outcome.verdict(index, verdict::ALLOW, ""),
                (Action::Allow, false) if looked_at => outcome.verdict(index, verdict::NONE, ""),
                (Action::Deny, true) => outcome.verdict(index, verdict::DENY, ""),
                _ => {}
            }
            for line in trace.into_lines() {
                outcome.effect(tag::TEXT, index, line.as_bytes());
            }
        }
    }
}

rulecast_policy::export!(AuthorizationPolicy);
