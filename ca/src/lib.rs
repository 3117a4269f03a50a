//! The certificate authority of Rulecast: root and intermediate, attestors, issuing.
//!
//! [`init`] makes an authority in a folder, [`create_token`] lets an application
//! join, and [`run`] serves. What a call is allowed is one table, [`rpc::RPCS`].

pub mod app;
pub mod authority;
pub mod csr;
pub mod error;
mod keeper;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod metrics;
pub mod place;
pub mod rpc;
pub mod service;
pub mod tokens;

pub use app::{CaConfig, create_token, init, run, serve};
pub use authority::Authority;
pub use error::CaError;
pub use place::Place;
