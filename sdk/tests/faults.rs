//! Policies that misbehave: each fault stays with the one that made it.

use std::{
    thread,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use rulecast_api::{Code, condition_route::ConfigVersion, kind::RuleSpec, proto::rules::v1::Rule};
use rulecast_sdk::{
    decision::{Decision, Effect, Policies, Request, RuleSet},
    endpoints::{Endpoint, EndpointSet, Params},
    host::{FaultKind, Module},
};

const MANIFEST: &str =
    r#"{"abi":1,"phase":"route","name":"t","version":"1","scratch":4096,"attributes":["method"]}"#;

/// A module with these bodies; whatever is left empty does what is asked of it.
#[derive(Default)]
struct Guest {
    head: &'static str,
    commit: &'static str,
    evaluate: &'static str,
    scratch: Option<u32>,
}

const EMPTY_ANSWER: &str = "(i32.store (i32.const 1024) (i32.const 0)) (i64.const 2)";
/// An outcome of one rule, applied, without effects: at 1024, 16 bytes.
const GOOD: &str = "
    (i32.store (i32.const 3072) (i32.const 0x00010001))
    (i32.store (i32.const 3076) (i32.const 0))
    (i64.store (i32.const 3080) (i64.const 1))
    (i64.const 0x0000080000000010)";

impl Guest {
    fn build(&self) -> Vec<u8> {
        let commit = if self.commit.is_empty() { EMPTY_ANSWER } else { self.commit };
        let evaluate = if self.evaluate.is_empty() { GOOD } else { self.evaluate };
        let scratch = self.scratch.unwrap_or(1024);
        let text = format!(
            r#"(module
                (memory (export "memory") 1)
                {}
                (func (export "rulecast_abi") (result i32) (i32.const 1))
                (func (export "rulecast_scratch") (result i32) (i32.const {scratch}))
                (func (export "rulecast_rule") (result i32) (i32.const 16))
                (func (export "rulecast_reserve") (param i32) (result i32) (i32.const 8192))
                (func (export "rule_commit") (param i32 i32 i32) (result i64)
                    (i32.store (i32.const 16) (local.get 0)) {commit})
                (func (export "rule_remove") (param i32))
                (func (export "endpoints") (param i32 i32 i32) (result i64) (i64.const 0))
                (func $evaluate (export "evaluate") (param i32) (result i64) {evaluate})
                (func (export "explain") (param i32) (result i64) {evaluate})
            )"#,
            self.head
        );
        let mut bytes = wat::parse_str(text).expect("the text is WebAssembly");
        with_manifest(&mut bytes, MANIFEST);
        bytes
    }

    fn policies(&self) -> Policies {
        Policies::from_module(Module::new(&self.build()).expect("loads"))
    }
}

fn with_manifest(bytes: &mut Vec<u8>, manifest: &str) {
    let name = "rulecast.manifest";
    let len = 1 + name.len() + manifest.len();
    bytes.push(0);
    bytes.extend_from_slice(&[(len & 0x7f) as u8 | 0x80, (len >> 7) as u8]);
    bytes.push(name.len() as u8);
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(manifest.as_bytes());
}

fn rule(name: &str, spec: Vec<u8>) -> Rule {
    Rule { key: format!("{name}/default"), spec: spec.into(), ..Default::default() }
}

fn routed(policies: &Policies) -> Decision {
    let rules = RuleSet::new(None, [rule("a", vec![1])]);
    decide(policies, &rules)
}

fn decide(policies: &Policies, rules: &RuleSet) -> Decision {
    let consumer = Params::default();
    let endpoints =
        EndpointSet::new((1..=3).map(|port| Endpoint::new("10.0.0.1", port))).expect("a set");
    policies.route(rules, &Request::new("s", &consumer).method("m"), &endpoints)
}

/// The fault comes with the default route, and the built-in policy goes on.
#[track_caller]
fn assert_fault(decision: &Decision, kind: FaultKind) {
    let fault = decision.faults.first().expect("a fault");
    assert_eq!(fault.fault.kind, kind, "{}", fault.fault);
    assert_eq!(decision.endpoints, [0, 1, 2]);
    assert!(decision.rules.is_empty());
    assert_neighbour();
}

