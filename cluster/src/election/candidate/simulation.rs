//! Two or three candidates with clocks of their own against one Lease, by seed: calls that are
//! late, lost on the way there or back, or carried out after their caller gave up; pauses,
//! crashes, deleted Leases. At no moment do two lead.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use fastrand::Rng;
use tokio::time::Instant;

use super::{Action, Candidate, Claim, Record, Seen, Times, Written};

/// Microseconds of true time.
type Time = u64;
const SECOND: Time = 1_000_000;

/// What may go wrong in a run.
#[derive(Clone, Copy, Debug)]
struct Faults {
    /// Until when calls fail and processes pause; afterwards all is well.
    until: Time,
    /// Of 100 calls, how many are lost or late.
    calls: u32,
    /// Whether processes crash and start anew.
    crashes: bool,
    /// Whether somebody deletes the Lease. Not together with crashes: a new process cannot
    /// know that there was one.
    deletions: bool,
}

#[derive(Debug)]
enum Event {
    /// The candidate of that life does what is next.
    Wake {
        who: usize,
        life: u64,
    },
    /// The server carries out the call.
    Apply {
        call: usize,
    },
    /// Its answer, or the end of its time, has come to the candidate.
    Return {
        call: usize,
    },
    Pause,
    Crash,
    Delete,
}

/// A call that was sent.
#[derive(Debug)]
struct Call {
    who: usize,
    life: u64,
    begun: Instant,
    write: Option<Claim>,
    /// What the server did, once it did.
    outcome: Option<Outcome>,
    /// Whether the answer reaches the candidate.
    answered: bool,
}

#[derive(Clone, Debug)]
enum Outcome {
    Read(Option<Record>),
    Written(Written),
}

struct Process {
    candidate: Candidate,
    life: u64,
    /// Its clock: where it started, and how fast it goes.
    base: Instant,
    rate: f64,
    /// It does nothing before.
    paused: Time,
}

impl Process {
    fn clock(&self, now: Time) -> Instant {
        self.base + Duration::from_micros((now as f64 * self.rate) as u64)
    }

    /// When its clock shows that, at the earliest.
    fn true_time(&self, at: Instant) -> Time {
        (at.saturating_duration_since(self.base).as_micros() as f64 / self.rate).ceil() as Time + 1
    }

    fn leads(&self, now: Time) -> bool {
        self.candidate.leads_until().is_some_and(|until| self.clock(now) < until)
    }
}

impl Candidate {
    fn knows_of_a_lease(&self) -> bool {
        matches!(self.seen, Seen::Lease { .. }) || self.doubt.is_some()
    }
}

struct World {
    random: Rng,
    times: Times,
    faults: Faults,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64)>>,
    what: Vec<Option<Event>>,
    processes: Vec<Process>,
    calls: Vec<Call>,
    lease: Option<Record>,
    versions: u64,
    /// Who led last, and how often that changed.
    leader: Option<(usize, u64)>,
    tally: Tally,
    aloud: bool,
}

#[derive(Debug, Default)]
struct Tally {
    terms: usize,
    calls: usize,
    lost: usize,
    conflicts: usize,
}

impl World {
    fn new(seed: u64, times: Times, faults: Faults) -> Self {
        let mut world = Self {
            random: Rng::with_seed(seed),
            times,
            faults,
            now: 0,
            events: BinaryHeap::new(),
            what: Vec::new(),
            processes: Vec::new(),
            calls: Vec::new(),
            lease: None,
            versions: 0,
            leader: None,
            tally: Tally::default(),
            aloud: std::env::var_os("SEED").is_some(),
        };
        for who in 0..world.random.usize(2..=3) {
            // Clocks differ by up to a day, and go apart by up to four in a hundred.
            let base = Instant::now() + Duration::from_secs(world.random.u64(0..86_400));
            let rate = 0.98 + 0.04 * world.random.f64();
            let candidate = Candidate::new(format!("c{who}"), times, world.random.u64(..), base);
            world.processes.push(Process { candidate, life: 0, base, rate, paused: 0 });
            let start = world.random.u64(0..5 * SECOND);
            world.after(start, Event::Wake { who, life: 0 });
        }
        world.after(SECOND, Event::Pause);
        if faults.crashes {
            world.after(SECOND, Event::Crash);
        }
        if faults.deletions {
            world.after(SECOND, Event::Delete);
        }
        world
    }

    fn after(&mut self, time: Time, event: Event) {
        self.events.push(Reverse((self.now + time, self.what.len() as u64)));
        self.what.push(Some(event));
    }

