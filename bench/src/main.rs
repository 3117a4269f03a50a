//! Benchmarks. Each stands beside its peer or its limit in the same run, and says
//! its result as a ratio: machines are noisy, ratios of one run less so.

mod decision;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Benchmarks of Rulecast")]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// One routing decision: sandboxed beside the same policy natively
    Decision(decision::Decision),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().bench {
        Bench::Decision(bench) => bench.run(),
    }
}