#[track_caller]
fn assert_neighbour() {
    let policies = Policies::builtin().expect("loads");
    let spec = rulecast_api::condition_route::ConditionRouteSpec::parse_lenient(
        &serde_json::json!({ "conditions": ["method=m => port=2"] }),
        ConfigVersion::V3_0,
    )
    .expect("valid");
    let rules = RuleSet::new(None, [rule("n", spec.encode().to_vec())]);
    let decision = decide(&policies, &rules);
    assert_eq!(decision.endpoints, [1]);
    assert_eq!(decision.rules[0].effect, Effect::Applied);
    assert!(decision.faults.is_empty());
}

#[test]
fn a_well_behaved_one_serves() {
    let decision = routed(&Guest::default().policies());
    assert_eq!(decision.faults, []);
    assert_eq!(decision.endpoints, [0, 1, 2]);
    assert_eq!(decision.rules[0].effect, Effect::Applied);
}

#[test]
fn endless_loops_end() {
    let evaluate = Guest { evaluate: "(loop (br 0)) (unreachable)", ..Guest::default() };
    let commit = Guest { commit: "(loop (br 0)) (unreachable)", ..Guest::default() };
    let start = Guest { head: "(func $s (loop (br 0))) (start $s)", ..Guest::default() };
    for guest in [&evaluate, &commit, &start] {
        let policies = guest.policies();
        let begun = Instant::now();
        let decision = routed(&policies);
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        assert_fault(&decision, FaultKind::Timeout);
        let again = routed(&policies);
        assert_eq!(again.endpoints, [0, 1, 2]);
    }
    let refused =
        commit.policies().check("dubbo.apache.org/v1alpha1/ConditionRoute", &rule("a", vec![1]));
    assert_eq!(refused.expect_err("refused").code, Code::PolicyTimeout.as_str());
}

#[test]
fn the_rule_at_work_is_named_and_set_aside() {
    let guest = Guest { commit: "(unreachable)", ..Guest::default() };
    let policies = guest.policies();
    let rules = RuleSet::new(None, [rule("a", vec![1]), rule("b", vec![2])]);
    let first = decide(&policies, &rules);
    let keys: Vec<_> = first.faults.iter().map(|f| f.key.as_deref()).collect();
    assert_eq!(keys, [Some("a/default"), Some("b/default")]);
    let second = decide(&policies, &rules);
    assert!(second.faults.iter().all(|f| f.aside));
    assert_eq!(second.endpoints, [0, 1, 2]);
}

#[test]
fn one_rule_at_fault_does_not_drop_the_others() {
    // Traps for the rule whose id is the larger of two.
    let guest = Guest {
        head: "(global $first (mut i32) (i32.const 0))",
        commit: "(if (i32.eqz (global.get $first)) (then (global.set $first (local.get 0))))
                 (if (i32.gt_u (local.get 0) (global.get $first)) (then (unreachable)))
                 (i32.store (i32.const 1024) (i32.const 0)) (i64.const 2)",
        ..Guest::default()
    };
    let rules = RuleSet::new(None, [rule("a", vec![1]), rule("b", vec![2])]);
    let decision = decide(&guest.policies(), &rules);
    assert_eq!(decision.faults[0].key.as_deref(), Some("b/default"));
    assert_eq!(decision.rules.len(), 1);
    assert_eq!(&*decision.rules[0].key, "a/default");
}

#[test]
fn memory_is_bounded() {
    let grow = Guest {
        evaluate: "(if (i32.eq (memory.grow (i32.const 1000)) (i32.const -1)) (then (unreachable)))
                   (i64.const 0)",
        ..Guest::default()
    };
    assert_fault(&routed(&grow.policies()), FaultKind::Memory);
    let mut large = wat::parse_str("(module (memory 1000))").expect("parses");
    with_manifest(&mut large, MANIFEST);
    assert!(Module::new(&large).is_err());
    let mut table = wat::parse_str("(module (table 100000 funcref))").expect("parses");
    with_manifest(&mut table, MANIFEST);
    assert!(Module::new(&table).is_err());
}

