//! TagRoute as a Rulecast policy.
//!
//! A rule groups a provider's endpoints by tags. Which endpoints are in which group, and which
//! carry tags of their own, is computed once per (rule, endpoint set) and kept as bit sets; a
//! call then only says its tag. A rule without anything in it is the one that stands where
//! nobody wrote one: calls and endpoints go by their own tags.

mod compile;
mod evaluate;

use rulecast_policy::{
    Attributes, CommitError, Router,
    endpoints::Table,
    outcome::Did,
    router::{Route, Step},
    trace::Trace,
};

use crate::compile::{Rule, Selected};

/// The policy.
pub type TagRoute = Router<Tags>;

/// What a rule of tags keeps.
#[derive(Debug)]
pub struct Tags;

impl Route for Tags {
    type Rule = Rule;
    type Selected = Selected;
    /// What a tag keeps.
    type Buffers = Vec<u64>;

    fn compile(spec: &[u8], attributes: &mut Attributes) -> Result<Rule, CommitError> {
        Rule::compile(spec, attributes)
    }

    fn select(rule: &Rule, table: &Table) -> Selected {
        rule.select(table)
    }

    #[inline]
    fn apply(
        step: &Step<'_, Self>,
        list: &mut Vec<u64>,
        kept: &mut Vec<u64>,
        trace: &mut impl Trace,
    ) -> Did {
        evaluate::rule(step, list, kept, trace)
    }
}

rulecast_policy::export!(TagRoute);
