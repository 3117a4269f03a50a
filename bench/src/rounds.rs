//! Several ways to do a thing, measured in turn: what disturbs a round disturbs all of them.

use std::time::{Duration, Instant};

/// Runs something so many times.
pub(crate) type Way<'a> = Box<dyn FnMut(u32) + 'a>;

/// Runs `run` as often as it is told.
pub(crate) fn way<'a>(mut run: impl FnMut() + 'a) -> Way<'a> {
    Box::new(move |times| (0..times).for_each(|_| run()))
}

/// How it is measured.
#[derive(Clone, Copy)]
pub(crate) struct Rounds {
    /// How many.
    pub(crate) rounds: usize,
    /// How long one way's turn is. Short: most turns then pass without another process on
    /// the core, and medians are of those.
    pub(crate) turn: Duration,
}

/// Nanoseconds of one run, by way and round.
pub(crate) struct Times(Vec<Vec<f64>>);

impl Rounds {
    pub(crate) fn measure(&self, ways: &mut [Way<'_>]) -> Times {
        let turns: Vec<u32> = ways.iter_mut().map(|way| self.runs(way)).collect();
        let mut times: Vec<Vec<f64>> = vec![Vec::with_capacity(self.rounds); ways.len()];
        for _ in 0..self.rounds {
            for ((way, &turn), times) in ways.iter_mut().zip(&turns).zip(&mut times) {
                let began = Instant::now();
                way(turn);
                times.push(began.elapsed().as_nanos() as f64 / f64::from(turn));
            }
        }
        Times(times)
    }

    /// How many runs of a way are about a turn; it is warm then.
    fn runs(&self, way: &mut Way<'_>) -> u32 {
        let mut runs = 1;
        loop {
            let began = Instant::now();
            way(runs);
            let took = began.elapsed();
            if took >= self.turn / 2 || runs > u32::MAX / 4 {
                let share = self.turn.as_secs_f64() / took.as_secs_f64();
                return ((f64::from(runs) * share) as u32).max(1);
            }
            runs *= 2;
        }
    }
}

impl Times {
    /// Of one way.
    pub(crate) fn median(&self, way: usize) -> f64 {
        median(self.0[way].clone())
    }

    /// How many times as long one way takes as another, round by round.
    pub(crate) fn ratio(&self, way: usize, other: usize) -> f64 {
        let pairs = self.0[way].iter().zip(&self.0[other]);
        median(pairs.map(|(way, other)| way / other).collect())
    }

    /// How much longer one way takes than another, round by round.
    pub(crate) fn more(&self, way: usize, other: usize) -> f64 {
        let pairs = self.0[way].iter().zip(&self.0[other]);
        median(pairs.map(|(way, other)| way - other).collect())
    }
}

/// NaN of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
