//! RateLimit: the vectors, both ways of its policy on drawn rules and calls, what the host makes
//! of what it answers, and a limit under load.

#[path = "limits/greedy.rs"]
mod greedy;

use std::{
    collections::BTreeSet,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use greedy::Greedy;
use proptest::prelude::*;
use rulecast_api::{
    Kind,
    proto::rules::v1::{Enforcement, Rule},
};
use rulecast_policy::Native;
use rulecast_rate_limit::RateLimit;
use rulecast_sdk::{
    decision::{Effect, Inbound, Policies, RuleSet},
    host::FaultKind,
    vector,
};
use serde_json::{Value, json};

const LIMIT: Kind = Kind::RATE_LIMIT;

fn native() -> Policies {
    thread_local! {
        static NATIVE: Policies = Policies::none()
            .with_native(LIMIT.type_name, || Box::new(Native::new(RateLimit::default())));
    }
    NATIVE.with(Clone::clone)
}

fn sandboxed() -> Policies {
    Policies::builtin().expect("the built-in modules load")
}

fn rule(name: &str, spec: &Value, enforcement: Enforcement) -> Rule {
    let spec = (LIMIT.parse)(spec.clone()).expect("a good spec");
    Rule {
        key: format!("{name}/default"),
        enforcement: enforcement.into(),
        spec: spec.encode().to_vec().into(),
        ..Rule::default()
    }
}

fn rule_set(specs: &[Value], shadows: u8) -> RuleSet {
    let rules = specs.iter().enumerate().map(|(i, spec)| {
        let shadow = shadows >> i & 1 == 1;
        let how = if shadow { Enforcement::Shadow } else { Enforcement::Enforce };
        rule(&format!("p{i}"), spec, how)
    });
    RuleSet::default().with(LIMIT.type_name, rules)
}

#[test]
fn all_vectors_pass_natively_and_in_the_sandbox() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/rate-limit.json");
    let text = std::fs::read(path).expect("the vectors");
    let cases: Vec<Value> = serde_json::from_slice(&text).expect("a list of cases");
    assert!(cases.len() >= 25);
    let (mut ids, mut notes) = (BTreeSet::new(), BTreeSet::new());
    for case in &cases {
        assert!(ids.insert(case["id"].as_str().expect("an id")), "{} twice", case["id"]);
        let note = case["note"].as_str().expect("a sentence");
        assert!(note.ends_with('.') && notes.insert(note), "{case}");
        assert_eq!(case["kind"], "rate-limit");
        for policies in [native(), sandboxed()] {
            if let Err(why) = vector::run_case(&policies, case) {
                panic!("{} {note} {why}", case["id"]);
            }
        }
    }
}

fn spec() -> impl Strategy<Value = Value> {
    let value = prop_oneof![
        Just(json!({ "type": "equals", "value": "GET" })),
        Just(json!({ "type": "equals", "value": "" })),
        Just(json!({ "type": "regex", "value": "G.*|P.T" })),
    ];
    let names = ["method", "request.headers[m]", "extension[m]", "source.ip", "source.namespace"];
    let values = || prop::collection::vec(value.clone(), 0..2);
    let condition = (prop::sample::select(names.to_vec()), values(), values())
        .prop_map(|(key, values, not)| json!({ "key": key, "values": values, "notValues": not }));
    let keys = prop::sample::subsequence(names.to_vec(), 0..3);
    (keys, prop::collection::vec(condition, 0..2), 1..4_u32, 1..4_u32).prop_map(
        |(keys, when, requests, burst)| {
            json!({ "keys": keys, "match": when, "requests": requests, "burst": burst })
        },
    )
}

/// Milliseconds since the last call, and of this one namespace, method and host.
type Drawn = (u64, Option<&'static str>, Option<&'static str>, Option<u8>);

