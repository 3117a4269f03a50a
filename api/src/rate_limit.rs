//! RateLimit: the spec as written, validated, and as its policy gets it.

#[cfg(feature = "schema")]
mod schema;
mod spec;

#[cfg(feature = "schema")]
pub(crate) use schema::schema;
pub use spec::{MAX_KEYS, RateLimitSpec};
