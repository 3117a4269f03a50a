//! Time that only goes forward, or that a test sets.

#[cfg(any(test, feature = "vectors"))]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, Instant};

/// Tells the time since its beginning. Clones tell the same.
#[derive(Clone, Debug)]
pub(crate) struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System(Instant),
    /// Nanoseconds.
    #[cfg(any(test, feature = "vectors"))]
    Set(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock, from now on.
    pub(crate) fn system() -> Self {
        Self(Source::System(Instant::now()))
    }

    /// One that stands still until it is set.
    #[cfg(any(test, feature = "vectors"))]
    pub(crate) fn standing() -> Self {
        Self(Source::Set(Arc::default()))
    }

    /// Sets a standing clock; another goes on by itself.
    #[cfg(any(test, feature = "vectors"))]
    pub(crate) fn set(&self, time: Duration) {
        if let Source::Set(now) = &self.0 {
            now.store(time.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// The time since its beginning.
    #[inline]
    pub(crate) fn now(&self) -> Duration {
        match &self.0 {
            Source::System(start) => start.elapsed(),
            #[cfg(any(test, feature = "vectors"))]
            Source::Set(now) => Duration::from_nanos(now.load(Ordering::Relaxed)),
        }
    }
}
