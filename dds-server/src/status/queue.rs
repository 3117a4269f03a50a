//! What is to be written when: one place per object, and the rate of it all.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use super::Key;

/// How much a write presses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// News: at once.
    Now,
    /// On its way, and may soon be more: in a moment.
    Soon,
    /// A roll-out is over and something moved: when it has stayed so.
    Calm,
}

/// Where an object waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) class: Class,
    pub(super) due: Instant,
}

/// Objects that wait to be written. Each has one place at most.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pressing: BTreeSet<(Instant, Key)>,
    calm: BTreeSet<(Instant, Key)>,
}

impl Queue {
    fn of(&mut self, class: Class) -> &mut BTreeSet<(Instant, Key)> {
        if class == Class::Calm { &mut self.calm } else { &mut self.pressing }
    }

    pub(super) fn insert(&mut self, key: &Key, place: Place) {
        self.of(place.class).insert((place.due, key.clone()));
    }

    pub(super) fn remove(&mut self, key: &Key, place: Place) {
        self.of(place.class).remove(&(place.due, key.clone()));
    }

    pub(super) fn clear(&mut self) {
        self.pressing.clear();
        self.calm.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.pressing.len() + self.calm.len()
    }

    /// Whose turn it is. What is rolled out goes before what merely moved, unless that has
    /// waited longer by `patience`.
    pub(super) fn first(&self, now: Instant, calm: bool, patience: Duration) -> Option<&Key> {
        let due = |queue: &'_ BTreeSet<(Instant, Key)>| {
            queue.first().filter(|(due, _)| *due <= now).map(|(due, _)| *due)
        };
        let pressing = due(&self.pressing);
        let moved = if calm { due(&self.calm) } else { None };
        let queue = match (pressing, moved) {
            (Some(pressing), Some(moved)) if moved + patience <= pressing => &self.calm,
            (Some(_), _) => &self.pressing,
            (None, Some(_)) => &self.calm,
            (None, None) => return None,
        };
        queue.first().map(|(_, key)| key)
    }

    /// When something is due.
    pub(super) fn next(&self) -> (Option<Instant>, Option<Instant>) {
        let first = |queue: &BTreeSet<(Instant, Key)>| queue.first().map(|(due, _)| *due);
        (first(&self.pressing), first(&self.calm))
    }
}

/// What was written lately: at most `limit` writes in any `span`, and one per object.
#[derive(Debug)]
pub(super) struct Pace {
    limit: usize,
    span: Duration,
    recent: VecDeque<(Instant, Key)>,
}

impl Pace {
    pub(super) fn new(limit: usize, span: Duration) -> Self {
        Self { limit: limit.max(1), span, recent: VecDeque::new() }
    }

    pub(super) fn note(&mut self, now: Instant, key: &Key) {
        self.forget(now);
        self.recent.push_back((now, key.clone()));
    }

    fn forget(&mut self, now: Instant) {
        while self.recent.front().is_some_and(|(at, _)| *at + self.span <= now) {
            self.recent.pop_front();
        }
    }

    /// When there may be one more, where at most `limit` count. It may be past.
    fn free(&self, limit: usize) -> Option<Instant> {
        let nth = self.recent.len().checked_sub(limit.max(1))?;
        self.recent.get(nth).map(|(at, _)| *at + self.span)
    }

    /// When the next write may be; `None`: now, as far as this goes.
    pub(super) fn any(&self) -> Option<Instant> {
        self.free(self.limit)
    }

    /// When the next calm write may be: half of the rate is kept for what presses.
    pub(super) fn calm(&self) -> Option<Instant> {
        self.free(self.limit / 2)
    }

    /// When an object may be written again.
    pub(super) fn of(&self, key: &Key) -> Option<Instant> {
        self.recent.iter().rev().find(|(_, known)| known == key).map(|(at, _)| *at + self.span)
    }
}

#[cfg(test)]
mod tests {
    use rulecast_api::Kind;

    use super::*;

    fn key(n: usize) -> Key {
        (Kind::CONDITION_ROUTE, n.to_string().into())
    }

    #[test]
    fn any_second_has_at_most_so_many_and_calm_ones_leave_half() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pace = Pace::new(4, Duration::from_secs(1));
        for n in 0..4_u64 {
            assert!(pace.any().is_none_or(|free| free <= at(n * 100)));
            pace.note(at(n * 100), &key(n as usize));
        }
        assert_eq!((pace.any(), pace.calm()), (Some(at(1000)), Some(at(1200))));
        assert_eq!((pace.of(&key(1)), pace.of(&key(9))), (Some(at(1100)), None));
        pace.note(at(1150), &key(4));
        assert_eq!(pace.any(), None, "two of the old ones are past");
        assert_eq!(pace.of(&key(0)), None);
    }

    #[test]
    fn who_presses_goes_first_and_the_calm_do_not_starve() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let patience = Duration::from_secs(60);
        let mut queue = Queue::default();
        queue.insert(&key(1), Place { class: Class::Calm, due: at(0) });
        queue.insert(&key(2), Place { class: Class::Now, due: at(50) });
        assert_eq!(queue.first(at(10), true, patience), Some(&key(1)), "the other is not due");
        assert_eq!(queue.first(at(50), true, patience), Some(&key(2)));
        queue.remove(&key(2), Place { class: Class::Now, due: at(50) });
        queue.insert(&key(3), Place { class: Class::Soon, due: at(60) });
        assert_eq!(queue.first(at(60), true, patience), Some(&key(1)), "it has waited enough");
        assert_eq!(queue.first(at(60), false, patience), Some(&key(3)));
        assert_eq!((queue.next(), queue.len()), ((Some(at(60)), Some(at(0))), 2));
    }
}
