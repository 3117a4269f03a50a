//! DynamicConfig: parameters for calls and endpoints.

#[cfg(feature = "schema")]
mod schema;
mod spec;

#[cfg(feature = "schema")]
pub(crate) use schema::schema;
pub use spec::{Config, DynamicConfigSpec, MAX_PARAMETERS, Match, Side};
