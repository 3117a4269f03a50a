//! Development tasks: `cargo xtask <task>`.

mod protos;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Development tasks of Rulecast")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Generate the Rust side of api/proto
    Protos {
        /// Change nothing; fail when the committed files are stale
        #[arg(long)]
        check: bool,
    },
}

fn main() -> Result<()> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    match Args::parse().task {
        Task::Protos { check } => protos::run(&root, check),
    }
}
