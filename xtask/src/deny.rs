//! Licences, doubled crates and sources of what we depend on, by `deny.toml`.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::test::{cargo, succeeds};

pub(crate) fn run(root: &Path) -> Result<()> {
    ensure!(
        succeeds(cargo(root).args(["deny", "--version"])),
        "cargo-deny is not installed; install it with: cargo install --locked cargo-deny"
    );
    // Advisories would have to be fetched; these three need no network.
    let checks = ["deny", "--offline", "check", "bans", "licenses", "sources"];
    ensure!(cargo(root).args(checks).status()?.success(), "cargo deny found something");
    Ok(())
}
