//! Where rules come from.
//!
//! A store lists and watches typed resources, and knows how to keep the last
//! good version of one whose stored text went bad. It says what is; it never
//! decides who sees it.

#[cfg(any(test, feature = "test-support"))]
pub mod conformance;
pub mod files;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;

use std::{
    fmt::{self, Write as _},
    path::PathBuf,
    sync::Arc,
};

use futures_util::future::BoxFuture;
use rulecast_api::{Code, Digest, Resource, ResourceId};
use tokio::sync::mpsc;

pub use files::{FileStore, FileStoreConfig};
#[cfg(feature = "kubernetes")]
pub use kubernetes::{KubernetesStore, KubernetesStoreConfig};

/// Where a resource is written down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// Path relative to the store's folder; a store without files says its own name for it.
    pub file: Arc<str>,
    /// Line of the document, from 1; 0 in a store without files.
    pub line: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        Ok(())
    }
}

/// Which writing of an object is spoken of. Status belongs to one writing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Version {
    /// Tells objects apart that had the same name one after the other; empty where a store
    /// has none.
    pub uid: Arc<str>,
    /// Grows with each writing of the spec; 0 where a store has none.
    pub generation: i64,
}

/// A resource in force.
#[derive(Clone, Debug)]
pub struct Stored {
    /// What is in force: the stored version, or the last good one.
    pub resource: Resource,
    /// When its content last changed, in the store's order.
    pub revision: i64,
    /// Of its whole content: labels, annotations, spec and age. Equal digests, equal content.
    pub digest: Digest,
    /// Where it is, or was when it was good.
    pub origin: Origin,
    /// False: what is stored now is refused, and this is the last good version.
    pub accepted: bool,
    /// The writing that is stored now, accepted or not.
    pub version: Version,
}

/// The digest of a resource's content: kind, name, labels, annotations, spec and age.
pub fn digest(resource: &Resource) -> Digest {
    let mut content = serde_json::json!({
        "type": resource.id.kind.type_name,
        "key": resource.id.key(),
        "labels": resource.labels,
        "annotations": resource.annotations,
        "spec": resource.spec.to_json(),
    });
    // Age decides between rules, and one that was deleted and made anew is younger.
    if resource.created != 0 {
        content["created"] = resource.created.into();
    }
    Digest::of(content.to_string().as_bytes())
}

/// Something stored that could not be taken, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreProblem {
    /// Path relative to the store's folder, or a store's own name for an object; empty where it
    /// is about the store itself.
    pub file: String,
    /// From 1; 0 where no place is known.
    pub line: u32,
    /// From 1, in characters; 0 where no place is known.
    pub column: u32,
    /// For `docs/errors.md`.
    pub code: Code,
    /// Path of the field, `spec.conditions[0]`; may be empty.
    pub field: String,
    /// The value at fault, shortened.
    pub value: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: String,
    /// `<Kind> <name>/<namespace>` where it is known, else empty.
    pub resource: String,
    /// A last good version stays in force.
    pub last_good_in_force: bool,
    /// The object at fault and its writing, where a store keeps status on objects.
    pub object: Option<(ResourceId, Version)>,
}

impl fmt::Display for StoreProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.file.is_empty() {
            f.write_str(" ")?;
            // A name may hold anything, and this goes to logs.
            for c in self.file.chars() {
                if c.is_control() { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
            }
        }
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.field.is_empty() {
            write!(f, " {}", self.field)?;
        }
        if let Some(value) = &self.value {
            write!(f, " = {value:?}")?;
        }
        write!(f, ": {}", self.message)?;
        if !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        Ok(())
    }
}

/// One thing that a watcher learns.
#[derive(Clone, Debug)]
pub enum Event {
    /// Which history the revisions belong to from here on: it was not known before, or the
    /// store was set back. A complete list follows in the same batch.
    Lineage(Arc<str>),
    /// A complete list begins: what was known and is not upserted before
    /// [`Event::Listed`] is gone.
    Listing,
    /// A resource is new or has changed, in content, origin, acceptance or writing.
    Upsert(Stored),
    /// A resource is gone.
    Remove {
        /// Which.
        id: ResourceId,
        /// When, in the store's order.
        revision: i64,
    },
    /// All problems there are now; replaces the earlier list.
    Problems(Arc<[StoreProblem]>),
    /// The list that [`Event::Listing`] began is complete.
    Listed {
        /// The store's revision now.
        revision: i64,
    },
    /// The store cannot be read; what was known stays.
    Down(StoreProblem),
    /// The store can be read again.
    Up,
}

/// The events of a store, in batches that belong together: apply one as a whole.
/// The first batch is a complete list, unless the store is down.
#[derive(Debug)]
pub struct Watch(mpsc::Receiver<Vec<Event>>);

