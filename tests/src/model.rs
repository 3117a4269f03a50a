//! A second reading of the ConditionRoute rules, written from their description alone.
//!
//! It is plain and slow on purpose: strings are split with `str::split`, nothing is prepared or
//! indexed, and weights give exact probabilities instead of one draw. The property test compares
//! it with the policy that runs in the sandbox; where both agree, two readings of the text agree.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// An exact probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    /// The numerator, at most the denominator.
    pub numerator: u128,
    /// The denominator, never 0.
    pub denominator: u128,
}

impl Ratio {
    /// The certain event.
    pub const ONE: Self = Self { numerator: 1, denominator: 1 };

    fn reduced(numerator: u128, denominator: u128) -> Self {
        let (mut a, mut b) = (numerator, denominator);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Self { numerator: numerator / a, denominator: denominator / a }
    }

    /// The chance of two independent events together.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        Self::reduced(self.numerator * other.numerator, self.denominator * other.denominator)
    }

    /// The chance of either of two events that exclude each other.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self::reduced(
            self.numerator * other.denominator + other.numerator * self.denominator,
            self.denominator * other.denominator,
        )
    }

    /// The nearest floating point number.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }
}

/// The kept candidates, as ascending indices into the case's providers, with their probability.
pub type Distribution = BTreeMap<Vec<usize>, Ratio>;

/// What a rule does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Validation refuses the rule, for this reason.
    Refused(String),
    /// The possible results. Probabilities are above 0 and add up to 1.
    Kept(Distribution),
}

/// Evaluates a case in the vector format: `kind`, `rule`, `consumer`, `invocation`, `providers`.
#[must_use]
pub fn evaluate(case: &Value) -> Outcome {
    let count = case["providers"].as_array().map_or(0, Vec::len);
    let all: Vec<usize> = (0..count).collect();
    let rule = match parse_rule(case) {
        Ok(Some(rule)) => rule,
        Ok(None) => return Outcome::Kept(Distribution::from([(all, Ratio::ONE)])),
        Err(reason) => return Outcome::Refused(reason),
    };

    let mut lists = Distribution::from([(all, Ratio::ONE)]);
    for condition in &rule.conditions {
        let mut next = Distribution::new();
        for (list, chance) in lists {
            for (result, share) in apply(condition, rule.force, case, &list) {
                let added = chance.times(share);
                next.entry(result).and_modify(|sum| *sum = sum.plus(added)).or_insert(added);
            }
        }
        lists = next;
    }
    Outcome::Kept(lists)
}

/// Whether the left side of a case's first condition matches its request; `None` when the rule is
/// refused or has no condition.
#[must_use]
pub fn when_matches(case: &Value) -> Option<bool> {
    let rule = parse_rule(case).ok()??;
    Some(holds(&rule.conditions.first()?.when, Side::When, case, &Value::Null))
}

struct Rule {
    force: bool,
    conditions: Vec<Condition>,
}

struct Condition {
    when: Vec<Term>,
    then: Then,
}

enum Then {
    /// Nobody is to be called.
    Nobody,
    /// The matching candidates (v3.0).
    Matching(Vec<Term>),
    /// One of several subsets, by weight (v3.1).
    Weighted(Vec<(Vec<Term>, u128)>),
}

/// All that one side says about one key.
struct Term {
    key: String,
    matches: Vec<String>,
    mismatches: Vec<String>,
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    When,
    Then,
}

fn parse_rule(case: &Value) -> Result<Option<Rule>, String> {
    let spec = match &case["rule"] {
        Value::Null => return Ok(None),
        Value::Object(spec) => spec,
        other => return Err(format!("a rule is an object, not {other}")),
    };
    only(
        spec,
        &["configVersion", "enabled", "key", "scope", "conditions", "force", "priority", "runtime"],
    )?;
    let kind = case["kind"].as_str().unwrap_or_default();
    let of_kind = if kind.starts_with("condition-v3.1") { "v3.1" } else { "v3.0" };
    let version = text(spec, "configVersion")?.unwrap_or(of_kind);
    match text(spec, "scope")? {
        None | Some("service" | "application") => {}
        Some(other) => return Err(format!("scope {other:?}")),
    }
    if text(spec, "key")?.is_some_and(|key| key.trim().is_empty()) {
        return Err("an empty key".to_owned());
    }
    let enabled = flag(spec, "enabled")?.unwrap_or(true);
    let force = flag(spec, "force")?.unwrap_or(false);
    flag(spec, "runtime")?;
    if present(spec, "priority").is_some_and(|priority| priority.as_i64().is_none()) {
        return Err("priority is an integer".to_owned());
    }
    let list = match present(spec, "conditions") {
        None => &Vec::new(),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(format!("conditions is a list, not {other}")),
    };
    let parse = match version {
        "v3.0" => parse_string,
        "v3.1" => parse_object,
        other => return Err(format!("configVersion {other:?}")),
    };
    let conditions = list.iter().map(parse).collect::<Result<_, _>>()?;
    Ok(enabled.then_some(Rule { force, conditions }))
}

