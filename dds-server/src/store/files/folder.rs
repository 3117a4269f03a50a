//! Looks at the folder of rules and reads its files.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io,
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use notify::{Event, EventKind, event};
use rulecast_api::manifest::{Format, MAX_FILE};

/// What tells one state of a file from another without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Signature {
    fn of(data: &fs::Metadata) -> Self {
        Self {
            file: (data.dev(), data.ino()),
            size: data.size(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        }
    }
}

/// File systems count time in steps, the coarsest of 2 s: a file that changed within
/// the step in which it was read may change once more and look the same.
const STEP: Duration = Duration::from_secs(2);

/// Whether a file with this signature must be read again next time.
pub(super) fn racy(signature: &Signature) -> bool {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX));
    let step = i64::try_from(STEP.as_secs()).unwrap_or(0);
    signature.modified.0.max(signature.changed.0).saturating_add(step) >= now
}

/// What is in the folder.
#[derive(Default)]
pub(super) struct Listing {
    /// Paths relative to the folder.
    pub(super) files: BTreeMap<PathBuf, Signature>,
    /// Subfolders that could not be read, and why; nothing is known about what is in them.
    pub(super) blind: BTreeMap<PathBuf, String>,
}

/// What is at a path.
pub(super) enum At {
    File(Signature),
    Folder,
    Nothing,
    Unknown(String),
}

/// Deepest subfolder that is looked into.
const MAX_DEPTH: usize = 32;

/// Which folder this is, whatever its name leads to.
pub(super) fn identity(folder: &Path) -> io::Result<(u64, u64)> {
    let data = fs::metadata(folder)?;
    if !data.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is no folder"));
    }
    Ok((data.dev(), data.ino()))
}

/// Lists the folder; an error when it cannot be read itself.
pub(super) fn list(root: &Path) -> io::Result<Listing> {
    let mut listing = Listing::default();
    let mut seen = BTreeSet::from([identity(root)?]);
    walk(root, Path::new(""), 0, &mut seen, &mut listing)?;
    Ok(listing)
}

fn walk(
    root: &Path,
    inner: &Path,
    depth: usize,
    seen: &mut BTreeSet<(u64, u64)>,
    listing: &mut Listing,
) -> io::Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join(inner))? {
        names.push(entry?.file_name());
    }
    // In order, so that of two ways to one subfolder always the same is taken.
    names.sort();
    for name in names {
        if hidden(&name) {
            continue;
        }
        let inner = inner.join(&name);
        match at(root, &inner) {
            At::File(signature) => {
                listing.files.insert(inner, signature);
            }
            At::Folder => {
                let outcome = identity(&root.join(&inner)).and_then(|id| {
                    if depth < MAX_DEPTH && seen.insert(id) {
                        walk(root, &inner, depth + 1, seen, listing)
                    } else {
                        Ok(())
                    }
                });
                match outcome {
                    // Gone since.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => {
                        listing.blind.insert(inner, error.to_string());
                    }
                    Ok(()) => {}
                }
            }
            At::Nothing => {}
            At::Unknown(why) => {
                listing.blind.insert(inner, why);
            }
        }
    }
    Ok(())
}

/// What is at a path inside the folder. What is no manifest is nothing.
pub(super) fn at(root: &Path, inner: &Path) -> At {
    let path = root.join(inner);
    // What comes from a file is kept with its name, as text.
    let nameless = inner.to_str().is_none();
    match fs::metadata(&path) {
        Ok(data) if nameless && (data.is_dir() || manifest_by_extension(inner)) => {
            At::Unknown("its name is not UTF-8; rename it".into())
        }
        Ok(data) if data.is_dir() => At::Folder,
        Ok(data) if data.is_file() && format(inner).is_some() => At::File(Signature::of(&data)),
        Ok(_) => At::Nothing,
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => At::Nothing,
            _ if format(inner).is_none() => At::Nothing,
            _ => At::Unknown(error.to_string()),
        },
    }
}

/// Whether a folder on the way to a path is a link.
pub(super) fn through_link(root: &Path, inner: &Path) -> bool {
    inner
        .ancestors()
        .skip(1)
        .filter(|folder| !folder.as_os_str().is_empty())
        .any(|folder| fs::symlink_metadata(root.join(folder)).is_ok_and(|data| data.is_symlink()))
}

/// How a file is written, by its name; `None`: it is no manifest.
pub(super) fn format(path: &Path) -> Option<Format> {
    path.file_name().and_then(OsStr::to_str).and_then(Format::of)
}

/// As [`format`], also for names that are not UTF-8.
fn manifest_by_extension(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    extension.is_some_and(|extension| Format::of(&format!("x.{extension}")).is_some())
}

fn hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Reads a file, with one byte more than may be, so that too long a one is noticed,
/// and says what it looked like when it was opened.
pub(super) fn read(root: &Path, inner: &Path) -> io::Result<(Signature, Vec<u8>)> {
    let file = fs::File::open(root.join(inner))?;
    let signature = Signature::of(&file.metadata()?);
    let mut bytes = Vec::new();
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes)?;
    Ok((signature, bytes))
}

/// What an event of the operating system may have changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Touched {
    Nothing,
    Files(Vec<PathBuf>),
    Everything,
}

/// Reads an event. `root` is the folder, whose parent is watched as well.
pub(super) fn touched(root: &Path, event: notify::Result<Event>) -> Touched {
    let Ok(event) = event else { return Touched::Everything };
    if event.need_rescan() {
        return Touched::Everything;
    }
    let data_only = match event.kind {
        EventKind::Access(event::AccessKind::Close(event::AccessMode::Write)) => true,
        // Our own reading is among these.
        EventKind::Access(_) => return Touched::Nothing,
        EventKind::Modify(event::ModifyKind::Data(_)) => true,
        _ => false,
    };
    let mut files = Vec::new();
    for path in &event.paths {
        let Ok(inner) = path.strip_prefix(root) else { continue };
        let hidden_at = inner.components().position(|part| hidden(part.as_os_str()));
        let last = inner.components().count().saturating_sub(1);
        match hidden_at {
            // Kubernetes swaps `..data` under links to what is in it.
            Some(at) if at == last && inner.as_os_str().as_encoded_bytes().ends_with(b"..data") => {
                return Touched::Everything;
            }
            Some(_) => {}
            None if inner.as_os_str().is_empty() => return Touched::Everything,
            None if format(inner).is_some() => files.push(inner.to_owned()),
            None if data_only => {}
            // Perhaps a folder, with files in it.
            None => return Touched::Everything,
        }
    }
    if files.is_empty() { Touched::Nothing } else { Touched::Files(files) }
}
