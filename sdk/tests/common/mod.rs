//! A policy whose rules say in plain words what it answers: to test what the host makes of it.

use std::collections::BTreeMap;

use rulecast_policy::{
    Attributes, CommitError, Guest, Native, Policy,
    endpoints::Table,
    outcome::{Did, OutcomeWriter, RuleOutcome, tag, verdict},
    request::Request,
};

/// A rule is words: `<what> [<attribute> <value>]`, `<what>` one of `allow`, `deny`, `audit`,
/// `twice`, `refuse`, `mode:<n>`, `give:<endpoint>:<name>:<value>`, `drop:<endpoint>`.
#[derive(Default)]
pub(crate) struct Scripted {
    rules: BTreeMap<u32, Rule>,
    sets: Vec<u32>,
}

struct Rule {
    what: String,
    when: Option<(u16, String)>,
}

impl Scripted {
    pub(crate) fn native() -> Box<dyn Guest> {
        Box::new(Native::new(Self::default()))
    }
}

impl Policy for Scripted {
    fn commit(
        &mut self,
        id: u32,
        spec: &[u8],
        attributes: &mut Attributes,
    ) -> Result<(), CommitError> {
        let text = String::from_utf8_lossy(spec).into_owned();
        let mut words = text.split(' ').map(str::to_owned);
        let what = words.next().unwrap_or_default();
        if what == "refuse" {
            return Err(CommitError::new("RC0601", "", "as asked"));
        }
        let when = words.next().zip(words.next());
        let when = when.map(|(name, value)| (attributes.slot(&name), value));
        self.rules.insert(id, Rule { what, when });
        Ok(())
    }

    fn remove(&mut self, id: u32) {
        self.rules.remove(&id);
    }

    fn endpoints(&mut self, set: u32, table: Option<Table>) -> Result<(), CommitError> {
        self.sets.retain(|known| *known != set);
        if table.is_some() {
            self.sets.push(set);
        }
        Ok(())
    }

    fn has_rule(&self, id: u32) -> bool {
        self.rules.contains_key(&id)
    }

    fn has_set(&self, set: u32) -> bool {
        self.sets.contains(&set)
    }

    fn evaluate(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        let mut left = [0u64; 2];
        for (word, place) in request.candidates().zip(&mut left) {
            *place = word;
        }
        for (index, reference) in request.rules().enumerate() {
            at_work(reference.id);
            let rule = &self.rules[&reference.id];
            let matches = rule.when.as_ref().is_none_or(|(slot, value)| {
                request.attribute(*slot).is_some_and(|found| found == value.as_bytes())
            });
            let at = index as u16;
            let parts: [&str; 4] = {
                let mut parts = rule.what.split(':');
                std::array::from_fn(|_| parts.next().unwrap_or_default())
            };
            match (parts[0], matches) {
                ("allow", true) => outcome.verdict(at, verdict::ALLOW, ""),
                ("allow", false) => outcome.verdict(at, verdict::NONE, ""),
                ("deny", true) => outcome.verdict(at, verdict::DENY, "not today"),
                ("twice", true) => {
                    outcome.verdict(at, verdict::ALLOW, "");
                    outcome.verdict(at, verdict::ALLOW, "");
                }
                ("mode", true) => outcome.mode(at, parts[1].parse().unwrap_or_default()),
                ("give", true) => {
                    outcome.parameter(at, parts[1].parse().ok(), parts[2], parts[3]);
                }
                // An implicit rule drops the last.
                ("drop" | "", true) => {
                    let endpoint: u32 = parts[1].parse().unwrap_or(5);
                    left[0] &= !(1 << endpoint);
                }
                _ => {}
            }
            let did = if matches { Did::Applied } else { Did::Skipped };
            outcome.rule(index, RuleOutcome { did, remaining: left[0].count_ones() });
        }
        if request.endpoints() > 0 {
            outcome.endpoints(&left[..request.endpoints().div_ceil(64)]);
        }
    }

    fn explain(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        self.evaluate(request, outcome, at_work);
        for index in 0..request.rules().len() {
            outcome.effect(tag::TEXT, index as u16, b"as it says");
        }
    }
}
