//! AffinityRoute as a Rulecast policy.
//!
//! A rule prefers endpoints that share a parameter with their caller, unless they are too few.
//! It comes after the other routing rules: how many there are is counted among what those left.

use prost::Message as _;
use rulecast_api::{Code, proto::rules::v1 as wire};
use rulecast_policy::{
    Attributes, CommitError, Router, bits,
    endpoints::Table,
    outcome::Did,
    router::{Route, Step},
    trace::Trace,
};

/// The policy.
pub type AffinityRoute = Router<Affinity>;

/// What a rule of affinity keeps.
#[derive(Debug)]
pub struct Affinity;

/// A rule, ready to be evaluated.
#[derive(Debug)]
pub struct Rule {
    key: String,
    /// Where the caller's value stands.
    slot: u16,
    /// Percent.
    ratio: f64,
}

impl Route for Affinity {
    type Rule = Rule;
    /// The column of the parameter.
    type Selected = Option<usize>;
    /// What is kept.
    type Buffers = Vec<u64>;

    fn compile(spec: &[u8], attributes: &mut Attributes) -> Result<Rule, CommitError> {
        let refuse =
            |field, message: String| CommitError::new(Code::RuleRefused.as_str(), field, message);
        let message = wire::AffinityRoute::decode(spec)
            .map_err(|error| refuse("spec", format!("is no AffinityRoute message: {error}")))?;
        if message.key.is_empty() {
            return Err(refuse("key", "is empty; a parameter's name is wanted".to_owned()));
        }
        if !(0.0..=100.0).contains(&message.ratio) {
            let message = format!("{} is no percentage from 0 to 100", message.ratio);
            return Err(refuse("ratio", message));
        }
        let slot = attributes.slot(&format!("consumer[{}]", message.key));
        Ok(Rule { key: message.key, slot, ratio: message.ratio })
    }

    fn select(rule: &Rule, table: &Table) -> Option<usize> {
        table.column(&rule.key)
    }

    fn apply(
        step: &Step<'_, Self>,
        list: &mut Vec<u64>,
        kept: &mut Vec<u64>,
        trace: &mut impl Trace,
    ) -> Did {
        let Rule { key, slot, ratio } = step.rule;
        let Some(value) = step.request.attribute(*slot).filter(|value| !value.is_empty()) else {
            trace.say(|| format!("the caller has no {key}"));
            return Did::Skipped;
        };
        kept.clear();
        kept.resize(list.len(), 0);
        step.table.select_equal(*step.selected, kept, value);
        bits::intersect(kept, list);
        let (count, total) = (bits::count(kept), bits::count(list));
        let enough = count as f64 * 100.0 >= ratio * total as f64;
        trace.say(|| {
            let value: String = String::from_utf8_lossy(value).chars().take(64).collect();
            let so = if enough { "they are kept" } else { "too few, all are kept" };
            format!(
                "{count} of {total} endpoints share {key} {value:?}, {ratio} % are wanted: {so}"
            )
        });
        if !enough {
            return Did::Skipped;
        }
        std::mem::swap(list, kept);
        Did::Applied
    }
}

rulecast_policy::export!(AffinityRoute);