fn parse_string(condition: &Value) -> Result<Condition, String> {
    let whole = condition.as_str().ok_or("a v3.0 condition is a string")?;
    let (when, then) = whole.split_once("=>").unwrap_or(("", whole));
    let when = match when.trim() {
        "" | "true" => Vec::new(),
        side => parse_side(side)?,
    };
    let then = match then.trim() {
        "" | "false" => Then::Nobody,
        side => Then::Matching(parse_side(side)?),
    };
    Ok(Condition { when, then })
}

fn parse_object(condition: &Value) -> Result<Condition, String> {
    let condition = condition.as_object().ok_or("a v3.1 condition is an object")?;
    only(condition, &["from", "to"])?;
    let when = match present(condition, "from") {
        None => Vec::new(),
        Some(from) => {
            let from = from.as_object().ok_or("from is an object")?;
            only(from, &["match"])?;
            parse_match(from)?
        }
    };
    let mut destinations = Vec::new();
    if let Some(to) = present(condition, "to") {
        for destination in to.as_array().ok_or("to is a list")? {
            let destination = destination.as_object().ok_or("a destination is an object")?;
            only(destination, &["match", "weight"])?;
            let weight = match present(destination, "weight") {
                None => 100,
                Some(weight) => weight.as_u64().ok_or("a weight is an integer from 0")?,
            };
            destinations.push((parse_match(destination)?, u128::from(weight)));
        }
    }
    let then = if destinations.is_empty() { Then::Nobody } else { Then::Weighted(destinations) };
    Ok(Condition { when, then })
}

fn parse_match(holder: &Map<String, Value>) -> Result<Vec<Term>, String> {
    match text(holder, "match")?.unwrap_or_default().trim() {
        "" => Ok(Vec::new()),
        side => parse_side(side),
    }
}

fn parse_side(side: &str) -> Result<Vec<Term>, String> {
    let mut terms: Vec<Term> = Vec::new();
    for part in side.split('&') {
        let (left, right) = part.split_once('=').ok_or_else(|| format!("a bare key {part:?}"))?;
        let (left, differs) = match left.strip_suffix('!') {
            Some(left) => (left, true),
            None => (left, false),
        };
        let written = word(left)?;
        let key = canonical(word(unprefixed(written))?);
        let values = right.split(',').map(|value| word(value).map(str::to_owned));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        if let Some(large) = values.iter().find(|value| range(value).is_some() && !fits(value)) {
            return Err(format!("a bound beyond 64 bits in {large:?}"));
        }

        let at = terms.iter().position(|term| term.key == key).unwrap_or_else(|| {
            terms.push(Term { key: key.clone(), matches: vec![], mismatches: vec![] });
            terms.len() - 1
        });
        if differs {
            terms[at].mismatches.extend(values);
        } else {
            terms[at].matches.extend(values);
        }
    }
    Ok(terms)
}

fn unprefixed(mut key: &str) -> &str {
    while let Some(rest) = key.strip_prefix("consumer.").or_else(|| key.strip_prefix("provider.")) {
        key = rest;
    }
    key
}

/// One spelling for what is one key: `methods` is `method`, and what follows `arguments[N]` is
/// ignored.
fn canonical(key: &str) -> String {
    match key.split_once(']') {
        _ if key == "methods" => "method".to_owned(),
        Some((start, _suffix)) if start.starts_with("arguments[") => format!("{start}]"),
        _ => key.to_owned(),
    }
}

/// A key or a value: not empty, in one piece, and free of the operators.
fn word(written: &str) -> Result<&str, String> {
    let word = written.trim();
    if word.is_empty() || word.contains(['=', '!', ',', '&']) || word.contains(char::is_whitespace)
    {
        return Err(format!("{word:?} is no key or value"));
    }
    Ok(word)
}

fn only(map: &Map<String, Value>, known: &[&str]) -> Result<(), String> {
    match map.keys().find(|key| !known.contains(&key.as_str())) {
        Some(unknown) => Err(format!("unknown field {unknown:?}")),
        None => Ok(()),
    }
}

/// A field that is there; null is the same as left out.
fn present<'a>(map: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    map.get(field).filter(|value| !value.is_null())
}

fn text<'a>(map: &'a Map<String, Value>, field: &str) -> Result<Option<&'a str>, String> {
    let Some(value) = present(map, field) else { return Ok(None) };
    value.as_str().map(Some).ok_or_else(|| format!("{field} is a string"))
}

fn flag(map: &Map<String, Value>, field: &str) -> Result<Option<bool>, String> {
    let Some(value) = present(map, field) else { return Ok(None) };
    value.as_bool().map(Some).ok_or_else(|| format!("{field} is a boolean"))
}

