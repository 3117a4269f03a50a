//! Vectors of CircuitBreaker: a script of calls and how they end, at times, and where that
//! brings breakers.

use std::{collections::BTreeMap, time::Duration};

use rulecast_api::{
    circuit_breaker::CircuitBreakerSpec,
    kind::{FieldError, RuleSpec},
    proto::rules::v1::{Enforcement, Rule},
};
use serde_json::{Value, json};

use super::{SERVICE, first, params};
use crate::{
    breaker::{Attempt, BreakerState, Breakers},
    clock::Clock,
    decision::{Decision, RuleSet, TYPE_CIRCUIT_BREAKER},
    endpoints::{Endpoint, EndpointSet},
};

const STEP: &[&str] = &[
    "at",
    "rules",
    "providers",
    "endpoint",
    "begin",
    "refused",
    "end",
    "as",
    "succeeded",
    "failed",
    "among",
    "kept",
    "effects",
    "states",
];

/// Runs a case of CircuitBreaker.
pub(super) fn circuit_breaker(case: &Value) -> Result<(), String> {
    if let Some(path) = case["expect_error"].as_str() {
        let rule = &case["rules"][0];
        let errors = match spec(rule) {
            Ok(_) => return Err("the spec was accepted".to_owned()),
            Err(errors) => errors,
        };
        let named = errors.iter().any(|error| error.path == path);
        return named.then_some(()).ok_or_else(|| format!("refused: {}", first(&errors)));
    }
    let mut stage = Stage::new(case)?;
    let steps = case["steps"].as_array().filter(|steps| !steps.is_empty());
    for (i, step) in steps.ok_or("the case has no steps")?.iter().enumerate() {
        stage.play(step).map_err(|why| format!("step {i}: {why}"))?;
    }
    Ok(())
}

/// A case at one moment.
struct Stage {
    clock: Clock,
    breakers: Breakers,
    rules: RuleSet,
    endpoints: EndpointSet,
    /// By name.
    under_way: BTreeMap<String, Attempt>,
}

impl Stage {
    fn new(case: &Value) -> Result<Self, String> {
        let clock = Clock::standing();
        Ok(Self {
            breakers: Breakers::new(clock.clone()),
            clock,
            rules: rules(&RuleSet::default(), &case["rules"])?,
            endpoints: endpoints(&case["providers"])?,
            under_way: BTreeMap::new(),
        })
    }

    fn play(&mut self, step: &Value) -> Result<(), String> {
        let fields = step.as_object().ok_or("is no object")?;
        if let Some(unknown) = fields.keys().find(|field| !STEP.contains(&field.as_str())) {
            return Err(format!("there is no field {unknown}"));
        }
        if let Some(at) = step["at"].as_u64() {
            self.clock.set(Duration::from_millis(at));
        }
        if !step["rules"].is_null() {
            self.rules = rules(&self.rules, &step["rules"])?;
        }
        if !step["providers"].is_null() {
            self.endpoints = endpoints(&step["providers"])?;
        }
        let endpoint = step["endpoint"].as_u64().unwrap_or_default() as u32;
        for (field, failed) in [("succeeded", false), ("failed", true)] {
            for i in 0..step[field].as_u64().unwrap_or_default() {
                let attempt = self.attempt(endpoint);
                let attempt = attempt.ok_or_else(|| format!("call {i} is refused"))?;
                if failed { attempt.failed() } else { attempt.succeeded() }
            }
        }
        if let Some(call) = step["begin"].as_str() {
            match (self.attempt(endpoint), step["refused"] == true) {
                (Some(attempt), false) => drop(self.under_way.insert(call.to_owned(), attempt)),
                (None, true) => {}
                (Some(_), true) => return Err(format!("{call} is taken")),
                (None, false) => return Err(format!("{call} is refused")),
            }
        }
        if let Some(call) = step["end"].as_str() {
            let attempt = self.under_way.remove(call).ok_or("there is no such call")?;
            match step["as"].as_str() {
                Some("succeeded") => attempt.succeeded(),
                Some("failed") => attempt.failed(),
                Some("dropped") => drop(attempt),
                _ => return Err("a call ends as succeeded, failed or dropped".to_owned()),
            }
        }
        self.expect(step)
    }

    fn attempt(&self, endpoint: u32) -> Option<Attempt> {
        self.breakers.attempt(&self.rules, SERVICE, &self.endpoints, endpoint)
    }

    fn expect(&self, step: &Value) -> Result<(), String> {
        let same = |what: &str, found: Value| match step.get(what) {
            Some(expected) if found != *expected => Err(format!("{what} {found}, not {expected}")),
            _ => Ok(()),
        };
        let among = match &step["among"] {
            Value::Null => (0..self.endpoints.len() as u32).collect(),
            list => serde_json::from_value(list.clone()).map_err(|e| e.to_string())?,
        };
        if !step["kept"].is_null() || !step["effects"].is_null() {
            let mut decision = Decision { endpoints: among, ..Decision::default() };
            self.breakers.narrow(&self.rules, SERVICE, &self.endpoints, &mut decision);
            same("kept", json!(decision.endpoints))?;
            let effects = decision.rules.iter().map(|rule| rule.effect.to_string());
            same("effects", effects.collect())?;
        }
        let status = self.breakers.status(&self.rules);
        let state = |address: &str| {
            let mut of = status.iter().filter(|s| *s.endpoint == *address || s.endpoint.is_empty());
            of.next().map_or(BreakerState::Closed, |status| status.state)
        };
        let addresses = self.endpoints.endpoints().iter().map(Endpoint::address);
        same("states", addresses.map(|address| state(address).as_str()).collect())
    }
}

/// With these rules in place of others, as the plane would deliver them.
fn rules(before: &RuleSet, list: &Value) -> Result<RuleSet, String> {
    let mut rules = Vec::new();
    for (i, rule) in list.as_array().ok_or("there are no rules")?.iter().enumerate() {
        let spec = spec(rule).map_err(|errors| first(&errors))?;
        if !spec.enabled() {
            continue;
        }
        let shadow = rule["shadow"] == true;
        rules.push(Rule {
            key: format!("r{i}/vector"),
            target: spec.target(),
            tier: 1,
            priority: spec.priority(),
            enforcement: if shadow { Enforcement::Shadow } else { Enforcement::Enforce }.into(),
            spec: spec.encode().to_vec().into(),
            created: 0,
        });
    }
    Ok(before.with(TYPE_CIRCUIT_BREAKER, rules))
}

fn endpoints(list: &Value) -> Result<EndpointSet, String> {
    let list = list.as_array().ok_or("there are no providers")?;
    EndpointSet::new(list.iter().map(|p| Endpoint::from_params(params(p))))
        .map_err(|e| e.to_string())
}

/// A rule's spec; without a scope it is of the service that is called.
fn spec(rule: &Value) -> Result<std::sync::Arc<dyn RuleSpec>, Vec<FieldError>> {
    let mut rule = rule.clone();
    if let Some(fields) = rule.as_object_mut() {
        fields.remove("shadow");
        if !fields.contains_key("scope") {
            fields.insert("scope".into(), "service".into());
            fields.entry("key").or_insert(SERVICE.into());
        }
    }
    CircuitBreakerSpec::parse(rule)
}
