//! Casbin: a model with a column for each attribute, a policy for each rule.

use anyhow::Result;
use casbin::{CoreApi, DefaultModel, Enforcer, MemoryAdapter, MgmtApi};

use super::Peer;
use crate::decision::problem::{ATTRIBUTES, Problem, Rule, Test};

pub(super) struct Casbin {
    enforcer: Enforcer,
    calls: Vec<[String; ATTRIBUTES.len()]>,
}

impl Casbin {
    pub(super) fn new(problem: &Problem) -> Result<Self> {
        let columns = ATTRIBUTES.join(", ");
        // The rules differ in values, not in form; two values take two columns.
        let matches = ATTRIBUTES.iter().zip(&problem.rules[0]).map(|(name, test)| match test {
            Test::Is(_) => format!("r.{name} == p.{name}"),
            Test::OneOf(_) => format!("(r.{name} == p.{name} || r.{name} == p.other)"),
            Test::Begins(_) => format!("keyMatch(r.{name}, p.{name})"),
            Test::IsNot(_) => format!("r.{name} != p.{name}"),
        });
        let matches = matches.collect::<Vec<_>>().join(" && ");
        let model = format!(
            "[request_definition]\nr = {columns}\n[policy_definition]\np = {columns}, other\n\
             [policy_effect]\ne = some(where (p.eft == allow))\n[matchers]\nm = {matches}\n"
        );
        let rules = problem.rules.iter().map(row).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let enforcer = runtime.block_on(async {
            let model = DefaultModel::from_str(&model).await?;
            let mut enforcer = Enforcer::new(model, MemoryAdapter::default()).await?;
            enforcer.add_policies(rules).await?;
            anyhow::Ok(enforcer)
        })?;
        Ok(Self { enforcer, calls: problem.calls.clone() })
    }
}

impl Peer for Casbin {
    fn name(&self) -> &'static str {
        "casbin"
    }

    fn allows(&mut self, call: usize) -> Result<bool> {
        let values: Vec<&str> = self.calls[call].iter().map(String::as_str).collect();
        Ok(self.enforcer.enforce(values)?)
    }
}

fn row(rule: &Rule) -> Vec<String> {
    let mut other = "";
    let values = rule.iter().map(|test| match test {
        Test::Is(text) => text.clone(),
        Test::OneOf([one, two]) => {
            other = two;
            (*one).to_owned()
        }
        Test::Begins(text) => format!("{text}*"),
        Test::IsNot(text) => (*text).to_owned(),
    });
    let mut row: Vec<String> = values.collect();
    row.push(other.to_owned());
    row
}
