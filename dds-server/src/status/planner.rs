//! Which status to write next, without I/O.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use rulecast_api::{Code, Kind, ResourceId, rule_status::RuleStatus};
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    Key, StatusConfig,
    object::{Known, Object, Rank},
    queue::{Pace, Queue},
    standing::Standing,
    trouble::{self, Trouble},
    world::World,
};
use crate::{
    index::Snapshot,
    rollout::KindRollout,
    store::{Stored, Version},
};

/// Most reads and writes under way.
const FLIGHTS: usize = 8;
/// Most reads of these.
const READS: usize = 4;
/// A rate is a number of writes in this time; no object is written twice in it.
const SECOND: Duration = Duration::from_secs(1);
/// What merely moved gives way to roll-outs for so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Names a read or a write, so that its result finds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Read what stands on an object; then [`Planner::on_read`].
    Read {
        /// For the result.
        ticket: Ticket,
        /// The object.
        id: ResourceId,
    },
    /// Write a status on an object; then [`Planner::on_written`].
    Write {
        /// For the result.
        ticket: Ticket,
        /// The object.
        id: ResourceId,
        /// Replaces what the plane wrote before.
        status: RuleStatus,
    },
}

/// Why a read or a write failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For `docs/errors.md`.
    pub code: Code,
    /// For people.
    pub reason: String,
}

/// Something for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Status cannot be written. Told once a minute, whatever the number of objects.
    Failing {
        /// How many objects wait for a retry.
        objects: usize,
        /// Of the last failure.
        failure: Failure,
    },
    /// It can be written again, everywhere.
    Recovered,
}

#[derive(Debug)]
struct Flight {
    key: Key,
    /// What will stand after a write; `None` for a read.
    writes: Option<Box<Standing>>,
}

/// Decides what to write on which object and when. Everything is bounded by the number of
/// objects: each waits at one place at most, and what it waits for is made when its turn comes.
#[derive(Debug)]
pub struct Planner {
    config: StatusConfig,
    /// Since when this plane leads.
    leading: Option<Instant>,
    world: Option<World>,
    objects: HashMap<Key, Object>,
    /// By the rank of their places.
    reads: [BTreeSet<(Instant, Key)>; 2],
    queue: Queue,
    pace: Pace,
    flights: HashMap<Ticket, Flight>,
    tickets: u64,
    looks: u64,
    /// Clients that were there before this plane led are thought to be back.
    warm: bool,
    /// Most clients that a rule of a kind had before.
    before: HashMap<Kind, i64>,
    trouble: Trouble,
}

impl Planner {
    /// A planner that does not lead yet.
    pub fn new(config: StatusConfig) -> Self {
        Self {
            pace: Pace::new(config.per_second, SECOND),
            config,
            leading: None,
            world: None,
            objects: HashMap::new(),
            reads: Default::default(),
            queue: Queue::default(),
            flights: HashMap::new(),
            tickets: 0,
            looks: 0,
            warm: false,
            before: HashMap::new(),
            trouble: Trouble::default(),
        }
    }

    /// Takes or loses the lead. Who loses it forgets everything: what stands on objects is
    /// another's to say. Results of what is under way count no more.
    pub fn set_leading(&mut self, now: Instant, leads: bool) {
        if leads == self.leading.is_some() {
            return;
        }
        self.leading = leads.then_some(now);
        self.world = None;
        self.objects.clear();
        self.reads.iter_mut().for_each(BTreeSet::clear);
        self.queue.clear();
        self.flights.clear();
        self.looks = 0;
        self.warm = false;
        self.before.clear();
        self.trouble = Trouble::default();
    }

    /// Whether this plane leads, as far as the planner knows.
    pub fn leads(&self) -> bool {
        self.leading.is_some()
    }

    /// How many objects wait to be written.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Something for the log.
    pub fn take_notice(&mut self) -> Option<Notice> {
        self.trouble.take_notice()
    }

    /// Looks at what is in force and who holds it. Both must be of one moment, see
    /// [`crate::views::Views::shown`] and [`crate::rollout::Rollout::kind_at`].
    pub fn observe(
        &mut self,
        now: Instant,
        snapshot: Arc<Snapshot>,
        rollouts: BTreeMap<Kind, KindRollout>,
    ) {
        if self.leading.is_none() || !snapshot.listed {
            return;
        }
        let world = World::new(snapshot, rollouts);
        self.looks += 1;
        let mut seen = 0;
        for (key, version, stored) in world.objects() {
            seen += 1;
            self.meet(now, key, version, stored);
        }
        if self.objects.len() > seen {
            let looks = self.looks;
            let gone: Vec<_> = self.objects.extract_if(|_, o| o.seen != looks).collect();
            gone.iter().for_each(|(key, object)| self.forget(key, object));
        }
        self.world = Some(world);
        if !self.warm_up(now) {
            self.compare_all(now);
        }
    }

