//! Vectors of RateLimit: from specs as written, by what the plane leaves of them for the server,
//! to which of a row of calls it takes.

use std::time::{Duration, Instant};

use rulecast_api::Kind;
use serde_json::{Value, json};

use super::security::{delivered, refused, with_call};
use crate::decision::{Admission, Policies, RuleEffect, RuleSet};

/// Runs a case of RateLimit.
pub(super) fn rate_limit(policies: &Policies, case: &Value) -> Result<(), String> {
    let kind = Kind::RATE_LIMIT;
    if let Some(result) = refused(kind, case) {
        return result;
    }
    let mut rules = RuleSet::default().with(kind.type_name, delivered(kind, case)?);
    let begin = Instant::now();
    for (i, step) in case["steps"].as_array().ok_or("the case has no steps")?.iter().enumerate() {
        if step["policies"].is_array() {
            let changed = json!({ "server": case["server"], "policies": step["policies"] });
            rules = rules.with(kind.type_name, delivered(kind, &changed)?);
        }
        let now = begin + Duration::from_millis(step["at"].as_u64().unwrap_or(0));
        let call = if step["call"].is_object() { step } else { case };
        let expected = match &step["expect"] {
            Value::Array(list) => list.as_slice(),
            Value::Null => &[],
            one => std::slice::from_ref(one),
        };
        for (n, expected) in expected.iter().enumerate() {
            let given = with_call(call, 0, |call| policies.admit(&rules, call, now));
            check(step, expected, &given).map_err(|why| format!("step {i}, call {n}: {why}"))?;
        }
    }
    Ok(())
}

fn check(step: &Value, expected: &Value, given: &Admission) -> Result<(), String> {
    if let Some(fault) = given.faults.first() {
        return Err(fault.fault.to_string());
    }
    let verdict = if given.is_admitted() { "admit" } else { "limit" };
    if *expected != verdict {
        return Err(format!("{given}; expected {expected}"));
    }
    let by = |key: &str| step[key].as_str();
    if let Some(limited) = &given.limited {
        let key = by("by").is_none_or(|key| key == &*limited.key);
        let millis = step["retry_after_ms"].as_u64();
        if !key || millis.is_some_and(|ms| Duration::from_millis(ms) != limited.retry_after) {
            return Err(format!("{given}; expected {} {millis:?}", step["by"]));
        }
    }
    let would = given.would_limit.as_ref().map(|limited| &*limited.key);
    if would != by("would_limit") {
        return Err(format!("{given}; expected would_limit {}", step["would_limit"]));
    }
    let counted: Vec<Value> =
        given.counted.iter().map(|RuleEffect { key, .. }| json!(**key)).collect();
    match step["counted"].as_array() {
        Some(wanted) if given.is_admitted() && *wanted != counted => {
            Err(format!("counted by {counted:?}, expected {wanted:?}"))
        }
        _ => Ok(()),
    }
}
