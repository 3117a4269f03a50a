//! AffinityRoute: the spec as written, validated, and as its policy gets it.

#[cfg(feature = "schema")]
mod schema;
#[cfg(feature = "manifest")]
mod spec;

#[cfg(feature = "schema")]
pub(crate) use schema::schema;

#[cfg(feature = "manifest")]
pub use spec::AffinityRouteSpec;
