//! CustomResourceDefinitions: the Rust types of the rule kinds become `crds/*.yaml`, which are
//! committed, so that installing needs no build.

use std::{collections::BTreeSet, ffi::OsString, fs, io, path::Path};

use anyhow::{Context, Result, bail};

use crate::test::cargo;

/// Writes `crds/`; with `check`, only tells whether it is current.
///
/// What writes is a program of the api crate rather than this task: so a change of the contracts
/// that does not build yet stops no other task.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let folder = root.join("crds");
    let fresh = tempfile::tempdir()?;
    let example =
        ["run", "--quiet", "-p", "rulecast-api", "--features", "schema", "--example", "crds"];
    let status = cargo(root).args(example).arg("--").arg(fresh.path()).status();
    if !status.context("running cargo")?.success() {
        bail!("the definitions could not be made");
    }
    let made = names(fresh.path())?;
    fs::create_dir_all(&folder)?;
    for name in made.union(&names(&folder)?) {
        let path = folder.join(name);
        let (old, new) = (read(&path)?, read(&fresh.path().join(name))?);
        if old == new {
            continue;
        }
        if check {
            bail!("{} is stale: run `cargo xtask crds` and commit it", path.display());
        }
        match new {
            Some(text) => fs::write(&path, text)?,
            None => fs::remove_file(&path)?,
        }
    }
    Ok(())
}

fn names(folder: &Path) -> io::Result<BTreeSet<OsString>> {
    fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
