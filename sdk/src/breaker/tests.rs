use std::time::Duration;

use prost::Message;
use rulecast_api::proto::rules::v1::{CircuitBreaker, Enforcement, Rule, Target, target::Scope};

use super::*;
use crate::{
    decision::{Decision, Effect, Explanation, RuleEffect, RuleSet, TYPE_CIRCUIT_BREAKER},
    endpoints::{Endpoint, EndpointSet},
    metrics::Verdict,
};

const SERVICE: &str = "com.Orders";

fn spec() -> CircuitBreaker {
    CircuitBreaker {
        window_ms: 10_000,
        minimum_calls: 20,
        consecutive_errors: 2,
        open_ms: 5_000,
        trial_calls: 1,
        max_ejected_percent: 50,
        ..CircuitBreaker::default()
    }
}

fn rule(key: &str, scope: Scope, of: &str, spec: &CircuitBreaker) -> Rule {
    Rule {
        key: key.into(),
        target: Some(Target { scope: scope.into(), key: of.into() }),
        spec: spec.encode_to_vec().into(),
        ..Rule::default()
    }
}

fn endpoints(hosts: &[&str]) -> EndpointSet {
    let endpoint = |host: &&str| {
        let (host, application) = host.split_once('@').unwrap_or((host, "orders"));
        Endpoint::new(host, 1).with("application", application)
    };
    EndpointSet::new(hosts.iter().map(endpoint)).expect("a set")
}

struct Bench {
    breakers: Breakers,
    clock: Clock,
    rules: RuleSet,
}

impl Bench {
    fn new(rules: &[Rule]) -> Self {
        let clock = Clock::standing();
        let breakers = Breakers::new(clock.clone());
        let mut bench = Self { breakers, clock, rules: RuleSet::default() };
        bench.rules(rules);
        bench
    }

    fn rules(&mut self, rules: &[Rule]) {
        self.rules = self.rules.with(TYPE_CIRCUIT_BREAKER, rules);
    }

    fn at(&self, millis: u64) {
        self.clock.set(Duration::from_millis(millis));
    }

    fn attempt(&self, set: &EndpointSet, endpoint: u32) -> Option<Attempt> {
        self.breakers.attempt(&self.rules, SERVICE, set, endpoint)
    }

    fn fail(&self, set: &EndpointSet, endpoint: u32) {
        for _ in 0..2 {
            self.attempt(set, endpoint).expect("it may begin").failed();
        }
    }

    fn routed(&self, set: &EndpointSet, left: &[u32]) -> Decision {
        let mut decision = Decision { endpoints: left.to_vec(), ..Decision::default() };
        self.breakers.narrow(&self.rules, SERVICE, set, &mut decision);
        decision
    }

    fn kept(&self, set: &EndpointSet) -> Vec<u32> {
        let all: Vec<u32> = (0..set.len() as u32).collect();
        self.routed(set, &all).endpoints
    }
}

fn effect(key: &str, effect: Effect, remaining: u32) -> RuleEffect {
    RuleEffect { kind: TYPE_CIRCUIT_BREAKER, key: key.into(), effect, remaining }
}

#[test]
fn an_open_breaker_takes_its_endpoint_out_and_the_decision_says_so() {
    let bench = Bench::new(&[rule("a/ns", Scope::Service, SERVICE, &spec())]);
    let set = endpoints(&["a", "b", "c"]);
    assert_eq!(bench.routed(&set, &[0, 1, 2]).rules, [effect("a/ns", Effect::Skipped, 3)]);
    bench.fail(&set, 1);
    let decision = bench.routed(&set, &[0, 1, 2]);
    assert_eq!(decision.endpoints, [0, 2]);
    assert_eq!(decision.rules, [effect("a/ns", Effect::Applied, 2)]);
    let (_, entry) = bench.rules.entries().next().expect("a rule");
    assert_eq!(entry.stats.counts(false, None).get(Verdict::Opened), 1);
    let sample = entry.stats.take_samples().remove(&Verdict::Opened);
    assert_eq!(sample.as_deref(), Some("opened b:1 of com.Orders"));
    assert!(bench.attempt(&set, 1).is_none());
    assert!(bench.attempt(&set, 0).is_some());

    bench.at(5_000);
    assert_eq!(bench.kept(&set), [0, 1, 2]);
    let trial = bench.attempt(&set, 1).expect("a trial");
    assert_eq!(bench.kept(&set), [0, 2]);
    assert!(bench.attempt(&set, 1).is_none(), "one at a time");
    trial.succeeded();
    assert_eq!(bench.kept(&set), [0, 1, 2]);
    assert_eq!(bench.routed(&set, &[0, 1, 2]).rules, [effect("a/ns", Effect::Skipped, 3)]);
}

