//! Reads the spec as written.

use serde_json::{Map, Value};

use super::spec::{Action, AuthorizationPolicySpec, MatchType, Rule};
use crate::{
    attribute::Condition,
    condition::shorten,
    fields::{Errors, present, show},
    selector::{Of, Selector},
};

/// All errors go to `errors`, in document order.
pub(super) fn spec(value: &Value, errors: &mut Errors) -> Option<AuthorizationPolicySpec> {
    const FIELDS: &[&str] = &["action", "rules", "matchType", "samples", "order"];
    let map = errors.object(value, "spec", FIELDS)?;
    let action = action(errors, map);
    let rules = errors
        .list(present(map, "rules"), "spec.rules")
        .iter()
        .enumerate()
        .map(|(i, item)| rule(errors, item, &format!("spec.rules[{i}]")))
        .collect();
    let match_type = match errors.text(map, "spec", "matchType") {
        None | Some("anyMatch") => MatchType::Any,
        Some("allMatch") => MatchType::All,
        Some(other) => {
            let message = format!("\"{}\" is no way to combine rules", shorten(other));
            errors.invalid("spec.matchType", other, message, "write anyMatch or allMatch");
            MatchType::Any
        }
    };
    let samples = samples(errors, present(map, "samples"));
    let order = order(errors, present(map, "order"));
    Some(AuthorizationPolicySpec { action, rules, match_type, samples, order })
}

fn action(errors: &mut Errors, map: &Map<String, Value>) -> Action {
    const HINT: &str = "write ALLOW, DENY or AUDIT";
    match errors.text(map, "spec", "action") {
        Some("ALLOW") => return Action::Allow,
        Some("DENY") => return Action::Deny,
        // The other two are how Dubbo's own definitions spell it.
        Some("AUDIT" | "ADUIT" | "ADULT") => return Action::Audit,
        Some(other) => {
            let message = format!("\"{}\" is no action", shorten(other));
            errors.invalid("spec.action", other, message, HINT);
        }
        None if present(map, "action").is_none() => errors.missing("spec.action", HINT),
        None => {}
    }
    Action::Deny
}

fn samples(errors: &mut Errors, value: Option<&Value>) -> f64 {
    let Some(value) = value else { return 100.0 };
    match value.as_f64() {
        Some(samples) if (0.0..=100.0).contains(&samples) => samples,
        _ => {
            let message = format!("{} is no share in percent", show(value));
            errors.invalid("spec.samples", &show(value), message, "write a number from 0 to 100");
            100.0
        }
    }
}

fn order(errors: &mut Errors, value: Option<&Value>) -> i32 {
    let Some(value) = value else { return 0 };
    match value.as_i64().map(i32::try_from) {
        // Its negative is the priority.
        Some(Ok(order)) if order > i32::MIN => order,
        _ => {
            let message = format!("{} is no order", show(value));
            let hint = format!("write a whole number up to ±{}; smaller goes first", i32::MAX);
            errors.invalid("spec.order", &show(value), message, &hint);
            0
        }
    }
}

fn rule(errors: &mut Errors, value: &Value, path: &str) -> Rule {
    let Some(map) = errors.object(value, path, &["from", "to", "when"]) else {
        return Rule::default();
    };
    let mut selector = |field: &str, of| match present(map, field) {
        Some(value) => Selector::read(errors, value, &format!("{path}.{field}"), of),
        None => Selector::default(),
    };
    let from = selector("from", Of::Caller);
    let to = selector("to", Of::Endpoint);
    let when = Condition::read_all(errors, map, path, "when");
    Rule { from, to, when }
}
