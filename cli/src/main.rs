//! Rulecast: traffic rules from one place to every application.

mod admin;
mod commands;
mod logging;
mod options;
mod output;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use commands::{ca, client, conformance, dds, demo, eval, shop, status};

/// Rulecast casts traffic rules from one place to every application that must
/// obey them, and runs them there as sandboxed WebAssembly.
///
/// Begin with `rulecast demo`. Codes such as RC0201 are explained in docs/errors.md.
#[derive(Parser)]
#[command(name = "rulecast", version, propagate_version = true)]
struct Args {
    #[command(flatten)]
    logging: logging::Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run everything on this machine: authority, plane and a small shop that they govern
    Demo(demo::Demo),
    /// The certificate authority: run it, make it, hand out join tokens
    Ca(Box<ca::Ca>),
    /// The plane that delivers rules
    Dds(Box<dds::Dds>),
    /// An application that holds rules and shows what it holds
    Client(Box<client::Client>),
    /// Rules of a running plane, and who obeys them
    Status(status::Status),
    /// Clients of a running plane
    Clients(status::Clients),
    /// Decide one call by one file of rules, and say why
    Eval(eval::Eval),
    /// Run rule vectors through the policies as the SDK does
    Conformance(conformance::Conformance),
    /// A process of the shop in the demo
    #[command(hide = true)]
    Shop(Box<shop::Shop>),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = logging::start(&args.logging).and_then(|()| {
        runtime.block_on(async {
            match args.command {
                Command::Demo(demo) => demo.run().await,
                Command::Ca(ca) => ca.run().await,
                Command::Dds(dds) => dds.run().await,
                Command::Client(client) => client.run().await,
                Command::Status(status) => status.run().await,
                Command::Clients(clients) => clients.run().await,
                Command::Eval(eval) => eval.run(),
                Command::Conformance(conformance) => conformance.run(),
                Command::Shop(shop) => shop.run().await,
            }
        })
    });
    // Blocking tasks (file watchers, compilers) must not hold the exit up.
    runtime.shutdown_background();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes on one line. Some errors tell their cause themselves.
fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    #[test]
    fn a_cause_is_told_once() {
        let error = anyhow!("no such file").context("RC1: no such file; make it");
        assert_eq!(super::chain(&error), "RC1: no such file; make it");
        let error = anyhow!("no such file").context("RC1: a.toml");
        assert_eq!(super::chain(&error), "RC1: a.toml: no such file");
    }
}
