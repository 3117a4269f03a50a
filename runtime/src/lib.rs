//! What every Rulecast service needs to run: readiness with named blockers,
//! supervised tasks, and the HTTP endpoint that operators and probes read.

pub mod http;
pub mod readiness;
pub mod signal;
pub mod supervisor;

pub use readiness::Readiness;
pub use supervisor::Supervisor;
