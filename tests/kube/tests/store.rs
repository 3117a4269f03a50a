//! The store `kubernetes` of rulecast-dds against the real server.
#![cfg(feature = "kube")]

#[path = "store/access.rs"]
mod access;
#[path = "store/definitions.rs"]
mod definitions;
#[path = "store/gaps.rs"]
mod gaps;
#[path = "store/mappings.rs"]
mod mappings;
#[path = "store/objects.rs"]
mod objects;
#[path = "store/private.rs"]
mod private;
#[path = "store/site.rs"]
mod site;
