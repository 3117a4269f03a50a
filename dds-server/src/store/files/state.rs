//! What outlives the process: the lineage with the revisions it has given out,
//! and the accepted version of each resource.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rulecast_api::{
    Digest, Kinds, ResourceId,
    manifest::{self, Format},
};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::store::{Origin, StoreError, Stored, Version, digest};

/// Revisions are reserved on disk in blocks of so many before they are used.
const BLOCK: i64 = 4096;
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct LineageFile {
    version: u32,
    lineage: String,
    /// No revision above this was ever given out.
    reserved: i64,
}

#[derive(Serialize, Deserialize)]
struct KeptFile {
    version: u32,
    lineage: String,
    revision: i64,
    digest: String,
    file: String,
    line: u32,
    manifest: Value,
}

/// The state folder, locked.
pub(super) struct State {
    folder: PathBuf,
    // Holds the lock as long as it is open.
    lock: File,
    lineage: Arc<str>,
    last: i64,
    reserved: i64,
}

impl State {
    /// Locks the folder and reads it. Of the resources kept, those come back that are
    /// whole; the revisions of another lineage are given anew.
    pub(super) fn open(folder: &Path, kinds: Kinds) -> Result<(Self, Vec<Stored>), StoreError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::State { path, source }
        };
        let lock = lock(folder)?;

        let path = folder.join("lineage.json");
        let known = match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice::<LineageFile>(&bytes) {
                Ok(file) if file.version == VERSION && file.reserved >= 0 => Some(file),
                _ => {
                    tracing::warn!(path = %path.display(), "the lineage is damaged; a new one begins");
                    None
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(&path)(error)),
        };
        let (lineage, reserved) = match known {
            Some(file) => (file.lineage, file.reserved),
            None => {
                let mut bytes = [0; 16];
                fill_random(&mut bytes);
                (hex::encode(bytes), 0)
            }
        };
        let mut state = Self {
            folder: folder.to_owned(),
            lock,
            lineage: lineage.into(),
            // What the earlier process gave out is not known; nothing above `reserved` is.
            last: reserved,
            reserved,
        };
        state.reserve()?;
        let kept = state.load(kinds)?;
        Ok((state, kept))
    }

    /// Whether the folder has lost what it held: it was removed, or put back by someone.
    fn lost(&self) -> bool {
        let same = |held: &fs::Metadata, there: &fs::Metadata| {
            (held.dev(), held.ino()) == (there.dev(), there.ino())
        };
        match (self.lock.metadata(), fs::metadata(self.folder.join("lock"))) {
            (Ok(held), Ok(there)) => !same(&held, &there),
            (_, Err(error)) => error.kind() == io::ErrorKind::NotFound,
            (Err(_), _) => false,
        }
    }

    /// When somebody has removed the folder under us: locks and writes it again, with all
    /// that is in force, so that a restart knows as much as this process. True: it had to.
    pub(super) fn restore<'a>(
        &mut self,
        in_force: impl Iterator<Item = &'a Stored>,
    ) -> Result<bool, StoreError> {
        if !self.lost() {
            return Ok(false);
        }
        let lock = lock(&self.folder)?;
        self.reserve()?;
        for stored in in_force {
            self.keep(stored)?;
        }
        // Last: until then it counts as lost, and all of this is tried again.
        self.lock = lock;
        Ok(true)
    }

    pub(super) fn lineage(&self) -> Arc<str> {
        self.lineage.clone()
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The last revision given out.
    pub(super) fn revision(&self) -> i64 {
        self.last
    }

    /// A revision that no one has seen before.
    pub(super) fn next(&mut self) -> Result<i64, StoreError> {
        if self.last >= self.reserved {
            self.reserve()?;
        }
        self.last += 1;
        Ok(self.last)
    }

    fn reserve(&mut self) -> Result<(), StoreError> {
        let path = self.folder.join("lineage.json");
        let reserved = self.last.saturating_add(BLOCK);
        let file = LineageFile { version: VERSION, lineage: self.lineage.to_string(), reserved };
        make_folder(&self.folder)
            .and_then(|()| write(&path, &serde_json::to_vec(&file)?, Durable::Power))
            .map_err(|source| StoreError::State { path, source })?;
        self.reserved = reserved;
        Ok(())
    }

    fn load(&mut self, kinds: Kinds) -> Result<Vec<Stored>, StoreError> {
        let folder = self.folder.join("accepted");
        let failed = |source| StoreError::State { path: folder.clone(), source };
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut kept = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match self.load_one(kinds, &path)? {
                Some(stored) => kept.push(stored),
                None => tracing::warn!(
                    path = %path.display(),
                    "an accepted version is damaged or of a kind no longer known; it is ignored"
                ),
            }
        }
        Ok(kept)
    }

    fn load_one(&mut self, kinds: Kinds, path: &Path) -> Result<Option<Stored>, StoreError> {
        let Some(file) =
            fs::read(path).ok().and_then(|b| serde_json::from_slice::<KeptFile>(&b).ok())
        else {
            return Ok(None);
        };
        let text = file.manifest.to_string();
        let read = manifest::parse(kinds, text.as_bytes(), Format::Json);
        let Some(resource) = read.documents.into_iter().next().and_then(|d| d.outcome.ok()) else {
            return Ok(None);
        };
        let digest = digest(&resource);
        if file.version != VERSION || digest.to_string() != file.digest {
            return Ok(None);
        }
        let known = *file.lineage == *self.lineage && file.revision <= self.last;
        let revision = if known { file.revision } else { self.next()? };
        Ok(Some(Stored {
            resource,
            revision,
            digest,
            origin: Origin { file: file.file.into(), line: file.line },
            accepted: true,
            version: Version::default(),
        }))
    }

    fn path(&self, what: &str, id: &ResourceId) -> PathBuf {
        let name = Digest::of(format!("{} {}", id.kind.type_name, id.key()).as_bytes());
        let name = hex::encode(name.as_bytes().get(..16).unwrap_or_default());
        self.folder.join(what).join(format!("{name}.json"))
    }

    /// Keeps an accepted version.
    pub(super) fn keep(&self, stored: &Stored) -> Result<(), StoreError> {
        let file = KeptFile {
            version: VERSION,
            lineage: self.lineage.to_string(),
            revision: stored.revision,
            digest: stored.digest.to_string(),
            file: stored.origin.file.to_string(),
            line: stored.origin.line,
            manifest: manifest::to_json(&stored.resource),
        };
        self.write_json(self.path("accepted", &stored.resource.id), &file)
    }

    /// Forgets a resource.
    pub(super) fn forget(&self, id: &ResourceId) -> Result<(), StoreError> {
        for what in ["accepted", "status"] {
            let path = self.path(what, id);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::State { path, source: error });
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn write_status(&self, id: &ResourceId, status: &Value) -> Result<(), StoreError> {
        self.write_json(self.path("status", id), status)
    }

    pub(super) fn read_status(&self, id: &ResourceId) -> Result<Option<Value>, StoreError> {
        let path = self.path("status", id);
        match fs::read(&path) {
            // A status that a loss of power has damaged is none.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::State { path, source }),
        }
    }

    /// Whole or not at all when the process is killed; after a loss of power it may be
    /// damaged, which a reader notices.
    fn write_json(&self, path: PathBuf, value: &impl Serialize) -> Result<(), StoreError> {
        let outcome = (|| {
            if let Some(folder) = path.parent() {
                make_folder(folder)?;
            }
            write(&path, &serde_json::to_vec(value)?, Durable::Process)
        })();
        outcome.map_err(|source| StoreError::State { path, source })
    }
}