    fn chance(&mut self, of_100: u32) -> bool {
        self.random.u32(0..100) < of_100
    }

    fn faulty(&self) -> bool {
        self.now < self.faults.until
    }

    fn run(&mut self, end: Time) -> Result<(), String> {
        while let Some(Reverse((time, at))) = self.events.pop() {
            if time > end {
                self.now = end;
                break;
            }
            self.now = time;
            let event = self.what[at as usize].take().expect("each comes once");
            self.handle(event);
            self.check()?;
        }
        match self.leads().len() {
            1 => Ok(()),
            n => Err(format!("{n} lead at the end, when all has long been well")),
        }
    }

    fn leads(&self) -> Vec<usize> {
        (0..self.processes.len()).filter(|who| self.processes[*who].leads(self.now)).collect()
    }

    fn check(&mut self) -> Result<(), String> {
        let leads = self.leads();
        if leads.len() > 1 {
            return Err(format!("{leads:?} lead at {} s", self.now as f64 / SECOND as f64));
        }
        let leader = leads.first().map(|who| (*who, self.processes[*who].life));
        if leader.is_some() && leader != self.leader {
            self.tally.terms += 1;
            self.leader = leader;
        }
        Ok(())
    }
}

impl World {
    fn handle(&mut self, event: Event) {
        match event {
            Event::Wake { who, life } => self.step(who, life),
            Event::Apply { call } => self.apply(call),
            Event::Return { call } => self.answer(call),
            Event::Pause if self.faulty() => {
                let who = self.random.usize(0..self.processes.len());
                let long = self.random.u64(0..20 * SECOND);
                self.processes[who].paused = self.now + long;
                let next = self.random.u64(0..60 * SECOND);
                self.after(next, Event::Pause);
            }
            Event::Crash if self.faulty() => {
                let who = self.random.usize(0..self.processes.len());
                self.stop(who);
                let next = self.random.u64(0..90 * SECOND);
                self.after(next, Event::Crash);
            }
            Event::Delete if self.faulty() => {
                // A candidate that has never seen it cannot know that it was there.
                if self.processes.iter().all(|p| p.candidate.knows_of_a_lease()) {
                    self.lease = None;
                    self.trace(|| "deleted".into());
                }
                let next = self.random.u64(0..40 * SECOND);
                self.after(next, Event::Delete);
            }
            Event::Pause | Event::Crash | Event::Delete => {}
        }
    }

    /// The process ends, at times in good order, and another one starts under its name.
    fn stop(&mut self, who: usize) {
        let process = &mut self.processes[who];
        let life = process.life;
        let clock = process.clock(self.now);
        let release = process.candidate.release();
        process.life += 1;
        process.paused = 0;
        let (times, seed) = (self.times, self.random.u64(..));
        self.processes[who].candidate = Candidate::new(format!("c{who}"), times, seed, clock);
        if let Some(claim) = release
            && self.random.bool()
        {
            self.send(who, life, clock, Some(claim));
        }
        let start = self.random.u64(0..20 * SECOND);
        self.after(start, Event::Wake { who, life: life + 1 });
    }

    fn step(&mut self, who: usize, life: u64) {
        let process = &mut self.processes[who];
        if process.life != life {
            return;
        }
        if self.now < process.paused {
            let long = process.paused - self.now;
            return self.after(long, Event::Wake { who, life });
        }
        let clock = process.clock(self.now);
        match process.candidate.next(clock) {
            Action::Wait(at) => {
                let until = process.candidate.leads_until();
                let at = process.true_time(until.map_or(at, |until| until.min(at)));
                self.after(at.max(self.now + 1) - self.now, Event::Wake { who, life });
            }
            Action::Read => self.send(who, life, clock, None),
            Action::Write(claim) => self.send(who, life, clock, Some(claim)),
        }
    }

    fn send(&mut self, who: usize, life: u64, begun: Instant, write: Option<Claim>) {
        self.tally.calls += 1;
        let limit = self.processes[who].true_time(begun + self.times.deadline / 2) - self.now;
        let (mut there, mut back) = (self.random.u64(500..50_000), self.random.u64(500..50_000));
        let mut arrives = true;
        if self.faulty() && self.chance(self.faults.calls) {
            self.tally.lost += 1;
            match self.random.u32(0..4) {
                0 => arrives = false,
                1 => there = self.random.u64(0..30 * SECOND),
                2 => back = self.random.u64(0..30 * SECOND),
                _ => back = Time::MAX / 4,
            }
        }
        let call = self.calls.len();
        let answered = arrives && there + back < limit;
        self.calls.push(Call { who, life, begun, write, outcome: None, answered });
        if arrives {
            self.after(there, Event::Apply { call });
        }
        self.after(if answered { there + back } else { limit }, Event::Return { call });
    }
}

