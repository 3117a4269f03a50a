use std::sync::{Arc, OnceLock};

use rulecast_api::{
    Code, Digest,
    proto::rules::v1::{Enforcement, Rule, target::Scope},
};
use rulecast_policy::Guest;

use super::{
    engine::{Engine, Origin},
    kinds::{POLICIES, slot, slot_of},
};
use crate::host::{Module, ModuleError};

/// Why a rule is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code} {field}: {message}")]
pub struct Rejection {
    /// For `docs/errors.md`; a policy may have codes of its own.
    pub code: String,
    /// Path inside the rule; empty for the rule itself.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Rejection {
    pub(super) fn new(code: Code, field: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_string(), field: field.to_owned(), message: message.into() }
    }
}

/// The policies that give rules their meaning, one per kind at most. Cheap to clone; shared
/// by all threads.
#[derive(Clone)]
pub struct Policies(Arc<[Option<Arc<Engine>>]>);

impl std::fmt::Debug for Policies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let engines = POLICIES.iter().zip(&*self.0);
        f.debug_map()
            .entries(engines.filter_map(|(kind, engine)| {
                Some((kind.type_name, engine.as_ref()?.digest.short().to_string()))
            }))
            .finish()
    }
}

impl Policies {
    /// The policies that are built in ([`POLICIES`]). That of ConditionRoute is compiled once
    /// per process, on the first call, which takes some hundred milliseconds; others when the
    /// first rule of their kind is checked, or asked for with [`prepare`](Self::prepare).
    pub fn builtin() -> Result<Self, ModuleError> {
        static BUILTIN: OnceLock<Result<Policies, ModuleError>> = OnceLock::new();
        let make = || {
            let engine = |module: Option<&'static [u8]>| {
                Some(Arc::new(Engine::new(Origin::Embedded(module?))))
            };
            let policies = Self(POLICIES.iter().map(|kind| engine(kind.module)).collect());
            policies.prepare(POLICIES[slot::CONDITION_ROUTE].type_name)?;
            Ok(policies)
        };
        BUILTIN.get_or_init(make).clone()
    }

    /// The same policies for rules of another origin. Where two sets of rules take turns in a
    /// thread, each by policies apart, neither is forgotten for the other.
    #[must_use]
    pub fn apart(&self) -> Self {
        let apart = |engine: &Option<Arc<Engine>>| Some(Arc::new(engine.as_ref()?.apart()));
        Self(self.0.iter().map(apart).collect())
    }

    /// Without any: every kind is passed over.
    pub fn none() -> Self {
        Self(POLICIES.iter().map(|_| None).collect())
    }

    /// With this module for ConditionRoute, and no others.
    pub fn from_module(module: Module) -> Self {
        Self::none().with(slot::CONDITION_ROUTE, Origin::Module(module))
    }

    /// With a policy for ConditionRoute that runs natively, outside of any sandbox, and no
    /// others: for tests and debuggers.
    pub fn native(make: fn() -> Box<dyn Guest>) -> Self {
        Self::none().with(slot::CONDITION_ROUTE, Origin::Native(make))
    }

    /// With another module for a type. A type outside of [`POLICIES`] changes nothing.
    #[must_use]
    pub fn with_module(&self, type_name: &str, module: Module) -> Self {
        match slot_of(type_name) {
            Some(slot) => self.with(slot, Origin::Module(module)),
            None => self.clone(),
        }
    }

    /// With another policy for a type, one that runs natively: for tests and debuggers. A type
    /// outside of [`POLICIES`] changes nothing.
    #[must_use]
    pub fn with_native(&self, type_name: &str, make: fn() -> Box<dyn Guest>) -> Self {
        match slot_of(type_name) {
            Some(slot) => self.with(slot, Origin::Native(make)),
            None => self.clone(),
        }
    }

    fn with(&self, slot: usize, origin: Origin) -> Self {
        let mut engines = self.0.to_vec();
        engines[slot] = Some(Arc::new(Engine::new(origin)));
        Self(engines.into())
    }

    #[inline]
    pub(super) fn engine(&self, slot: usize) -> Option<&Arc<Engine>> {
        self.0.get(slot)?.as_ref()
    }

    /// Compiles the module of a type, unless that is done: tens to hundreds of milliseconds.
    /// A type without a module needs nothing.
    pub fn prepare(&self, type_name: &str) -> Result<(), ModuleError> {
        match slot_of(type_name).and_then(|slot| self.engine(slot)) {
            Some(engine) => engine.prepare().map(drop),
            None => Ok(()),
        }
    }

    /// Digest of the module that decides a type; `None`: nothing does.
    pub fn engine_digest(&self, type_name: &str) -> Option<Digest> {
        Some(self.engine(slot_of(type_name)?)?.digest)
    }

    /// A digest of all of them, which changes with each. With one alone it is that one's.
    pub fn digest(&self) -> Digest {
        let engines: Vec<_> = POLICIES
            .iter()
            .zip(&*self.0)
            .filter_map(|(kind, engine)| Some((kind.type_name, engine.as_ref()?.digest)))
            .collect();
        if let [(_, only)] = engines[..] {
            return only;
        }
        let mut all = Vec::new();
        for (type_name, digest) in engines {
            all.extend_from_slice(type_name.as_bytes());
            all.push(0);
            all.extend_from_slice(digest.as_bytes());
        }
        Digest::of(&all)
    }

    /// Whether a rule of this type can be obeyed: gives it to an instance set aside for that.
    pub fn check(&self, type_name: &str, rule: &Rule) -> Result<(), Rejection> {
        let Some(engine) = slot_of(type_name).and_then(|slot| self.engine(slot)) else {
            let message = format!("no policy decides {type_name}");
            return Err(Rejection::new(Code::TypeUnsupported, "", message));
        };
        check_frame(rule)?;
        engine.check(rule)
    }
}

/// What a rule of any kind must say.
pub(crate) fn check_frame(rule: &Rule) -> Result<(), Rejection> {
    let invalid = |field, message: String| Rejection::new(Code::ItemInvalid, field, message);
    if rule.key.is_empty() {
        return Err(invalid("key", "is empty; <name>/<namespace> is wanted".to_owned()));
    }
    if Enforcement::try_from(rule.enforcement).is_err() {
        let message = format!("{} is unknown to this version", rule.enforcement);
        return Err(invalid("enforcement", message));
    }
    if let Some(target) = &rule.target
        && !matches!(Scope::try_from(target.scope), Ok(Scope::Service | Scope::Application))
    {
        let message = format!("{} is unknown to this version", target.scope);
        return Err(invalid("target.scope", message));
    }
    Ok(())
}
