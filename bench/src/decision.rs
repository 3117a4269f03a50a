//! One warm decision: sandboxed beside the same policy compiled natively, by many rules, on two
//! threads, as a server has it, and beside other policy engines.

mod authorizing;
mod comparison;
mod limiting;
mod peers;
mod problem;
mod routing;
mod rules;
mod server;
mod site;
mod threads;

use std::time::Duration;

use anyhow::Result;

use crate::{report::Report, rounds::Rounds};

/// A table.
#[derive(clap::Args)]
pub(crate) struct Decision {
    /// Rounds; the medians over them are told
    #[arg(long, default_value_t = 301)]
    rounds: usize,
    /// Microseconds of each way's turn in a round
    #[arg(long, default_value_t = 300)]
    turn: u64,
    /// Measure this build of the ConditionRoute module instead of the built-in one
    #[arg(long, value_name = "FILE")]
    module: Option<std::path::PathBuf>,
}

impl Decision {
    pub(crate) fn run(self) -> Result<Report> {
        let mut report = Report::new("decision");
        let rounds = Rounds { rounds: self.rounds, turn: Duration::from_micros(self.turn) };
        routing::run(&mut report, rounds, self.module.as_deref())?;
        authorizing::run(&mut report, rounds)?;
        comparison::run(&mut report, rounds)?;
        server::run(&mut report, rounds)?;
        Ok(report)
    }
}
