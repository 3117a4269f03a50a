//! Vectors of DynamicConfig: from specs as written to the parameters of each endpoint.

use std::collections::BTreeMap;

use rulecast_api::{
    Kind,
    kind::{FieldError, RuleSpec},
    proto::rules::v1::{Enforcement, Rule},
};
use serde_json::{Value, json};

use super::{SERVICE, first, params, text};
use crate::{
    decision::{EffectiveParameters, Policies, Request, RuleSet},
    endpoints::{Endpoint, EndpointSet},
};

/// Runs a case of DynamicConfig.
pub(super) fn dynamic_config(policies: &Policies, case: &Value) -> Result<(), String> {
    let rules = case["rules"].as_array().ok_or("the case has no rules")?;
    if let Some(path) = case["expect_error"].as_str() {
        let errors = match spec(rules.first().unwrap_or(&Value::Null)) {
            Ok(_) => return Err("the spec was accepted".to_owned()),
            Err(errors) => errors,
        };
        let named = errors.iter().any(|error| error.path == path);
        return named.then_some(()).ok_or_else(|| format!("refused: {}", first(&errors)));
    }
    let (given, endpoints) = give(policies, case)?;
    if let Some(fault) = given.faults.first() {
        return Err(fault.fault.to_string());
    }
    let expected = case["expect"].as_array().ok_or("the case has no expect")?;
    let found: Vec<BTreeMap<String, String>> = (0..endpoints)
        .map(|i| {
            let mut all = given.all.clone();
            all.extend(given.endpoints.get(&i).cloned().unwrap_or_default());
            all
        })
        .collect();
    if json!(found) != json!(expected) {
        return Err(format!("gives {}, expected {}", json!(found), json!(expected)));
    }
    match case.get("expect_all") {
        Some(all) if json!(given.all) != *all => {
            Err(format!("gives all {}, expected {all}", json!(given.all)))
        }
        _ => Ok(()),
    }
}

/// What a case's rules give, and the count of its endpoints.
pub(super) fn give(
    policies: &Policies,
    case: &Value,
) -> Result<(EffectiveParameters, u32), String> {
    let mut rules = Vec::new();
    for (i, rule) in case["rules"].as_array().into_iter().flatten().enumerate() {
        let spec = spec(rule).map_err(|errors| first(&errors))?;
        if !spec.enabled() {
            continue;
        }
        let shadow = rule["shadow"].as_bool() == Some(true);
        let enforcement = if shadow { Enforcement::Shadow } else { Enforcement::Enforce };
        rules.push(Rule {
            key: format!("r{i}/default"),
            target: spec.target(),
            tier: 1,
            priority: spec.priority(),
            enforcement: enforcement.into(),
            spec: spec.encode().to_vec().into(),
            created: 0,
        });
    }
    let providers = case["providers"].as_array().map_or(&[][..], Vec::as_slice);
    let endpoints = providers.iter().map(|p| Endpoint::from_params(params(p)));
    let endpoints = EndpointSet::new(endpoints).map_err(|e| e.to_string())?;
    let service = case.get("service").map_or_else(|| SERVICE.to_owned(), text);
    let request = Request::owned(service, params(&case["consumer"]));
    let rules = RuleSet::default().with(Kind::DYNAMIC_CONFIG.type_name, rules);
    Ok((policies.parameters(&rules, &request, &endpoints), endpoints.len() as u32))
}

/// A rule's spec; what is left out is as in most.
fn spec(rule: &Value) -> Result<std::sync::Arc<dyn RuleSpec>, Vec<FieldError>> {
    let mut spec = json!({ "configVersion": "v3.0", "scope": "service", "key": SERVICE });
    for (field, value) in rule.as_object().into_iter().flatten() {
        if field != "shadow" {
            spec[field] = value.clone();
        }
    }
    (Kind::DYNAMIC_CONFIG.parse)(spec)
}
