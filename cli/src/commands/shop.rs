//! `rulecast shop`: processes of the example shop, for the demo.

use std::process::ExitCode;

use anyhow::Result;
use rulecast_runtime::signal;
use rulecast_shop::{gateway, orders, stock};

use super::follow_parent;

/// A process of the example shop. Its own programs, in examples/shop, are the same.
#[derive(clap::Args)]
pub(crate) struct Shop {
    #[command(subcommand)]
    role: Role,
}

#[derive(clap::Subcommand)]
enum Role {
    /// Asked by anybody over HTTP; asks Orders
    Gateway(gateway::GatewayOptions),
    /// Asked by gRPC; asks Stock
    Orders(orders::OrdersOptions),
    /// Asked by gRPC
    Stock(stock::StockOptions),
}

impl Shop {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        follow_parent()?;
        let shutdown = signal::shutdown()?;
        match self.role {
            Role::Gateway(options) => gateway::run(options, shutdown).await?,
            Role::Orders(options) => orders::run(options, shutdown).await?,
            Role::Stock(options) => stock::run(options, shutdown).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
