//! Development tasks: `cargo xtask <task>`.

mod crds;
mod deny;
mod kube;
mod policies;
mod protos;
mod soak;
mod test;

use std::{path::PathBuf, process::ExitCode};

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
    /// Run the tests that draw their cases or their faults at length
    Soak {
        /// How many times as long as a quarter of an hour
        #[arg(long, default_value_t = 1)]
        factor: u64,
    },
    /// Run the API server that tests use, until Ctrl-C; prints how tests and kubectl find it
    Kube,
    /// Check licences, doubled crates and sources of dependencies; needs cargo-deny
    Deny,
    /// Build the built-in policies into wasm-policies/dist
    Policies {
        /// Change nothing; fail when the committed modules are not what their source builds to
        #[arg(long)]
        check: bool,
    },
    /// Write the CustomResourceDefinitions of the rule kinds into crds/
    Crds {
        /// Change nothing; fail when the committed files are stale
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

fn main() -> ExitCode {
    match run(Args::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// False: it has said what is wrong.
fn run(task: Task) -> Result<bool> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    match task {
        Task::Test => return test::run(&root),
        Task::Soak { factor } => soak::run(&root, factor)?,
        Task::Kube => kube::run(&root)?,
        Task::Deny => deny::run(&root)?,
        Task::Policies { check } => policies::run(&root, check)?,
        Task::Crds { check } => crds::run(&root, check)?,
        Task::Protos { check } => protos::run(&root, check)?,
    }
    Ok(true)
}
