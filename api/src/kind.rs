//! The one table of rule kinds.
//!
//! A kind is a row of [`KINDS`]; a new kind is a module with its spec type and
//! one row. Everything else (manifests, stores, views, streams) goes by the row.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    fmt, hash,
    net::IpAddr,
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    affinity_route::AffinityRouteSpec, authentication_policy::AuthenticationPolicySpec,
    authorization_policy::AuthorizationPolicySpec, circuit_breaker::CircuitBreakerSpec, code::Code,
    condition_route::ConditionRouteSpec, proto::rules::v1::Target, rate_limit::RateLimitSpec,
    selector::Selector, tag_route::TagRouteSpec,
};

/// What a spec is refused for: where, what, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code} {path}: {message}; {hint}")]
pub struct FieldError {
    /// For `docs/errors.md`.
    pub code: Code,
    /// Path from the document's root, `spec.conditions[0]`.
    pub path: String,
    /// Byte offset inside the field's text where it goes wrong, for conditions.
    pub offset: Option<usize>,
    /// The value at fault, shortened.
    pub value: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: String,
}

/// A client as rules may select it: what is attested of it, and what its platform knows of it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Where it lives.
    pub namespace: &'a str,
    /// Its service account, or its application outside of Kubernetes.
    pub workload: &'a str,
    /// Its SPIFFE id, without `spiffe://`.
    pub identity: &'a str,
    /// The labels of its pod, without those that tell pods of one template apart; none
    /// outside of Kubernetes.
    pub labels: &'a BTreeMap<String, String>,
    /// Annotations of its pod; at least those that the kind's rules in force are
    /// [interested](RuleSpec::interest) in.
    pub annotations: &'a BTreeMap<String, String>,
    /// The addresses of its pod, if any rule of the kind is interested in them; none outside of
    /// Kubernetes, and before it has any.
    pub addresses: &'a [IpAddr],
}

/// Of which facts about a client, that tell many apart, a rule makes use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// The addresses of its pod.
    pub addresses: bool,
    /// Annotations of its pod, by key.
    pub annotations: BTreeSet<String>,
}

impl Interest {
    /// Of all of these selectors.
    pub fn of<'a>(selectors: impl IntoIterator<Item = &'a Selector>) -> Self {
        let mut interest = Self::default();
        for selector in selectors {
            interest.addresses |= selector.has_ip_blocks();
            interest.annotations.extend(selector.extends_keys().map(str::to_owned));
        }
        interest
    }

    /// Both together.
    pub fn join(&mut self, other: Self) {
        self.addresses |= other.addresses;
        self.annotations.extend(other.annotations);
    }
}

/// A typed, validated spec of some kind.
pub trait RuleSpec: fmt::Debug + Send + Sync + Any {
    /// What calls the rule speaks of; `None`: all of an application's.
    fn target(&self) -> Option<Target>;
    /// False: acts as no rule.
    fn enabled(&self) -> bool;
    /// Larger first among rules of a tier.
    fn priority(&self) -> i32;
    /// What its policy gets, the bytes of `Rule.spec`. Deterministic.
    fn encode(&self) -> Bytes;
    /// The spec as a person would write it, normalised; parses back to an equal one.
    fn to_json(&self) -> serde_json::Value;
    /// What clients of Dubbo's own wire get, the spec's bytes in its `<Kind>ToClient` message;
    /// `None`: that wire cannot say it.
    fn compat(&self) -> Option<Bytes> {
        None
    }
    /// As [`RuleSpec::compat`], of what [`RuleSpec::project`] left of the rule for a client.
    fn compat_of(&self, _projected: &[u8]) -> Option<Bytes> {
        self.compat()
    }
    /// What of the rule this client gets, where the plane decides a part of it. `within`: the
    /// rule stands outside of the root namespace and is for clients of that namespace alone.
    fn project(&self, _subject: &Subject<'_>, _within: Option<&str>) -> Projection {
        Projection::Whole
    }
    /// What [`RuleSpec::selects`] and [`RuleSpec::project`] look at beyond namespace, workload,
    /// identity and labels.
    fn interest(&self) -> Interest {
        Interest::default()
    }
    /// Whether the rule is for this client, as far as its selector says; where the rule
    /// stands is looked at besides.
    fn selects(&self, _subject: &Subject<'_>) -> bool {
        true
    }
}

