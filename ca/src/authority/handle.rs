//! The authority in use, which changes when its intermediate or its root does.

use std::sync::Arc;

use tokio::sync::watch;

use super::Authority;

/// A handle to the authority in use. Clones share it.
#[derive(Clone, Debug)]
pub struct AuthorityHandle {
    current: watch::Receiver<Arc<Authority>>,
}

/// Replaces what [`AuthorityHandle`]s give.
#[derive(Debug)]
pub struct AuthorityUpdater {
    current: watch::Sender<Arc<Authority>>,
}

impl AuthorityHandle {
    /// A handle, and what replaces its content. A handle outlives its updater
    /// and goes on giving the last content.
    pub fn new(authority: Authority) -> (Self, AuthorityUpdater) {
        let (sender, receiver) = watch::channel(Arc::new(authority));
        (Self { current: receiver }, AuthorityUpdater { current: sender })
    }

    /// The authority in use.
    pub fn current(&self) -> Arc<Authority> {
        self.current.borrow().clone()
    }

    /// To wait for another one: with another intermediate, or another bundle.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Authority>> {
        self.current.clone()
    }
}

impl AuthorityUpdater {
    /// Gives `authority` from now on.
    pub fn replace(&self, authority: Authority) {
        self.current.send_replace(Arc::new(authority));
    }
}
