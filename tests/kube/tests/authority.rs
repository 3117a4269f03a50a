//! The certificate authority on a real API server: keys in a Secret, pods by their tokens,
//! trust bundles.
#![cfg(feature = "kube")]

#[path = "authority/attest.rs"]
mod attest;
#[path = "authority/keys.rs"]
mod keys;
#[path = "authority/site.rs"]
mod site;