    /// Notes that an object is there.
    fn meet(&mut self, now: Instant, key: Key, version: &Version, stored: Option<&Stored>) {
        let good = stored.filter(|stored| stored.accepted).map(|_| version.generation);
        if let Some(object) = self.objects.get_mut(&key).filter(|o| o.uid == version.uid) {
            object.seen = self.looks;
            object.good = good.or(object.good);
            if object.generation != version.generation {
                object.generation = version.generation;
                if let Known::Unread(place) = &mut object.known
                    && object.failures == 0
                {
                    self.reads[place.0 as usize].remove(&(place.1, key.clone()));
                    place.0 = Rank::Changed;
                    self.reads[place.0 as usize].insert((place.1, key));
                }
            }
            return;
        }
        if let Some(other) = self.objects.remove(&key) {
            self.forget(&key, &other);
        }
        // In the first look all are new, and none presses.
        let place = (if self.looks == 1 { Rank::Rest } else { Rank::Changed }, now);
        let object = Object {
            uid: version.uid.clone(),
            generation: version.generation,
            good,
            known: Known::Unread(place),
            facts: None,
            latched: None,
            place: None,
            failures: 0,
            seen: self.looks,
        };
        self.reads[place.0 as usize].insert((place.1, key.clone()));
        self.objects.insert(key, object);
    }

    /// Clears up after an object that is gone.
    fn forget(&mut self, key: &Key, object: &Object) {
        match object.known {
            Known::Unread((rank, due)) => {
                self.reads[rank as usize].remove(&(due, key.clone()));
            }
            Known::Busy(ticket) => {
                self.flights.remove(&ticket);
            }
            Known::Read(_) => {}
        }
        if let Some(place) = object.place {
            self.queue.remove(key, place);
        }
        if object.failures > 0 {
            self.trouble.relieved();
        }
    }

    /// Whether clients that were there before may still be missing; says true when that has
    /// just ended, and has then compared everything anew.
    fn warm_up(&mut self, now: Instant) -> bool {
        let (Some(since), Some(world), false) = (self.leading, &self.world, self.warm) else {
            return false;
        };
        let read = self.reads.iter().all(BTreeSet::is_empty)
            && self.flights.values().all(|f| f.writes.is_some());
        let back = || {
            let streams: HashMap<_, _> =
                world.rollouts().map(|(kind, rollout)| (kind, rollout.streams())).collect();
            self.before.iter().all(|(kind, before)| {
                let streams = streams.get(kind).copied().unwrap_or_default();
                i64::try_from(streams).unwrap_or(i64::MAX) >= *before
            })
        };
        if now < since + self.config.stable && !(read && back()) {
            return false;
        }
        self.warm = true;
        for object in self.objects.values_mut() {
            object.facts = None;
        }
        self.compare_all(now);
        true
    }

    fn compare_all(&mut self, now: Instant) {
        let Some(world) = &self.world else { return };
        for (key, object) in &mut self.objects {
            let desk = (&mut self.queue, &self.pace);
            object.compare(now, key, world, &self.config, self.warm, desk);
        }
    }

    fn compare_one(&mut self, now: Instant, key: &Key) {
        if let (Some(world), Some(object)) = (&self.world, self.objects.get_mut(key)) {
            object.facts = None;
            let desk = (&mut self.queue, &self.pace);
            object.compare(now, key, world, &self.config, self.warm, desk);
        }
    }

    /// The next thing to do. Ask until there is none; ask again at [`Planner::deadline`] and
    /// after each result. `wall` is what a condition that changes now says.
    pub fn next(&mut self, now: Instant, wall: SystemTime) -> Option<Step> {
        self.warm_up(now);
        if !self.may_step(now) {
            return None;
        }
        self.next_read(now).or_else(|| self.next_write(now, wall))
    }

    fn may_step(&self, now: Instant) -> bool {
        let flights = if self.trouble.probes() { 1 } else { FLIGHTS };
        self.world.is_some()
            && self.flights.len() < flights
            && self.trouble.pause().is_none_or(|until| until <= now)
    }

    fn may_read(&self) -> bool {
        self.flights.values().filter(|flight| flight.writes.is_none()).count() < READS
    }

    fn next_read(&mut self, now: Instant) -> Option<Step> {
        if !self.may_read() {
            return None;
        }
        let first = self.reads.iter_mut().find_map(|queue| {
            let due = queue.first().is_some_and(|(due, _)| *due <= now);
            if due { queue.pop_first() } else { None }
        });
        let (_, key) = first?;
        // Whatever waits is an object, and of this world.
        let id = self.world.as_ref()?.id(&key)?;
        let ticket = self.take_off(key, None)?;
        Some(Step::Read { ticket, id })
    }

