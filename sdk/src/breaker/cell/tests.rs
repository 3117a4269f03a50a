use std::{
    collections::VecDeque,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
};

use proptest::prelude::*;

use super::*;

fn settings() -> Settings {
    Settings {
        window: 10_000,
        minimum_calls: 4,
        error_percent: 50.0,
        consecutive_errors: 3,
        open: 5_000,
        trial_calls: 2,
        per_service: false,
        max_ejected_percent: 50,
    }
}

fn watched(cell: &Cell, settings: &Settings, now: u64) -> Token {
    match cell.begin(settings, now) {
        Begun::Watched(token) => token,
        other => panic!("{other:?}"),
    }
}

fn call(cell: &Cell, settings: &Settings, end: End, now: u64) -> Option<Change> {
    let token = watched(cell, settings, now);
    cell.end(settings, token, end, now)
}

#[test]
fn words_are_read_as_they_were_written() {
    for phase in [
        Phase::Closed { errors: 0 },
        Phase::Closed { errors: MOST_ERRORS },
        Phase::Open { since: u32::MAX, spared: true },
        Phase::Trying { since: 7, under_way: 1000, succeeded: 999, spared: false },
        Phase::Trying { since: 0, under_way: 0, succeeded: 1023, spared: true },
    ] {
        for generation in [0, 1, 511] {
            let word = Word { phase, generation };
            assert_eq!(Word::read(word.word()), word);
        }
    }
    let last = Word { phase: Phase::Closed { errors: 0 }, generation: 511 };
    assert_eq!(last.next(last.phase).generation, 0);
}

#[test]
fn clocks_may_wrap_and_differ_a_little() {
    assert_eq!(elapsed(5, 3), 2);
    assert_eq!(elapsed(3, 5), 0);
    assert_eq!(elapsed(u64::from(u32::MAX) + 11, u32::MAX - 9), 20);
}

#[test]
fn calls_begun_before_it_opened_tell_nothing_later() {
    let (cell, settings) = (Cell::default(), settings());
    let early = watched(&cell, &settings, 0);
    for _ in 0..3 {
        call(&cell, &settings, End::Failed, 0);
    }
    assert_eq!(cell.phase(), Phase::Open { since: 0, spared: false });
    let trial = watched(&cell, &settings, 5_000);
    assert_eq!(cell.end(&settings, early, End::Failed, 5_000), None);
    assert_eq!(cell.end(&settings, trial, End::Succeeded, 5_000), None);
    assert_eq!(call(&cell, &settings, End::Succeeded, 5_000), Some(Change::Closed));
    assert_eq!(cell.end(&settings, early, End::Failed, 5_000), None);
    assert_eq!(cell.phase(), Phase::Closed { errors: 0 });
    assert_eq!(cell.counts(settings.window, 5_000).calls, 0);
}

#[test]
fn a_trial_that_says_nothing_gives_its_place_away() {
    let (cell, settings) = (Cell::default(), settings());
    for _ in 0..3 {
        call(&cell, &settings, End::Failed, 0);
    }
    let _lost = [watched(&cell, &settings, 5_000), watched(&cell, &settings, 5_001)];
    assert_eq!(cell.begin(&settings, 10_000), Begun::Refused);
    assert_eq!(cell.shut(&settings, 10_000), Some(4_999));
    assert_eq!(cell.shut(&settings, 10_001), None);
    assert_eq!(call(&cell, &settings, End::Succeeded, 10_001), None);
    assert_eq!(call(&cell, &settings, End::Succeeded, 10_001), Some(Change::Closed));
}

#[test]
fn one_that_is_spared_lets_calls_pass_unwatched() {
    let (cell, settings) = (Cell::default(), settings());
    cell.spare();
    for _ in 0..3 {
        call(&cell, &settings, End::Failed, 0);
    }
    assert_eq!(cell.begin(&settings, 1), Begun::Refused);
    cell.spare();
    assert_eq!(cell.begin(&settings, 1), Begun::Unwatched);
    let trial = watched(&cell, &settings, 5_000);
    assert_eq!(cell.end(&settings, trial, End::Failed, 5_000), Some(Change::Reopened));
    assert_eq!(cell.begin(&settings, 5_001), Begun::Refused);
}

