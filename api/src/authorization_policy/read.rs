//! Reads the spec as written.

use serde_json::{Map, Value};

use super::spec::{Action, AuthorizationPolicySpec, Condition, MatchType, Rule, ValueMatch};
use crate::{
    attribute,
    condition::shorten,
    fields::{Errors, present, show},
    matcher::WholeRegex,
    selector::{Of, Selector},
};

/// Most bytes of a value in a condition.
pub(super) const MAX_VALUE: usize = 4096;

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
    let when = format!("{path}.when");
    let items = errors.list(present(map, "when"), &when);
    let when = items
        .iter()
        .enumerate()
        .filter_map(|(i, item)| condition(errors, item, &format!("{when}[{i}]")))
        .collect();
    Rule { from, to, when }
}

fn condition(errors: &mut Errors, value: &Value, path: &str) -> Option<Condition> {
    let map = errors.object(value, path, &["key", "values", "notValues"])?;
    let key = errors.text(map, path, "key");
    let field = format!("{path}.key");
    let key = match key.map(|key| (key, attribute::name(key))) {
        Some((_, Ok(name))) => name,
        Some((key, Err(error))) => {
            errors.invalid(&field, key, error.message, &error.hint);
            String::new()
        }
        None => {
            if present(map, "key").is_none() {
                errors.missing(&field, "name an attribute, such as method or request.headers[x]");
            }
            String::new()
        }
    };
    let values = values(errors, map, path, "values");
    let not_values = self::values(errors, map, path, "notValues");
    if present(map, "values").is_none() && present(map, "notValues").is_none() {
        errors.missing(
            &format!("{path}.values"),
            "write values or notValues, or leave out the whole",
        );
    }
    Some(Condition { key, values, not_values })
}

fn values(
    errors: &mut Errors,
    map: &Map<String, Value>,
    path: &str,
    field: &str,
) -> Vec<ValueMatch> {
    let path = format!("{path}.{field}");
    let items = errors.list(present(map, field), &path);
    let mut values = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        values.extend(value_match(errors, item, &format!("{path}[{i}]")));
    }
    values
}

fn value_match(errors: &mut Errors, value: &Value, path: &str) -> Option<ValueMatch> {
    const HINT: &str = "write equals or regex";
    let map = errors.object(value, path, &["type", "value"])?;
    let how = errors.text(map, path, "type");
    if present(map, "type").is_none() {
        errors.missing(&format!("{path}.type"), HINT);
    }
    if present(map, "value").is_none() {
        errors.missing(&format!("{path}.value"), "write the text that it is compared with");
    }
    let text = errors.text(map, path, "value");
    let place = format!("{path}.value");
    if let Some(text) = text.filter(|text| text.len() > MAX_VALUE) {
        let message = format!("{} bytes are too many", text.len());
        errors.invalid(&place, text, message, &format!("write at most {MAX_VALUE}"));
        return None;
    }
    match how? {
        "equals" => text.map(|text| ValueMatch::Equals(text.to_owned())),
        "regex" => {
            let text = text?;
            if let Err(error) = WholeRegex::new(text) {
                errors.invalid(&place, text, error.message, &error.hint);
            }
            Some(ValueMatch::Regex(text.to_owned()))
        }
        "ognl" => {
            let message = "ognl is not evaluated: it is a program in the caller's hands, run by \
                           whoever reads the rule";
            errors.invalid(&format!("{path}.type"), "ognl", message.to_owned(), HINT);
            None
        }
        other => {
            let message = format!("\"{}\" is no way to compare", shorten(other));
            errors.invalid(&format!("{path}.type"), other, message, HINT);
            None
        }
    }
}
