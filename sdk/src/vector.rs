//! Rule vectors: cases of rules with what they must decide, run as an application would.
//!
//! The format is described in `tests/vectors/README.md`.

mod breakers;
mod limits;
mod parameters;
mod security;

use std::{collections::BTreeSet, fmt, path::Path};

use rulecast_api::{
    affinity_route::AffinityRouteSpec,
    condition_route::{ConditionRouteSpec, ConfigVersion},
    kind::{FieldError, RuleSpec},
    matcher::StringMatch,
    proto::rules::v1::Rule,
    tag_route::TagRouteSpec,
};
use serde_json::Value;

use crate::{
    decision::{Decision, Policies, Request, RuleSet},
    endpoints::{Endpoint, EndpointSet, Params},
    host::ModuleError,
};

/// Draws by which the sizes of a weighted case are found: the chance to miss a size of
/// probability 1/100 is below 10⁻⁸.
const DRAWS: u64 = 2000;

/// The service that is called in every case.
const SERVICE: &str = "vector.Service";

/// How a file of cases went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many cases came out as expected.
    pub passed: usize,
    /// The others: `id` as written, and why.
    pub failed: Vec<(String, String)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed.len())
    }
}

/// Why a file of cases cannot be run at all.
#[derive(Debug, thiserror::Error)]
pub enum VectorError {
    /// It cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// The file.
        path: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// It is no list of cases.
    #[error("{path}: is no JSON list of cases: {error}")]
    Syntax {
        /// The file.
        path: String,
        /// What the parser says.
        error: serde_json::Error,
    },
    /// The policies cannot be loaded.
    #[error(transparent)]
    Module(#[from] ModuleError),
}

/// Runs all cases of a file through the built-in policies.
pub fn run_file(path: &Path) -> Result<Report, VectorError> {
    let shown = path.display().to_string();
    let text =
        std::fs::read(path).map_err(|error| VectorError::Read { path: shown.clone(), error })?;
    let cases: Vec<Value> = serde_json::from_slice(&text)
        .map_err(|error| VectorError::Syntax { path: shown, error })?;
    Ok(run_cases(&Policies::builtin()?, &cases))
}

/// Runs cases through these policies.
pub fn run_cases(policies: &Policies, cases: &[Value]) -> Report {
    let mut report = Report::default();
    for case in cases {
        match run_case(policies, case) {
            Ok(()) => report.passed += 1,
            Err(why) => {
                let id = match &case["id"] {
                    Value::Null => "(no id)".to_owned(),
                    id => text(id),
                };
                report.failed.push((id, why));
            }
        }
    }
    report
}

/// Runs one case; the error says what came out instead.
pub fn run_case(policies: &Policies, case: &Value) -> Result<(), String> {
    let kind = case["kind"].as_str().ok_or("the case has no kind")?;
    match kind {
        "condition-v3.0/parse" => {
            let refused = spec(case, ConfigVersion::V3_0).err();
            let expected = case["expect_error"].as_bool().unwrap_or(true);
            match refused {
                Some(errors) if !expected => Err(format!("refused: {}", first(&errors))),
                None if expected => Err("the rule was accepted".to_owned()),
                _ => Ok(()),
            }
        }
        "condition-v3.0/when" => {
            let expected = case["expect_match"].as_bool().ok_or("the case has no expect_match")?;
            let matched = matches_when(policies, case)?;
            (matched == expected)
                .then_some(())
                .ok_or_else(|| format!("matched: {matched}, expected {expected}"))
        }
        "condition-v3.0" | "condition-v3.1" | "tag" | "affinity" => run_route(policies, case),
        "stringmatch" => {
            let expected = case["expect_match"].as_bool().ok_or("the case has no expect_match")?;
            let matched = matches_string(policies, case)?;
            (matched == expected)
                .then_some(())
                .ok_or_else(|| format!("matched: {matched}, expected {expected}"))
        }
        "authentication" => security::authentication(policies, case),
        "authorization" => security::authorization(policies, case),
        "circuit-breaker" => breakers::circuit_breaker(case),
        "rate-limit" => limits::rate_limit(policies, case),
        "dynamic-config" => parameters::dynamic_config(policies, case),
        other => Err(format!("there is no kind {other}")),
    }
}

fn run_route(policies: &Policies, case: &Value) -> Result<(), String> {
    if case["expect_error"].as_bool() == Some(true) {
        let refused = refuses(case);
        return refused.then_some(()).ok_or_else(|| "the rule was accepted".to_owned());
    }
    let prepared = Prepared::new(case)?;
    if let Some(kept) = case["expect_kept"].as_array() {
        let expected: Vec<u64> = kept.iter().filter_map(Value::as_u64).collect();
        for draw in [0, u64::MAX / 3, u64::MAX] {
            let decision = prepared.route(policies, draw)?;
            let kept: Vec<u64> = decision.endpoints.iter().map(|&i| u64::from(i)).collect();
            if kept != expected {
                return Err(format!("kept {kept:?}, expected {expected:?}"));
            }
        }
        return Ok(());
    }
    if let Some(count) = case["expect_count"].as_u64() {
        // Without chance all draws decide the same; a few show that.
        for draw in [0, u64::MAX / 3, u64::MAX] {
            let decision = prepared.route(policies, draw)?;
            let kept = decision.endpoints.len() as u64;
            if kept != count {
                return Err(format!("kept {kept}, expected {count}"));
            }
        }
        return Ok(());
    }
    let expected: BTreeSet<u64> = case["expect_sizes"]
        .as_array()
        .ok_or("the case expects nothing that is known")?
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    let mut sizes = BTreeSet::new();
    for i in 0..DRAWS {
        let draw = rulecast_policy::draw::mix(i);
        sizes.insert(prepared.route(policies, draw)?.endpoints.len() as u64);
    }
    (sizes == expected)
        .then_some(())
        .ok_or_else(|| format!("sizes {sizes:?}, expected {expected:?}"))
}

/// Decides one case that has providers by this draw: the indices of the
/// providers that are kept, ascending.
pub fn decide(policies: &Policies, case: &Value, draw: u64) -> Result<Vec<usize>, String> {
    let decision = Prepared::new(case)?.route(policies, draw)?;
    Ok(decision.endpoints.into_iter().map(|i| i as usize).collect())
}

/// As [`decide`] by each of these draws, with the case prepared once.
pub fn decide_all(
    policies: &Policies,
    case: &Value,
    draws: impl IntoIterator<Item = u64>,
) -> Result<Vec<Vec<usize>>, String> {
    let prepared = Prepared::new(case)?;
    let decide = |draw| {
        let decision = prepared.route(policies, draw)?;
        Ok(decision.endpoints.into_iter().map(|i| i as usize).collect())
    };
    draws.into_iter().map(decide).collect()
}

/// Whether validation refuses a case's rule.
pub fn refuses(case: &Value) -> bool {
    !case["rule"].is_null() && typed(case).is_err()
}

/// Whether the left side of a case's (first) condition matches the call.
pub fn matches_when(policies: &Policies, case: &Value) -> Result<bool, String> {
    // The rule as it is written must be accepted; then its right side is made to keep nothing.
    if spec(case, ConfigVersion::V3_0).is_err() {
        return Ok(false);
    }
    let condition = case["rule"]["conditions"][0].as_str().ok_or("the rule has no condition")?;
    let when = condition.split_once("=>").map_or("", |(when, _)| when);
    let mut case = case.clone();
    case["rule"]["conditions"] = serde_json::json!([format!("{when}=>")]);
    case["providers"] = serde_json::json!([{ "host": "127.0.0.1", "port": 1 }]);
    Ok(decide(policies, &case, 0)?.is_empty())
}

/// A case with everything that does not depend on the draw.
struct Prepared {
    rules: RuleSet,
    endpoints: EndpointSet,
    request: Request<'static>,
}

impl Prepared {
    fn new(case: &Value) -> Result<Self, String> {
        let mut rules = Vec::new();
        // No rule, or one that validation refuses: as if there were none.
        if !case["rule"].is_null()
            && let Ok(spec) = typed(case)
            && spec.enabled()
        {
            rules.push(Rule {
                key: "vector/default".into(),
                // A case's rule speaks of its call, whatever key and scope it was written with.
                target: None,
                tier: 1,
                priority: spec.priority(),
                enforcement: 0,
                spec: spec.encode().to_vec().into(),
                created: 0,
            });
        }
        let providers = case["providers"].as_array().cloned().unwrap_or_default();
        let endpoints = providers.iter().map(|p| Endpoint::from_params(params(p)));
        let endpoints = EndpointSet::new(endpoints).map_err(|e| e.to_string())?;
        let invocation = &case["invocation"];
        let mut request = Request::owned(SERVICE.to_owned(), params(&case["consumer"]));
        if !invocation["method"].is_null() {
            request = request.method(text(&invocation["method"]));
        }
        for argument in invocation["args"].as_array().into_iter().flatten() {
            request = request.argument(text(argument));
        }
        for (name, value) in invocation["attachments"].as_object().into_iter().flatten() {
            request = request.attachment(name.clone(), text(value));
        }
        let rules = RuleSet::default().with(type_name(case), rules);
        Ok(Self { rules, endpoints, request })
    }

