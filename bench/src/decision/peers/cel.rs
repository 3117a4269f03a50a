//! CEL: a program for each rule, asked until one holds.

use anyhow::{Result, bail};
use cel::{Context, Program, Value};

use super::Peer;
use crate::decision::problem::{ATTRIBUTES, Problem, Rule, Test, Values};

pub(super) struct Cel {
    programs: Vec<Program>,
    calls: Vec<Context<'static, 'static>>,
}

impl Cel {
    pub(super) fn new(problem: &Problem) -> Result<Self> {
        let programs = problem.rules.iter().map(|rule| Ok(Program::compile(&expression(rule))?));
        Ok(Self {
            programs: programs.collect::<Result<_>>()?,
            calls: problem.calls.iter().map(context).collect(),
        })
    }
}

impl Peer for Cel {
    fn name(&self) -> &'static str {
        "cel"
    }

    fn allows(&mut self, call: usize) -> Result<bool> {
        for program in &self.programs {
            match program.execute(&self.calls[call])? {
                Value::Bool(true) => return Ok(true),
                Value::Bool(false) => {}
                other => bail!("not a boolean: {other:?}"),
            }
        }
        Ok(false)
    }
}

fn expression(rule: &Rule) -> String {
    let tests = ATTRIBUTES.iter().zip(rule).map(|(name, test)| match test {
        Test::Is(text) => format!("{name} == {text:?}"),
        Test::OneOf(texts) => format!("{name} in {texts:?}"),
        Test::Begins(text) => format!("{name}.startsWith({text:?})"),
        Test::IsNot(text) => format!("{name} != {text:?}"),
    });
    tests.collect::<Vec<_>>().join(" && ")
}

fn context(call: &Values) -> Context<'static, 'static> {
    let mut context = Context::default();
    for (name, value) in ATTRIBUTES.iter().zip(call) {
        context.add_variable_from_value(*name, value.clone());
    }
    context
}
