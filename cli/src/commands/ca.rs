//! `rulecast ca`: the certificate authority.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Subcommand;
use rulecast_ca::CaConfig;
use rulecast_runtime::signal;

use super::follow_parent;
use crate::options::{Address, Span, options};

options! {
    /// Options of the authority.
    CaOptions => CaSettings;
    with {
        "Folder of the authority, made by `rulecast ca init`" dir: PathBuf = "rulecast-ca", "RULECAST_CA_DIR";
        "Address for certificate requests (TLS)" listen: Address = "127.0.0.1:7443", "RULECAST_CA_LISTEN";
        "Life of a certificate" ttl: Span = "1h", "RULECAST_CA_TTL";
        "Longest life that a client may ask for" max_ttl: Span = "24h", "RULECAST_CA_MAX_TTL";
        "How long open connections may finish at shutdown" drain: Span = "5s", "RULECAST_CA_DRAIN";
    }
    may {
        "Address for /metrics, /readyz and /livez (plain HTTP)" http: Address, "RULECAST_CA_HTTP";
    }
}

/// The certificate authority: run it, make it, hand out join tokens.
///
/// Without a subcommand it runs.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Ca {
    #[command(flatten)]
    run: CaOptions,
    #[command(subcommand)]
    command: Option<CaCommand>,
}

#[derive(Subcommand)]
enum CaCommand {
    /// Issue certificates until stopped
    Run(CaOptions),
    /// Make a root and an intermediate in a new folder
    Init {
        /// The folder to make; it must not hold an authority yet
        #[arg(long, env = "RULECAST_CA_DIR", default_value = "rulecast-ca")]
        dir: PathBuf,
        /// Names the realm of its identities, for example shop.example
        #[arg(long, env = "RULECAST_TRUST_DOMAIN")]
        trust_domain: String,
    },
    /// Join tokens: what a new application shows for its first certificate
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Print a new token: for one use, by one application
    Create {
        /// Folder of the authority
        #[arg(long, env = "RULECAST_CA_DIR", default_value = "rulecast-ca")]
        dir: PathBuf,
        /// Namespace of the application
        #[arg(long)]
        namespace: String,
        /// The application
        #[arg(long)]
        app: String,
        /// Until when it may be used, from now
        #[arg(long, default_value = "1h")]
        ttl: Span,
    },
}

impl Ca {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        match self.command {
            None => serve(self.run).await,
            Some(CaCommand::Run(options)) => serve(options).await,
            Some(CaCommand::Init { dir, trust_domain }) => {
                rulecast_ca::init(&dir, &trust_domain)?;
                crate::output::outln!("authority of {trust_domain} made in {}", dir.display());
                Ok(ExitCode::SUCCESS)
            }
            Some(CaCommand::Token {
                command: TokenCommand::Create { dir, namespace, app, ttl },
            }) => {
                crate::output::outln!(
                    "{}",
                    rulecast_ca::create_token(&dir, &namespace, &app, ttl.0)?
                );
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

async fn serve(options: CaOptions) -> Result<ExitCode> {
    let Some(settings) = options.resolve()? else { return Ok(ExitCode::SUCCESS) };
    follow_parent()?;
    let shutdown = signal::shutdown()?;
    let config = CaConfig {
        dir: settings.dir,
        listen: settings.listen.0,
        http: settings.http.map(|address| address.0),
        ttl: settings.ttl.0,
        max_ttl: settings.max_ttl.0,
        drain: settings.drain.0,
    };
    rulecast_ca::run(config, shutdown).await?;
    Ok(ExitCode::SUCCESS)
}
