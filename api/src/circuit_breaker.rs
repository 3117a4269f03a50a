//! CircuitBreaker: the spec as written, validated, and as the client gets it.

#[cfg(feature = "schema")]
mod schema;
mod spec;

#[cfg(feature = "schema")]
pub(crate) use schema::schema;
pub use spec::{CircuitBreakerSpec, Per};
