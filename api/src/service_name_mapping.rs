//! ServiceNameMapping: which applications provide an interface.

#[cfg(feature = "schema")]
mod schema;
mod spec;

#[cfg(feature = "schema")]
pub(crate) use schema::schema;
pub use spec::{MAX_APPLICATION, MAX_INTERFACE, ServiceNameMappingSpec};
