//! Rulecast in a real cluster: real API server and etcd, real processes, real certificates.
//! They belong to the crate `rulecast`, so that cargo builds the program before them.

mod admission;
mod chaos;
mod kubelet;
mod site;
mod size;
mod way;
