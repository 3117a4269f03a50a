//! Rules from specs as people write them, and the policies that decide them.

use anyhow::{Context, Result};
use rulecast_api::{kind::Kind, proto::rules::v1::Rule};
use rulecast_sdk::{
    Policies,
    decision::{POLICIES, RuleSet},
    host::Module,
};
use serde_json::Value;

/// The built-in policy of a kind.
pub(crate) fn module(kind: Kind) -> Result<Module> {
    let known = POLICIES.iter().find(|known| known.type_name == kind.type_name);
    Ok(Module::new(known.and_then(|known| known.module).context("it is built in")?)?)
}

/// Rules of one kind, with an instance of the policy to themselves: a thread's instance keeps
/// the rules of one set, so two sets that took turns at it would be given to it again and again.
pub(crate) struct Held {
    pub(crate) policies: Policies,
    pub(crate) rules: RuleSet,
}

impl Held {
    pub(crate) fn new(kind: Kind, module: &Module, specs: &[Value]) -> Result<Self> {
        Ok(Self {
            policies: Policies::none().with_module(kind.type_name, module.clone()),
            rules: RuleSet::default().with(kind.type_name, &rules(kind, specs)?),
        })
    }

    /// Without a sandbox.
    pub(crate) fn native(
        kind: Kind,
        make: fn() -> Box<dyn rulecast_policy::Guest>,
        specs: &[Value],
    ) -> Result<Self> {
        Ok(Self {
            policies: Policies::none().with_native(kind.type_name, make),
            rules: RuleSet::default().with(kind.type_name, &rules(kind, specs)?),
        })
    }
}

/// As delivered, in order.
fn rules<'a>(kind: Kind, specs: impl IntoIterator<Item = &'a Value>) -> Result<Vec<Rule>> {
    specs.into_iter().enumerate().map(|(at, spec)| rule(kind, at, spec)).collect()
}

fn rule(kind: Kind, at: usize, spec: &Value) -> Result<Rule> {
    let spec = (kind.parse)(spec.clone())
        .map_err(|errors| anyhow::anyhow!("{errors:?}"))
        .context("the bench's own rule")?;
    Ok(Rule {
        key: format!("r{at:04}/bench"),
        target: spec.target(),
        tier: 2,
        priority: spec.priority(),
        enforcement: 0,
        created: 0,
        spec: spec.encode(),
    })
}