impl Watch {
    /// Wraps a channel; a store that cannot send sends a new complete list later.
    pub fn new(receiver: mpsc::Receiver<Vec<Event>>) -> Self {
        Self(receiver)
    }

    /// The next batch; `None` when the store has ended.
    pub async fn next(&mut self) -> Option<Vec<Event>> {
        self.0.recv().await
    }
}

/// What a write expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Anything.
    Any,
    /// No such resource.
    Absent,
    /// The resource, last changed at this revision.
    Revision(i64),
}

/// Why a store refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The rules cannot be read.
    #[error("{}: the rules in {} cannot be read: {reason}", Code::StoreDown, folder.display())]
    Down {
        /// The store's folder.
        folder: PathBuf,
        /// Why.
        reason: String,
    },
    /// The state folder cannot be used.
    #[error(
        "{}: the state in {} cannot be used: {source}; give a folder that this user may write",
        Code::StoreState, path.display()
    )]
    State {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process uses the state folder.
    #[error(
        "{}: another process uses the state folder {}; stop it, or give this one a folder of its own",
        Code::StoreState, folder.display()
    )]
    Locked {
        /// The state folder.
        folder: PathBuf,
    },
    /// A write met another version than it expected.
    #[error("{}: {id} is {found}, not {expected}; read it again", Code::StoreConflict)]
    Conflict {
        /// Which resource.
        id: ResourceId,
        /// What the writer expected.
        expected: String,
        /// What there is.
        found: String,
    },
    /// A resource that stands where it cannot be rewritten.
    #[error("{}: {path}: {reason}", Code::StoreFile)]
    Unwritable {
        /// The file.
        path: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The API server cannot be reached, or cannot answer.
    #[error("{}: {verb} {resource}: {reason}", Code::StoreDown)]
    Unreachable {
        /// What was tried: `update`.
        verb: &'static str,
        /// On what: `conditionroutes.dubbo.apache.org default/prefer-local`.
        resource: String,
        /// Why it failed.
        reason: String,
    },
    /// The API server does not let this process do it.
    #[error("{}: {verb} {resource}: {reason}", Code::StoreForbidden)]
    Forbidden {
        /// The verb of RBAC: `update`.
        verb: &'static str,
        /// On what: `conditionroutes.dubbo.apache.org default/prefer-local`.
        resource: String,
        /// What the server says.
        reason: String,
    },
    /// The API server takes the object for invalid.
    #[error("{}: {id}: {reason}", Code::FieldInvalid)]
    Invalid {
        /// Which resource.
        id: ResourceId,
        /// What the server says.
        reason: String,
    },
    /// The store has ended.
    #[error("{}: the store has ended", Code::StoreDown)]
    Ended,
}

impl StoreError {
    /// For `docs/errors.md`.
    pub fn code(&self) -> Code {
        match self {
            Self::Down { .. } | Self::Unreachable { .. } | Self::Ended => Code::StoreDown,
            Self::Forbidden { .. } => Code::StoreForbidden,
            Self::Invalid { .. } => Code::FieldInvalid,
            Self::State { .. } | Self::Locked { .. } => Code::StoreState,
            Self::Conflict { .. } => Code::StoreConflict,
            Self::Unwritable { .. } => Code::StoreFile,
        }
    }
}

/// A place where rules are kept.
pub trait Store: Send + Sync + 'static {
    /// Names the history that revisions belong to. Two revisions compare within
    /// one lineage only. Empty while the store does not know it yet; watchers
    /// learn a later one by [`Event::Lineage`].
    fn lineage(&self) -> Arc<str>;

    /// Begins to watch. Each watcher gets a complete list first.
    fn watch(&self) -> Watch;

    /// Writes a resource and returns the revision at which it is in force. The
    /// same content again keeps its revision.
    fn put(&self, resource: Resource, expected: Expected)
    -> BoxFuture<'_, Result<i64, StoreError>>;

    /// Deletes a resource and returns the revision of that. Deleting what is not
    /// there is a conflict unless [`Expected::Any`] or [`Expected::Absent`] is given.
    fn delete(&self, id: ResourceId, expected: Expected) -> BoxFuture<'_, Result<i64, StoreError>>;

    /// Keeps what is known about a resource beside it; changes no revision.
    fn write_status(
        &self,
        id: ResourceId,
        status: serde_json::Value,
    ) -> BoxFuture<'_, Result<(), StoreError>>;

    /// What [`Store::write_status`] kept last.
    fn read_status(
        &self,
        id: ResourceId,
    ) -> BoxFuture<'_, Result<Option<serde_json::Value>, StoreError>>;
}
