//! Logs: to standard error, as text for people or JSON for machines.

use std::io::IsTerminal;

use anyhow::{Context, Result, anyhow};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

/// How to log.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// What to log: a level, or `target=level,…` [default: info; client: warn; demo, eval and queries: error]
    #[arg(long, global = true, env = "RULECAST_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// How to write it
    #[arg(long, global = true, env = "RULECAST_LOG_FORMAT", value_enum, default_value = "text")]
    log_format: Format,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Starts logging for the process.
pub(crate) fn start(options: &Options) -> Result<()> {
    // Services tell what they do; a client that waits, why.
    let is = |names: &[&str]| std::env::args().any(|arg| names.contains(&arg.as_str()));
    let default = if is(&["ca", "dds", "shop"]) {
        "info"
    } else if is(&["client"]) {
        "warn"
    } else {
        "error"
    };
    let filter = options.log.as_deref().unwrap_or(default);
    let filter = EnvFilter::try_new(filter).with_context(|| {
        format!("RC0701: --log \"{filter}\": write for example info or rulecast_dds=debug")
    })?;
    let layer = fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    match options.log_format {
        Format::Text => registry.with(layer.with_ansi(std::io::stderr().is_terminal())).try_init(),
        Format::Json => registry.with(layer.json().flatten_event(true)).try_init(),
    }
    .map_err(|error| anyhow!("logging: {error}"))
}
