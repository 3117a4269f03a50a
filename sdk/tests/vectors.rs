//! The vectors, natively and in the sandbox.

use std::path::Path;

use rulecast_condition_route::ConditionRoute;
use rulecast_policy::Native;
use rulecast_sdk::{decision::Policies, vector};
use serde_json::Value;

#[test]
fn all_condition_vectors_pass_and_both_ways_agree() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/traffic-rules.json");
    let text = std::fs::read(&path).expect("the vectors are there");
    let cases: Vec<Value> = serde_json::from_slice(&text).expect("a list of cases");
    let native = Policies::native(|| Box::new(Native::new(ConditionRoute::default())));
    let sandboxed = Policies::builtin().expect("the built-in module loads");
    let mut conditions = 0;
    for case in &cases {
        let kind = case["kind"].as_str().expect("a kind");
        let ours = kind.starts_with("condition-");
        conditions += usize::from(ours);
        for policies in [&native, &sandboxed] {
            match vector::run_case(policies, case) {
                Ok(()) => assert!(ours, "{case}"),
                Err(why) => assert!(!ours && why.contains(kind), "{}: {why}", case["id"]),
            }
        }
        if ours && case["providers"].is_array() {
            for draw in 0..50 {
                let draw = rulecast_policy::draw::mix(draw);
                assert_eq!(
                    vector::decide(&native, case, draw),
                    vector::decide(&sandboxed, case, draw)
                );
            }
        }
    }
    assert_eq!(conditions, 53);
    let report = vector::run_file(&path).expect("runs");
    assert_eq!(report.to_string(), "53 passed, 27 failed");
}