#[test]
fn deep_recursion_on_a_small_stack_is_a_fault() {
    let guest = Guest {
        evaluate: "(i64.add (call $evaluate (local.get 0)) (i64.const 1))",
        ..Guest::default()
    };
    let policies = guest.policies();
    // What compiles and starts is made before: the small stack is for the call.
    assert_neighbour();
    let small = thread::Builder::new().stack_size(256 * 1024);
    let decision =
        small.spawn(move || routed(&policies)).expect("starts").join().expect("no abort");
    assert_fault(&decision, FaultKind::Stack);
}

#[test]
fn traps_are_faults() {
    let guest = Guest { evaluate: "(unreachable)", ..Guest::default() };
    assert_fault(&routed(&guest.policies()), FaultKind::Trap);
}

#[test]
fn wild_outputs_are_refused() {
    for evaluate in [
        "(i64.const -1)",
        "(i64.const 0x00ffffff00000010)",
        "(i64.const 0x00000000ffffffff)",
        "(i64.const 0x0000000000001001)",
        "(i64.const 0x00000ffffffffff0)",
        "(i64.const 0)",
        // An endpoint that was no candidate: bit 3 of three.
        "(i64.store (i32.const 3072) (i64.const 0x0000000100010001))
         (i64.store (i32.const 3080) (i64.const 1))
         (i64.store (i32.const 3088) (i64.const 0x00000008ffff0001))
         (i64.store (i32.const 3096) (i64.const 8))
         (i64.const 0x0000080000000020)",
        // More remain than there were.
        "(i64.store (i32.const 3072) (i64.const 0x0000000000010001))
         (i64.store (i32.const 3080) (i64.const 0x0000000400000001))
         (i64.const 0x0000080000000010)",
    ] {
        let guest = Guest { evaluate, ..Guest::default() };
        assert_fault(&routed(&guest.policies()), FaultKind::BadOutput);
    }
    let outside = Guest { scratch: Some(65_000), ..Guest::default() };
    assert_fault(&routed(&outside.policies()), FaultKind::BadOutput);
    let undeclared = Guest {
        commit: r#"(i64.store (i32.const 1024) (i64.const 0x6461000200000001))
                   (i64.const 8)"#,
        ..Guest::default()
    };
    assert_fault(&routed(&undeclared.policies()), FaultKind::BadOutput);
}

#[test]
fn imports_are_granted_by_name() {
    let bad = [
        r#"(import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))"#,
        r#"(import "rulecast" "now_ms" (func (result i64)))"#,
        r#"(import "rulecast" "log" (func (param i64)))"#,
        r#"(import "rulecast" "panic" (global i32))"#,
    ];
    for head in bad {
        // Imports come before everything else.
        let mut bytes = wat::parse_str(format!("(module {head})")).expect("parses");
        with_manifest(&mut bytes, MANIFEST);
        let error = Module::new(&bytes).expect_err("refused");
        assert!(error.to_string().contains("not granted"), "{error}");
        assert_eq!(error.code(), Code::ModuleInvalid);
    }
}

#[test]
fn what_is_no_module_is_refused() {
    let good = Guest::default().build();
    assert!(Module::new(&good).is_ok());
    let bare = wat::parse_str("(module)").expect("parses");
    assert!(Module::new(&bare).expect_err("refused").to_string().contains("manifest"));
    for (from, to) in [("\"abi\":1", "\"abi\":2"), ("route", "other"), ("4096", "4095")] {
        let mut bytes = bare.clone();
        with_manifest(&mut bytes, &MANIFEST.replace(from, to));
        assert!(Module::new(&bytes).is_err(), "{to}");
    }
    let mut none = bare.clone();
    with_manifest(&mut none, MANIFEST);
    assert!(Module::new(&none).expect_err("refused").to_string().contains("exports"));
    // Any damage is refused or harmless.
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0xff;
        let _ = Module::new(&bytes);
    }
    for seed in 0..200u64 {
        let mut bytes = b"\0asm\x01\0\0\0".to_vec();
        let mut state = seed;
        for _ in 0..64 {
            state = rulecast_policy::draw::mix(state);
            bytes.push(state as u8);
        }
        assert!(Module::new(&bytes).is_err());
    }
}

