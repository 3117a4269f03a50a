//! Whether a server takes a call.

use std::hint::black_box;

use anyhow::Result;
use rulecast_api::kind::Kind;
use rulecast_authorization_policy::AuthorizationPolicy;
use rulecast_policy::{Guest, Native};
use rulecast_sdk::{Inbound, host::Module};
use serde_json::{Value, json};

use super::{
    problem::{Problem, Values},
    rules::{Held, module},
};
use crate::{
    report::Report,
    rounds::{Rounds, way},
};

pub(crate) const KIND: Kind = Kind::AUTHORIZATION_POLICY;

/// The sandbox's price for the rule with four attributes, in nanoseconds.
const SANDBOX: f64 = 100.0;
/// With a thousand times the rules: a tenth of linear.
const MANY: f64 = 100.0;

pub(crate) fn run(report: &mut Report, rounds: Rounds) -> Result<()> {
    let module = module(KIND)?;
    few(report, rounds, &module)?;
    many(report, rounds, &module)
}

/// These policies without a sandbox, and in it.
pub(crate) fn both(module: &Module, specs: &[Value]) -> Result<[Held; 2]> {
    let native = || Box::new(Native::new(AuthorizationPolicy::default())) as Box<dyn Guest>;
    Ok([Held::native(KIND, native, specs)?, Held::new(KIND, module, specs)?])
}

fn few(report: &mut Report, rounds: Rounds, module: &Module) -> Result<()> {
    const FOUR: &str = "1 rule, 4 attributes";
    let from =
        |name: &str| json!({"from": {"principals": [format!("cluster.local/ns/shop/app/{name}")]}});
    let allow = |rule: Value| json!({"action": "ALLOW", "rules": [rule]});
    let header = |value: &str| json!({"key": "request.headers[x-user]", "values": [{"type": "regex", "value": value}]});
    let equals = |key: &str, value: &str| json!({"key": key, "values": [{"type": "equals", "value": value}]});
    let mut four = from("frontend");
    four["when"] = json!([
        equals("method", "POST"),
        equals("path", "/com.example.OrderService/getOrder"),
        header("a.*"),
    ]);
    let five: Vec<Value> = ["a", "b", "c"]
        .map(|name| allow(from(name)))
        .into_iter()
        .chain([json!({"action": "DENY", "rules": [{"when": [header("m.*")]}]})])
        .chain([allow(from("frontend"))])
        .collect();
    report.part("authorize: whether a server takes a call");
    let headers = [("user-agent", "bench"), ("x-user", "alice")];
    let call = || {
        Inbound::new()
            .method("POST")
            .path("/com.example.OrderService/getOrder")
            .principal("cluster.local/ns/shop/app/frontend")
            .namespace("shop")
            .port(20880)
            .headers(&headers)
    };
    for (name, specs) in
        [("1 rule", vec![allow(from("frontend"))]), (FOUR, vec![allow(four)]), ("5 rules", five)]
    {
        let held = both(module, &specs)?;
        let mut ways = Vec::new();
        for Held { policies, rules } in &held {
            let given = policies.authorize(rules, &call());
            anyhow::ensure!(given.is_allowed(), "{name}: {given}");
            let call = &call;
            ways.push(way(move || {
                black_box(policies.authorize(rules, black_box(&call())));
            }));
        }
        let times = rounds.measure(&mut ways);
        report.row(format!("{name}: native"), times.median(0), "ns");
        report.row(format!("{name}: sandboxed"), times.median(1), "ns");
        if name == FOUR {
            let goal = format!("authorize, sandboxed over native, {FOUR}, ns");
            report.at_most(goal, times.more(1, 0), SANDBOX);
        }
    }
    Ok(())
}

/// Many rules for one server.
fn many(report: &mut Report, rounds: Rounds, module: &Module) -> Result<()> {
    let counts = [1, 10, 100, 1_000];
    report.part("authorize with many rules, each with 10 attributes");
    let problems = counts.map(Problem::new);
    let held = problems.iter().map(|problem| Held::new(KIND, module, &problem.policies()));
    let held = held.collect::<Result<Vec<_>>>()?;
    let mut ways = Vec::new();
    for (problem, held) in problems.iter().zip(&held) {
        for call in &problem.calls {
            let wanted = problem.allows(call);
            anyhow::ensure!(decide(held, call) == wanted, "{call:?} must be {wanted}");
        }
        let mut calls = problem.calls.iter().cycle();
        ways.push(way(move || {
            if let Some(call) = calls.next() {
                black_box(decide(held, black_box(call)));
            }
        }));
    }
    let times = rounds.measure(&mut ways);
    for (at, count) in counts.iter().enumerate() {
        report.row(format!("{count} rules: sandboxed"), times.median(at), "ns");
    }
    report.at_most("authorize by 1,000 rules, over by 1, times", times.ratio(3, 0), MANY);
    Ok(())
}

/// Whether a call of the problem is allowed.
pub(crate) fn decide(Held { policies, rules }: &Held, call: &Values) -> bool {
    let [principal, namespace, application, method, path, port, tenant, channel, tier, region] =
        call;
    let headers = [("x-tenant", tenant.as_str()), ("x-channel", channel)];
    let extensions = [("tier", tier.as_str()), ("region", region)];
    let call = Inbound::new()
        .principal(principal)
        .namespace(namespace)
        .source_application(application)
        .method(method)
        .path(path)
        .port(port.parse().unwrap_or_default())
        .headers(&headers)
        .extensions(&extensions);
    policies.authorize(rules, &call).is_allowed()
}
