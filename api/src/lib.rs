//! The contracts of Rulecast: what rules are, how people write them, and how
//! they travel.
//!
//! Everything here is pure: no I/O, no runtime. [`kind`] holds the one table of
//! rule kinds from which stores, views, streams and the SDK derive theirs.

#[cfg(feature = "manifest")]
pub mod affinity_route;
#[cfg(feature = "manifest")]
pub mod attribute;
#[cfg(feature = "manifest")]
pub mod authentication_policy;
#[cfg(feature = "manifest")]
pub mod authorization_policy;
#[cfg(feature = "manifest")]
pub mod circuit_breaker;
pub mod code;
pub mod condition;
pub mod condition_route;
#[cfg(feature = "schema")]
pub mod crd;
pub mod digest;
#[cfg(feature = "manifest")]
pub mod dynamic_config;
#[cfg(feature = "manifest")]
mod fields;
pub mod ip;
#[cfg(feature = "manifest")]
pub mod kind;
#[cfg(feature = "manifest")]
pub mod manifest;
#[cfg(feature = "matchers")]
pub mod matcher;
pub mod proto;
#[cfg(feature = "manifest")]
pub mod rate_limit;
#[cfg(feature = "manifest")]
pub mod resource;
#[cfg(feature = "manifest")]
pub mod rule_status;
#[cfg(feature = "manifest")]
pub mod selector;
pub mod service_key;
#[cfg(feature = "manifest")]
pub mod service_name_mapping;
pub mod spiffe;
pub mod tag_route;

pub use code::Code;
pub use digest::Digest;
#[cfg(feature = "manifest")]
pub use kind::{Kind, Kinds};
#[cfg(feature = "manifest")]
pub use resource::{Resource, ResourceId};
pub use service_key::ServiceKey;
pub use spiffe::SpiffeId;
