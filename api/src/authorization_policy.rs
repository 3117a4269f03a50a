//! AuthorizationPolicy: the spec as written, validated, and as its policy gets it.

mod compat;
mod read;
#[cfg(feature = "schema")]
mod schema;
mod spec;

#[cfg(feature = "schema")]
pub(crate) use schema::schema;
pub use spec::{Action, AuthorizationPolicySpec, MatchType, Rule};

pub use crate::attribute::{Condition, ValueMatch};
