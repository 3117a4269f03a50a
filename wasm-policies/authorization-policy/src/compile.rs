//! From a message to what is evaluated.

use prost::Message as _;
use rulecast_api::{
    Code,
    ip::IpExpr,
    matcher::Values,
    proto::rules::v1::{self as wire, authorization_policy},
};
use rulecast_policy::{Attributes, CommitError};

/// What a policy does with calls that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Allow,
    Deny,
    Audit,
}

/// A policy, ready to be evaluated.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) action: Action,
    /// All must hold, else any.
    pub(crate) all: bool,
    /// There are no rules, and every call matches.
    pub(crate) everything: bool,
    /// Each holds when all of its tests do.
    pub(crate) rules: Vec<Vec<Test>>,
    pub(crate) samples: Samples,
}

/// Which requests are looked at.
#[derive(Debug)]
pub(crate) enum Samples {
    All,
    None,
    /// Those whose point, by the request's id in this slot, lies below.
    Below(u64, u16),
}

/// What one attribute must be like.
#[derive(Debug)]
pub(crate) struct Test {
    /// The attribute, for explanations.
    pub(crate) name: String,
    pub(crate) slot: u16,
    pub(crate) check: Check,
}

#[derive(Debug)]
pub(crate) enum Check {
    OneOf(Values),
    NoneOf(Values),
    Within(Vec<IpExpr>),
    Outside(Vec<IpExpr>),
}

fn refuse(field: impl Into<String>, message: impl ToString) -> CommitError {
    CommitError::new(Code::RuleRefused.as_str(), field, message.to_string())
}

impl Rules {
    pub(crate) fn compile(spec: &[u8], attributes: &mut Attributes) -> Result<Self, CommitError> {
        let message = wire::AuthorizationPolicy::decode(spec)
            .map_err(|e| refuse("spec", format!("is no AuthorizationPolicy message: {e}")))?;
        let action = match message.action() {
            authorization_policy::Action::Allow => Action::Allow,
            authorization_policy::Action::Deny => Action::Deny,
            authorization_policy::Action::Audit => Action::Audit,
            authorization_policy::Action::Unspecified => {
                return Err(refuse("action", "is of a newer version, or missing"));
            }
        };
        let samples = match message.samples {
            share if share >= 100.0 => Samples::All,
            share if share > 0.0 => {
                attributes.draw();
                let below = (share / 100.0 * 18_446_744_073_709_551_616.0) as u64;
                Samples::Below(below, attributes.slot("request.id"))
            }
            _ => Samples::None,
        };
        let mut rules = Vec::with_capacity(message.rules.len());
        for (i, rule) in message.rules.into_iter().enumerate() {
            rules.push(tests(rule, &format!("rules[{i}]"), attributes)?);
        }
        Ok(Self { action, all: message.match_all, everything: message.everything, rules, samples })
    }
}

fn tests(
    rule: wire::AuthorizationRule,
    path: &str,
    attributes: &mut Attributes,
) -> Result<Vec<Test>, CommitError> {
    let mut tests = Vec::new();
    let mut test = |name: &str, check| {
        tests.push(Test { name: name.to_owned(), slot: attributes.slot(name), check });
    };
    for from in rule.from {
        for (name, texts, not) in [
            ("source.principal", from.principals, from.not_principals),
            ("source.namespace", from.namespaces, from.not_namespaces),
        ] {
            if !texts.is_empty() {
                test(name, Check::OneOf(Values::texts(texts)));
            }
            if !not.is_empty() {
                test(name, Check::NoneOf(Values::texts(not)));
            }
        }
        if !from.ip_blocks.is_empty() {
            test("source.ip", Check::Within(blocks(from.ip_blocks, path, "ipBlocks")?));
        }
        if !from.not_ip_blocks.is_empty() {
            test("source.ip", Check::Outside(blocks(from.not_ip_blocks, path, "notIpBlocks")?));
        }
    }
    for (i, when) in rule.when.into_iter().enumerate() {
        let path = format!("{path}.when[{i}]");
        if !when.values.is_empty() {
            let values = values(when.values, &format!("{path}.values"))?;
            test(&when.key, Check::OneOf(values));
        }
        if !when.not_values.is_empty() {
            let values = values(when.not_values, &format!("{path}.notValues"))?;
            test(&when.key, Check::NoneOf(values));
        }
    }
    Ok(tests)
}

fn values(values: Vec<wire::ValueMatch>, path: &str) -> Result<Values, CommitError> {
    Values::from_wire(values).map_err(|(i, error)| refuse(format!("{path}[{i}]"), error))
}

fn blocks(texts: Vec<String>, path: &str, field: &str) -> Result<Vec<IpExpr>, CommitError> {
    let read = |(i, text): (usize, &String)| {
        IpExpr::parse(text).map_err(|error| refuse(format!("{path}.from.{field}[{i}]"), error))
    };
    texts.iter().enumerate().map(read).collect()
}
