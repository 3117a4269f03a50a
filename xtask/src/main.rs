//! Development tasks: `cargo xtask <task>`.

mod deny;
mod policies;
mod protos;
mod test;

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
    /// Run all checks and tests that a change must pass
    Test,
    /// Check licences, doubled crates and sources of dependencies; needs cargo-deny
    Deny,
    /// Build the built-in policies into wasm-policies/dist
    Policies {
        /// Change nothing; fail when the committed modules are not what their source builds to
        #[arg(long)]
        check: bool,
    },
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
        Task::Test => {
            if !test::run(&root)? {
                std::process::exit(1);
            }
            Ok(())
        }
        Task::Deny => deny::run(&root),
        Task::Policies { check } => policies::run(&root, check),
        Task::Protos { check } => protos::run(&root, check),
    }
}
