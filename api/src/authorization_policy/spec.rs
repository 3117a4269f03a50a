use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Map, Value};

use super::read;
use crate::{
    attribute::Condition,
    fields::Errors,
    kind::{FieldError, Interest, Projection, RuleSpec, Subject},
    proto::rules::v1::{self as wire, Target},
    selector::Selector,
};

/// What a policy does with a call that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Lets it in. Where a server has any such policy, calls that none of them matches are
    /// refused.
    Allow,
    /// Refuses it, whatever else allows it.
    Deny,
    /// Only records it.
    Audit,
}

impl Action {
    /// As written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "ALLOW",
            Self::Deny => "DENY",
            Self::Audit => "AUDIT",
        }
    }
}

/// How the rules of a policy combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatchType {
    /// One that holds is enough.
    Any,
    /// All must hold.
    All,
}

impl MatchType {
    /// As written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Any => "anyMatch",
            Self::All => "allMatch",
        }
    }
}

/// A rule: who calls whom, when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The caller.
    pub from: Selector,
    /// The callee; the plane looks at it.
    pub to: Selector,
    /// All must hold.
    pub when: Vec<Condition>,
}

/// The spec of an AuthorizationPolicy: who may call a server.
#[derive(Clone, Debug, PartialEq)]
pub struct AuthorizationPolicySpec {
    /// What it does with calls that it matches.
    pub action: Action,
    /// Without any, every call matches.
    pub rules: Vec<Rule>,
    /// How they combine.
    pub match_type: MatchType,
    /// Percent of requests that are checked, 0 to 100.
    pub samples: f64,
    /// Smaller first; above [`i32::MIN`].
    pub order: i32,
}

impl AuthorizationPolicySpec {
    /// Parses and validates the `spec` of a manifest; all errors at once, in document order.
    pub fn parse(value: Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
        let mut errors = Errors::default();
        match read::spec(&value, &mut errors) {
            Some(spec) if errors.0.is_empty() => Ok(Arc::new(spec)),
            _ => Err(errors.0),
        }
    }

    /// The message that the policy gets, with these of the rules.
    fn to_wire<'a>(&self, rules: impl Iterator<Item = &'a Rule>) -> wire::AuthorizationPolicy {
        use wire::authorization_policy::Action as Wire;
        let action = match self.action {
            Action::Allow => Wire::Allow,
            Action::Deny => Wire::Deny,
            Action::Audit => Wire::Audit,
        };
        wire::AuthorizationPolicy {
            action: action.into(),
            rules: rules.map(Rule::to_wire).collect(),
            match_all: self.match_type == MatchType::All,
            samples: self.samples,
            everything: self.rules.is_empty(),
        }
    }
}

impl Rule {
    fn to_wire(&self) -> wire::AuthorizationRule {
        let from = (!self.from.is_empty()).then(|| self.from.to_source());
        let when = self.when.iter().map(Condition::to_wire);
        wire::AuthorizationRule { from: from.into_iter().collect(), when: when.collect() }
    }

    fn to_json(&self) -> Value {
        let mut map = Map::new();
        for (field, selector) in [("from", &self.from), ("to", &self.to)] {
            if !selector.is_empty() {
                map.insert(field.into(), selector.to_json());
            }
        }
        if !self.when.is_empty() {
            map.insert("when".into(), self.when.iter().map(Condition::to_json).collect());
        }
        Value::Object(map)
    }
}

impl RuleSpec for AuthorizationPolicySpec {
    fn target(&self) -> Option<Target> {
        None
    }

    fn enabled(&self) -> bool {
        true
    }

    fn priority(&self) -> i32 {
        self.order.saturating_neg()
    }

    /// Without any `to`, which is the plane's to look at.
    fn encode(&self) -> Bytes {
        Bytes::from(self.to_wire(self.rules.iter()).encode_to_vec())
    }

    fn to_json(&self) -> Value {
        let mut map = Map::new();
        map.insert("action".into(), self.action.as_str().into());
        if !self.rules.is_empty() {
            map.insert("rules".into(), self.rules.iter().map(Rule::to_json).collect());
        }
        map.insert("matchType".into(), self.match_type.as_str().into());
        map.insert("samples".into(), self.samples.into());
        map.insert("order".into(), self.order.into());
        Value::Object(map)
    }

    fn compat(&self) -> Option<Bytes> {
        self.compat_of(&self.encode())
    }

    fn compat_of(&self, projected: &[u8]) -> Option<Bytes> {
        let policy = wire::AuthorizationPolicy::decode(projected).ok()?;
        super::compat::of(self, policy)
    }

    fn project(&self, subject: &Subject<'_>, within: Option<&str>) -> Projection {
        if within.is_some_and(|namespace| namespace != subject.namespace) {
            return Projection::Nothing;
        }
        let kept: Vec<&Rule> = self.rules.iter().filter(|rule| rule.to.matches(subject)).collect();
        if kept.len() == self.rules.len() {
            Projection::Whole
        } else if kept.is_empty() {
            Projection::Nothing
        } else {
            let message = self.to_wire(kept.into_iter());
            Projection::Spec(Bytes::from(message.encode_to_vec()))
        }
    }

    fn interest(&self) -> Interest {
        Interest::of(self.rules.iter().map(|rule| &rule.to))
    }
}

#[cfg(test)]
mod tests;
