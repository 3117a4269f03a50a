//! The plain model of ConditionRoute against the vectors and against the policy in its sandbox.
//!
//! `CASES=n` runs more generated cases, `SEED=n` others. A difference is shrunk and printed as a
//! vector, ready for `rulecast conformance`.

#[path = "model/generator.rs"]
mod generator;

use std::collections::BTreeMap;

use fastrand::Rng;
use rulecast_sdk::{decision::Policies, vector};
use rulecast_tests::model::{self, Distribution, Outcome};
use serde_json::Value;

const VECTORS: &str = include_str!("../vectors/traffic-rules.json");
/// One case for each sentence of the description.
const SENTENCES: &str = include_str!("../vectors/condition-extra.json");
/// Draws per generated case with more than one possible result.
const DRAWS: usize = 8;

#[test]
fn the_model_agrees_with_the_vectors() {
    let cases: Vec<Value> = serde_json::from_str(VECTORS).expect("the vectors are JSON");
    let sentences: Vec<Value> = serde_json::from_str(SENTENCES).expect("the vectors are JSON");
    let mut run = 0;
    for case in cases.into_iter().chain(sentences) {
        if !case["kind"].as_str().is_some_and(|kind| kind.starts_with("condition-")) {
            continue;
        }
        run += 1;
        let outcome = model::evaluate(&case);
        if let Some(expected) = case["expect_match"].as_bool() {
            assert_eq!(model::when_matches(&case), Some(expected), "{case}");
        } else if case["expect_error"] == true || case["note"] == "a refused rule acts as no rule" {
            assert!(matches!(outcome, Outcome::Refused(_)), "{case}");
        } else {
            let Outcome::Kept(distribution) = outcome else { panic!("{outcome:?} {case}") };
            let mut sizes: Vec<usize> = distribution.keys().map(Vec::len).collect();
            sizes.sort_unstable();
            sizes.dedup();
            let mut expected: Vec<usize> = match case["expect_count"].as_u64() {
                Some(count) => vec![count as usize],
                None => serde_json::from_value(case["expect_sizes"].clone()).expect("sizes"),
            };
            expected.sort_unstable();
            assert_eq!(sizes, expected, "{case}");
        }
    }
    assert!(run >= 130, "only {run} cases of conditions in the vectors");
}

#[test]
fn the_policy_agrees_with_the_sentences() {
    let sentences: Vec<Value> = serde_json::from_str(SENTENCES).expect("the vectors are JSON");
    let policies = Policies::builtin().expect("the built-in policies load");
    let report = vector::run_cases(&policies, &sentences);
    assert!(report.failed.is_empty(), "{:#?}", report.failed);
    assert_eq!(report.passed, sentences.len());
}

#[test]
fn the_probabilities_are_exact() {
    let case = vector("condition-v3.1", 69);
    let Outcome::Kept(distribution) = model::evaluate(&case) else { panic!("refused") };
    let by_size: BTreeMap<usize, (u128, u128)> = distribution
        .iter()
        .map(|(kept, chance)| (kept.len(), (chance.numerator, chance.denominator)))
        .collect();
    assert_eq!(by_size, BTreeMap::from([(8, (3, 5)), (4, (3, 10)), (2, (1, 15)), (6, (1, 30))]));
}

#[test]
fn the_policy_agrees_with_the_model() {
    let cases = number("CASES").unwrap_or(4_000);
    let seed = number("SEED").unwrap_or(0);
    let real = Real::new();
    let mut seen = BTreeMap::<&str, u64>::new();
    let mut different = Vec::new();
    for number in 0..cases {
        let mut rng = Rng::with_seed(seed.wrapping_mul(1 << 32).wrapping_add(number));
        let case = generator::case(&mut rng);
        *seen.entry(shape(&case)).or_default() += 1;
        if difference(&real, &case).is_some() {
            let case = generator::shrink(case, |smaller| difference(&real, smaller).is_some());
            let what = difference(&real, &case).unwrap_or_default();
            different.push(format!("{case}\n    {what}"));
            if different.len() == 20 {
                break;
            }
        }
    }
    different.sort();
    different.dedup();
    assert!(different.is_empty(), "{}", different.join("\n"));
    // The alphabets are small so that every kind of result is frequent; were they not, the
    // agreement would mean little.
    for kind in ["refused", "none", "some", "all", "drawn"] {
        let share = seen.get(kind).copied().unwrap_or_default() as f64 / cases as f64;
        assert!(share > 0.03, "{kind} in {share} of the cases only: {seen:?}");
    }
}

