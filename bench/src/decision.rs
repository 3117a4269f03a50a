//! One warm decision in the sandbox, beside the same policy compiled natively: of a call's
//! endpoints, and of whether a server takes it.

use std::time::Instant;

use anyhow::{Context, Result};
use rulecast_api::{kind::Kind, proto::rules::v1::Rule};
use rulecast_authorization_policy::AuthorizationPolicy;
use rulecast_condition_route::ConditionRoute;
use rulecast_policy::Native;
use rulecast_sdk::{
    Endpoint, EndpointSet, Inbound, Params, Policies, Request, decision::RuleSet, host::Module,
};
use serde_json::{Value, json};

/// A table and a line of JSON.
#[derive(clap::Args)]
pub(crate) struct Decision {
    /// Rounds; the medians over them are told
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// Decisions per round
    #[arg(long, default_value_t = 20_000)]
    decisions: u32,
    /// Measure this build of the ConditionRoute module instead of the built-in one
    #[arg(long, value_name = "FILE")]
    module: Option<std::path::PathBuf>,
}

struct Case {
    name: &'static str,
    endpoints: usize,
    specs: Vec<Value>,
}

fn v3_0(priority: i32, conditions: &[&str]) -> Value {
    json!({"configVersion": "v3.0", "scope": "service", "key": "com.example.OrderService",
           "priority": priority, "conditions": conditions})
}

fn cases() -> Vec<Case> {
    let region = || v3_0(9, &["method=get* => region=hangzhou"]);
    let own_region = || v3_0(8, &["method=getOrder & attachments[user]=a* => region=$region"]);
    let weighted = || {
        json!({"configVersion": "v3.1", "scope": "service", "key": "com.example.OrderService",
               "conditions": [{"from": {"match": "version=v2"}, "to": [
                   {"match": "version=1.0", "weight": 90}, {"match": "version=2.0", "weight": 10}]}]})
    };
    vec![
        Case { name: "no rule", endpoints: 8, specs: vec![] },
        Case { name: "1 rule", endpoints: 8, specs: vec![region()] },
        Case {
            name: "1 rule, 4 attributes",
            endpoints: 8,
            specs: vec![v3_0(
                0,
                &[
                    "method=get* & arguments[0]=1~9 & attachments[user]=a* & host=10.* => region=hangzhou",
                ],
            )],
        },
        Case { name: "1 rule, caller's value", endpoints: 8, specs: vec![own_region()] },
        Case { name: "1 rule, weighted", endpoints: 8, specs: vec![weighted()] },
        Case { name: "3 rules", endpoints: 8, specs: vec![region(), own_region(), weighted()] },
        Case { name: "3 rules", endpoints: 1000, specs: vec![region(), own_region(), weighted()] },
    ]
}

impl Decision {
    pub(crate) fn run(self) -> Result<()> {
        let sandboxed = match &self.module {
            Some(path) => Policies::from_module(Module::new(&std::fs::read(path)?)?),
            None => Policies::builtin()?,
        };
        let native = Policies::native(|| Box::new(Native::new(ConditionRoute::default())));
        println!(
            "{:<24} {:>9} {:>10} {:>12} {:>7}",
            "rules", "endpoints", "native ns", "sandboxed ns", "ratio"
        );
        let mut lines = Vec::new();
        for case in cases() {
            let rules = case
                .specs
                .iter()
                .enumerate()
                .map(|(at, spec)| rule(at, spec))
                .collect::<Result<Vec<_>>>()?;
            let rules = RuleSet::new(None, &rules);
            let endpoints = endpoints(case.endpoints)?;
            let consumer: Params = [
                ("application", "shop-frontend"),
                ("version", "v2"),
                ("region", "hangzhou"),
                ("host", "10.0.0.1"),
            ]
            .into_iter()
            .collect();
            let request = Request::new("com.example.OrderService", &consumer)
                .method("getOrder")
                .argument("7")
                .attachment("user", "alice");
            let ways = [&native, &sandboxed];
            for way in ways {
                let decision = way.route(&rules, &request, &endpoints);
                anyhow::ensure!(decision.faults.is_empty(), "{}: {:?}", case.name, decision.faults);
            }
            let [native, sandboxed] = self.measure(|at| {
                let request = std::hint::black_box(&request);
                std::hint::black_box(ways[at].route(&rules, request, &endpoints));
            });
            let ratio = sandboxed / native;
            println!(
                "{:<24} {:>9} {native:>10.0} {sandboxed:>12.0} {ratio:>7.2}",
                case.name, case.endpoints
            );
            lines.push(json!({"rules": case.name, "endpoints": case.endpoints,
                "native_ns": native, "sandboxed_ns": sandboxed, "ratio": ratio}));
        }
        self.authorize(&mut lines)?;
        println!(
            "{}",
            json!({"bench": "decision", "rounds": self.rounds,
            "decisions_per_round": self.decisions, "cases": lines})
        );
        Ok(())
    }
}

