//! The harness itself, against the real server.

/// What a run without the feature says.
#[cfg(not(feature = "kube"))]
#[test]
#[ignore = "needs a real API server; run `cargo xtask test`, or hack/kube-apiserver once and then \
            `cargo test -p rulecast-kube-tests --features kube`"]
fn the_tests_that_need_kubernetes() {}

#[cfg(feature = "kube")]
#[path = "harness/private.rs"]
mod private;
#[cfg(feature = "kube")]
#[path = "harness/shared.rs"]
mod shared;
