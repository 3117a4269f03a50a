//! Which endpoints a call may use.

use std::{hint::black_box, path::Path};

use anyhow::Result;
use rulecast_api::kind::Kind;
use rulecast_condition_route::ConditionRoute;
use rulecast_policy::{Guest, Native};
use rulecast_sdk::{Decision, Endpoint, EndpointSet, Params, Request, host::Module};
use serde_json::{Value, json};

use super::rules::Held;
use crate::{
    report::Report,
    rounds::{Rounds, Times, way},
};

const SERVICE: &str = "com.example.OrderService";

const KIND: Kind = Kind::CONDITION_ROUTE;

/// The sandbox's price for the rule with four attributes, in nanoseconds.
const SANDBOX: f64 = 100.0;
/// With 10,000 rules for other services: the same, but for noise.
const OTHERS: f64 = 1.1;
/// With a thousand times the rules: linear.
const MANY: f64 = 1000.0;

pub(crate) fn run(report: &mut Report, rounds: Rounds, module: Option<&Path>) -> Result<()> {
    let module = match module {
        Some(path) => Module::new(&std::fs::read(path)?)?,
        None => super::rules::module(KIND)?,
    };
    report.part("route: which endpoints a call may use");
    for (name, endpoints, specs) in cases() {
        let native = || Box::new(Native::new(ConditionRoute::default())) as Box<dyn Guest>;
        let held = [Held::native(KIND, native, &specs)?, Held::new(KIND, &module, &specs)?];
        let endpoints = self::endpoints(endpoints)?;
        let times = measure(rounds, &held, &endpoints)?;
        report.row(format!("{name}: native"), times.median(0), "ns");
        report.row(format!("{name}: sandboxed"), times.median(1), "ns");
        if name == FOUR {
            let goal = format!("route, sandboxed over native, {FOUR}, ns");
            report.at_most(goal, times.more(1, 0), SANDBOX);
        }
    }
    others(report, rounds, &module)?;
    one(report, rounds, &module)
}

/// Rules for other services.
fn others(report: &mut Report, rounds: Rounds, module: &Module) -> Result<()> {
    let counts = [0, 1_000, 10_000];
    let other = |n: usize| {
        let mut spec = region();
        spec["key"] = format!("com.example.Other{n}").into();
        spec
    };
    let specs = |count: usize| (0..count).map(other).chain([region()]).collect::<Vec<_>>();
    let held = counts.iter().map(|&count| Held::new(KIND, module, &specs(count)));
    let times = measure(rounds, &held.collect::<Result<Vec<_>>>()?, &endpoints(8)?)?;
    for (at, count) in counts.iter().enumerate() {
        report.row(format!("1 rule, and {count} for other services"), times.median(at), "ns");
    }
    report.at_most(
        "route with 10,000 rules for other services, over with none, times",
        times.ratio(2, 0),
        OTHERS,
    );
    Ok(())
}

/// Many rules for one service.
fn one(report: &mut Report, rounds: Rounds, module: &Module) -> Result<()> {
    let counts = [1, 10, 100, 1_000];
    let spec = |n: usize| v3_0(0, &[&format!("method=op{n} & region=hangzhou => region=hangzhou")]);
    let specs = |count: usize| (0..count).map(spec).collect::<Vec<_>>();
    let held = counts.iter().map(|&count| Held::new(KIND, module, &specs(count)));
    let times = measure(rounds, &held.collect::<Result<Vec<_>>>()?, &endpoints(8)?)?;
    for (at, count) in counts.iter().enumerate() {
        report.row(format!("{count} rules for one service"), times.median(at), "ns");
    }
    report.at_most("route by 1,000 rules, over by 1, times", times.ratio(3, 0), MANY);
    Ok(())
}

/// Decides one call again and again by each, after a look whether all is well.
fn measure(rounds: Rounds, held: &[Held], endpoints: &EndpointSet) -> Result<Times> {
    let consumer: Params = [
        ("application", "shop-frontend"),
        ("version", "v2"),
        ("region", "hangzhou"),
        ("host", "10.0.0.1"),
    ]
    .into_iter()
    .collect();
    let mut ways = Vec::new();
    for Held { policies, rules } in held {
        let consumer = &consumer;
        let route = move |decision: &mut Decision| {
            let request = Request::new(SERVICE, consumer)
                .method("getOrder")
                .argument("7")
                .attachment("user", "alice");
            policies.route_into(rules, black_box(&request), endpoints, decision);
        };
        let mut decision = Decision::default();
        route(&mut decision);
        anyhow::ensure!(decision.faults.is_empty(), "{:?}", decision.faults);
        ways.push(way(move || {
            route(&mut decision);
            black_box(&decision);
        }));
    }
    Ok(rounds.measure(&mut ways))
}

fn v3_0(priority: i32, conditions: &[&str]) -> Value {
    json!({"configVersion": "v3.0", "scope": "service", "key": SERVICE,
           "priority": priority, "conditions": conditions})
}

fn region() -> Value {
    v3_0(9, &["method=get* => region=hangzhou"])
}

const FOUR: &str = "1 rule, 4 attributes";

fn cases() -> Vec<(&'static str, usize, Vec<Value>)> {
    let own_region = || v3_0(8, &["method=getOrder & attachments[user]=a* => region=$region"]);
    let weighted = || {
        json!({"configVersion": "v3.1", "scope": "service", "key": SERVICE,
               "conditions": [{"from": {"match": "version=v2"}, "to": [
                   {"match": "version=1.0", "weight": 90}, {"match": "version=2.0", "weight": 10}]}]})
    };
    let four = v3_0(
        0,
        &["method=get* & arguments[0]=1~9 & attachments[user]=a* & host=10.* => region=hangzhou"],
    );
    let three = || vec![region(), own_region(), weighted()];
    vec![
        ("no rule", 8, vec![]),
        ("1 rule", 8, vec![region()]),
        (FOUR, 8, vec![four]),
        ("1 rule with the caller's value", 8, vec![own_region()]),
        ("1 rule, weighted", 8, vec![weighted()]),
        ("3 rules", 8, three()),
        ("3 rules, 1,000 endpoints", 1000, three()),
    ]
}

fn endpoints(count: usize) -> Result<EndpointSet> {
    let all = (0..count).map(|at| {
        Endpoint::new(format!("10.0.{}.{}", at / 250, at % 250), 20880)
            .with("region", if at % 2 == 0 { "hangzhou" } else { "beijing" })
            .with("version", if at % 4 < 2 { "1.0" } else { "2.0" })
            .with("env", if at % 8 == 0 { "gray" } else { "prod" })
    });
    Ok(EndpointSet::new(all)?)
}
