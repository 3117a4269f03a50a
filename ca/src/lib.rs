//! The certificate authority of Rulecast: root and intermediate, attestors, issuing.
//!
//! [`init`] makes an authority in a folder, [`create_token`] lets an application
//! join, and [`run`] serves. In a cluster (feature `kubernetes`) the authority is in a
//! Secret, which is made when it is missing, and pods join by their service accounts:
//! [`Place`] says which. What a call is allowed is one table, [`rpc::RPCS`].

pub mod app;
pub mod authority;
pub mod csr;
pub mod dubbo;
pub mod error;
mod keeper;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod metrics;
pub mod place;
pub mod rpc;
pub mod service;
pub mod tokens;
mod trouble;

pub use app::{CaConfig, create_token, init, run, serve};
pub use authority::Authority;
pub use dubbo::DubboConfig;
pub use error::CaError;
pub use place::Place;
