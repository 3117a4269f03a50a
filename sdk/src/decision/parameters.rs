//! Parameters that rules give to calls and endpoints.

use std::{collections::BTreeMap, str, sync::Arc};

use rulecast_policy::outcome::{self, Did, tag};

use super::{
    DecisionFault, Effect, RuleEffect,
    kinds::{POLICIES, slot},
    local::{Asked, LOCAL, Local},
    policies::Policies,
    request::Request,
    rule_set::{Address, Entry, RuleSet},
    worker::{Evaluated, Sink},
};
use crate::endpoints::EndpointSet;

/// What rules give of parameters, for one service and set of endpoints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EffectiveParameters {
    /// For all calls, by name.
    pub all: BTreeMap<String, String>,
    /// For those to an endpoint, by its index, over those for all.
    pub endpoints: BTreeMap<u32, BTreeMap<String, String>>,
    /// The rules that spoke of the service, in the order of their application.
    pub rules: Vec<RuleEffect>,
    /// What went wrong; those rules give nothing.
    pub faults: Vec<DecisionFault>,
}

impl EffectiveParameters {
    /// The value that rules give a parameter for calls to an endpoint of the set; `None`: what
    /// the endpoint itself and the application say counts.
    pub fn get(&self, endpoint: u32, name: &str) -> Option<&str> {
        let own = self.endpoints.get(&endpoint).and_then(|own| own.get(name));
        own.or_else(|| self.all.get(name)).map(String::as_str)
    }
}

impl Policies {
    /// What parameters the rules give to calls of a service by a consumer. Not for each call:
    /// the outcome stays the same until rules or endpoints change. The request needs only
    /// service and consumer.
    pub fn parameters(
        &self,
        rules: &RuleSet,
        request: &Request<'_>,
        endpoints: &EndpointSet,
    ) -> EffectiveParameters {
        let mut given = EffectiveParameters::default();
        let Some(engine) = self.engine(slot::DYNAMIC_CONFIG) else { return given };
        let kind = rules.kind(slot::DYNAMIC_CONFIG);
        LOCAL.with_borrow_mut(|local| {
            let Local { workers, list, .. } = local;
            let of = Address {
                service: &request.service,
                application: request.consumer.get("application"),
                served_by: endpoints.applications(),
            };
            let matching = kind.matching(of, list);
            if matching.list.is_empty() {
                return;
            }
            let asked = Asked {
                type_name: POLICIES[slot::DYNAMIC_CONFIG].type_name,
                engine,
                rules: kind,
                matching,
                call: request,
                endpoints: Some(endpoints),
                candidates: endpoints.all(),
                draw: request.draw,
                explain: false,
            };
            let mut faults = Vec::new();
            let count = endpoints.len() as u32;
            asked.run(workers, &mut Gathered { given: &mut given, count }, &mut faults);
            given.faults = faults;
        });
        given
    }
}

/// Takes parameters over.
struct Gathered<'a> {
    given: &'a mut EffectiveParameters,
    /// Of endpoints.
    count: u32,
}

impl Sink for Gathered<'_> {
    fn begin(&mut self) {
        *self.given = EffectiveParameters::default();
    }

    fn effect(
        &mut self,
        effect: outcome::Effect<'_>,
        rule: Option<(u32, &Entry, &Arc<str>)>,
    ) -> Result<(), &'static str> {
        if effect.tag != tag::PARAMETER {
            return Ok(());
        }
        let Some((_, entry, _)) = rule else { return Err("a parameter is no rule's") };
        let (endpoint, name, value) = read(effect.bytes).ok_or("a parameter is malformed")?;
        let place = match endpoint {
            u32::MAX => &mut self.given.all,
            at if at < self.count => self.given.endpoints.entry(at).or_default(),
            _ => return Err("a parameter is for an endpoint that is not there"),
        };
        if !entry.shadow {
            place.insert(name.to_owned(), value.to_owned());
        }
        Ok(())
    }

    fn rule(&mut self, rule: Evaluated<'_>) -> Result<(), &'static str> {
        let Evaluated { entry, key, outcome, .. } = rule;
        let effect = match (outcome.did, entry.shadow) {
            (Did::Skipped, false) => Effect::Skipped,
            (Did::Applied, false) => Effect::Applied,
            (Did::Skipped, true) => Effect::WouldSkip,
            (Did::Applied, true) => Effect::WouldApply,
        };
        let (kind, key) = (POLICIES[slot::DYNAMIC_CONFIG].type_name, key.clone());
        self.given.rules.push(RuleEffect { kind, key, effect, remaining: outcome.remaining });
        Ok(())
    }
}

/// Endpoint, name and value.
fn read(bytes: &[u8]) -> Option<(u32, &str, &str)> {
    let (endpoint, rest) = bytes.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (name, value) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
    let texts = (str::from_utf8(name).ok()?, str::from_utf8(value).ok()?);
    Some((u32::from_le_bytes(*endpoint), texts.0, texts.1))
}
