//! What strangers can cause does not flood the log.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// Lets no more than [`Self::BURST`] lines a second into the log.
#[derive(Debug, Default)]
pub struct Throttle {
    begin: OnceLock<Instant>,
    /// The second, and in its low half how many lines it had.
    lines: AtomicU64,
    unsaid: AtomicU64,
}

impl Throttle {
    /// Lines in one second.
    pub const BURST: u32 = 20;

    /// How many lines were left out since the last one; `None`: leave this one out too.
    pub fn pass(&self) -> Option<u64> {
        self.pass_at(self.begin.get_or_init(Instant::now).elapsed().as_secs())
    }

    fn pass_at(&self, second: u64) -> Option<u64> {
        let next = |lines: u64| {
            let had = if lines >> 32 == second { lines as u32 } else { 0 };
            (had < Self::BURST).then(|| second << 32 | u64::from(had + 1))
        };
        match self.lines.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(_) => Some(self.unsaid.swap(0, Ordering::Relaxed)),
            Err(_) => {
                self.unsaid.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_leaves_some_lines_and_the_number_of_the_others() {
        let throttle = Throttle::default();
        let passed = |second| (0..50).filter_map(|_| throttle.pass_at(second)).collect::<Vec<_>>();
        assert_eq!(passed(0), [0; 20]);
        let next = passed(7);
        assert_eq!((next.len(), next[0], next[1]), (20, 30, 0));
        assert_eq!(Throttle::default().pass(), Some(0));
    }
}
