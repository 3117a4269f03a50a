use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use rulecast_api::{Code, Digest, proto::rules::v1::Rule};
use rulecast_policy::Guest;

use super::{Rejection, health::Health};
use crate::host::{Fault, FaultKind, Module, ModuleError, Runner};

/// Where a policy comes from.
#[derive(Clone)]
pub(super) enum Origin {
    /// Compiled when first needed.
    Embedded(&'static [u8]),
    Module(Module),
    /// Outside of any sandbox.
    Native(fn() -> Box<dyn Guest>),
}

/// Where instances come from.
#[derive(Clone)]
pub(crate) enum Source {
    Module(Module),
    Native(fn() -> Box<dyn Guest>),
}

impl Source {
    pub(crate) fn runner(&self) -> Result<Runner, Fault> {
        match self {
            Self::Module(module) => Runner::sandboxed(module),
            Self::Native(make) => Ok(Runner::Native(make())),
        }
    }
}

/// What decides the rules of one kind, shared by all threads.
pub(super) struct Engine {
    pub(super) id: u64,
    pub(super) digest: Digest,
    pub(super) health: Health,
    origin: Origin,
    /// Shared by engines that are [`apart`](Self::apart).
    source: Arc<OnceLock<Result<Source, ModuleError>>>,
    /// For checking rules off the call path.
    checker: Mutex<Option<Runner>>,
}

impl Engine {
    pub(super) fn new(origin: Origin) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let digest = match &origin {
            Origin::Embedded(bytes) => Digest::of(bytes),
            Origin::Module(module) => module.digest(),
            Origin::Native(_) => Digest::of(b"native"),
        };
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            digest,
            health: Health::default(),
            origin,
            source: Arc::default(),
            checker: Mutex::new(None),
        }
    }

    /// Another one with the same module, which is compiled once, and with instances of its own:
    /// an instance holds the rules of one set.
    pub(super) fn apart(&self) -> Self {
        Self { source: self.source.clone(), ..Self::new(self.origin.clone()) }
    }

    /// Compiles the module, unless that is done.
    #[inline]
    pub(super) fn prepare(&self) -> Result<&Source, ModuleError> {
        let made = self.source.get_or_init(|| match &self.origin {
            Origin::Embedded(bytes) => Module::new(bytes).map(Source::Module),
            Origin::Module(module) => Ok(Source::Module(module.clone())),
            Origin::Native(make) => Ok(Source::Native(*make)),
        });
        made.as_ref().map_err(Clone::clone)
    }

    pub(super) fn source(&self) -> Result<&Source, Fault> {
        self.prepare().map_err(|e| Fault::new(FaultKind::Unavailable, e.to_string()))
    }

    /// Gives a rule's spec to an instance that is set aside for that.
    pub(super) fn check(&self, rule: &Rule) -> Result<(), Rejection> {
        let source = self.prepare().map_err(|e| Rejection {
            code: e.code().to_string(),
            field: String::new(),
            message: e.to_string(),
        })?;
        let by_fault = |fault: Fault| {
            let code: Code = fault.kind.code();
            Rejection::new(code, "spec", fault.message)
        };
        let mut checker = self.checker.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken out: after a fault it is not put back.
        let mut runner = match checker.take() {
            Some(runner) => runner,
            None => source.runner().map_err(by_fault)?,
        };
        let answer = runner.commit(0, &rule.spec).map_err(by_fault)?;
        runner.remove(0).map_err(by_fault)?;
        *checker = Some(runner);
        answer.map(drop).map_err(|e| Rejection {
            code: e.code,
            field: if e.field.is_empty() { "spec".into() } else { format!("spec.{}", e.field) },
            message: e.message,
        })
    }
}
