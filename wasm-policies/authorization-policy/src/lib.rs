//! AuthorizationPolicy as a Rulecast policy: who may call a server.
//!
//! Each policy speaks for itself: DENY that matches denies, ALLOW that matches allows, ALLOW that
//! does not says that it is there. The host combines them. AUDIT only notes that it matched.

mod compile;
mod evaluate;
mod index;

use rulecast_policy::{
    Attributes, CommitError, Policy, abi,
    endpoints::Table,
    ids::Ids,
    outcome::{Did, OutcomeWriter, RuleOutcome, tag, verdict},
    request::{Request, SHADOW},
    trace::{Quiet, Spoken, Trace as _},
};

use crate::{
    compile::{Action, Rules},
    evaluate::Call,
    index::{Allowing, Entry, Index},
};

/// The policy.
#[derive(Debug, Default)]
pub struct AuthorizationPolicy {
    rules: Ids<Rules>,
    /// Over the list that was prepared.
    index: Index,
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

    fn prepare(&mut self, request: &Request<'_>, at_work: &mut dyn FnMut(u32)) {
        at_work(abi::NO_RULE);
        let list = request.rules().filter_map(|reference| {
            let rules = self.rules.get(&reference.id)?;
            Some((reference.id, reference.flags & SHADOW != 0, rules))
        });
        self.index = Index::new(list);
    }

    fn evaluate(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        self.decide(request, outcome, at_work);
    }

    fn explain(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        self.tell(request, outcome, at_work);
    }
}

impl AuthorizationPolicy {
    /// Looks at the rules that may match.
    fn decide(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        let Self { rules, index } = self;
        let mut call = Call::new(request);
        let (mut last, mut allowed) = (None, [false; 2]);
        index.find(request, |Entry { id, place, rule }| {
            if last == Some(place) {
                return;
            }
            at_work(id);
            let Some(rules) = rules.get(&id) else { return };
            if call.is_sampled(rules, &mut Quiet) && call.rule_holds(rules, rule) {
                last = Some(place);
                allowed[usize::from(is_shadow(request, place))] |= rules.action == Action::Allow;
                matched(rules.action, place, outcome);
            }
        });
        let mut looks_at = |(id, place): &(u32, u16)| {
            at_work(*id);
            let rules = rules.get(id)?;
            call.is_sampled(rules, &mut Quiet).then_some(*place)
        };
        let [in_force, by_shadow] = allowed;
        // One says for all of them that there are some; shadows are told of one by one.
        if !in_force {
            let Allowing { every, some } = &index.allowing;
            if let Some(place) = every.or_else(|| some.iter().find_map(&mut looks_at)) {
                outcome.verdict(place, verdict::NONE, "");
            }
        }
        if !by_shadow {
            for place in index.shadows.iter().filter_map(looks_at) {
                outcome.verdict(place, verdict::NONE, "");
            }
        }
    }

    /// Looks at each rule, and says what it sees.
    fn tell(
        &self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        let mut call = Call::new(request);
        for (place, reference) in request.rules().enumerate() {
            at_work(reference.id);
            let Some(rules) = self.rules.get(&reference.id) else { continue };
            let place = place as u16;
            let mut trace = Spoken::default();
            let looked_at = call.is_sampled(rules, &mut trace);
            if looked_at && call.matches(rules, &mut trace) {
                matched(rules.action, place, outcome);
            } else if looked_at && rules.action == Action::Allow {
                outcome.verdict(place, verdict::NONE, "");
            }
            for line in trace.into_lines() {
                outcome.effect(tag::TEXT, place, line.as_bytes());
            }
        }
    }
}

fn matched(action: Action, place: u16, outcome: &mut OutcomeWriter<'_>) {
    outcome.rule(usize::from(place), RuleOutcome { did: Did::Applied, remaining: 0 });
    match action {
        Action::Allow => outcome.verdict(place, verdict::ALLOW, ""),
        Action::Deny => outcome.verdict(place, verdict::DENY, ""),
        Action::Audit => {}
    }
}

fn is_shadow(request: &Request<'_>, place: u16) -> bool {
    let reference = request.rules().nth(usize::from(place));
    reference.is_some_and(|reference| reference.flags & SHADOW != 0)
}

rulecast_policy::export!(AuthorizationPolicy);