    fn route(&self, policies: &Policies, draw: u64) -> Result<Decision, String> {
        let request = self.request.clone().draw(draw);
        let decision = policies.route(&self.rules, &request, &self.endpoints);
        match decision.faults.first() {
            Some(fault) => Err(fault.fault.to_string()),
            None => Ok(decision),
        }
    }
}

fn version(case: &Value) -> ConfigVersion {
    match case["kind"].as_str() {
        Some("condition-v3.1") => ConfigVersion::V3_1,
        _ => ConfigVersion::V3_0,
    }
}

/// The type of a case's rule.
fn type_name(case: &Value) -> &'static str {
    match case["kind"].as_str() {
        Some("tag") => "dubbo.apache.org/v1alpha1/TagRoute",
        Some("affinity") => "dubbo.apache.org/v1alpha1/AffinityRoute",
        _ => "dubbo.apache.org/v1alpha1/ConditionRoute",
    }
}

/// A case's rule by its kind.
fn typed(case: &Value) -> Result<Box<dyn RuleSpec>, Vec<FieldError>> {
    let rule = &case["rule"];
    Ok(match case["kind"].as_str() {
        Some("tag") => Box::new(TagRouteSpec::parse_lenient(rule)?),
        Some("affinity") => Box::new(AffinityRouteSpec::parse_lenient(rule)?),
        _ => Box::new(spec(case, version(case))?),
    })
}

