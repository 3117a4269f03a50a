//! The Rulecast SDK: identity, rules kept current, decisions in sandboxed WebAssembly.

pub mod decision;
pub mod disk;
pub mod host;
pub mod observe;
pub mod snapshot;
pub mod status;
