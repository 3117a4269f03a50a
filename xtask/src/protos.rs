//! Contracts: protos become Rust, and those of the plane a descriptor set for reflection.
//! The generated files are committed, so that a build needs neither protoc nor a protobuf
//! compiler crate.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use prost::Message;

/// Protos of one crate.
struct Contract {
    protos: &'static str,
    files: &'static [&'static str],
    /// Where the generated files lie.
    rust: &'static str,
    /// The plane's: its stubs come with a feature, and it tells its descriptors.
    plane: bool,
}

const CONTRACTS: [Contract; 2] = [
    Contract {
        protos: "api/proto",
        files: &[
            "rules.proto",
            "observe.proto",
            "identity.proto",
            "admin.proto",
            "report.proto",
            "dubbo_ca.proto",
            "dubbo_rule.proto",
            "dubbo_rules.proto",
            "dubbo_mapping.proto",
        ],
        rust: "api/src/proto",
        plane: true,
    },
    Contract {
        protos: "examples/shop/proto",
        files: &["shop.proto"],
        rust: "examples/shop/src/proto",
        plane: false,
    },
];

/// Generates; with `check`, only tells whether what is there is current.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    CONTRACTS.iter().try_for_each(|contract| generate(contract, root, check))
}

fn generate(contract: &Contract, root: &Path, check: bool) -> Result<()> {
    let (proto, dest) = (root.join(contract.protos), root.join(contract.rust));
    let fresh = tempfile::tempdir()?;
    let set = protox::compile(contract.files, [&proto])
        .with_context(|| format!("{} does not compile", contract.protos))?;
    let mut builder = tonic_prost_build::configure().bytes(".").out_dir(fresh.path());
    if contract.plane {
        fs::write(fresh.path().join("descriptors.bin"), set.encode_to_vec())?;
        builder = builder
            .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
            .server_mod_attribute(".", "#[cfg(feature = \"grpc\")]");
    }
    builder.compile_fds(set)?;
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
