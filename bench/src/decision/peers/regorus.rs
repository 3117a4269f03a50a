//! Rego by regorus: by its virtual machine, and by its interpreter.

use anyhow::Result;
use regorus::{
    CompiledPolicy, Engine, Value, languages::rego::compiler::Compiler, rvm::vm::RegoVM,
};
use serde_json::Map;

use super::Peer;
use crate::decision::problem::{ATTRIBUTES, Problem, Rule, Test, Values};

const ENTRY: &str = "data.bench.allow";

pub(super) struct Machine {
    machine: RegoVM,
    inputs: Vec<Value>,
}

impl Machine {
    pub(super) fn new(problem: &Problem) -> Result<Self> {
        let mut machine = RegoVM::new();
        machine.load_program(Compiler::compile_from_policy(&compiled(problem)?, &[ENTRY])?);
        Ok(Self { machine, inputs: inputs(problem)? })
    }
}

impl Peer for Machine {
    fn name(&self) -> &'static str {
        "regorus, virtual machine"
    }

    fn allows(&mut self, call: usize) -> Result<bool> {
        self.machine.set_input(self.inputs[call].clone());
        Ok(*self.machine.execute()?.as_bool()?)
    }
}

pub(super) struct Interpreter {
    engine: Engine,
    inputs: Vec<Value>,
}

impl Interpreter {
    pub(super) fn new(problem: &Problem) -> Result<Self> {
        Ok(Self { engine: engine(problem)?, inputs: inputs(problem)? })
    }
}

impl Peer for Interpreter {
    fn name(&self) -> &'static str {
        "regorus, interpreter"
    }

    fn allows(&mut self, call: usize) -> Result<bool> {
        self.engine.set_input(self.inputs[call].clone());
        Ok(*self.engine.eval_rule(ENTRY.into())?.as_bool()?)
    }
}

fn engine(problem: &Problem) -> Result<Engine> {
    let rules: String = problem.rules.iter().map(rule).collect();
    let module = format!("package bench\nimport rego.v1\ndefault allow := false\n{rules}");
    let mut engine = Engine::new();
    engine.add_policy("bench.rego".into(), module)?;
    Ok(engine)
}

fn compiled(problem: &Problem) -> Result<CompiledPolicy> {
    Ok(engine(problem)?.compile_with_entrypoint(&ENTRY.into())?)
}

fn rule(rule: &Rule) -> String {
    let tests = ATTRIBUTES.iter().zip(rule).map(|(name, test)| match test {
        Test::Is(text) => format!("  input.{name} == {text:?}\n"),
        Test::OneOf(texts) => format!("  input.{name} in {texts:?}\n"),
        Test::Begins(text) => format!("  startswith(input.{name}, {text:?})\n"),
        Test::IsNot(text) => format!("  input.{name} != {text:?}\n"),
    });
    format!("allow if {{\n{}}}\n", tests.collect::<String>())
}

fn inputs(problem: &Problem) -> Result<Vec<Value>> {
    let input = |call: &Values| {
        let pairs = ATTRIBUTES.iter().zip(call);
        let map: Map<_, _> =
            pairs.map(|(name, value)| ((*name).to_owned(), value.as_str().into())).collect();
        Ok(Value::from_json_str(&serde_json::Value::Object(map).to_string())?)
    };
    problem.calls.iter().map(input).collect()
}
