//! Other policy engines, each with the problem in its own language and in the form that its
//! manual recommends. Their inputs are made beforehand; Rulecast begins with the call.

mod casbin;
mod cedar;
mod cel;
mod regorus;

use anyhow::Result;

use super::problem::Problem;

/// An engine that holds the problem.
pub(crate) trait Peer {
    fn name(&self) -> &'static str;
    /// Whether it allows the call of this number.
    fn allows(&mut self, call: usize) -> Result<bool>;
}

/// All of them.
pub(crate) fn peers(problem: &Problem) -> Result<Vec<Box<dyn Peer>>> {
    Ok(vec![
        Box::new(regorus::Machine::new(problem)?),
        Box::new(regorus::Interpreter::new(problem)?),
        Box::new(cedar::Cedar::new(problem)?),
        Box::new(casbin::Casbin::new(problem)?),
        Box::new(cel::Cel::new(problem)?),
    ])
}
