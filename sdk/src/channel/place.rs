//! An address that calls go to, as long as endpoints of the service have it.

use std::{
    sync::{
        Arc, LazyLock, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tonic::transport::Channel;

use super::balance::hash;

/// How long an address is passed over after a connection to it could not be opened, if others
/// are left; doubles with each failure.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(5);
/// How long one call at a time tries it after that.
const PROBE: Duration = Duration::from_secs(3);

/// See the module.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) address: Box<str>,
    pub(super) hash: u64,
    /// Made with the first call; closes when the place is gone and its calls have ended.
    pub(super) channel: OnceLock<Channel>,
    open: AtomicU32,
    failures: AtomicU32,
    /// Milliseconds since [`START`], as the next.
    rests_until: AtomicU64,
    probed_until: AtomicU64,
    /// Of the last failure, for the calls that fail by it.
    why: Mutex<String>,
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
            probed_until: AtomicU64::new(0),
            why: Mutex::default(),
        }
    }

    /// Calls under way.
    pub(super) fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether a connection could not be opened a moment ago.
    pub(super) fn rests(&self) -> bool {
        self.failures.load(Ordering::Relaxed) != 0
            && now() < self.rests_until.load(Ordering::Relaxed)
    }

    /// Whether a call should go there while there are others. After a rest only one is told so,
    /// until it is known how it fares: connections that hang are waited for by few.
    pub(super) fn takes_calls(&self) -> bool {
        if self.failures.load(Ordering::Relaxed) == 0 {
            return true;
        }
        let now = now();
        let probed = self.probed_until.load(Ordering::Relaxed);
        let next = now + PROBE.as_millis() as u64;
        now >= self.rests_until.load(Ordering::Relaxed)
            && now >= probed
            && self
                .probed_until
                .compare_exchange(probed, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Why no connection could be opened the last time; empty when nobody said.
    pub(super) fn why(&self) -> String {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A connection could not be opened.
    pub(super) fn unreachable(&self, why: String) {
        // Calls that fail together count as one failure.
        if self.rests() {
            return;
        }
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = why;
        let failures = self.failures.load(Ordering::Relaxed);
        let rest = FIRST_REST.saturating_mul(1 << failures.min(16)).min(LONGEST_REST);
        let rest = rest.mul_f64(0.75 + fastrand::f64() / 2.0).as_millis() as u64;
        self.rests_until.store(now() + rest, Ordering::Relaxed);
        self.probed_until.store(0, Ordering::Relaxed);
        self.failures.store(failures.saturating_add(1), Ordering::Relaxed);
    }

    /// There is a connection.
    pub(super) fn reached(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
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
    fn rests_after_failures_until_it_is_reached() {
        let place = Place::new("a:1");
        assert!(!place.rests() && place.takes_calls());
        place.failures.store(10, Ordering::Relaxed);
        place.unreachable(String::new());
        assert!(place.rests() && !place.takes_calls());
        place.unreachable(String::new());
        assert_eq!(place.failures.load(Ordering::Relaxed), 11);
        place.reached();
        assert!(!place.rests() && place.takes_calls());
    }

    #[test]
    fn after_a_rest_one_call_tries() {
        let place = Place::new("a:1");
        place.unreachable(String::new());
        place.rests_until.store(0, Ordering::Relaxed);
        assert!(!place.rests());
        assert!(place.takes_calls());
        assert!(!place.takes_calls(), "another tries");
        place.reached();
        assert!(place.takes_calls() && place.takes_calls());
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
