//! The kinds of rules that are decided here, and the policies that come built in.

use rulecast_api::kind::Phase;

/// A kind that has, or may be given, a policy.
#[derive(Clone, Copy, Debug)]
pub struct PolicyKind {
    /// `<group>/<version>/<Kind>`.
    pub type_name: &'static str,
    /// Where its rules are asked.
    pub phase: Phase,
    /// The module built in, from `wasm-policies/dist`; `None`: the SDK obeys such rules by
    /// itself, or else this version does not ask the plane for them, and passes over the kind.
    pub module: Option<&'static [u8]>,
}

/// All of them, each in the slot that its place is.
pub const POLICIES: &[PolicyKind] = &[
    PolicyKind {
        type_name: "dubbo.apache.org/v1alpha1/ConditionRoute",
        phase: Phase::Route,
        module: Some(include_bytes!("../../../wasm-policies/dist/condition_route.wasm")),
    },
    PolicyKind {
        type_name: "dubbo.apache.org/v1alpha1/TagRoute",
        phase: Phase::Route,
        module: Some(include_bytes!("../../../wasm-policies/dist/tag_route.wasm")),
    },
    PolicyKind {
        type_name: "dubbo.apache.org/v1alpha1/AffinityRoute",
        phase: Phase::Route,
        module: Some(include_bytes!("../../../wasm-policies/dist/affinity_route.wasm")),
    },
    PolicyKind {
        type_name: "dubbo.apache.org/v1alpha1/AuthenticationPolicy",
        phase: Phase::Authenticate,
        module: Some(include_bytes!("../../../wasm-policies/dist/authentication_policy.wasm")),
    },
    PolicyKind {
        type_name: "dubbo.apache.org/v1alpha1/AuthorizationPolicy",
        phase: Phase::Authorize,
        module: Some(include_bytes!("../../../wasm-policies/dist/authorization_policy.wasm")),
    },
    PolicyKind {
        type_name: "dubbo.apache.org/v1alpha1/DynamicConfig",
        phase: Phase::Mutate,
        module: Some(include_bytes!("../../../wasm-policies/dist/dynamic_config.wasm")),
    },
    PolicyKind {
        type_name: "rulecast.io/v1alpha1/RateLimit",
        phase: Phase::Limit,
        module: Some(include_bytes!("../../../wasm-policies/dist/rate_limit.wasm")),
    },
    PolicyKind { type_name: TYPE_CIRCUIT_BREAKER, phase: Phase::Observe, module: None },
];

/// What the SDK obeys without a module.
pub(crate) const TYPE_CIRCUIT_BREAKER: &str = "rulecast.io/v1alpha1/CircuitBreaker";

/// Types whose rules the SDK obeys by itself.
const HOSTED: &[&str] = &[TYPE_CIRCUIT_BREAKER];

/// Types that this version of the SDK has policies for or obeys by itself, and subscribes to by
/// default.
pub const TYPES: &[&str] = &types();

/// Slots in [`POLICIES`].
pub(crate) mod slot {
    pub(crate) const CONDITION_ROUTE: usize = 0;
    pub(crate) const TAG_ROUTE: usize = 1;
    pub(crate) const AFFINITY_ROUTE: usize = 2;
    pub(crate) const AUTHENTICATION: usize = 3;
    pub(crate) const AUTHORIZATION: usize = 4;
    pub(crate) const DYNAMIC_CONFIG: usize = 5;
    pub(crate) const RATE_LIMIT: usize = 6;
    pub(crate) const CIRCUIT_BREAKER: usize = 7;
    /// Those that choose among endpoints, in the order in which they are asked.
    pub(crate) const ROUTING: [usize; 3] = [CONDITION_ROUTE, TAG_ROUTE, AFFINITY_ROUTE];
}

/// The slot of a type.
pub(crate) fn slot_of(type_name: &str) -> Option<usize> {
    POLICIES.iter().position(|kind| kind.type_name == type_name)
}

/// Whether the SDK obeys rules of a type by itself.
pub(crate) fn is_hosted(type_name: &str) -> bool {
    HOSTED.contains(&type_name)
}

const fn count() -> usize {
    let (mut at, mut count) = (0, HOSTED.len());
    while at < POLICIES.len() {
        if POLICIES[at].module.is_some() {
            count += 1;
        }
        at += 1;
    }
    count
}

const fn types() -> [&'static str; count()] {
    let mut types = [""; count()];
    let (mut at, mut next) = (0, 0);
    while at < POLICIES.len() {
        if POLICIES[at].module.is_some() {
            types[next] = POLICIES[at].type_name;
            next += 1;
        }
        at += 1;
    }
    at = 0;
    while at < HOSTED.len() {
        types[next] = HOSTED[at];
        next += 1;
        at += 1;
    }
    types
}

#[cfg(test)]
mod tests {
    use rulecast_api::kind::{KINDS, Kind};

    use super::*;

    #[test]
    fn slots_are_where_they_are_said_to_be() {
        for (slot, phase, kind) in [
            (slot::CONDITION_ROUTE, Phase::Route, "ConditionRoute"),
            (slot::TAG_ROUTE, Phase::Route, "TagRoute"),
            (slot::AFFINITY_ROUTE, Phase::Route, "AffinityRoute"),
            (slot::AUTHENTICATION, Phase::Authenticate, "AuthenticationPolicy"),
            (slot::AUTHORIZATION, Phase::Authorize, "AuthorizationPolicy"),
            (slot::DYNAMIC_CONFIG, Phase::Mutate, "DynamicConfig"),
            (slot::RATE_LIMIT, Phase::Limit, "RateLimit"),
            (slot::CIRCUIT_BREAKER, Phase::Observe, "CircuitBreaker"),
        ] {
            assert!(POLICIES[slot].type_name.ends_with(&format!("/{kind}")));
            assert_eq!(POLICIES[slot].phase, phase);
        }
    }

    #[test]
    fn types_are_kinds_that_a_plane_serves() {
        for type_name in TYPES {
            assert!(Kind::by_type(KINDS, type_name).is_some(), "{type_name}");
        }
        for kind in POLICIES {
            if let Some(served) = Kind::by_type(KINDS, kind.type_name) {
                assert_eq!(served.phase, kind.phase, "{}", kind.type_name);
            }
        }
    }
}
