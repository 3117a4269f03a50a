//! How two threads scale, beside how a loop that only counts does: the machine may not give two
//! cores' worth to anybody.

use std::{
    hint::black_box,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use crate::rounds::median;

/// Of one measurement.
const WINDOW: Duration = Duration::from_millis(4);
/// Runs between two looks at the clock.
const BATCH: u32 = 32;

#[derive(Clone, Copy)]
enum Work {
    Spin,
    Decide,
}

/// How much faster two threads decide than one, over how much faster two spin; the median of
/// so many rounds.
pub(crate) fn scaling(rounds: usize, decide: impl Fn() + Sync) -> f64 {
    let decide = &decide;
    thread::scope(|scope| {
        let workers = [(); 2].map(|()| {
            let (work, todo) = channel();
            let (done, rates) = channel();
            scope.spawn(move || serve(&todo, &done, decide));
            (work, rates)
        });
        let rate = |work: Work, threads: usize| {
            let workers = &workers[..threads];
            for (todo, _) in workers {
                let _ = todo.send(work);
            }
            workers.iter().filter_map(|(_, rates)| rates.recv().ok()).sum::<f64>()
        };
        for work in [Work::Spin, Work::Decide] {
            rate(work, 2);
        }
        let scale = |work| {
            let (one, two) = (rate(work, 1), rate(work, 2));
            two / one
        };
        median((0..rounds).map(|_| scale(Work::Decide) / scale(Work::Spin)).collect())
    })
}

fn serve(todo: &Receiver<Work>, done: &Sender<f64>, decide: &impl Fn()) {
    for work in todo {
        let (began, mut runs) = (Instant::now(), 0u32);
        while began.elapsed() < WINDOW {
            for _ in 0..BATCH {
                match work {
                    Work::Spin => spin(),
                    Work::Decide => decide(),
                }
            }
            runs += BATCH;
        }
        if done.send(f64::from(runs) / began.elapsed().as_secs_f64()).is_err() {
            return;
        }
    }
}

/// About as long as a decision.
fn spin() {
    for n in 0..300 {
        black_box(n);
    }
}
