//! End to end, over real processes, real TLS and real files.

mod breaker;
mod commands;
mod compat;
mod convergence;
mod govern;
mod lifecycle;
mod mappings;
mod python;
mod site;

/// What a run without the feature says.
#[cfg(not(feature = "kube-tests"))]
#[test]
#[ignore = "needs a real API server; run `cargo xtask test`, or hack/kube-apiserver once and then \
            `cargo test -p rulecast --features kube-tests`"]
fn the_tests_that_need_kubernetes() {}
