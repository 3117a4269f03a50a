//! Files of the state folder and of the authority.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use rulecast_api::Code;

use crate::IdentityError;

/// Largest file that is read, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

fn failed(path: &Path) -> impl FnOnce(io::Error) -> IdentityError + '_ {
    move |source| {
        IdentityError::new(
            Code::IdentityState,
            format!("{}: {source}; see that it exists, is ours and has space", path.display()),
        )
    }
}

/// Makes a folder with mode 0700 unless it is there.
pub fn make_folder(path: &Path) -> Result<(), IdentityError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(path))
}

/// Reads a text file of at most 1 MiB.
pub fn read(path: &Path) -> Result<String, IdentityError> {
    read_file(File::open(path).map_err(failed(path))?, path)
}

/// Reads a text file that only its owner may read or write.
pub fn read_secret(path: &Path) -> Result<String, IdentityError> {
    let file = File::open(path).map_err(failed(path))?;
    let mode = file.metadata().map_err(failed(path))?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(IdentityError::new(
            Code::KeyPermissions,
            format!(
                "{} has mode {mode:04o}, so others could use it; make a new one, or chmod 600 it if nobody did",
                path.display()
            ),
        ));
    }
    read_file(file, path)
}

fn read_file(file: File, path: &Path) -> Result<String, IdentityError> {
    bounded(file).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => IdentityError::new(
            Code::IdentityState,
            format!(
                "{} is damaged: it is no text; restore it, or empty the folder and join anew",
                path.display()
            ),
        ),
        _ => failed(path)(error),
    })
}

/// Reads a text file of at most 1 MiB that is not of the state folder.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    bounded(File::open(path)?)
}

fn bounded(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(text)
}

/// Replaces a file as a whole, mode 0600: after a crash it is the old or the new one.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), IdentityError> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.{count}.tmp", std::process::id()));
    let write = || -> io::Result<()> {
        // A leftover of a process that had our id.
        let _ = fs::remove_file(&temporary);
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    };
    write().map_err(|source| {
        let _ = fs::remove_file(&temporary);
        failed(path)(source)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_called_damaged() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bundle.pem");
        fs::write(&path, b"\xff\xfe\x00").expect("written");
        let error = read(&path).expect_err("no text");
        assert_eq!(error.code(), Code::IdentityState);
        assert!(error.message().contains("is damaged"), "{error}");
        let error = read(&folder.path().join("missing")).expect_err("missing");
        assert!(error.message().contains("see that it exists"), "{error}");
    }
}
