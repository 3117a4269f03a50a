//! Benchmarks. Each stands beside its peer or its limit in the same run, and says
//! its result as a ratio: machines are noisy, ratios of one run less so.

mod decision;
mod report;
mod rounds;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Benchmarks of Rulecast")]
struct Args {
    #[command(subcommand)]
    bench: Bench,
    /// Close with one line of JSON: rows and goals
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Bench {
    /// One decision: sandboxed, native, as middleware, and beside other policy engines
    Decision(decision::Decision),
}

fn main() -> anyhow::Result<()> {
    let Args { bench, json } = Args::parse();
    let report = match bench {
        Bench::Decision(bench) => bench.run()?,
    };
    report.close(json);
    Ok(())
}
