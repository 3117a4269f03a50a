//! The guest SDK of Rulecast: write a policy in Rust, without seeing the ABI.
//!
//! A policy implements [`Policy`] and says [`export!`]; compiled for
//! `wasm32-unknown-unknown` that is a module for the sandbox, compiled natively the same
//! code runs behind [`Native`], for tests and debuggers, on the same encoded bytes.
//!
//! The codecs of both sides live here, so that host and guest share one definition of the
//! bytes: [`request`], [`outcome`], [`answer`] and [`endpoints`]. All are safe code; a
//! malformed input gives `None` or an error, never a panic.

pub mod abi;
pub mod answer;
pub mod bits;
mod bytes;
pub mod draw;
mod driver;
pub mod endpoints;
#[doc(hidden)]
pub mod glue;
pub mod ids;
pub mod outcome;
mod policy;
pub mod request;
pub mod router;
pub mod trace;

pub use driver::{Driver, Guest, Native};
pub use policy::{Attributes, CommitError, Policy};
pub use router::Router;
