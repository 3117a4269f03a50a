//! Counters that many threads count in and none waits for: each thread has a cell of its own.

use std::{
    fmt,
    marker::PhantomData,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Counters of a cell.
pub(super) const WIDTH: usize = 16;

/// Alone on its cache lines; the larger ones of today's processors, and pairs of the smaller.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell([AtomicU64; WIDTH]);

/// A thread's cell. It does not leave its thread, which is thus the only one that writes: a
/// count is a load and a store, not a locked addition.
#[derive(Clone)]
pub(crate) struct Counter {
    cell: Arc<Cell>,
    here: PhantomData<*const ()>,
}

impl Counter {
    #[inline]
    pub(super) fn add(&self, at: usize) {
        if let Some(count) = self.cell.0.get(at) {
            count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Whether nobody reads it any more.
    pub(super) fn is_orphan(&self) -> bool {
        Arc::strong_count(&self.cell) == 1
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cell.fmt(f)
    }
}

/// The cells of all threads, added up when read.
#[derive(Debug, Default)]
pub(super) struct Cells(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    live: Vec<Arc<Cell>>,
    /// Of cells whose threads gave them up.
    past: [u64; WIDTH],
}

impl Cells {
    /// A cell for the calling thread. Those that were given up are let go.
    pub(super) fn counter(&self) -> Counter {
        let mut state = self.settled();
        let cell = Arc::new(Cell::default());
        state.live.push(cell.clone());
        Counter { cell, here: PhantomData }
    }

    /// All that was counted.
    pub(super) fn read(&self) -> [u64; WIDTH] {
        let state = self.settled();
        let mut sums = state.past;
        for cell in &state.live {
            add(&mut sums, cell);
        }
        sums
    }

    fn settled(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State { live, past } = &mut *state;
        live.retain_mut(|cell| {
            // Its only owner sees all that the thread wrote before it gave it up.
            let given_up = Arc::get_mut(cell).is_some();
            if given_up {
                add(past, cell);
            }
            !given_up
        });
        state
    }
}

fn add(sums: &mut [u64; WIDTH], cell: &Cell) {
    for (sum, count) in sums.iter_mut().zip(&cell.0) {
        *sum = sum.wrapping_add(count.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn no_count_is_lost_when_threads_come_and_go() {
        let cells = Cells::default();
        thread::scope(|scope| {
            for at in 0..4 {
                let cells = &cells;
                scope.spawn(move || {
                    for _ in 0..50 {
                        let counter = cells.counter();
                        (0..100).for_each(|_| counter.add(at));
                    }
                });
            }
            let mut last = 0;
            for _ in 0..100 {
                let now = cells.read().iter().sum();
                assert!(now >= last, "a sum went back");
                last = now;
            }
        });
        assert_eq!(cells.read()[..5], [5000, 5000, 5000, 5000, 0]);
        assert!(cells.0.lock().expect("whole").live.is_empty(), "what is given up is let go");
    }

    #[test]
    fn a_cell_has_its_cache_lines_for_itself() {
        assert_eq!((align_of::<Cell>(), size_of::<Cell>()), (128, 128));
    }
}