impl Decision {
    /// Nanoseconds of a run in each of two ways. They take turns, so that what disturbs one
    /// round disturbs both.
    fn measure(&self, run: impl Fn(usize)) -> [f64; 2] {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..self.rounds {
            for (at, times) in times.iter_mut().enumerate() {
                let began = Instant::now();
                for _ in 0..self.decisions {
                    run(at);
                }
                times.push(began.elapsed().as_nanos() as f64 / f64::from(self.decisions));
            }
        }
        times.map(median)
    }

    /// Whether a server takes a call.
    fn authorize(&self, lines: &mut Vec<Value>) -> Result<()> {
        let kind = Kind::AUTHORIZATION_POLICY;
        let native = Policies::none()
            .with_native(kind.type_name, || Box::new(Native::new(AuthorizationPolicy::default())));
        let ways = [native, Policies::builtin()?];
        let from = |principal: &str| json!({"action": "ALLOW", "rules": [{"from": {"principals": [principal]}}]});
        let by_header = json!({"action": "DENY", "rules": [
            {"when": [{"key": "request.headers[x-user]", "values": [{"type": "regex", "value": "m.*"}]}]}]});
        let shop = "cluster.local/ns/shop/sa/frontend";
        let one = vec![from(shop)];
        let five: Vec<Value> = ["a", "b", "c"]
            .map(|name| from(&format!("cluster.local/ns/shop/sa/{name}")))
            .into_iter()
            .chain([by_header, from(shop)])
            .collect();
        let headers = [("user-agent", "bench"), ("x-user", "alice")];
        let call = Inbound::new()
            .method("POST")
            .path("/com.example.OrderService/getOrder")
            .principal(shop)
            .namespace("shop")
            .port(20880)
            .headers(&headers);
        for (name, specs) in [("authorize, 1 rule", one), ("authorize, 5 rules", five)] {
            let rules = specs.iter().enumerate().map(|(at, spec)| rule_of(kind, at, spec));
            let rules = rules.collect::<Result<Vec<_>>>()?;
            let rules = RuleSet::default().with(kind.type_name, &rules);
            for way in &ways {
                let given = way.authorize(&rules, &call);
                anyhow::ensure!(given.is_allowed(), "{name}: {given}");
            }
            let [native, sandboxed] = self.measure(|at| {
                std::hint::black_box(ways[at].authorize(&rules, std::hint::black_box(&call)));
            });
            let ratio = sandboxed / native;
            println!("{name:<24} {:>9} {native:>10.0} {sandboxed:>12.0} {ratio:>7.2}", "");
            lines.push(json!({"rules": name,
                "native_ns": native, "sandboxed_ns": sandboxed, "ratio": ratio}));
        }
        Ok(())
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn rule(at: usize, spec: &Value) -> Result<Rule> {
    rule_of(Kind::CONDITION_ROUTE, at, spec)
}

fn rule_of(kind: Kind, at: usize, spec: &Value) -> Result<Rule> {
    let spec = (kind.parse)(spec.clone())
        .map_err(|errors| anyhow::anyhow!("{errors:?}"))
        .context("the bench's own rule")?;
    Ok(Rule {
        key: format!("r{at}/bench"),
        target: spec.target(),
        tier: 2,
        priority: spec.priority(),
        enforcement: 0,
        created: 0,
        spec: spec.encode(),
    })
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
