//! Readiness: a process is ready when nothing named blocks it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

/// The set of blockers of one process. Clones share it.
#[derive(Clone, Debug)]
pub struct Readiness {
    blockers: Arc<Mutex<BTreeMap<String, String>>>,
    ready: watch::Sender<bool>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { blockers: Arc::default(), ready: watch::Sender::new(true) }
    }
}

impl Readiness {
    /// A set that is ready until something blocks it.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        // The map is whole after any panic: each change is one call.
        self.blockers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets or replaces the blocker `name`; `why` is for people.
    pub fn block(&self, name: &str, why: impl Into<String>) {
        self.lock().insert(name.to_owned(), why.into());
        self.ready.send_replace(false);
    }

    /// Takes the blocker away, if it is there.
    pub fn clear(&self, name: &str) {
        let mut blockers = self.lock();
        blockers.remove(name);
        self.ready.send_replace(blockers.is_empty());
    }

    /// Whether nothing blocks.
    pub fn is_ready(&self) -> bool {
        self.lock().is_empty()
    }

    /// The blockers, `name: why`, by name.
    pub fn blockers(&self) -> Vec<String> {
        self.lock().iter().map(|(name, why)| format!("{name}: {why}")).collect()
    }

    /// Follows readiness.
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_ready_when_no_name_blocks() {
        let readiness = Readiness::new();
        readiness.block("store", "first list");
        readiness.block("identity", "no certificate");
        readiness.clear("store");
        assert!(!readiness.is_ready());
        assert_eq!(readiness.blockers(), ["identity: no certificate"]);
        readiness.clear("identity");
        readiness.clear("never there");
        assert!(readiness.is_ready() && *readiness.watch().borrow());
    }
}
