//! The pods of the cluster, as far as what a client sees depends on them.
//!
//! A certificate attests a pod by its UID; here it is joined with the pod's labels,
//! annotations and addresses. One watch of all pods keeps these of each, about 200 bytes a pod,
//! and each set of labels or annotations once. A stream [follows](Pods::follow) its own pod and
//! is told of every change.
//!
//! | what | what a stream is told |
//! |---|---|
//! | the watch knows the pod | its traits, and every change of them |
//! | a fresh pod, which the watch does not know yet | nothing, until the API server has been asked about it |
//! | the watch saw it deleted, or the API server says that it is not there | that it is gone |
//! | a new list lacks it | nothing, until the API server has been asked about it |
//! | the API server is away | nothing: what was known stays |
//!
//! A pod that is terminating is there until the API server has removed it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use crate::scope::Traits;

#[cfg(feature = "kubernetes")]
mod informer;
mod table;
#[cfg(test)]
mod tests;

#[cfg(feature = "kubernetes")]
pub use informer::{InformerEnded, inform};
pub use table::PodEvent;
use table::Table;

/// Names one pod for good. As the certificate of a client attests it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodId {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`; another pod may get it later.
    pub name: String,
    /// `metadata.uid`; no other pod ever has it.
    pub uid: Arc<str>,
}

/// How it stands with a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Not known yet.
    #[default]
    Unknown,
    /// It is there, with these traits.
    Present(Traits),
    /// It is no more.
    Gone,
}

/// How it stands with the list of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Informed {
    /// A list was complete.
    pub synced: bool,
    /// Why nothing new can be learnt now; `None` while all is well.
    pub problem: Option<String>,
}

/// The table of pods. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Pods {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    informed: watch::Sender<Informed>,
    /// There may be pods to ask about.
    doubts: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pods {
    /// An empty table, which knows nothing until it is told.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what the watch tells.
    pub fn apply(&self, event: PodEvent) {
        let listed = matches!(event, PodEvent::Listed);
        let mut table = self.shared.lock();
        table.apply(event);
        let synced = table.synced();
        drop(table);
        if listed {
            self.shared.doubts.notify_one();
        }
        self.informed(|informed| {
            informed.synced = synced;
            informed.problem = None;
        });
    }

    /// Takes what the API server says of one pod: its traits, or `None` when there is no pod
    /// with this UID.
    pub fn found(&self, pod: &PodId, traits: Option<Traits>) {
        self.shared.lock().found(&pod.uid, traits);
    }

    /// Takes that the API server could not be asked about a pod; it is doubtful again.
    pub fn not_found_out(&self, pod: &PodId) {
        self.shared.lock().not_found_out(&pod.uid);
    }

    /// Up to `most` pods that somebody follows and a complete list lacks. Each is then to be
    /// told by [`found`](Self::found) or [`not_found_out`](Self::not_found_out).
    pub fn take_doubtful(&self, most: usize) -> Vec<PodId> {
        self.shared.lock().take_doubtful(most)
    }

    /// Waits until there may be pods to ask about.
    pub async fn doubt(&self) {
        self.shared.doubts.notified().await;
    }

    /// Takes that the watch has broken, and why.
    pub fn interrupted(&self, problem: String) {
        self.informed(|informed| informed.problem = Some(problem));
    }

    /// Follows one pod until the place is dropped.
    pub fn follow(&self, pod: PodId) -> Place {
        let uid = pod.uid.clone();
        let receiver = self.shared.lock().follow(pod);
        self.shared.doubts.notify_one();
        Place { receiver: Some(receiver), uid, pods: self.clone() }
    }

    /// How it stands with the list: a plane that has had no complete list knows no pod.
    pub fn state(&self) -> watch::Receiver<Informed> {
        self.shared.informed.subscribe()
    }

    /// How many pods the watch knows.
    pub fn len(&self) -> usize {
        self.shared.lock().len()
    }

    /// Whether the watch knows none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many pods somebody follows.
    pub fn followed(&self) -> usize {
        self.shared.lock().followed()
    }

    fn informed(&self, change: impl FnOnce(&mut Informed)) {
        self.shared.informed.send_if_modified(|informed| {
            let before = informed.clone();
            change(informed);
            *informed != before
        });
    }
}

/// Somebody's place at one pod.
#[derive(Debug)]
pub struct Place {
    receiver: Option<watch::Receiver<Standing>>,
    uid: Arc<str>,
    pods: Pods,
}

impl Place {
    /// How it stands now; marks it as seen.
    pub fn standing(&mut self) -> Standing {
        self.receiver.as_mut().map(|r| r.borrow_and_update().clone()).unwrap_or_default()
    }

    /// Waits until it stands otherwise than seen last. Dropping the future loses nothing.
    pub async fn changed(&mut self) {
        if let Some(receiver) = &mut self.receiver
            && receiver.changed().await.is_ok()
        {
            return;
        }
        // The sender lives as long as this place does.
        std::future::pending().await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.pods.shared.lock();
        self.receiver = None;
        table.unfollow(&self.uid);
    }
}
