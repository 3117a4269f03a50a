//! What clients see by the labels of their pods, on a real API server.
#![cfg(feature = "kube")]

#[allow(dead_code, reason = "shared with the tests of the authority, which use the rest")]
#[path = "authority/site.rs"]
mod authority;
#[path = "pods/gaps.rs"]
mod gaps;
#[path = "pods/plane.rs"]
mod plane;
#[path = "pods/streams.rs"]
mod streams;
#[path = "pods/traits.rs"]
mod traits;