#[test]
fn other_thresholds_count_what_was_counted() {
    let (cell, mut settings) = (Cell::default(), settings());
    settings.consecutive_errors = 0;
    settings.minimum_calls = 100;
    for _ in 0..10 {
        assert_eq!(call(&cell, &settings, End::Failed, 0), None);
    }
    settings.minimum_calls = 11;
    assert_eq!(call(&cell, &settings, End::Failed, 0), Some(Change::Opened));
}

/// Runs calls in four threads; `end` says how a thread's call ends, by its number.
fn in_threads(cell: &Cell, settings: &Settings, end: impl Fn(u64) -> End + Sync) -> [usize; 3] {
    let [under_way, most, opened, closed] = [const { AtomicUsize::new(0) }; 4];
    let run = |thread: u64| {
        for i in 0..20_000_u64 {
            // It is asked when the time of opening is over, and no time goes by after that.
            let Begun::Watched(token) = cell.begin(settings, 2) else { continue };
            if token.trial {
                most.fetch_max(under_way.fetch_add(1, SeqCst) + 1, SeqCst);
                thread::yield_now();
                under_way.fetch_sub(1, SeqCst);
            }
            match cell.end(settings, token, end(i + thread), 1) {
                Some(Change::Opened) => opened.fetch_add(1, SeqCst),
                Some(Change::Closed) => closed.fetch_add(1, SeqCst),
                _ => 0,
            };
        }
    };
    thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || run(thread));
        }
    });
    [most, opened, closed].map(AtomicUsize::into_inner)
}

#[test]
fn threads_try_no_more_than_they_may() {
    let cell = Cell::default();
    let settings = Settings { consecutive_errors: 1, open: 1, trial_calls: 3, ..settings() };
    call(&cell, &settings, End::Failed, 0);
    let [most, ..] = in_threads(&cell, &settings, |_| End::Dropped);
    assert!((1..=3).contains(&most), "{most}");
    let Phase::Trying { under_way: 0, succeeded: 0, .. } = cell.phase() else {
        panic!("a place was not given back: {:?}", cell.phase());
    };
}

#[test]
fn threads_agree_on_every_change() {
    let cell = Cell::default();
    let settings = Settings { consecutive_errors: 1, open: 1, trial_calls: 3, ..settings() };
    let [_, opened, closed] = in_threads(&cell, &settings, |i| match i % 97 {
        0 => End::Failed,
        1 => End::Dropped,
        _ => End::Succeeded,
    });
    let tripped = usize::from(cell.is_tripped());
    assert_eq!(opened, closed + tripped);
    assert!(opened > 0);
}

/// The same in plain words: what is remembered is a list of outcomes.
#[derive(Debug)]
struct Model {
    settings: Settings,
    now: u64,
    outcomes: VecDeque<(u64, bool)>,
    errors: u32,
    state: State,
    /// Counts the phases.
    number: u64,
    spared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Closed,
    Open { since: u64 },
    Trying { last: u64, under_way: u32, succeeded: u32 },
}

impl Model {
    fn turn(&mut self, state: State) {
        self.state = state;
        self.number += 1;
    }

    /// The number of the phase in which a call begins, and whether it is a trial; else whether
    /// it may begin at all.
    fn begin(&mut self) -> Result<(u64, bool), bool> {
        let (now, open) = (self.now, u64::from(self.settings.open));
        match self.state {
            State::Closed => return Ok((self.number, false)),
            State::Open { since } if now - since >= open => {
                self.spared = false;
                self.turn(State::Trying { last: now, under_way: 1, succeeded: 0 });
            }
            State::Trying { under_way, succeeded, .. }
                if under_way + succeeded < self.settings.trial_calls =>
            {
                self.state = State::Trying { last: now, under_way: under_way + 1, succeeded };
            }
            State::Trying { last, succeeded, .. } if now - last >= open => {
                self.turn(State::Trying { last: now, under_way: 1, succeeded });
            }
            _ => return Err(self.spared),
        }
        Ok((self.number, true))
    }

    fn end(&mut self, (number, _): (u64, bool), end: End) {
        if number != self.number {
            return;
        }
        match (&mut self.state, end) {
            (State::Closed, End::Succeeded) => {
                self.errors = 0;
                self.outcomes.push_back((self.now, false));
            }
            (State::Closed, End::Failed) => {
                self.errors += 1;
                self.outcomes.push_back((self.now, true));
                if self.opens() {
                    self.open();
                }
            }
            (State::Trying { .. }, End::Failed) => self.open(),
            (State::Trying { under_way, succeeded, .. }, end) => {
                *under_way -= 1;
                if end == End::Succeeded {
                    *succeeded += 1;
                    if *succeeded >= self.settings.trial_calls {
                        self.outcomes.clear();
                        self.errors = 0;
                        self.turn(State::Closed);
                    }
                }
            }
            _ => {}
        }
    }

