//! What each namespace has and lacks, and when to write next. Without I/O: what is seen and
//! the time go in, names of namespaces come out.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::{Duration, Instant},
};

/// Known by content: two bundles are equal when these are.
pub(super) type Digest = [u8; 32];

/// Least time between two writes to one namespace, whoever undoes them.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest pause after failures; the first is [`PAUSE`], and each doubles.
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// What is seen of one kind of object, by namespace. A list replaces what was seen when it
/// is complete, and not before.
#[derive(Debug)]
pub(super) struct Seen<T> {
    now: HashMap<String, T>,
    listing: Option<HashMap<String, T>>,
    complete: bool,
}

/// One step of a watch.
#[derive(Debug)]
pub(super) enum Step<T> {
    /// A list begins.
    Begin,
    /// It has this.
    Listed(String, T),
    /// It is complete.
    End,
    /// This was made or changed.
    Changed(String, T),
    /// This is gone.
    Gone(String),
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self { now: HashMap::new(), listing: None, complete: false }
    }
}

impl<T: PartialEq> Seen<T> {
    /// The namespaces about which something else is known now.
    fn take(&mut self, step: Step<T>) -> Vec<String> {
        match step {
            Step::Begin => self.listing = Some(HashMap::new()),
            Step::Listed(name, value) => {
                self.listing.get_or_insert_default().insert(name, value);
            }
            Step::End => {
                let listed = self.listing.take().unwrap_or_default();
                let before = std::mem::replace(&mut self.now, listed);
                self.complete = true;
                let names: HashSet<&String> = before.keys().chain(self.now.keys()).collect();
                return names
                    .into_iter()
                    .filter(|name| before.get(*name) != self.now.get(*name))
                    .cloned()
                    .collect();
            }
            Step::Changed(name, value) => {
                self.now.insert(name.clone(), value);
                return vec![name];
            }
            Step::Gone(name) => {
                self.now.remove(&name);
                return vec![name];
            }
        }
        Vec::new()
    }
}

/// Whether a namespace can hold a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// It can.
    Open,
    /// It is being deleted: nothing can be made in it.
    Terminating,
}

#[derive(Debug, Default)]
struct Slot {
    failures: u32,
    not_before: Option<Instant>,
    queued: Option<Instant>,
    /// Something is written to it now.
    write: Option<Write>,
}

/// A write under way.
#[derive(Debug, Default)]
struct Write {
    /// The watch has told of the bundle since it began, perhaps of what came after it.
    told: bool,
}

/// The state of all namespaces.
#[derive(Debug)]
pub(super) struct Ledger {
    wanted: Digest,
    skip: HashSet<String>,
    spaces: Seen<Space>,
    held: Seen<Digest>,
    slots: HashMap<String, Slot>,
    queue: BTreeSet<(Instant, String)>,
}

impl Ledger {
    /// Of the bundle that everybody but `skip` should have.
    pub(super) fn new(wanted: Digest, skip: impl IntoIterator<Item = String>) -> Self {
        Self {
            wanted,
            skip: skip.into_iter().collect(),
            spaces: Seen::default(),
            held: Seen::default(),
            slots: HashMap::new(),
            queue: BTreeSet::new(),
        }
    }

    /// Another bundle is wanted from now on.
    pub(super) fn want(&mut self, wanted: Digest, now: Instant) {
        if self.wanted != wanted {
            self.wanted = wanted;
            self.touch_all(now);
        }
    }

    /// Something was seen of namespaces.
    pub(super) fn space(&mut self, step: Step<Space>, now: Instant) {
        let first = !self.is_complete();
        let names = self.spaces.take(step);
        self.touch(names, first, now);
    }

    /// Something was seen of bundles.
    pub(super) fn bundle(&mut self, step: Step<Digest>, now: Instant) {
        let first = !self.is_complete();
        let listed = matches!(step, Step::End);
        let names = self.held.take(step);
        for name in &names {
            if let Some(Slot { write: Some(write), .. }) = self.slots.get_mut(name) {
                write.told = true;
            }
        }
        if listed {
            // Of all of them, also where it is as before.
            for write in self.slots.values_mut().filter_map(|slot| slot.write.as_mut()) {
                write.told = true;
            }
        }
        self.touch(names, first, now);
    }

    /// The next namespace to write to; [`done`](Self::done) must follow.
    pub(super) fn pop(&mut self, now: Instant) -> Option<String> {
        while let Some((at, _)) = self.queue.first() {
            if *at > now {
                return None;
            }
            let (_, name) = self.queue.pop_first()?;
            let slot = self.slots.entry(name.clone()).or_default();
            slot.queued = None;
            if self.lacks(&name) {
                self.slots.entry(name.clone()).or_default().write = Some(Write::default());
                return Some(name);
            }
        }
        None
    }

    /// When [`pop`](Self::pop) gives the next one; `None`: not before something is seen.
    pub(super) fn due(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// What became of a write of `written`. The pause until the next attempt if it failed.
    pub(super) fn done(
        &mut self,
        name: &str,
        written: Option<Digest>,
        now: Instant,
    ) -> Option<Duration> {
        // It may be gone meanwhile.
        let slot = self.slots.get_mut(name)?;
        let told = slot.write.take().is_some_and(|write| write.told);
        let pause = match written {
            Some(digest) => {
                slot.failures = 0;
                // Until the watch tells. What it told already may be newer than this; if it
                // is older, it only leads to another look.
                if !told {
                    self.held.now.insert(name.into(), digest);
                }
                PAUSE
            }
            None => {
                let pause = PAUSE * 2u32.saturating_pow(slot.failures.min(16));
                slot.failures = slot.failures.saturating_add(1);
                pause.min(MAX_PAUSE)
            }
        };
        slot.not_before = Some(now + pause);
        self.look(name, now);
        written.is_none().then_some(pause)
    }

    /// Namespaces whose last write failed.
    pub(super) fn failing(&self) -> usize {
        self.slots.values().filter(|slot| slot.failures > 0).count()
    }

    /// Whether both kinds were listed once. Before that everything seems to be missing.
    fn is_complete(&self) -> bool {
        self.spaces.complete && self.held.complete
    }

    fn lacks(&self, name: &str) -> bool {
        self.spaces.now.get(name) == Some(&Space::Open)
            && !self.skip.contains(name)
            && self.held.now.get(name) != Some(&self.wanted)
    }

    fn touch(&mut self, names: Vec<String>, first: bool, now: Instant) {
        if !self.is_complete() {
            return;
        }
        if first {
            return self.touch_all(now);
        }
        for name in names {
            self.look(&name, now);
        }
    }

    fn touch_all(&mut self, now: Instant) {
        if self.is_complete() {
            let names: Vec<_> = self.spaces.now.keys().cloned().collect();
            for name in names {
                self.look(&name, now);
            }
        }
    }

    fn look(&mut self, name: &str, now: Instant) {
        let lacks = self.lacks(name);
        if !self.spaces.now.contains_key(name) {
            if let Some(Slot { queued: Some(at), .. }) = self.slots.remove(name) {
                self.queue.remove(&(at, name.to_owned()));
            }
            return;
        }
        let slot = self.slots.entry(name.to_owned()).or_default();
        if !lacks {
            slot.failures = 0;
            if let Some(at) = slot.queued.take() {
                self.queue.remove(&(at, name.to_owned()));
            }
        } else if slot.write.is_none() && slot.queued.is_none() {
            let at = slot.not_before.map_or(now, |at| at.max(now));
            slot.queued = Some(at);
            self.queue.insert((at, name.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests;
