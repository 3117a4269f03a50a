//! The spec as clients of Dubbo's own wire get it.

use bytes::Bytes;
use prost::Message as _;

use super::spec::AuthorizationPolicySpec;
use crate::proto::{
    dubbo::v1alpha1 as old,
    rules::v1::{self as wire, value_match::How},
};

/// Of what is delivered, with what only the spec knows.
pub(super) fn of(
    spec: &AuthorizationPolicySpec,
    policy: wire::AuthorizationPolicy,
) -> Option<Bytes> {
    let message = old::AuthorizationPolicySpecToClient {
        action: spec.action.as_str().to_owned(),
        rules: policy.rules.into_iter().map(rule).collect(),
        samples: policy.samples as f32,
        order: spec.order as f32,
        match_type: spec.match_type.as_str().to_owned(),
    };
    Some(Bytes::from(message.encode_to_vec()))
}

fn rule(rule: wire::AuthorizationRule) -> old::AuthorizationPolicyRuleToClient {
    let from = rule.from.into_iter().next().map(|source| old::AuthorizationPolicySource {
        namespaces: source.namespaces,
        not_namespaces: source.not_namespaces,
        ip_blocks: source.ip_blocks,
        not_ip_blocks: source.not_ip_blocks,
        principals: source.principals,
        not_principals: source.not_principals,
        extends: Vec::new(),
        not_extends: Vec::new(),
    });
    let when = rule.when.into_iter().map(|condition| old::AuthorizationPolicyCondition {
        key: condition.key,
        values: condition.values.into_iter().filter_map(value).collect(),
        not_values: condition.not_values.into_iter().filter_map(value).collect(),
    });
    old::AuthorizationPolicyRuleToClient { from, when: when.collect() }
}

fn value(value: wire::ValueMatch) -> Option<old::AuthorizationPolicyMatch> {
    let (how, value) = match value.how? {
        How::Equals(text) => ("equals", text),
        How::Regex(text) => ("regex", text),
    };
    Some(old::AuthorizationPolicyMatch { r#type: how.to_owned(), value })
}