/// What of a rule a client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Projection {
    /// What [`RuleSpec::encode`] gives.
    Whole,
    /// Nothing: the rule is not for it.
    Nothing,
    /// These bytes in place of what [`RuleSpec::encode`] gives.
    Spec(Bytes),
}

/// Parses and validates the `spec` of a manifest. Paths in errors begin with `spec`.
pub type ParseSpec = fn(serde_json::Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>>;

/// Where a kind's rules are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Decides how a server takes connections.
    Authenticate,
    /// Decides who may call a server.
    Authorize,
    /// Decides how many calls a server takes.
    Limit,
    /// Chooses among a call's endpoints.
    Route,
    /// Gives parameters to calls and endpoints.
    Mutate,
    /// Watches how calls end.
    Observe,
    /// Knowledge for the plane or the client, without a policy.
    Data,
}

/// A row of the table.
#[derive(Debug)]
pub struct KindInfo {
    /// `dubbo.apache.org/v1alpha1`.
    pub api_version: &'static str,
    /// `ConditionRoute`.
    pub name: &'static str,
    /// `conditionroutes`.
    pub plural: &'static str,
    /// For command lines.
    pub short_names: &'static [&'static str],
    /// `type` on the wire: `<api version>/<kind>`.
    pub type_name: &'static str,
    /// Where its rules work.
    pub phase: Phase,
    /// Reads a spec.
    pub parse: ParseSpec,
    /// What Kubernetes is told of it; `None` where it is told nothing, as without the feature
    /// `schema`.
    pub crd: Option<CrdInfo>,
}

/// What a kind's CustomResourceDefinition says beyond its names.
#[derive(Clone, Copy, Debug)]
pub struct CrdInfo {
    /// Makes the structural schema of `spec`; its description is the kind's too.
    pub schema: fn() -> serde_json::Value,
    /// What `kubectl get` shows of the spec, before what it shows of every rule.
    pub columns: &'static [Column],
}

/// A column of `kubectl get`.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// `string`, `integer`, `boolean` or `date`.
    pub kind: &'static str,
    /// JSONPath in the object, beginning with a dot.
    pub path: &'static str,
    /// Shown with `-o wide` only.
    pub wide: bool,
}

