//! Cedar: a policy for each rule, the caller and the action in its scope.

use std::str::FromStr;

use anyhow::Result;
use cedar_policy::{Authorizer, Context, Decision, Entities, EntityUid, PolicySet, Request};
use serde_json::Value;

use super::Peer;
use crate::decision::problem::{ATTRIBUTES, Problem, Rule, Test, Values};

pub(super) struct Cedar {
    authorizer: Authorizer,
    policies: PolicySet,
    entities: Entities,
    requests: Vec<Request>,
}

impl Cedar {
    pub(super) fn new(problem: &Problem) -> Result<Self> {
        let policies: Vec<String> = problem.rules.iter().map(policy).collect();
        Ok(Self {
            authorizer: Authorizer::new(),
            policies: PolicySet::from_str(&policies.join("\n"))?,
            entities: Entities::empty(),
            requests: problem.calls.iter().map(request).collect::<Result<_>>()?,
        })
    }
}

impl Peer for Cedar {
    fn name(&self) -> &'static str {
        "cedar-policy"
    }

    fn allows(&mut self, call: usize) -> Result<bool> {
        let request = &self.requests[call];
        let response = self.authorizer.is_authorized(request, &self.policies, &self.entities);
        Ok(response.decision() == Decision::Allow)
    }
}

fn policy(rule: &Rule) -> String {
    let mut principal = String::new();
    let mut tests = Vec::new();
    for (name, test) in ATTRIBUTES.iter().zip(rule) {
        match test {
            Test::Is(text) if *name == "principal" => principal.clone_from(text),
            Test::Is(text) => tests.push(format!("context.{name} == {text:?}")),
            Test::OneOf(texts) => tests.push(format!("{texts:?}.contains(context.{name})")),
            Test::Begins(text) => tests.push(format!("context.{name} like \"{text}*\"")),
            Test::IsNot(text) => tests.push(format!("context.{name} != {text:?}")),
        }
    }
    let tests = tests.join(" && ");
    format!(
        "permit(principal == App::{principal:?}, action == Action::\"call\", resource) \
         when {{ {tests} }};"
    )
}

fn request(call: &Values) -> Result<Request> {
    let context = ATTRIBUTES.iter().zip(call).skip(1);
    let context: serde_json::Map<String, Value> =
        context.map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str()))).collect();
    Ok(Request::new(
        EntityUid::from_str(&format!("App::{:?}", call[0]))?,
        EntityUid::from_str(r#"Action::"call""#)?,
        EntityUid::from_str(r#"Service::"orders""#)?,
        Context::from_json_value(Value::Object(context), None)?,
        None,
    )?)
}