#[test]
fn a_call_always_has_an_endpoint_and_may_go_there() {
    let bench = Bench::new(&[rule("a/ns", Scope::Service, SERVICE, &spec())]);
    let set = endpoints(&["a", "b", "c", "d"]);
    for (at, endpoint) in [(1, 2), (2, 0), (3, 1)] {
        bench.at(at);
        bench.fail(&set, endpoint);
    }
    // Three of four are open, two may be out: the one that has been longest stays.
    assert_eq!(bench.kept(&set), [2, 3]);
    assert!(bench.attempt(&set, 2).is_some());
    assert!(bench.attempt(&set, 0).is_none());
    // Rules left an open one alone.
    let decision = bench.routed(&set, &[0]);
    assert_eq!(decision.endpoints, [0]);
    assert_eq!(decision.rules, [effect("a/ns", Effect::Skipped, 1)]);
    assert!(bench.attempt(&set, 0).is_some());
    assert!(bench.attempt(&set, 1).is_none());
}

#[test]
fn a_breaker_of_a_service_takes_all_out() {
    let spec = CircuitBreaker { per_service: true, ..spec() };
    let bench = Bench::new(&[rule("a/ns", Scope::Service, SERVICE, &spec)]);
    let set = endpoints(&["a", "b"]);
    bench.attempt(&set, 0).expect("it may begin").failed();
    bench.attempt(&set, 1).expect("it may begin").failed();
    let decision = bench.routed(&set, &[0, 1]);
    assert_eq!(decision.endpoints, [0; 0]);
    assert_eq!(decision.rules, [effect("a/ns", Effect::Applied, 0)]);
    assert!(bench.attempt(&set, 0).is_none() && bench.attempt(&set, 1).is_none());
    bench.at(5_000);
    bench.attempt(&set, 0).expect("a trial").succeeded();
    assert_eq!(bench.kept(&set), [0, 1]);
}

#[test]
fn a_shadow_watches_and_lets_all_pass() {
    let mut shadow = rule("a/ns", Scope::Service, SERVICE, &spec());
    shadow.enforcement = Enforcement::Shadow.into();
    let bench = Bench::new(&[shadow]);
    let set = endpoints(&["a", "b"]);
    bench.fail(&set, 0);
    let decision = bench.routed(&set, &[0, 1]);
    assert_eq!(decision.endpoints, [0, 1]);
    assert_eq!(decision.rules, [effect("a/ns", Effect::WouldApply, 1)]);
    assert!(bench.attempt(&set, 0).is_some());
    let status = bench.breakers.status(&bench.rules);
    assert_eq!((status[0].state, status[0].shadow), (BreakerState::Open, true));
}

#[test]
fn a_rule_of_an_application_speaks_of_its_endpoints_alone() {
    let bench = Bench::new(&[rule("a/ns", Scope::Application, "orders", &spec())]);
    let set = endpoints(&["a@orders", "b@other", "c@orders"]);
    bench.fail(&set, 0);
    bench.fail(&set, 1);
    assert_eq!(bench.kept(&set), [1, 2]);
    let other = endpoints(&["b@other"]);
    assert!(bench.routed(&other, &[0]).rules.is_empty());
}

#[test]
fn each_of_several_rules_may_refuse_a_call() {
    let first = rule("a/ns", Scope::Service, SERVICE, &spec());
    let one = CircuitBreaker { consecutive_errors: 1, open_ms: 60_000, ..spec() };
    let bench = Bench::new(&[first, rule("b/ns", Scope::Application, "orders", &one)]);
    let set = endpoints(&["a", "b"]);
    bench.attempt(&set, 0).expect("it may begin").failed();
    let decision = bench.routed(&set, &[0, 1]);
    let wanted = [effect("a/ns", Effect::Skipped, 2), effect("b/ns", Effect::Applied, 1)];
    assert_eq!((decision.endpoints, decision.rules), (vec![1], wanted.to_vec()));
    assert!(bench.attempt(&set, 0).is_none());
}