/// What one condition makes of `list`.
fn apply(
    condition: &Condition,
    force: bool,
    case: &Value,
    list: &[usize],
) -> Vec<(Vec<usize>, Ratio)> {
    let certain = |list: &[usize]| vec![(list.to_vec(), Ratio::ONE)];
    if !holds(&condition.when, Side::When, case, &Value::Null) {
        return certain(list);
    }
    let select = |terms: &[Term]| -> Vec<usize> {
        let fits = |index: &usize| holds(terms, Side::Then, case, &case["providers"][*index]);
        list.iter().copied().filter(fits).collect()
    };
    let when_empty = if force { certain(&[]) } else { certain(list) };
    match &condition.then {
        Then::Nobody => certain(&[]),
        Then::Matching(terms) => {
            let selected = select(terms);
            if selected.is_empty() { when_empty } else { certain(&selected) }
        }
        Then::Weighted(destinations) => {
            let subsets: Vec<(Vec<usize>, u128)> = destinations
                .iter()
                .map(|(terms, weight)| (select(terms), *weight))
                .filter(|(subset, weight)| !subset.is_empty() && *weight > 0)
                .collect();
            let sum: u128 = subsets.iter().map(|(_, weight)| weight).sum();
            if sum == 0 {
                return when_empty;
            }
            let share = |(subset, weight)| (subset, Ratio::reduced(weight, sum));
            subsets.into_iter().map(share).collect()
        }
    }
}

fn holds(terms: &[Term], side: Side, case: &Value, provider: &Value) -> bool {
    terms.iter().all(|term| {
        let Some(actual) = actual(&term.key, side, case, provider) else { return false };
        let hits = |values: &[String]| values.iter().any(|value| hit(value, &actual, side, case));
        !hits(&term.mismatches) && (term.matches.is_empty() || hits(&term.matches))
    })
}

/// The value that a key names; `None` when it is missing.
fn actual(key: &str, side: Side, case: &Value, provider: &Value) -> Option<String> {
    let invocation = &case["invocation"];
    if key == "method" {
        return as_text(&invocation["method"]);
    }
    if key == "arguments" || key == "attachments" {
        return None;
    }
    if let Some(rest) = key.strip_prefix("arguments[") {
        let index = rest.strip_suffix(']')?;
        return as_text(&invocation["args"][index.parse::<usize>().ok()?]);
    }
    if let Some(rest) = key.strip_prefix("attachments[") {
        return as_text(&invocation["attachments"][rest.strip_suffix(']')?]);
    }
    match side {
        Side::When => parameter(&case["consumer"], key),
        Side::Then => parameter(provider, key),
    }
}

fn parameter(parameters: &Value, key: &str) -> Option<String> {
    if key == "address" {
        let (host, port) = (as_text(&parameters["host"])?, as_text(&parameters["port"])?);
        return Some(format!("{host}:{port}"));
    }
    as_text(&parameters[key])
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Whether one listed value hits the actual one.
fn hit(value: &str, actual: &str, side: Side, case: &Value) -> bool {
    if side == Side::Then
        && let Some(name) = value.strip_prefix('$')
    {
        return parameter(&case["consumer"], name).is_some_and(|own| own == actual);
    }
    if let Some((low, high)) = range(value) {
        return match integer(actual) {
            Some(number) => {
                low.is_none_or(|low| low <= number) && high.is_none_or(|high| number <= high)
            }
            None => side == Side::Then,
        };
    }
    match value.rsplit_once('*') {
        // As in the older SDKs, the two ends may overlap: `1*1` hits `1`.
        Some((start, end)) => actual.starts_with(start) && actual.ends_with(end),
        None => value == actual,
    }
}

/// The bounds of `a~b`, `~b` or `a~`; `None` for what is no range of integers.
fn range(value: &str) -> Option<(Option<Integer>, Option<Integer>)> {
    let (low, high) = value.split_once('~')?;
    let bound = |text: &str| match text {
        "" => Some(None),
        digits => integer(digits).map(Some),
    };
    match (bound(low)?, bound(high)?) {
        (None, None) => None,
        bounds => Some(bounds),
    }
}

/// Whether the bounds of a range are written within 64 bits.
fn fits(range: &str) -> bool {
    range.split('~').all(|bound| bound.is_empty() || bound.parse::<i64>().is_ok())
}

/// An integer of any size, in an order that is its own: below zero the longer and larger digits
/// come first, from zero on last.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Integer {
    Negative(std::cmp::Reverse<(usize, String)>),
    Positive((usize, String)),
}

/// An integer is written in digits, perhaps after a minus.
fn integer(text: &str) -> Option<Integer> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.is_empty() || digits.contains(|char: char| !char.is_ascii_digit()) {
        return None;
    }
    let digits = digits.trim_start_matches('0').to_owned();
    let size = (digits.len(), digits);
    Some(if negative && size.0 > 0 {
        Integer::Negative(std::cmp::Reverse(size))
    } else {
        Integer::Positive(size)
    })
}