/// A kind of rules: a row of a table, equal by type name.
#[derive(Clone, Copy)]
pub struct Kind(pub &'static KindInfo);

/// The kinds that a plane serves.
pub type Kinds = &'static [Kind];

static CONDITION_ROUTE: KindInfo = KindInfo {
    api_version: "dubbo.apache.org/v1alpha1",
    name: "ConditionRoute",
    plural: "conditionroutes",
    short_names: &["cd"],
    type_name: "dubbo.apache.org/v1alpha1/ConditionRoute",
    phase: Phase::Route,
    parse: ConditionRouteSpec::parse,
    #[cfg(feature = "schema")]
    crd: Some(CrdInfo {
        schema: crate::condition_route::schema,
        columns: &[
            Column { name: "Key", kind: "string", path: ".spec.key", wide: false },
            Column { name: "Enabled", kind: "boolean", path: ".spec.enabled", wide: false },
        ],
    }),
    #[cfg(not(feature = "schema"))]
    crd: None,
};

static AUTHENTICATION_POLICY: KindInfo = KindInfo {
    api_version: "dubbo.apache.org/v1alpha1",
    name: "AuthenticationPolicy",
    plural: "authenticationpolicies",
    short_names: &["ac"],
    type_name: "dubbo.apache.org/v1alpha1/AuthenticationPolicy",
    phase: Phase::Authenticate,
    parse: AuthenticationPolicySpec::parse,
    #[cfg(feature = "schema")]
    crd: Some(CrdInfo {
        schema: crate::authentication_policy::schema,
        columns: &[Column { name: "Action", kind: "string", path: ".spec.action", wide: false }],
    }),
    #[cfg(not(feature = "schema"))]
    crd: None,
};

static AUTHORIZATION_POLICY: KindInfo = KindInfo {
    api_version: "dubbo.apache.org/v1alpha1",
    name: "AuthorizationPolicy",
    plural: "authorizationpolicies",
    short_names: &["az"],
    type_name: "dubbo.apache.org/v1alpha1/AuthorizationPolicy",
    phase: Phase::Authorize,
    parse: AuthorizationPolicySpec::parse,
    #[cfg(feature = "schema")]
    crd: Some(CrdInfo {
        schema: crate::authorization_policy::schema,
        columns: &[
            Column { name: "Action", kind: "string", path: ".spec.action", wide: false },
            Column { name: "Order", kind: "integer", path: ".spec.order", wide: false },
        ],
    }),
    #[cfg(not(feature = "schema"))]
    crd: None,
};

static SERVICE_NAME_MAPPING: KindInfo = KindInfo {
    api_version: "dubbo.apache.org/v1alpha1",
    name: "ServiceNameMapping",
    plural: "servicenamemappings",
    short_names: &["snp"],
    type_name: "dubbo.apache.org/v1alpha1/ServiceNameMapping",
    phase: Phase::Data,
    parse: crate::service_name_mapping::ServiceNameMappingSpec::parse,
    #[cfg(feature = "schema")]
    crd: Some(CrdInfo {
        schema: crate::service_name_mapping::schema,
        columns: &[
            Column { name: "Interface", kind: "string", path: ".spec.interfaceName", wide: false },
            Column {
                name: "Applications",
                kind: "string",
                path: ".spec.applicationNames",
                wide: false,
            },
        ],
    }),
    #[cfg(not(feature = "schema"))]
    crd: None,
};

static TAG_ROUTE: KindInfo = KindInfo {
    api_version: "dubbo.apache.org/v1alpha1",
    name: "TagRoute",
    plural: "tagroutes",
    short_names: &["tg"],
    type_name: "dubbo.apache.org/v1alpha1/TagRoute",
    phase: Phase::Route,
    parse: TagRouteSpec::parse,
    #[cfg(feature = "schema")]
    crd: Some(CrdInfo {
        schema: crate::tag_route::schema,
        columns: &[
            Column { name: "Key", kind: "string", path: ".spec.key", wide: false },
            Column { name: "Enabled", kind: "boolean", path: ".spec.enabled", wide: false },
        ],
    }),
    #[cfg(not(feature = "schema"))]
    crd: None,
};

static AFFINITY_ROUTE: KindInfo = KindInfo {
    api_version: "dubbo.apache.org/v1alpha1",
    name: "AffinityRoute",
    plural: "affinityroutes",
    short_names: &["af"],
    type_name: "dubbo.apache.org/v1alpha1/AffinityRoute",
    phase: Phase::Route,
    parse: AffinityRouteSpec::parse,
    #[cfg(feature = "schema")]
    crd: Some(CrdInfo {
        schema: crate::affinity_route::schema,
        columns: &[
            Column { name: "Key", kind: "string", path: ".spec.key", wide: false },
            Column { name: "Enabled", kind: "boolean", path: ".spec.enabled", wide: false },
        ],
    }),
    #[cfg(not(feature = "schema"))]
    crd: None,
};

static DYNAMIC_CONFIG: KindInfo = KindInfo {
    api_version: "dubbo.apache.org/v1alpha1",
    name: "DynamicConfig",
    plural: "dynamicconfigs",
    short_names: &["dc"],
    type_name: "dubbo.apache.org/v1alpha1/DynamicConfig",
    phase: Phase::Mutate,
    parse: crate::dynamic_config::DynamicConfigSpec::parse,
    #[cfg(feature = "schema")]
    crd: Some(CrdInfo {
        schema: crate::dynamic_config::schema,
        columns: &[
            Column { name: "Key", kind: "string", path: ".spec.key", wide: false },
            Column { name: "Enabled", kind: "boolean", path: ".spec.enabled", wide: false },
        ],
    }),
    #[cfg(not(feature = "schema"))]
    crd: None,
};

static RATE_LIMIT: KindInfo = KindInfo {
    api_version: "rulecast.io/v1alpha1",
    name: "RateLimit",
    plural: "ratelimits",
    short_names: &["rl"],
    type_name: "rulecast.io/v1alpha1/RateLimit",
    phase: Phase::Limit,
    parse: RateLimitSpec::parse,
    #[cfg(feature = "schema")]
    crd: Some(CrdInfo {
        schema: crate::rate_limit::schema,
        columns: &[
            Column { name: "Requests", kind: "integer", path: ".spec.requests", wide: false },
            Column { name: "Per", kind: "string", path: ".spec.per", wide: false },
            Column { name: "Enabled", kind: "boolean", path: ".spec.enabled", wide: false },
        ],
    }),
    #[cfg(not(feature = "schema"))]
    crd: None,
};

static CIRCUIT_BREAKER: KindInfo = KindInfo {
    api_version: "rulecast.io/v1alpha1",
    name: "CircuitBreaker",
    plural: "circuitbreakers",
    short_names: &["cb"],
    type_name: "rulecast.io/v1alpha1/CircuitBreaker",
    phase: Phase::Observe,
    parse: CircuitBreakerSpec::parse,
    #[cfg(feature = "schema")]
    crd: Some(CrdInfo {
        schema: crate::circuit_breaker::schema,
        columns: &[
            Column { name: "Key", kind: "string", path: ".spec.key", wide: false },
            Column { name: "Enabled", kind: "boolean", path: ".spec.enabled", wide: false },
        ],
    }),
    #[cfg(not(feature = "schema"))]
    crd: None,
};

/// All kinds.
pub static KINDS: Kinds = &[
    Kind::CONDITION_ROUTE,
    Kind::TAG_ROUTE,
    Kind::AFFINITY_ROUTE,
    Kind::SERVICE_NAME_MAPPING,
    Kind::DYNAMIC_CONFIG,
    Kind::AUTHENTICATION_POLICY,
    Kind::AUTHORIZATION_POLICY,
    Kind::RATE_LIMIT,
    Kind::CIRCUIT_BREAKER,
];

impl Kind {
    /// Routes calls by conditions on caller, call and endpoints.
    pub const CONDITION_ROUTE: Kind = Kind(&CONDITION_ROUTE);
    /// Groups an application's endpoints by tags, and keeps calls of a tag to its group.
    pub const TAG_ROUTE: Kind = Kind(&TAG_ROUTE);
    /// Prefers endpoints that share a parameter with their caller.
    pub const AFFINITY_ROUTE: Kind = Kind(&AFFINITY_ROUTE);

    /// Says how servers take connections.
    pub const AUTHENTICATION_POLICY: Kind = Kind(&AUTHENTICATION_POLICY);

    /// Says who may call servers.
    pub const AUTHORIZATION_POLICY: Kind = Kind(&AUTHORIZATION_POLICY);

    /// Says which applications provide an interface.
    pub const SERVICE_NAME_MAPPING: Kind = Kind(&SERVICE_NAME_MAPPING);

    /// Gives parameters to calls and endpoints.
    pub const DYNAMIC_CONFIG: Kind = Kind(&DYNAMIC_CONFIG);

    /// Says how many calls servers take.
    pub const RATE_LIMIT: Kind = Kind(&RATE_LIMIT);

    /// Leaves endpoints that fail out for a while.
    pub const CIRCUIT_BREAKER: Kind = Kind(&CIRCUIT_BREAKER);

    /// By its name on the wire.
    pub fn by_type(kinds: Kinds, type_name: &str) -> Option<Kind> {
        kinds.iter().copied().find(|k| k.type_name == type_name)
    }
}

impl std::ops::Deref for Kind {
    type Target = KindInfo;
    fn deref(&self) -> &KindInfo {
        self.0
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.type_name == other.type_name
    }
}
impl Eq for Kind {}
impl PartialOrd for Kind {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Kind {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.type_name.cmp(other.type_name)
    }
}
impl hash::Hash for Kind {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.type_name.hash(state);
    }
}
impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