fn with_call<T>(drawn: Drawn, run: impl FnOnce(&Inbound<'_>) -> T) -> T {
    let (_, namespace, method, host) = drawn;
    let headers = method.map(|method| [("m", method)]);
    let mut call = Inbound::new();
    if let Some(namespace) = namespace {
        call = call.namespace(namespace);
    }
    if let Some((method, headers)) = method.zip(headers.as_ref()) {
        call = call.method(method).headers(headers).extensions(headers);
    }
    if let Some(host) = host {
        call = call.ip([10, 0, host, 1].into());
    }
    run(&call)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_ways_admit_alike(
        specs in prop::collection::vec(spec(), 0..4),
        shadows: u8,
        calls in prop::collection::vec((
            0..600_u64,
            prop::option::of(prop::sample::select(vec!["a", "b"])),
            prop::option::of(prop::sample::select(vec!["GET", "PUT", ""])),
            prop::option::of(0..2_u8),
        ), 1..20),
    ) {
        // Each way counts for itself.
        let ways = [native(), sandboxed()].map(|policies| (policies, rule_set(&specs, shadows)));
        let mut now = Instant::now();
        for drawn in calls {
            now += Duration::from_millis(drawn.0);
            let [native, sandboxed] = ways.each_ref().map(|(policies, rules)| {
                with_call(drawn, |call| policies.admit(rules, call, now))
            });
            prop_assert!(native.faults.is_empty());
            prop_assert_eq!(&native.counted, &sandboxed.counted);
            let key = |l: &Option<rulecast_sdk::decision::Limited>| l.as_ref().map(|l| l.key.clone());
            prop_assert_eq!(key(&native.limited), key(&sandboxed.limited));
            prop_assert_eq!(key(&native.would_limit), key(&sandboxed.would_limit));
        }
    }
}

#[test]
fn an_explanation_says_why_and_counts_nothing() {
    let limit = json!({
        "requests": 1, "keys": ["source.namespace", "method"],
        "match": [{ "key": "path", "values": [{ "type": "equals", "value": "/a" }] }],
    });
    let rules = RuleSet::default().with(
        LIMIT.type_name,
        [
            rule("a", &limit, Enforcement::Enforce),
            rule("b", &json!({ "requests": 1 }), Enforcement::Shadow),
        ],
    );
    let now = Instant::now();
    let call = Inbound::new().namespace("x").path("/a");
    for _ in 0..3 {
        let explained = sandboxed().explain_admit(&rules, &call, now);
        assert!(explained.decision.is_admitted());
        assert_eq!(
            explained.text,
            "admitted\n\
             rule a/default\n  the call counts\n  \
             its bucket is that of source.namespace \"x\", method absent\n\
             rule b/default (shadow)\n  the call counts\n  all calls share one bucket\n",
        );
    }
    assert!(sandboxed().admit(&rules, &call, now).is_admitted());
    let explained = sandboxed().explain_admit(&rules, &call, now);
    let text = explained.text;
    assert!(
        text.starts_with("refused: a/default limits it; again in 1s\nrule a/default"),
        "{text}"
    );
    let explained = sandboxed().explain_admit(&rules, &call.path("/b"), now);
    let text = explained.text;
    assert!(text.contains("does not count: path \"/b\", wanted /a"), "{text}");
    assert!(text.starts_with("admitted; would be refused: b/default"), "{text}");
}

#[test]
fn nobody_gets_past_a_limit_by_a_long_value() {
    let keys = ["request.headers[a]", "request.headers[b]", "path"];
    let rules = rule_set(&[json!({ "requests": 1, "keys": keys })], 0);
    let long = "x".repeat(200_000);
    let headers = [("a", long.as_str()), ("b", long.as_str())];
    let call = Inbound::new().headers(&headers).path(&long);
    let now = Instant::now();
    let admit = || sandboxed().admit(&rules, &call, now);
    let (first, second) = (admit(), admit());
    assert!(first.is_admitted() && first.faults.is_empty(), "{first:?}");
    assert!(!second.is_admitted(), "{second:?}");
}

#[test]
fn what_goes_wrong_refuses_nothing() {
    let good = || rule("good", &json!({ "requests": 1 }), Enforcement::Enforce);
    let script = |name: &str, script: &str| {
        rule(
            name,
            &json!({ "requests": 1, "keys": [format!("extension[{script}]")] }),
            Enforcement::Enforce,
        )
    };
    let greedy = Policies::none().with_native(LIMIT.type_name, Greedy::native);
    let (call, now) = (Inbound::new(), Instant::now());
    for answer in ["twice", "short", "nobody"] {
        let rules = RuleSet::default().with(LIMIT.type_name, [good(), script("bad", answer)]);
        for _ in 0..2 {
            let admission = greedy.admit(&rules, &call, now);
            let [fault] = &admission.faults[..] else { panic!("{answer}: {admission:?}") };
            assert_eq!(fault.fault.kind, FaultKind::BadOutput, "{answer}");
            assert!(admission.is_admitted() && admission.counted.is_empty(), "{admission:?}");
        }
    }
    let rules = RuleSet::default().with(LIMIT.type_name, [good()]);
    let admission = Policies::none().admit(&rules, &call, now);
    assert!(admission.is_admitted());
    assert_eq!(admission.faults[0].fault.kind, FaultKind::Unavailable);
    assert_eq!(Policies::none().admit(&RuleSet::default(), &call, now), Default::default());
}

#[test]
fn more_than_one_may_be_taken() {
    let large = json!({ "requests": 3, "keys": ["extension[cost:2]"] });
    let huge = json!({ "requests": 3, "keys": ["extension[cost:1000]"] });
    let greedy = Policies::none().with_native(LIMIT.type_name, Greedy::native);
    let (call, now) = (Inbound::new(), Instant::now());
    let rules = rule_set(&[large], 0);
    assert!(greedy.admit(&rules, &call, now).is_admitted());
    let limited = greedy.admit(&rules, &call, now).limited.expect("one is left");
    assert_eq!(limited.retry_after, Duration::from_nanos(333_333_334));
    // More than a burst at once could never be taken, and counts as a burst.
    let rules = rule_set(&[huge], 0);
    let admission = greedy.admit(&rules, &call, now);
    assert_eq!(admission.counted[0].effect, Effect::Applied);
    assert!(!greedy.admit(&rules, &call, now).is_admitted());
}

/// 100 calls a second, of 2000 that are offered, by 8 threads, for 10 seconds.
#[test]
fn alone_a_limit_holds_under_load() {
    const RATE: u32 = 100;
    const THREADS: u32 = 8;
    const OFFERED: u32 = 2000;
    const SPAN: Duration = Duration::from_secs(10);
    let policies = sandboxed();
    let rules = rule_set(&[json!({ "requests": RATE, "burst": RATE })], 0);
    // Compiled before the clock runs.
    policies.prepare(LIMIT.type_name).expect("it compiles");
    let begin = Instant::now();
    let run = |first: u32| {
        let pause = Duration::from_secs(1) / OFFERED;
        let (mut offered, mut admitted) = (first, 0);
        loop {
            let due = begin + pause * offered;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if due > begin + SPAN {
                return admitted;
            }
            let now = Instant::now();
            admitted += u32::from(policies.admit(&rules, &Inbound::new(), now).is_admitted());
            offered += THREADS;
        }
    };
    let admitted: u32 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || run(n))).collect();
        threads.into_iter().map(|thread| thread.join().expect("ends")).sum()
    });
    let wanted = f64::from(RATE) * (1.0 + begin.elapsed().as_secs_f64());
    let off = f64::from(admitted) / wanted - 1.0;
    assert!(off.abs() <= 0.01, "{admitted} admitted, {wanted:.0} wanted: {:.2} %", off * 100.0);
    println!("{admitted} admitted, {wanted:.1} wanted: {:+.2} %", off * 100.0);
}
