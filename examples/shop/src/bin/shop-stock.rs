//! Stock of the shop as a process.

use clap::Parser;
use rulecast_shop::stock::{StockOptions, run};

/// Stock of the shop. Where authority and plane are, and who this is, say `RULECAST_…` variables.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    options: StockOptions,
}

fn main() -> anyhow::Result<()> {
    rulecast_shop::process::main(|shutdown| run(Args::parse().options, shutdown))
}
