//! The sandbox: policies as WebAssembly modules.
//!
//! A [`Module`] is vetted and compiled once; each thread then has an instance of its own.
//! Nothing a module does reaches further than that instance: time, memory, stack, output and
//! host calls are bounded, every breach is a [`Fault`], and after a fault the instance is
//! never used again.

mod clock;
mod instance;
mod module;
mod runner;

use std::fmt;

use rulecast_api::Code;

pub use clock::ticks;
pub use module::{Manifest, Module, ModuleError};
pub(crate) use runner::Runner;

/// Most memory of an instance, in bytes.
pub const MAX_MEMORY: usize = 16 * 1024 * 1024;

/// Most elements of a table.
pub const MAX_TABLE: usize = 10_000;

/// Largest module, in bytes.
pub const MAX_MODULE: usize = 8 * 1024 * 1024;

/// Stack of a policy, in bytes; it lies on the calling thread's own.
pub const MAX_STACK: usize = 64 * 1024;

/// Most instances in the process; beyond, a decision goes by the failure policy.
pub const MAX_INSTANCES: usize = 1024;

/// How a policy failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// It ran past its deadline.
    Timeout,
    /// It wanted more memory or table than it may have.
    Memory,
    /// It ran out of stack.
    Stack,
    /// It trapped, or panicked.
    Trap,
    /// The request is above the ABI's limits.
    Oversize,
    /// It answered with something outside the ABI.
    BadOutput,
    /// It refused a rule that was delivered.
    Refused,
    /// No instance could be had.
    Unavailable,
    /// No rules have come yet; not the doing of a policy.
    NotReady,
}

impl FaultKind {
    /// For `docs/errors.md`.
    pub const fn code(self) -> Code {
        match self {
            Self::Timeout => Code::PolicyTimeout,
            Self::Memory | Self::Unavailable => Code::PolicyMemory,
            Self::Stack => Code::PolicyStack,
            Self::Trap => Code::PolicyTrap,
            Self::Oversize => Code::PolicyInput,
            Self::BadOutput => Code::PolicyOutput,
            Self::Refused => Code::RuleRefused,
            Self::NotReady => Code::NotReady,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeout => "timeout",
            Self::Memory => "memory",
            Self::Stack => "stack",
            Self::Trap => "trap",
            Self::Oversize => "oversize",
            Self::BadOutput => "bad output",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
            Self::NotReady => "not ready",
        })
    }
}

/// A failure of a policy. It concerns that evaluation alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {kind}: {message}", kind.code())]
pub struct Fault {
    /// How it failed.
    pub kind: FaultKind,
    /// Id of the rule at work, when one was.
    pub rule: Option<u32>,
    /// What happened, for people.
    pub message: String,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, rule: None, message: message.into() }
    }
}
