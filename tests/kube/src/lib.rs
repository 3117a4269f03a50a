//! A real Kubernetes API server for tests: etcd and kube-apiserver on loopback, with TLS,
//! RBAC and service-account keys; webhooks reach the test by URL.
//!
//! There is no controller manager and no kubelet: a namespace that is deleted stays
//! Terminating, a pod stays Pending, nobody makes service accounts or endpoints, and the
//! cluster roles that are put together from others (view, edit, admin) allow nothing.
//!
//! [`Cluster::shared`] is the run's server, for tests that keep to their own
//! [`Namespace`]; [`Cluster::start`] a private one, for tests that stop it. Tests with a
//! private one are named `private_…`: the test runner starts few of them at once.
//!
//! What a test had in its namespace is shown when the test panics. So let a test panic
//! (`expect`) rather than return an error.
//!
//! Nothing is built here: see hack/kube-apiserver, which `cargo xtask test` runs.

mod access;
mod binaries;
mod cluster;
mod crds;
mod etcd;
mod kubectl;
mod namespace;
mod pki;
mod ports;
mod process;
mod proxy;
mod server;
mod token;

pub use cluster::{Cluster, SHARED_ENV};
pub use kubectl::Output;
pub use namespace::Namespace;
pub use proxy::Proxy;