#[test]
fn what_is_known_outlives_sets_and_changes_of_rules() {
    let ours = || rule("a/ns", Scope::Service, SERVICE, &spec());
    let mut bench = Bench::new(&[ours()]);
    let set = endpoints(&["a", "b"]);
    bench.fail(&set, 0);
    drop(set);
    // Another set, in another order, and later another rule.
    let set = endpoints(&["c", "b", "a"]);
    assert_eq!(bench.kept(&set), [0, 1]);
    bench.rules(&[ours(), rule("z/ns", Scope::Service, "com.Other", &spec())]);
    assert_eq!(bench.kept(&set), [0, 1]);
    // A failure before and one after a change of thresholds.
    bench.attempt(&set, 0).expect("it may begin").failed();
    let three = CircuitBreaker { consecutive_errors: 3, open_ms: 1_000, ..spec() };
    bench.rules(&[rule("a/ns", Scope::Service, SERVICE, &three)]);
    bench.attempt(&set, 0).expect("it may begin").failed();
    assert_eq!(bench.kept(&set), [0, 1]);
    bench.attempt(&set, 0).expect("it may begin").failed();
    assert_eq!(bench.kept(&set), [1, 2], "of three, one may be out");
    bench.at(1_000);
    assert_eq!(bench.kept(&set), [0, 1, 2]);
    // What begins anew: another window, and a rule that was away.
    bench.fail(&set, 1);
    let other = CircuitBreaker { window_ms: 20_000, ..three };
    bench.rules(&[rule("a/ns", Scope::Service, SERVICE, &other)]);
    assert_eq!(bench.kept(&set), [0, 1, 2]);
    bench.rules(&[]);
    assert!(bench.routed(&set, &[0]).rules.is_empty());
    assert!(bench.breakers.status(&bench.rules).is_empty());
}

#[test]
fn a_call_that_nobody_ended_tells_nothing_and_gives_its_place_back() {
    let bench = Bench::new(&[rule("a/ns", Scope::Service, SERVICE, &spec())]);
    let set = endpoints(&["a", "b"]);
    bench.attempt(&set, 0).expect("it may begin").failed();
    drop(bench.attempt(&set, 0));
    bench.attempt(&set, 0).expect("it may begin").failed();
    assert_eq!(bench.kept(&set), [1]);
    bench.at(5_000);
    drop(bench.attempt(&set, 0).expect("a trial"));
    assert!(bench.attempt(&set, 0).is_some());
}

#[test]
fn an_explanation_names_what_is_open() {
    let bench = Bench::new(&[rule("a/ns", Scope::Service, SERVICE, &spec())]);
    let set = endpoints(&["a", "b"]);
    bench.fail(&set, 0);
    bench.at(40);
    let decision = Decision { endpoints: vec![0, 1], ..Decision::default() };
    let text = "2 endpoints, no draw needed\nno rule speaks of this call\nremaining: [0, 1]\n";
    let mut explanation = Explanation { decision, text: text.to_owned() };
    bench.breakers.explain(&bench.rules, SERVICE, &set, &mut explanation);
    assert_eq!(
        explanation.text,
        "2 endpoints, no draw needed\n\
         rule a/ns (CircuitBreaker): applied, 1 remain\n  a:1 has been shut for 40 ms\n\
         remaining: [1]\n"
    );
}

#[test]
fn what_is_kept_of_endpoints_that_are_gone_is_bounded() {
    let bench = Bench::new(&[rule("a/ns", Scope::Service, SERVICE, &spec())]);
    for round in 0..40 {
        let hosts: Vec<String> = (0..100).map(|i| format!("h{round}-{i}")).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let set = endpoints(&hosts);
        bench.fail(&set, 0);
        assert_eq!(bench.kept(&set).len(), 99);
    }
    let status = bench.breakers.status(&bench.rules);
    assert!(status.len() <= 1024 + 300, "{}", status.len());
    // None is known of those that were let go, and so nothing is left to look for.
    let open = status.iter().filter(|s| s.state == BreakerState::Open).count();
    assert!(open < 40, "{open}");
}

/// Allocations of this thread in a hundred runs, after some to warm up.
fn allocations(mut run: impl FnMut()) -> u64 {
    (0..10).for_each(|_| run());
    allocation_counter::measure(|| (0..100).for_each(|_| run())).count_total
}

#[test]
fn nothing_is_allocated_once_warm_nor_where_no_breaker_speaks() {
    assert!(allocations(|| drop(std::hint::black_box(vec![1_u8]))) >= 100);
    let of_others = [
        rule("o/ns", Scope::Service, "com.Other", &spec()),
        rule("p/ns", Scope::Application, "other", &spec()),
    ];
    let ours = rule("a/ns", Scope::Service, SERVICE, &spec());
    let set = endpoints(&["a", "b", "c", "d"]);
    for rules in [&of_others[..], &[ours]] {
        let bench = Bench::new(rules);
        let speaks = rules.len() == 1;
        if speaks {
            bench.fail(&set, 3);
        }
        let mut decision = Decision::default();
        let count = allocations(|| {
            decision.clear();
            decision.endpoints.extend(0..4);
            bench.breakers.narrow(&bench.rules, SERVICE, &set, &mut decision);
            bench.attempt(&set, 0).expect("it may begin").failed();
            bench.attempt(&set, 0).expect("it may begin").succeeded();
        });
        assert_eq!(
            (decision.endpoints.len(), decision.rules.len()),
            if speaks { (3, 1) } else { (4, 0) }
        );
        assert_eq!(count, 0, "{rules:?}");
    }
}
