//! The authority in a cluster.

pub mod attestor;
pub mod bundles;
pub mod keys;
pub mod webhook;
