//! The vectors, natively and in the sandbox.

use std::path::{Path, PathBuf};

use rulecast_affinity_route::AffinityRoute;
use rulecast_condition_route::ConditionRoute;
use rulecast_dynamic_config::DynamicConfig;
use rulecast_policy::Native;
use rulecast_sdk::{decision::Policies, vector};
use rulecast_tag_route::TagRoute;
use serde_json::Value;

/// The kinds that choose among endpoints or give them parameters, and the matchers.
const KINDS: &[&str] = &["condition-", "tag", "affinity", "stringmatch", "dynamic-config"];

fn native() -> Policies {
    let kind = |name: &str| format!("dubbo.apache.org/v1alpha1/{name}");
    Policies::native(|| Box::new(Native::new(ConditionRoute::default())))
        .with_native(&kind("TagRoute"), || Box::new(Native::new(TagRoute::default())))
        .with_native(&kind("AffinityRoute"), || Box::new(Native::new(AffinityRoute::default())))
        .with_native(&kind("DynamicConfig"), || Box::new(Native::new(DynamicConfig::default())))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors")
}

/// How many cases of a file both ways decide as it says, and alike by many draws.
fn both_ways(file: &str) -> usize {
    let text = std::fs::read(folder().join(file)).expect("the vectors are there");
    let cases: Vec<Value> = serde_json::from_slice(&text).expect("a list of cases");
    let (native, sandboxed) = (native(), Policies::builtin().expect("the modules load"));
    for case in &cases {
        let kind = case["kind"].as_str().expect("a kind");
        assert!(KINDS.iter().any(|known| kind.starts_with(known)), "{file}: {kind}");
        for policies in [&native, &sandboxed] {
            let ran = vector::run_case(policies, case);
            assert_eq!(ran, Ok(()), "{file} {}: {}", case["id"], case["note"]);
        }
        if case["providers"].is_array() && case["kind"] != "dynamic-config" {
            for draw in 0..50 {
                let draw = rulecast_policy::draw::mix(draw);
                assert_eq!(
                    vector::decide(&native, case, draw),
                    vector::decide(&sandboxed, case, draw)
                );
            }
        }
    }
    cases.len()
}

#[test]
fn the_given_vectors_pass_both_ways() {
    assert_eq!(both_ways("traffic-rules.json"), 80);
    let report = vector::run_file(&folder().join("traffic-rules.json")).expect("runs");
    assert_eq!(report.to_string(), "80 passed, 0 failed");
}

#[test]
fn our_own_vectors_pass_both_ways() {
    for (file, least) in [("tag.json", 25), ("affinity.json", 25), ("dynamic-config.json", 25)] {
        assert!(both_ways(file) >= least, "{file}");
        sentences(file);
    }
}

/// The count of sentences of a file.
fn sentences(file: &str) -> usize {
    let text = std::fs::read(folder().join(file)).expect("the vectors are there");
    let cases: Vec<Value> = serde_json::from_slice(&text).expect("a list of cases");
    let mut notes: Vec<&str> = cases.iter().filter_map(|c| c["note"].as_str()).collect();
    notes.sort_unstable();
    notes.dedup();
    assert_eq!(notes.len(), cases.len(), "{file}: each case has a sentence of its own");
    notes.len()
}

#[test]
fn breakers_go_as_their_vectors_say() {
    let report = vector::run_file(&folder().join("circuit-breaker.json")).expect("runs");
    assert_eq!(report.failed, []);
    assert!(report.passed >= 25);
    assert_eq!(sentences("circuit-breaker.json"), report.passed);
}