    fn open(&mut self) {
        self.spared = false;
        self.turn(State::Open { since: self.now });
    }

    fn opens(&self) -> bool {
        let Settings { consecutive_errors, error_percent, minimum_calls, window, .. } =
            self.settings;
        let tenth = window / 10;
        let first = (self.now / tenth + 1).saturating_sub(10) * tenth;
        let within: Vec<bool> = self
            .outcomes
            .iter()
            .filter(|(at, _)| *at >= first)
            .map(|(_, failed)| *failed)
            .collect();
        let failed = within.iter().filter(|failed| **failed).count();
        consecutive_errors > 0 && self.errors >= consecutive_errors
            || error_percent > 0.0
                && within.len() >= minimum_calls as usize
                && failed as f64 * 100.0 >= error_percent * within.len() as f64
    }
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Begin,
    End(prop::sample::Index, End),
    Spare,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let end = prop::sample::select(vec![End::Succeeded, End::Failed, End::Failed, End::Dropped]);
    let step = prop_oneof![
        2 => prop_oneof![0..300_u64, 900..1100_u64, 4900..5100_u64, Just(20_000)].prop_map(Step::Wait),
        8 => Just(Step::Begin),
        8 => (any::<prop::sample::Index>(), end).prop_map(|(which, end)| Step::End(which, end)),
        1 => Just(Step::Spare),
    ];
    prop::collection::vec(step, 0..300)
}

fn any_settings() -> impl Strategy<Value = Settings> {
    (1..6_u32, prop::sample::select(vec![0.0, 33.3, 50.0, 100.0]), 0..5_u32, 1..4_u32).prop_map(
        |(minimum_calls, error_percent, consecutive_errors, trial_calls)| Settings {
            minimum_calls,
            error_percent,
            consecutive_errors,
            trial_calls,
            ..settings()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_does_as_the_model(settings in any_settings(), start in 0..100_000_u64, steps in steps()) {
        let cell = Cell::default();
        let mut model = Model {
            settings,
            now: start,
            outcomes: VecDeque::new(),
            errors: 0,
            state: State::Closed,
            number: 0,
            spared: false,
        };
        let mut calls = Vec::new();
        for step in steps {
            match step {
                Step::Wait(time) => model.now += time,
                Step::Begin => {
                    let shut = cell.shut(&settings, model.now).is_some();
                    match (cell.begin(&settings, model.now), model.begin()) {
                        (Begun::Watched(token), Ok(begun)) => {
                            prop_assert!(!shut);
                            prop_assert_eq!(token.trial, begun.1);
                            calls.push((token, begun));
                        }
                        (Begun::Unwatched, Err(true)) | (Begun::Refused, Err(false)) => {
                            prop_assert!(shut);
                        }
                        (cell, model) => prop_assert!(false, "{:?} {:?}", cell, model),
                    }
                }
                Step::End(which, end) if !calls.is_empty() => {
                    let (token, begun) = calls.swap_remove(which.index(calls.len()));
                    cell.end(&settings, token, end, model.now);
                    model.end(begun, end);
                }
                Step::End(..) => {}
                Step::Spare => {
                    cell.spare();
                    model.spared |= model.state != State::Closed;
                }
            }
            match (cell.phase(), model.state) {
                (Phase::Closed { errors }, State::Closed) => {
                    prop_assert_eq!(errors, model.errors);
                }
                (Phase::Open { since, spared }, State::Open { since: model_since }) => {
                    prop_assert_eq!((u64::from(since), spared), (model_since, model.spared));
                }
                (
                    Phase::Trying { under_way, succeeded, spared, .. },
                    State::Trying { under_way: u, succeeded: s, .. },
                ) => {
                    let seen = (u32::from(under_way), u32::from(succeeded), spared);
                    prop_assert_eq!(seen, (u, s, model.spared));
                }
                (cell, model) => prop_assert!(false, "{:?} {:?}", cell, model),
            }
        }
    }
}
