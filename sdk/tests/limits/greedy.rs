//! A policy that takes as its rules say: to test what the host makes of it.

use std::collections::BTreeMap;

use prost::Message as _;
use rulecast_api::proto::rules::v1::RateLimit;
use rulecast_policy::{
    Attributes, CommitError, Guest, Native, Policy,
    endpoints::Table,
    outcome::{ALL_RULES, OutcomeWriter, tag},
    request::Request,
};

/// A rule's first key is `extension[<script>]`, the script one of `twice`, `short`, `nobody`,
/// `cost:<n>`; without keys it takes one.
#[derive(Default)]
pub(crate) struct Greedy(BTreeMap<u32, String>);

impl Greedy {
    pub(crate) fn native() -> Box<dyn Guest> {
        Box::new(Native::new(Self::default()))
    }
}

impl Policy for Greedy {
    fn commit(&mut self, id: u32, spec: &[u8], _: &mut Attributes) -> Result<(), CommitError> {
        let message = RateLimit::decode(spec).expect("the tests' own");
        let key = message.keys.into_iter().next().unwrap_or_default();
        let script = key.strip_prefix("extension[").and_then(|rest| rest.strip_suffix(']'));
        self.0.insert(id, script.unwrap_or("cost:1").to_owned());
        Ok(())
    }

    fn remove(&mut self, id: u32) {
        self.0.remove(&id);
    }

    fn endpoints(&mut self, _: u32, _: Option<Table>) -> Result<(), CommitError> {
        Ok(())
    }

    fn has_rule(&self, id: u32) -> bool {
        self.0.contains_key(&id)
    }

    fn has_set(&self, _: u32) -> bool {
        false
    }

    fn evaluate(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        _: &mut dyn FnMut(u32),
    ) {
        for (index, reference) in request.rules().enumerate() {
            let index = index as u16;
            match &*self.0[&reference.id] {
                "twice" => (0..2).for_each(|_| outcome.take(index, 1, b"")),
                "short" => outcome.effect(tag::TAKE, index, &[1, 0, 0]),
                "nobody" => outcome.take(ALL_RULES, 1, b""),
                script => {
                    let cost = script.strip_prefix("cost:").and_then(|n| n.parse().ok());
                    outcome.take(index, cost.expect("a script"), b"");
                }
            }
        }
    }

    fn explain(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        self.evaluate(request, outcome, at_work);
    }
}