#[test]
fn draws_follow_the_weights() {
    let draws = number("DRAWS").unwrap_or(100_000);
    let real = Real::new();
    let mut cases = vec![vector("condition-v3.1", 69), vector("condition-v3.1", 70)];
    cases.extend(generator::weighted());
    for case in cases {
        let Outcome::Kept(expected) = model::evaluate(&case) else { panic!("refused: {case}") };
        let mut rng = Rng::with_seed(7);
        let mut counts = BTreeMap::<Vec<usize>, u64>::new();
        for kept in real.many(&case, (0..draws).map(|_| rng.u64(..))) {
            *counts.entry(kept).or_default() += 1;
        }
        for kept in counts.keys() {
            assert!(expected.contains_key(kept), "{kept:?} is impossible: {case}");
        }
        let statistic = chi_square(&expected, &counts, draws);
        let limit = chi_square_limit(expected.len() - 1);
        assert!(statistic <= limit, "{statistic} > {limit}: {expected:?} {counts:?} {case}");
    }
}

/// What differs between the model and the policy, if anything.
fn difference(real: &Real, case: &Value) -> Option<String> {
    let expected = model::evaluate(case);
    let draws = match &expected {
        Outcome::Kept(distribution) if distribution.len() > 1 => DRAWS,
        _ => 1,
    };
    let mut rng = Rng::with_seed(1);
    for _ in 0..draws {
        let draw = rng.u64(..);
        let actual = real.one(case, draw);
        let agrees = match (&expected, &actual) {
            (Outcome::Refused(_), None) => true,
            (Outcome::Kept(distribution), Some(kept)) => distribution.contains_key(kept),
            _ => false,
        };
        if !agrees {
            return Some(format!("model {expected:?}, policy {actual:?}, draw {draw}"));
        }
    }
    None
}

fn shape(case: &Value) -> &'static str {
    let count = case["providers"].as_array().map_or(0, Vec::len);
    match model::evaluate(case) {
        Outcome::Refused(_) => "refused",
        Outcome::Kept(distribution) if distribution.len() > 1 => "drawn",
        Outcome::Kept(distribution) => match distribution.keys().next().map_or(0, Vec::len) {
            0 => "none",
            kept if kept == count => "all",
            _ => "some",
        },
    }
}

fn chi_square(expected: &Distribution, counts: &BTreeMap<Vec<usize>, u64>, draws: u64) -> f64 {
    expected
        .iter()
        .map(|(kept, chance)| {
            let mean = chance.as_f64() * draws as f64;
            let count = counts.get(kept).copied().unwrap_or_default() as f64;
            (count - mean).powi(2) / mean
        })
        .sum()
}

/// The value that chance alone exceeds once in a hundred thousand runs (Wilson and Hilferty).
fn chi_square_limit(freedom: usize) -> f64 {
    const QUANTILE: f64 = 4.265;
    let freedom = freedom as f64;
    let ninth = 2.0 / (9.0 * freedom);
    freedom * (1.0 - ninth + QUANTILE * ninth.sqrt()).powi(3)
}

fn vector(kind: &str, id: u64) -> Value {
    let cases: Vec<Value> = serde_json::from_str(VECTORS).expect("the vectors are JSON");
    let found = cases.into_iter().find(|case| case["kind"] == kind && case["id"] == id);
    found.unwrap_or_else(|| panic!("no {kind} {id}"))
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The policy in its sandbox.
struct Real {
    policies: Policies,
}

impl Real {
    fn new() -> Self {
        Self { policies: Policies::builtin().expect("the built-in policies load") }
    }

    /// The kept providers; `None` when validation refuses the rule.
    fn one(&self, case: &Value, draw: u64) -> Option<Vec<usize>> {
        if vector::refuses(case) {
            return None;
        }
        self.many(case, std::iter::once(draw)).pop()
    }

    fn many(&self, case: &Value, draws: impl Iterator<Item = u64>) -> Vec<Vec<usize>> {
        vector::decide_all(&self.policies, case, draws)
            .unwrap_or_else(|fault| panic!("{fault}: {case}"))
    }
}