/// Makes the folder when it is missing, and takes it for this process alone.
fn lock(folder: &Path) -> Result<File, StoreError> {
    let path = folder.join("lock");
    let failed = |source| StoreError::State { path: path.clone(), source };
    make_folder(folder).map_err(failed)?;
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(0o600);
    let lock = options.open(&path).map_err(failed)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::Locked { folder: folder.to_owned() }),
        Err(error) => Err(failed(error.into())),
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[derive(PartialEq, Eq)]
pub(super) enum Durable {
    /// Outlives the process.
    Process,
    /// Outlives a loss of power.
    Power,
}

/// Replaces a file at once.
pub(super) fn write(path: &Path, bytes: &[u8], durable: Durable) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    // Hidden, so that it is no rule where the folder is one of rules.
    let temporary = folder.join(format!(".rulecast-{:016x}.tmp", fastrand::u64(..)));
    let outcome = (|| {
        let mut file = File::options().write(true).create_new(true).open(&temporary)?;
        file.write_all(bytes)?;
        if durable == Durable::Power {
            file.sync_all()?;
        }
        fs::rename(&temporary, path)?;
        if durable == Durable::Power {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    })();
    if outcome.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    outcome
}

fn fill_random(bytes: &mut [u8]) {
    // A name, no secret; 128 bits of the process's generator, seeded by the system.
    fastrand::fill(bytes);
}
