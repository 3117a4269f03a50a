//! The commands, one module each.

pub(crate) mod ca;
pub(crate) mod client;
pub(crate) mod conformance;
pub(crate) mod dds;
pub(crate) mod demo;
pub(crate) mod eval;
pub(crate) mod shop;
pub(crate) mod status;

use std::{fs::OpenOptions, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use anyhow::{Context, Result};

/// Set for services of the demo: they end with the process that started them.
pub(crate) const EXIT_WITH_PARENT: &str = "RULECAST_EXIT_WITH_PARENT";

/// Asks the kernel to end this process with its parent, where the parent wants that.
pub(crate) fn follow_parent() -> Result<()> {
    if std::env::var_os(EXIT_WITH_PARENT).is_some() {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    Ok(())
}

/// Names this process among its replicas where it is given no name: host and process.
#[cfg(feature = "kubernetes")]
pub(crate) fn replica() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}-{}", std::process::id())
}

/// Writes a secret for its owner's eyes alone.
pub(crate) fn write_secret(path: &Path, secret: &str) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    writeln!(file, "{secret}")?;
    Ok(())
}
