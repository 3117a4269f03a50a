//! An authority in a folder: its [`Parts`] as files, and `tokens/`, the join tokens, see
//! [`tokens`](crate::tokens).
//!
//! The folder has mode 0700 and its files 0600; wider ones are refused.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use rulecast_api::Code;
use rulecast_identity::files;
use zeroize::Zeroizing;

use super::{
    Authority,
    parts::{ABOUT, INTERMEDIATE, Parts, ROOT, ROOT_KEY, Where},
};
use crate::CaError;

/// Folder of the join tokens within the authority's.
pub(crate) const TOKENS: &str = "tokens";

const REMEDY: &str =
    "restore the folder from a backup, or make an authority with `rulecast ca init`";

/// Makes root and intermediate in a new folder. All of it appears at once: a
/// folder that is there and not empty is refused and left as it is.
pub(crate) fn init(dir: &Path, trust_domain: &str) -> Result<(), CaError> {
    let parts = Parts::generate(trust_domain)?;
    let failed = |path: &Path, e: std::io::Error| {
        CaError::authority(format!("{}: {e}; choose a folder that can be made", path.display()))
    };
    let name = dir.file_name().ok_or_else(|| {
        CaError::authority(format!("{} is no name for a new folder", dir.display()))
    })?;
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent).map_err(|e| failed(parent, e))?;
    let making = parent.join(format!(".{}.{}.new", name.to_string_lossy(), std::process::id()));
    files::make_folder(&making)?;
    let made = fill(&making, &parts).and_then(|()| {
        fs::rename(&making, dir).map_err(|e| {
            if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
                CaError::authority(format!(
                    "{} is not empty; an authority is made in a new folder only",
                    dir.display()
                ))
            } else {
                failed(dir, e)
            }
        })
    });
    if made.is_err() {
        let _ = fs::remove_dir_all(&making);
    }
    made
}

fn fill(dir: &Path, parts: &Parts) -> Result<(), CaError> {
    files::make_folder(&dir.join(TOKENS))?;
    if let Some(key) = &parts.root_key {
        files::replace(&dir.join(ROOT_KEY), key.as_bytes())?;
    }
    for (name, text) in
        [(INTERMEDIATE, &parts.intermediate), (ROOT, &parts.root), (ABOUT, &parts.about)]
    {
        files::replace(&dir.join(name), text.as_bytes())?;
    }
    Ok(())
}

/// Opens the folder, renewing an intermediate past half of its time, and
/// proves by a trial that its parts fit together.
pub(super) fn open(dir: &Path) -> Result<Authority, CaError> {
    let prefix = format!("{}/", dir.display());
    let place = Where { prefix: &prefix, remedy: REMEDY };
    let mut parts = load(dir, &place)?;
    if let Some(renewed) = parts.renewed(&place)? {
        files::replace(&dir.join(INTERMEDIATE), renewed.intermediate.as_bytes())?;
        parts = renewed;
    }
    parts.open(&place)
}

fn load(dir: &Path, place: &Where<'_>) -> Result<Parts, CaError> {
    let metadata = fs::metadata(dir).map_err(|e| {
        CaError::authority(format!(
            "{}: {e}; make an authority with `rulecast ca init`",
            dir.display()
        ))
    })?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(CaError::new(
            Code::KeyPermissions,
            format!(
                "{} has mode {mode:04o}; others could reach the authority's keys: chmod 700 it",
                dir.display()
            ),
        ));
    }
    // It is used at renewals only, but open to others now.
    let root_key = match files::read_secret(&dir.join(ROOT_KEY)) {
        Ok(text) => Some(Zeroizing::new(text)),
        Err(error) if error.code() == Code::KeyPermissions => return Err(error.into()),
        // It may be kept elsewhere between renewals.
        Err(_) => None,
    };
    let read = |name: &str| -> Result<Zeroizing<String>, CaError> {
        let path = dir.join(name);
        if !path.exists() {
            return Err(place.damaged(name, "it is missing"));
        }
        Ok(Zeroizing::new(files::read_secret(&path)?))
    };
    Ok(Parts {
        about: read(ABOUT)?,
        root: read(ROOT)?,
        root_key,
        intermediate: read(INTERMEDIATE)?,
    })
}
