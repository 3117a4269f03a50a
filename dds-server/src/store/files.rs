//! A folder of manifests as a store.
//!
//! One thread owns all of it: it watches the folder, reads what changed, decides
//! what is in force and keeps that in the state folder. Everything else talks to
//! it by messages.

mod edit;
mod folder;
mod state;
mod worker;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use futures_util::future::BoxFuture;
use rulecast_api::{Kinds, Resource, ResourceId};
use tokio::sync::{mpsc as channel, oneshot};

use super::{Expected, Store, StoreError, Watch};
use state::State;
use worker::{Message, Worker};

/// What a [`FileStore`] goes by.
#[derive(Clone, Debug)]
pub struct FileStoreConfig {
    /// The folder of rules, read with its subfolders: `*.yaml`, `*.yml` and `*.json`,
    /// without hidden ones. While it is missing the store is down.
    pub folder: PathBuf,
    /// Where revisions and accepted versions are kept; made when missing. It belongs
    /// to one process at a time, and must not be a visible subfolder of `folder`.
    pub state: PathBuf,
    /// The kinds that may occur.
    pub kinds: Kinds,
    /// Changes are read once there was none for so long.
    pub quiet: Duration,
    /// But never later than this after the first of them.
    pub ceiling: Duration,
    /// The whole folder is looked at so often, for changes that no event tells of.
    pub rescan: Duration,
    /// A file that is empty, and was not, is believed after this.
    pub empty_doubt: Duration,
    /// A file that is missing is believed after this: some editors delete before they write.
    pub missing_doubt: Duration,
    /// A list that lacks more than half of twenty or more rules is believed when it
    /// still does after this.
    pub mass_doubt: Duration,
}

impl FileStoreConfig {
    /// With the usual times: 15 ms quiet, 100 ms ceiling, a look at the folder every
    /// 2 s, and doubts of 1 s, 50 ms and 3 s.
    pub fn new(folder: impl Into<PathBuf>, state: impl Into<PathBuf>, kinds: Kinds) -> Self {
        Self {
            folder: folder.into(),
            state: state.into(),
            kinds,
            quiet: Duration::from_millis(15),
            ceiling: Duration::from_millis(100),
            rescan: Duration::from_secs(2),
            empty_doubt: Duration::from_secs(1),
            missing_doubt: Duration::from_millis(50),
            mass_doubt: Duration::from_secs(3),
        }
    }
}

/// A folder of manifests, watched. Dropping it ends its thread and frees the state folder.
#[derive(Debug)]
pub struct FileStore {
    lineage: Arc<str>,
    messages: mpsc::Sender<Message>,
    thread: Option<JoinHandle<()>>,
}

impl FileStore {
    /// Locks and reads the state folder and begins to watch. The folder of rules need
    /// not be there yet. Blocks for as long as the state folder takes to read.
    pub fn open(mut config: FileStoreConfig) -> Result<Self, StoreError> {
        let absolute = |path: &Path| {
            std::path::absolute(path)
                .map_err(|source| StoreError::State { path: path.to_owned(), source })
        };
        config.folder = absolute(&config.folder)?;
        config.state = absolute(&config.state)?;
        let visible = config.state.strip_prefix(&config.folder).is_ok_and(|inner| {
            !inner.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(b"."))
        });
        if visible {
            let source = std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "it is inside the folder of rules, and would be read as rules",
            );
            return Err(StoreError::State { path: config.state, source });
        }
        let (state, kept) = State::open(&config.state, config.kinds)?;
        let lineage = state.lineage();
        let (messages, inbox) = mpsc::channel();
        let worker = Worker::new(config, state, kept, messages.clone());
        let path = worker.state_path();
        let thread = std::thread::Builder::new()
            .name("rule-files".into())
            .spawn(move || worker.run(&inbox))
            .map_err(|source| StoreError::State { path, source })?;
        Ok(Self { lineage, messages, thread: Some(thread) })
    }

    fn ask<T: Send + 'static>(
        &self,
        message: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Message,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        let (reply, answer) = oneshot::channel();
        let sent = self.messages.send(message(reply)).is_ok();
        Box::pin(async move {
            if !sent {
                return Err(StoreError::Ended);
            }
            answer.await.unwrap_or(Err(StoreError::Ended))
        })
    }
}

/// Batches that a watcher may be behind before it gets a new list instead.
const BACKLOG: usize = 64;

impl Store for FileStore {
    fn lineage(&self) -> Arc<str> {
        self.lineage.clone()
    }

    fn watch(&self) -> Watch {
        let (sender, receiver) = channel::channel(BACKLOG);
        // When the thread has ended, the watch ends at once.
        let _ = self.messages.send(Message::Watch(sender));
        Watch::new(receiver)
    }

    fn put(
        &self,
        resource: Resource,
        expected: Expected,
    ) -> BoxFuture<'_, Result<i64, StoreError>> {
        self.ask(|reply| Message::Put(resource, expected, reply))
    }

    fn delete(&self, id: ResourceId, expected: Expected) -> BoxFuture<'_, Result<i64, StoreError>> {
        self.ask(|reply| Message::Delete(id, expected, reply))
    }

    fn write_status(
        &self,
        id: ResourceId,
        status: serde_json::Value,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        self.ask(|reply| Message::WriteStatus(id, status, reply))
    }

    fn read_status(
        &self,
        id: ResourceId,
    ) -> BoxFuture<'_, Result<Option<serde_json::Value>, StoreError>> {
        self.ask(|reply| Message::ReadStatus(id, reply))
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        let _ = self.messages.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
