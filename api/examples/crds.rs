//! Writes the CustomResourceDefinitions of all kinds into a folder: what `cargo xtask crds`
//! runs. A program of this crate, so that no development task needs this crate to build.

use std::{env, fs, io, path::PathBuf};

use rulecast_api::{crd, kind::KINDS};

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.ok_or_else(|| io::Error::other("name the folder to write to"))?;
    for kind in KINDS {
        if let Some(text) = crd::file(*kind) {
            fs::write(folder.join(crd::file_name(*kind)), text)?;
        }
    }
    Ok(())
}
