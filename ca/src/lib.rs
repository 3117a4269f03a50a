//! The certificate authority of Rulecast: root and intermediate, attestors, issuing.

pub mod authority;
pub mod csr;
pub mod error;
pub mod tokens;

pub use authority::Authority;
pub use error::CaError;
