//! The certificate authority on a real API server: keys in a Secret, pods by their tokens,
//! trust bundles.
#![cfg(feature = "kube")]

#[path = "authority/attest.rs"]
mod attest;
#[path = "authority/bundles.rs"]
mod bundles;
#[path = "authority/keys.rs"]
mod keys;
#[path = "authority/outage.rs"]
mod outage;
#[path = "authority/site.rs"]
mod site;
