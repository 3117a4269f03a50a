//! Contracts: `api/proto/*.proto` become `api/src/proto/*.rs` and a descriptor
//! set for reflection. The generated files are committed, so that a build
//! needs neither protoc nor a protobuf compiler crate.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use prost::Message;

const FILES: [&str; 8] = [
    "rules.proto",
    "observe.proto",
    "identity.proto",
    "admin.proto",
    "dubbo_ca.proto",
    "dubbo_rule.proto",
    "dubbo_rules.proto",
    "dubbo_mapping.proto",
];

/// Generates into `api/src/proto`; with `check`, only tells whether that is current.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let proto = root.join("api/proto");
    let dest = root.join("api/src/proto");
    let fresh = tempfile::tempdir()?;
    let set = protox::compile(FILES, [&proto]).context("api/proto does not compile")?;
    fs::write(fresh.path().join("descriptors.bin"), set.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .out_dir(fresh.path())
        .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .server_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .compile_fds(set)?;
    fs::create_dir_all(&dest)?;
    for entry in fs::read_dir(fresh.path())? {
        let entry = entry?;
        let to = dest.join(entry.file_name());
        let made = fs::read(entry.path())?;
        if fs::read(&to).is_ok_and(|old| old == made) {
            continue;
        }
        if check {
            bail!("{} is stale: run `cargo xtask protos` and commit it", to.display());
        }
        fs::write(&to, made)?;
    }
    Ok(())
}
