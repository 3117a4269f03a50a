//! What is known, shared between those who read it and those who learn of it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rulecast_api::Kinds;
use tokio::sync::{Notify, mpsc, watch};

use super::state::State;
use crate::store::{Event, Watch};

/// Batches that a watcher may be behind before it gets a new list instead.
const BACKLOG: usize = 64;
/// How often one that is behind is looked at.
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct Hub {
    inner: Mutex<Inner>,
    /// Counts changes of what is known.
    changes: watch::Sender<u64>,
    /// The epoch, for those who follow a kind.
    epoch: watch::Sender<u64>,
    behind: Notify,
}

struct Inner {
    state: State,
    subscribers: Vec<Subscriber>,
    /// Nothing more will be learnt.
    ended: bool,
}

struct Subscriber {
    sender: mpsc::Sender<Vec<Event>>,
    /// It has no list yet, or has missed a batch, and gets a list as soon as it has room.
    behind: bool,
}

impl Hub {
    pub(super) fn new(kinds: Kinds) -> Arc<Self> {
        let inner = Inner { state: State::new(kinds), subscribers: Vec::new(), ended: false };
        Arc::new(Self {
            inner: Mutex::new(inner),
            changes: watch::Sender::new(0),
            epoch: watch::Sender::new(0),
            behind: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes what is known, and tells watchers.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut inner = self.lock();
        let result = act(&mut inner.state);
        inner.publish();
        if inner.subscribers.iter().any(|subscriber| subscriber.behind) {
            self.behind.notify_one();
        }
        let epoch = inner.state.epoch();
        drop(inner);
        self.epoch.send_if_modified(|known| std::mem::replace(known, epoch) != epoch);
        self.changes.send_modify(|count| *count += 1);
        result
    }

    /// Only reads it.
    pub(super) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.lock().state)
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn epoch(&self) -> watch::Receiver<u64> {
        self.epoch.subscribe()
    }

    pub(super) fn watch(&self) -> Watch {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let mut inner = self.lock();
        // When the store has ended, so has the watch.
        if !inner.ended {
            let mut subscriber = Subscriber { sender, behind: true };
            subscriber.catch_up(&inner.state);
            inner.subscribers.push(subscriber);
        }
        Watch::new(receiver)
    }

    /// Ends all watches.
    pub(super) fn end(&self) {
        let mut inner = self.lock();
        inner.ended = true;
        inner.subscribers.clear();
        drop(inner);
        self.changes.send_modify(|count| *count += 1);
    }

    pub(super) fn ended(&self) -> bool {
        self.lock().ended
    }

    /// Gives lists to watchers that are behind, as they make room.
    pub(super) async fn serve_lists(&self) {
        loop {
            self.behind.notified().await;
            loop {
                let waiting = self.lock().catch_up();
                if !waiting {
                    break;
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

impl Inner {
    fn publish(&mut self) {
        let output = self.state.output();
        self.subscribers.retain(|subscriber| !subscriber.sender.is_closed());
        if output.all {
            self.subscribers.iter_mut().for_each(|subscriber| subscriber.behind = true);
        } else if !output.events.is_empty() {
            // Whoever has no list yet still learns why.
            let early = !self.state.given();
            for subscriber in self.subscribers.iter_mut().filter(|s| early || !s.behind) {
                if let Err(mpsc::error::TrySendError::Full(_)) =
                    subscriber.sender.try_send(output.events.clone())
                {
                    subscriber.behind = true;
                }
            }
        }
        if output.all {
            self.catch_up();
        }
    }

    /// True: somebody is still behind who could catch up.
    fn catch_up(&mut self) -> bool {
        let Self { state, subscribers, .. } = self;
        subscribers.retain(|subscriber| !subscriber.sender.is_closed());
        for subscriber in subscribers.iter_mut().filter(|subscriber| subscriber.behind) {
            if subscriber.sender.capacity() > 0 && state.given() {
                subscriber.catch_up(state);
            }
        }
        state.given() && subscribers.iter().any(|subscriber| subscriber.behind)
    }
}

impl Subscriber {
    fn catch_up(&mut self, state: &State) {
        let list = state.list();
        if !list.is_empty() && self.sender.try_send(list).is_ok() {
            self.behind = !state.given();
        }
    }
}
