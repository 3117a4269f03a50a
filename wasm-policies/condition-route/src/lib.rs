//! ConditionRoute as a Rulecast policy.
//!
//! What a condition asks of the caller and the call is looked at once per evaluation. What it
//! asks of the endpoints is computed once per (condition, endpoint set) and kept as bit sets,
//! so the cost of an evaluation does not grow with the endpoints' parameters.

mod compile;
mod evaluate;

use rulecast_policy::{
    Attributes, CommitError, Router,
    endpoints::Table,
    outcome::Did,
    router::{Route, Step},
    trace::Trace,
};

use crate::{
    compile::{Rule, Selected},
    evaluate::Buffers,
};

/// The policy.
pub type ConditionRoute = Router<Conditions>;

/// What a rule of conditions keeps.
#[derive(Debug)]
pub struct Conditions;

impl Route for Conditions {
    type Rule = Rule;
    type Selected = Vec<Selected>;
    type Buffers = Buffers;

    fn compile(spec: &[u8], attributes: &mut Attributes) -> Result<Rule, CommitError> {
        Rule::compile(spec, attributes)
    }

    fn select(rule: &Rule, table: &Table) -> Vec<Selected> {
        rule.select(table)
    }

    #[inline]
    fn apply(
        step: &Step<'_, Self>,
        list: &mut Vec<u64>,
        buffers: &mut Buffers,
        trace: &mut impl Trace,
    ) -> Did {
        evaluate::rule(step, list, buffers, trace)
    }
}

rulecast_policy::export!(ConditionRoute);
