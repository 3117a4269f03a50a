//! The status writer of rulecast-dds against the real server.
#![cfg(feature = "kube")]

#[path = "status/lead.rs"]
mod lead;
#[path = "status/objects.rs"]
mod objects;
#[path = "status/pace.rs"]
mod pace;
#[path = "status/site.rs"]
mod site;