impl World {
    /// What the API server does.
    fn apply(&mut self, call: usize) {
        let outcome = match self.calls[call].write.clone() {
            None => Outcome::Read(self.lease.clone()),
            Some(claim) => Outcome::Written(self.apply_write(&claim)),
        };
        if matches!(outcome, Outcome::Written(Written::Conflict)) {
            self.tally.conflicts += 1;
        }
        self.trace(|| format!("server: call {call} {:?}", self.calls[call]));
        self.calls[call].outcome = Some(outcome);
    }

    fn apply_write(&mut self, claim: &Claim) -> Written {
        match (&self.lease, &claim.replaces) {
            (None, Some(_)) => return Written::Missing,
            (Some(_), None) => return Written::Conflict,
            (Some(now), Some(known)) if now.version != *known => return Written::Conflict,
            _ => {}
        }
        self.versions += 1;
        let version = self.versions.to_string();
        let uid = self.lease.as_ref().map_or_else(|| format!("u{version}"), |l| l.uid.clone());
        self.lease = Some(Record {
            uid: uid.clone(),
            version: version.clone(),
            holder: claim.holder.clone(),
            duration: claim.duration,
            transitions: claim.transitions,
        });
        Written::Done { uid, version }
    }

    fn answer(&mut self, call: usize) {
        let Call { who, life, .. } = self.calls[call];
        let process = &mut self.processes[who];
        if process.life != life {
            return;
        }
        if self.now < process.paused {
            let long = process.paused - self.now;
            return self.after(long, Event::Return { call });
        }
        let clock = process.clock(self.now);
        let Call { begun, write, outcome, answered, .. } = &self.calls[call];
        let outcome = outcome.clone().filter(|_| *answered);
        match (write.clone(), outcome) {
            (None, Some(Outcome::Read(lease))) => process.candidate.read(clock, lease),
            (None, _) => process.candidate.unreadable(clock),
            (Some(claim), Some(Outcome::Written(how))) => {
                process.candidate.written(*begun, clock, claim, how);
            }
            (Some(claim), _) => process.candidate.written(*begun, clock, claim, Written::Failed),
        }
        self.trace(|| {
            let candidate = &self.processes[who].candidate;
            format!(
                "c{who}: answer {call}, leads {}, {candidate:?}",
                self.processes[who].leads(self.now)
            )
        });
        self.step(who, life);
    }

    /// Says what happens, when one seed is run.
    fn trace(&self, what: impl FnOnce() -> String) {
        if self.aloud {
            println!("{:10.6} {}", self.now as f64 / SECOND as f64, what());
        }
    }
}

const GOOD: Times = Times {
    duration: Duration::from_secs(15),
    deadline: Duration::from_secs(10),
    retry: Duration::from_secs(2),
};

fn simulate(seed: u64, times: Times) -> Result<Tally, String> {
    let crashes = seed.is_multiple_of(2);
    let calls = [0, 5, 30, 60][(seed / 2 % 4) as usize];
    let faults = Faults { until: 600 * SECOND, calls, crashes, deletions: !crashes };
    let mut world = World::new(seed, times, faults);
    world.run(700 * SECOND)?;
    let most = 700 * world.processes.len() * 2;
    if world.tally.calls > most {
        return Err(format!("{} calls, more than {most}", world.tally.calls));
    }
    Ok(world.tally)
}

#[test]
fn never_do_two_lead() {
    if let Some(seed) = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        simulate(seed, GOOD).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        return;
    }
    let seeds = std::env::var("SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let mut all = Tally::default();
    for seed in 0..seeds {
        let tally = simulate(seed, GOOD).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        all.terms += tally.terms;
        all.calls += tally.calls;
        all.lost += tally.lost;
        all.conflicts += tally.conflicts;
    }
    // What the runs went through, so that they cannot pass by doing nothing.
    let seeds = seeds as usize;
    assert!(all.terms > 5 * seeds, "{all:?}");
    assert!(all.lost > 50 * seeds && all.conflicts > seeds, "{all:?}");
}

/// The simulation would find it.
#[test]
fn two_lead_where_the_deadline_is_no_shorter_than_the_duration() {
    let times = Times { deadline: Duration::from_secs(18), ..GOOD };
    let found = (0..100).filter(|seed| simulate(*seed, times).is_err()).count();
    assert!(found > 10, "only {found} of 100 runs had two leaders");
}
