//! `rulecast conformance`: rule vectors through the policies, as an application runs them.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use rulecast_sdk::vector;

/// Run rule vectors through the policies exactly as the SDK does.
///
/// Prints each case that fails with its reason, and closes with "N passed, M failed".
/// Exit status 1 when any failed. Kinds that this version does not know count as failed.
#[derive(clap::Args)]
pub(crate) struct Conformance {
    /// Vector files (format: docs/vectors.md)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl Conformance {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (mut passed, mut failed) = (0, 0);
        for file in &self.files {
            let report = match vector::run_file(file) {
                Ok(report) => report,
                // The other files still count, and so does this one.
                Err(error) => {
                    crate::output::outln!("RC0701: vectors: {error}");
                    failed += 1;
                    continue;
                }
            };
            passed += report.passed;
            failed += report.failed.len();
            for (case, why) in &report.failed {
                crate::output::outln!("{}: case {case}: {why}", file.display());
            }
        }
        crate::output::outln!("{passed} passed, {failed} failed");
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