proptest! {
    /// Loading takes any bytes: a damaged module is refused or harmless, and a rule that
    /// is given to one that loads is taken or refused.
    #[test]
    fn any_damage_to_a_module_is_refused_or_harmless(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..8),
    ) {
        let mut bytes = Guest::default().build();
        for (at, byte, how) in damage {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        if let Ok(module) = Module::new(&bytes) {
            let rule = Rule { key: "r/n".into(), ..Rule::default() };
            let _ = Policies::from_module(module).check(
                "dubbo.apache.org/v1alpha1/ConditionRoute", &rule,
            );
        }
    }
}

#[test]
fn a_flood_of_log_lines_is_cut() {
    let mut text = String::from_utf8(Vec::new()).expect("empty");
    text.push_str(r#"(import "rulecast" "log" (func $log (param i32 i32 i32)))"#);
    let body = format!(
        "(local $i i32)
         (loop (call $log (i32.const 4) (i32.const -1) (i32.const -1))
               (local.set $i (i32.add (local.get $i) (i32.const 1)))
               (br_if 0 (i32.lt_u (local.get $i) (i32.const 1000))))
         {GOOD}"
    );
    // The import must stand before the memory.
    let guest = Guest { evaluate: Box::leak(body.into_boxed_str()), ..Guest::default() };
    let commit = EMPTY_ANSWER;
    let module = format!(
        r#"(module {text} (memory (export "memory") 1)
            (func (export "rulecast_abi") (result i32) (i32.const 1))
            (func (export "rulecast_scratch") (result i32) (i32.const 1024))
            (func (export "rulecast_rule") (result i32) (i32.const 16))
            (func (export "rulecast_reserve") (param i32) (result i32) (i32.const 8192))
            (func (export "rule_commit") (param i32 i32 i32) (result i64) {commit})
            (func (export "rule_remove") (param i32))
            (func (export "endpoints") (param i32 i32 i32) (result i64) (i64.const 0))
            (func (export "evaluate") (param i32) (result i64) {body})
            (func (export "explain") (param i32) (result i64) (i64.const 0)))"#,
        body = guest.evaluate
    );
    let mut bytes = wat::parse_str(module).expect("parses");
    with_manifest(&mut bytes, MANIFEST);
    let decision = routed(&Policies::from_module(Module::new(&bytes).expect("loads")));
    assert_eq!(decision.faults, []);
}

#[test]
fn more_threads_than_the_pool_holds() {
    let policies = Policies::builtin().expect("loads");
    let barrier = std::sync::Barrier::new(80);
    thread::scope(|scope| {
        for _ in 0..80 {
            scope.spawn(|| {
                barrier.wait();
                let rules = RuleSet::new(None, [rule("a", Vec::new())]);
                let decision = decide(&policies, &rules);
                assert_eq!(decision.faults, []);
                assert_eq!(decision.endpoints, [0, 1, 2]);
                // All are alive at once.
                barrier.wait();
            });
        }
    });
}

fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[test]
fn a_loop_costs_its_thread_milliseconds() {
    let guest = Guest { evaluate: "(loop (br 0)) (unreachable)", ..Guest::default() };
    let policies = guest.policies();
    let begun = thread_cpu();
    let decision = routed(&policies);
    let spent = thread_cpu() - begun;
    assert_eq!(decision.faults[0].fault.kind, FaultKind::Timeout);
    // 5 ms, and room for a ticker that the machine keeps waiting.
    assert!(spent < Duration::from_millis(25), "{spent:?}");
}

#[test]
fn waiting_for_a_processor_is_no_fault() {
    let policies = Policies::builtin().expect("loads");
    let consumer = Params::default();
    let endpoints =
        EndpointSet::new((1..=3).map(|port| Endpoint::new("10.0.0.1", port))).expect("a set");
    let rules = RuleSet::new(None, [rule("a", Vec::new())]);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let request = Request::new("s", &consumer);
                for _ in 0..10_000 {
                    let decision = policies.route(&rules, &request, &endpoints);
                    assert_eq!(decision.faults, []);
                }
            });
        }
    });
}
