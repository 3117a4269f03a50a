//! Rulecast in a real cluster: real API server and etcd, real processes, real certificates.
//! They belong to the crate `rulecast`, so that cargo builds the program before them.

mod admission;
mod chaos;
mod compat;
mod kubelet;
#[path = "../../e2e/python.rs"]
mod python;
mod site;
mod size;
mod way;