    fn next_write(&mut self, now: Instant, wall: SystemTime) -> Option<Step> {
        if self.pace.any().is_some_and(|free| free > now) {
            return None;
        }
        let calm = self.pace.calm().is_none_or(|free| free <= now);
        while let Some(key) = self.queue.first(now, calm, PATIENCE).cloned() {
            let (world, object) = (self.world.as_ref()?, self.objects.get_mut(&key)?);
            if let Some(place) = object.place.take() {
                self.queue.remove(&key, place);
            }
            let Known::Read(standing) = &object.known else { continue };
            // Made anew, so that what is written is the newest.
            let wanted = object.wanted(&key, world, &self.config, self.warm);
            let status = wanted.status(standing.as_deref(), &rfc3339(wall));
            let writes = Standing::of(&status, wanted.settled);
            if standing.as_ref().is_some_and(|standing| standing.content == writes.content) {
                continue;
            }
            let id = world.id(&key)?;
            self.pace.note(now, &key);
            let ticket = self.take_off(key, Some(Box::new(writes)))?;
            return Some(Step::Write { ticket, id, status });
        }
        None
    }

    fn take_off(&mut self, key: Key, writes: Option<Box<Standing>>) -> Option<Ticket> {
        let object = self.objects.get_mut(&key)?;
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        object.known = Known::Busy(ticket);
        self.flights.insert(ticket, Flight { key, writes });
        Some(ticket)
    }

    /// What stands on an object, as it was read.
    pub fn on_read(
        &mut self,
        now: Instant,
        ticket: Ticket,
        result: Result<Option<Value>, Failure>,
    ) {
        let Some(flight) = self.flights.remove(&ticket) else { return };
        match result {
            Ok(value) => {
                let standing = value.and_then(Standing::read);
                if let Some(standing) = &standing {
                    let before = self.before.entry(flight.key.0).or_default();
                    *before = standing.matched.max(*before);
                }
                self.landed(now, &flight.key, standing.map(Box::new), false);
            }
            Err(failure) => self.failed(now, &flight.key, failure, false),
        }
    }

    /// What became of a write.
    pub fn on_written(&mut self, now: Instant, ticket: Ticket, result: Result<(), Failure>) {
        let Some(flight) = self.flights.remove(&ticket) else { return };
        match result {
            Ok(()) => self.landed(now, &flight.key, flight.writes, true),
            // It may have arrived nevertheless, so it is read again.
            Err(failure) => self.failed(now, &flight.key, failure, true),
        }
    }

    fn landed(&mut self, now: Instant, key: &Key, standing: Option<Box<Standing>>, write: bool) {
        let Some(object) = self.objects.get_mut(key) else { return };
        object.known = Known::Read(standing);
        self.trouble.worked(write);
        self.compare_one(now, key);
        // Reading is not what was to be done, unless it is all.
        if let Some(object) = self.objects.get_mut(key)
            && (write || object.place.is_none())
            && std::mem::take(&mut object.failures) > 0
        {
            self.trouble.relieved();
        }
    }

    fn failed(&mut self, now: Instant, key: &Key, failure: Failure, write: bool) {
        let Some(object) = self.objects.get_mut(key) else { return };
        object.failures = object.failures.saturating_add(1);
        let place = (Rank::Changed, now + trouble::wait(object.failures, failure.code));
        object.known = Known::Unread(place);
        let failures = object.failures;
        self.reads[place.0 as usize].insert((place.1, key.clone()));
        self.trouble.failed(now, write, failures, failure);
    }

    /// When to ask again for [`Planner::next`], or, where [`Planner::wants_look`] says so,
    /// to look again. `None`: not before something happens.
    pub fn deadline(&self) -> Option<Instant> {
        let world = self.world.as_ref()?;
        let late = world.rollouts().filter_map(|(_, rollout)| rollout.next_late()).min();
        let warm = self.leading.filter(|_| !self.warm).map(|since| since + self.config.stable);
        late.into_iter().chain(warm).chain(self.next_step()).min()
    }

    fn next_step(&self) -> Option<Instant> {
        let pause = self.trouble.pause();
        // While this is full, only a result helps.
        let until = pause.or(self.leading)?;
        if !self.may_step(until) {
            return None;
        }
        let reads = self.reads.iter().filter(|_| self.may_read());
        let reads = reads.filter_map(|queue| queue.first().map(|(due, _)| *due));
        let (pressing, calm) = self.queue.next();
        let (any, half) = (self.pace.any(), self.pace.calm());
        let pressing = pressing.map(|due| any.map_or(due, |free| free.max(due)));
        let calm = calm.map(|due| any.into_iter().chain(half).fold(due, Instant::max));
        let first = reads.chain(pressing).chain(calm).min()?;
        Some(pause.map_or(first, |until| until.max(first)))
    }

    /// Whether a client may have become late since the last look.
    pub fn wants_look(&self, now: Instant) -> bool {
        let late = |rollout: &KindRollout| rollout.next_late().is_some_and(|late| late <= now);
        self.world.as_ref().is_some_and(|world| world.rollouts().any(|(_, r)| late(r)))
    }
}

fn rfc3339(time: SystemTime) -> String {
    // Whole seconds, as the API server writes its own times.
    let time =
        OffsetDateTime::from(time).replace_nanosecond(0).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    time.format(&Rfc3339).unwrap_or_default()
}
