//! The tests that draw their cases or their faults, at length.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use crate::kube;

/// Cases per property, per run of the model, and seeds of the simulation, at factor 1:
/// about a quarter of an hour on two cores.
const PROPERTIES: u64 = 50_000;
const MODEL: u64 = 200_000;
const SEEDS: u64 = 20_000;

/// Seconds for which processes are ended at random.
const CHAOS: u64 = 600;

pub(crate) fn run(root: &Path, factor: u64) -> Result<()> {
    if !kube::is_built(root) {
        kube::build(root)?;
    }
    let bench = Command::new(env!("CARGO"))
        .current_dir(root)
        .args([
            "clippy",
            "-p",
            "rulecast-bench",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ])
        .status()
        .context("cargo clippy")?;
    ensure!(bench.success(), "the benchmarks do not build, or not without warnings");
    let times = |n: u64| n.saturating_mul(factor).to_string();
    let status = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["test", "--workspace", "--exclude", "rulecast-bench", "--no-fail-fast", "--quiet"])
        .args(["--features", kube::FEATURES])
        .env("PROPTEST_CASES", times(PROPERTIES))
        .env("CASES", times(MODEL))
        .env("SEEDS", times(SEEDS))
        .env("RULECAST_SOAK_SECONDS", times(CHAOS))
        .status()
        .context("cargo test")?;
    ensure!(status.success(), "the soak found something; the output above tells seed and case");
    Ok(())
}
