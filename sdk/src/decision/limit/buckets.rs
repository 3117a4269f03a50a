use std::{
    collections::{HashMap, hash_map::RandomState},
    fmt,
    hash::{BuildHasher, BuildHasherDefault, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::quota::Quota;

/// Parts with a lock each.
const SHARDS: usize = 64;
/// Most buckets of a rule.
pub(super) const MAX_KEYS: usize = 65_536;

/// The buckets of one rule, shared by all threads: of each key the moment at which its bucket is
/// full again.
///
/// A key is kept by a hash of 128 bits with a secret of this process: so it takes the same little
/// memory whatever callers send, and nobody can make two keys meet. At most [`MAX_KEYS`] are
/// kept, about 4 MiB: then those go that are full again, of which nothing is lost, else the one
/// that was idle for longest, whose caller has its burst again.
pub(crate) struct Buckets {
    since: Instant,
    secrets: [RandomState; 2],
    shards: Box<[Shard]>,
    /// Of a shard.
    capacity: usize,
}

/// On cache lines of its own, or threads with different keys would hinder each other.
#[derive(Default)]
#[repr(align(64))]
struct Shard(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// The latest moment that was told here. A thread that was interrupted between looking at
    /// the clock and taking tells an earlier one, at which the buckets of now make no sense.
    latest: u128,
    full: HashMap<Key, u128, BuildHasherDefault<Hashed>>,
}

impl Kept {
    /// Now, or the latest moment, if that is later.
    fn now(&mut self, now: u128) -> u128 {
        self.latest = self.latest.max(now);
        self.latest
    }
}

/// See [`Buckets`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    shard: u64,
    place: u64,
}

impl std::hash::Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.place);
    }
}

/// Of what is a hash already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Default for Buckets {
    fn default() -> Self {
        Self::with_capacity(MAX_KEYS)
    }
}

impl fmt::Debug for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buckets").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Buckets {
    fn with_capacity(keys: usize) -> Self {
        Self {
            since: Instant::now(),
            secrets: [RandomState::new(), RandomState::new()],
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            capacity: (keys / SHARDS).max(1),
        }
    }

    /// How many keys are kept.
    pub(super) fn len(&self) -> usize {
        let lens = self.shards.iter().map(|shard| shard.lock().full.len());
        lens.sum()
    }

    /// Takes from the bucket of a key. Else says when it can be taken, if nobody comes before.
    pub(super) fn take(
        &self,
        quota: &Quota,
        key: &[u8],
        cost: u32,
        now: Instant,
    ) -> Result<(), Duration> {
        let (now, key) = (self.moment(now), self.key(key));
        let mut kept = self.shard(key).lock();
        let now = kept.now(now);
        let buckets = &mut kept.full;
        if let Some(full) = buckets.get_mut(&key) {
            return quota.take(full, now, cost);
        }
        if buckets.len() >= self.capacity {
            buckets.retain(|_, full| *full > now);
        }
        if buckets.len() >= self.capacity
            && let Some(idlest) = buckets.iter().min_by_key(|(_, full)| **full).map(|(key, _)| *key)
        {
            buckets.remove(&idlest);
        }
        let mut full = now;
        let taken = quota.take(&mut full, now, cost);
        buckets.insert(key, full);
        taken
    }

    /// As [`take`](Self::take), without taking.
    pub(super) fn check(
        &self,
        quota: &Quota,
        key: &[u8],
        cost: u32,
        now: Instant,
    ) -> Result<(), Duration> {
        let (now, key) = (self.moment(now), self.key(key));
        let mut kept = self.shard(key).lock();
        let now = kept.now(now);
        let full = kept.full.get(&key).copied();
        quota.check(full.unwrap_or(now), now, cost)
    }

    /// Undoes a take.
    pub(super) fn give_back(&self, quota: &Quota, key: &[u8], cost: u32) {
        let key = self.key(key);
        if let Some(full) = self.shard(key).lock().full.get_mut(&key) {
            quota.give_back(full, cost);
        }
    }

    fn moment(&self, now: Instant) -> u128 {
        Quota::moment(now.saturating_duration_since(self.since))
    }

    fn key(&self, bytes: &[u8]) -> Key {
        let [shard, place] = [0, 1].map(|i| {
            let mut hasher = self.secrets[i].build_hasher();
            hasher.write(bytes);
            hasher.finish()
        });
        Key { shard, place }
    }

    fn shard(&self, key: Key) -> &Shard {
        &self.shards[key.shard as usize % SHARDS]
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn quota(requests: u32, burst: u32) -> Quota {
        Quota::new(requests, Duration::from_secs(1), burst).expect("a quota")
    }

    #[test]
    fn each_key_has_a_bucket_of_its_own() {
        let (buckets, quota, now) = (Buckets::default(), quota(1, 2), Instant::now());
        let take = |key: &[u8]| buckets.take(&quota, key, 1, now).is_ok();
        assert_eq!([take(b"a"), take(b"a"), take(b"a")], [true, true, false]);
        assert_eq!([take(b"b"), take(b""), take(b"a")], [true, true, false]);
        assert!(buckets.check(&quota, b"b", 2, now).is_err() && take(b"b"), "nothing was taken");
        buckets.give_back(&quota, b"a", 1);
        assert_eq!([take(b"a"), take(b"a")], [true, false]);
        assert_eq!(buckets.len(), 3);
    }

    #[test]
    fn the_idlest_go_first_and_what_is_full_before_them() {
        let (quota, start) = (quota(1, 10), Instant::now());
        let buckets = Buckets::with_capacity(SHARDS * 4);
        let key = |n: usize| n.to_le_bytes();
        let take = |n, cost, now| buckets.take(&quota, &key(n), cost, now).is_ok();
        // One that is busy stays, however many others come once.
        let at = |n: usize| start + Duration::from_micros(n as u64);
        assert!(take(0, 10, start));
        assert!((1..10_000).all(|n| take(n, 1, at(n))));
        assert!(buckets.len() <= SHARDS * 4);
        assert!(!take(0, 1, at(10_000)), "it is still empty");
        assert!(take(1, 10, at(10_000)), "it was idle, and begins anew");
        // A minute later all are full, and make room.
        let later = start + Duration::from_secs(60);
        assert!((20_000..20_010).all(|n| take(n, 1, later)));
        assert!(buckets.len() <= SHARDS * 4);
        assert!(take(0, 10, later));
    }

    /// As of a thread that was interrupted between looking at the clock and taking.
    #[test]
    fn a_moment_that_is_past_takes_no_call_back() {
        let (quota, start) = (quota(10, 10), Instant::now());
        let buckets = Buckets::default();
        let (past, now) = (start + Duration::from_secs(1), start + Duration::from_secs(2));
        assert_eq!(buckets.take(&quota, b"k", 10, now), Ok(()));
        for moment in [past, now] {
            let wait = Err(Duration::from_millis(100));
            assert_eq!(buckets.check(&quota, b"k", 1, moment), wait);
            assert_eq!(buckets.take(&quota, b"k", 1, moment), wait);
        }
    }

    #[test]
    fn threads_share_a_bucket() {
        let (buckets, quota, now) = (Buckets::default(), quota(1, 1000), Instant::now());
        let count = || (0..500).filter(|_| buckets.take(&quota, b"k", 1, now).is_ok()).count();
        let taken = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(count)).collect();
            threads.into_iter().map(|thread| thread.join().expect("ends")).sum::<usize>()
        });
        assert_eq!(taken, 1000);
    }
}