/// Whether a case's matcher matches its value. Where a value is there, the tags of a TagRoute
/// are asked too, as they are in an application, and must say the same.
fn matches_string(policies: &Policies, case: &Value) -> Result<bool, String> {
    let value = (!case["value"].is_null()).then(|| text(&case["value"]));
    // One that is refused matches nothing.
    let matched = StringMatch::matches_json(&case["matcher"], value.as_deref());
    let Some(value) = value else { return Ok(matched.unwrap_or(false)) };
    let tag = serde_json::json!({
        "kind": "tag",
        "rule": { "force": true, "tags": [
            { "name": "t", "match": [{ "key": "value", "value": case["matcher"] }] },
        ] },
        "invocation": { "attachments": { "dubbo.tag": "t", "dubbo.force.tag": "true" } },
        "providers": [{ "host": "127.0.0.1", "port": 1, "value": value }],
    });
    let kept = !decide(policies, &tag, 0)?.is_empty();
    match kept == matched.unwrap_or(false) {
        true => Ok(kept),
        false => Err(format!("the matcher says {matched:?}, the policy {kept}")),
    }
}

fn spec(case: &Value, version: ConfigVersion) -> Result<ConditionRouteSpec, Vec<FieldError>> {
    ConditionRouteSpec::parse_lenient(&case["rule"], version)
}

fn first(errors: &[FieldError]) -> String {
    errors.first().map(ToString::to_string).unwrap_or_default()
}

fn params(map: &Value) -> Params {
    let pairs = map.as_object().into_iter().flatten();
    pairs.filter(|(_, v)| !v.is_null()).map(|(name, value)| (name.clone(), text(value))).collect()
}

/// Numbers and booleans as text.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
