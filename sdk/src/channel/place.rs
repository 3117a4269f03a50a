//! An address that calls go to, as long as endpoints of the service have it.

use std::{
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tonic::transport::Channel;

use super::balance::hash;

/// How long an address is passed over after a connection to it failed, if others are left;
/// doubles with each failure.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) address: Box<str>,
    pub(super) hash: u64,
    /// Made with the first call; closes when the place is gone and its calls have ended.
    pub(super) channel: OnceLock<Channel>,
    open: AtomicU32,
    failures: AtomicU32,
    /// Milliseconds since [`START`]; 0: no rest.
    rests_until: AtomicU64,
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

fn now() -> u64 {
    START.elapsed().as_millis() as u64
}

impl Place {
    pub(super) fn new(address: &str) -> Self {
        Self {
            address: address.into(),
            hash: hash(address.as_bytes()),
            channel: OnceLock::new(),
            open: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            rests_until: AtomicU64::new(0),
        }
    }

    /// Calls under way.
    pub(super) fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether connections failed a short while ago.
    pub(super) fn rests(&self) -> bool {
        match self.rests_until.load(Ordering::Relaxed) {
            0 => false,
            until => now() < until,
        }
    }

    /// A connection could not be opened, or broke off.
    pub(super) fn disconnected(&self) {
        // Calls that fail together count as one failure.
        if self.rests() {
            return;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let rest = FIRST_REST.saturating_mul(1 << failures.min(16)).min(LONGEST_REST);
        let rest = rest.mul_f64(0.75 + fastrand::f64() / 2.0).as_millis() as u64;
        self.rests_until.store(now() + rest.max(1), Ordering::Relaxed);
    }

    /// It answers.
    pub(super) fn answered(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
            self.rests_until.store(0, Ordering::Relaxed);
        }
    }
}

/// Counts a call as under way until it is dropped.
#[derive(Debug)]
pub(super) struct Open(Arc<Place>);

impl Open {
    pub(super) fn new(place: Arc<Place>) -> Self {
        place.open.fetch_add(1, Ordering::Relaxed);
        Self(place)
    }

    pub(super) fn place(&self) -> &Arc<Place> {
        &self.0
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_after_failures_until_it_answers() {
        let place = Place::new("a:1");
        assert!(!place.rests());
        place.failures.store(10, Ordering::Relaxed);
        place.disconnected();
        assert!(place.rests());
        place.disconnected();
        assert_eq!(place.failures.load(Ordering::Relaxed), 11);
        place.answered();
        assert!(!place.rests());
    }

    #[test]
    fn counts_what_is_open() {
        let place = Arc::new(Place::new("a:1"));
        let (first, second) = (Open::new(place.clone()), Open::new(place.clone()));
        assert_eq!(place.open(), 2);
        drop((first, second));
        assert_eq!(place.open(), 0);
    }
}
