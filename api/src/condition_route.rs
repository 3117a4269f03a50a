//! ConditionRoute: the spec as written, validated, and as its policy gets it.

#[cfg(feature = "manifest")]
mod spec;

#[cfg(feature = "manifest")]
pub use spec::{
    ConditionRouteSpec, Conditions, ConfigVersion, Destination, DestinationCondition, Scope,
};
