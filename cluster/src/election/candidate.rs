//! One candidate's decisions, without I/O: what it sees and when comes in, what to do goes out.
//!
//! Two facts make it safe. A candidate leads only after a compare-and-swap of its own was
//! answered, and only for `deadline` from the moment at which that write *began*. Another takes
//! the Lease only by compare-and-swap on a version that it has itself seen unchanged for the
//! holder's `duration`, which is longer. So no clock is ever compared with another machine's;
//! only their rates must agree to within the difference of the two times.

use std::time::Duration;

use tokio::time::Instant;

/// What a Lease says, as far as an election goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Changes when it is deleted and made again.
    pub(super) uid: String,
    /// Changes with every write, also with those of others; the condition of the next write.
    pub(super) version: String,
    /// Who holds it; empty: nobody.
    pub(super) holder: String,
    /// How long after a change of the Lease it may be taken from its holder.
    pub(super) duration: Duration,
    /// How often it went from one holder to another.
    pub(super) transitions: i32,
}

/// What should be in the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// The version that is replaced; `None`: the Lease is made.
    pub(super) replaces: Option<String>,
    /// Who holds it then; empty: nobody.
    pub(super) holder: String,
    /// `leaseDurationSeconds`.
    pub(super) duration: Duration,
    /// `leaseTransitions`.
    pub(super) transitions: i32,
    /// Whether the holder is another one than before.
    pub(super) acquires: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Read the Lease, and hand the answer to [`Candidate::read`].
    Read,
    /// Write the Lease, and hand the answer to [`Candidate::written`].
    Write(Claim),
    /// Nothing before this.
    Wait(Instant),
}

/// How a write ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The Lease is as it should be.
    Done {
        /// As in [`Record`].
        uid: String,
        /// As in [`Record`].
        version: String,
    },
    /// It is not the version that was to be replaced, or there is one already.
    Conflict,
    /// There is none to replace.
    Missing,
    /// No answer, or another one; it may have been carried out.
    Failed,
}

/// The times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    /// As in the configuration, whole seconds.
    pub(super) duration: Duration,
    /// Less than `duration`.
    pub(super) deadline: Duration,
    /// Between attempts, before jitter.
    pub(super) retry: Duration,
}

/// What is known of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// Nothing yet.
    Nothing,
    /// It says this, and was first seen saying it at `since`.
    Lease { record: Record, since: Instant },
    /// It is not there.
    Missing,
}

/// A Lease that was there has been deleted, so that whoever leads by it may not know. To have
/// made a new one is not enough then: it must have been kept for as long as the other may act.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Doubt {
    /// How long that is.
    wait: Duration,
    /// When that is over; `None`: the Lease is not known to be its own yet.
    over: Option<Instant>,
}

/// One candidate.
#[derive(Debug)]
pub(super) struct Candidate {
    identity: String,
    times: Times,
    seen: Seen,
    /// Whether what was seen may be acted on without another look.
    fresh: bool,
    /// When the write began by which it last took or kept the lead.
    held: Option<Instant>,
    doubt: Option<Doubt>,
    /// Nothing is done before.
    next: Instant,
    /// Conflicts one after the other, without anything in between.
    conflicts: u32,
    random: fastrand::Rng,
}

impl Candidate {
    /// Runs from now on.
    pub(super) fn new(identity: String, times: Times, seed: u64, now: Instant) -> Self {
        Self {
            identity,
            times,
            seen: Seen::Nothing,
            fresh: false,
            held: None,
            doubt: None,
            next: now,
            conflicts: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Until when it leads, if at all; the moment itself is too late.
    pub(super) fn leads_until(&self) -> Option<Instant> {
        self.held.map(|begun| begun + self.times.deadline)
    }

    fn leads(&self, now: Instant) -> bool {
        self.leads_until().is_some_and(|until| now < until)
    }

    /// What to do at `now`. After a read or a write its outcome comes before the next question.
    pub(super) fn next(&mut self, now: Instant) -> Action {
        if self.held.is_some() && !self.leads(now) {
            self.held = None;
            self.fresh = false;
        }
        if now < self.next {
            return Action::Wait(self.next);
        }
        let write = match &self.seen {
            Seen::Lease { record, since } if self.fresh => self.claim(record, *since, now),
            Seen::Missing if self.fresh => Some(self.create()),
            _ => None,
        };
        write.map_or(Action::Read, Action::Write)
    }

    fn create(&self) -> Claim {
        Claim {
            replaces: None,
            holder: self.identity.clone(),
            duration: self.times.duration,
            transitions: 0,
            acquires: true,
        }
    }

    /// The write that keeps or takes the Lease, if that is allowed.
    fn claim(&self, record: &Record, since: Instant, now: Instant) -> Option<Claim> {
        let mine = record.holder == self.identity;
        if !mine && !record.holder.is_empty() && now < since + record.duration {
            return None;
        }
        Some(Claim {
            replaces: Some(record.version.clone()),
            holder: self.identity.clone(),
            duration: self.times.duration,
            transitions: record.transitions.saturating_add(i32::from(!mine)),
            acquires: !mine,
        })
    }
}

impl Candidate {
    /// The Lease was read, and is this, or not there.
    pub(super) fn read(&mut self, now: Instant, lease: Option<Record>) {
        match lease {
            Some(record) => self.found(now, record),
            None => self.missing(now),
        }
    }

    fn found(&mut self, now: Instant, record: Record) {
        let mut known = None;
        let mut made_anew = false;
        if let Seen::Lease { record: last, since } = &self.seen {
            known = (last.version == record.version).then_some(*since);
            made_anew = last.uid != record.uid;
        }
        if record.holder != self.identity {
            // Whoever wrote that has taken it, by right or by force.
            self.held = None;
            self.doubt = None;
        } else if known.is_none() {
            // Its own by a write whose answer was lost, perhaps an old one that came late.
            if made_anew && self.doubt.is_none() {
                self.doubt(record.duration);
            } else if let Some(doubt) = &mut self.doubt {
                doubt.over = None;
            }
        }
        let since = known.unwrap_or(now);
        let free = since + record.duration;
        self.fresh = self.claim(&record, since, now).is_some();
        self.seen = Seen::Lease { record, since };
        if self.fresh {
            self.next = now;
        } else {
            self.conflicts = 0;
            self.next = (now + self.pause()).min(free);
        }
    }

    fn missing(&mut self, now: Instant) {
        if let Seen::Lease { record, .. } = &self.seen {
            self.doubt(record.duration);
        }
        self.seen = Seen::Missing;
        self.fresh = true;
        self.next = now;
    }

    /// The Lease, which had that duration, was deleted.
    fn doubt(&mut self, duration: Duration) {
        self.doubt = Some(Doubt { wait: duration.max(self.times.duration), over: None });
    }

    /// It could not be read.
    pub(super) fn unreadable(&mut self, now: Instant) {
        self.fresh = false;
        self.next = now + self.pause();
    }

    /// A write that began at `begun` ended now.
    pub(super) fn written(&mut self, begun: Instant, now: Instant, claim: Claim, how: Written) {
        match how {
            Written::Done { uid, version } => {
                let Claim { holder, duration, transitions, .. } = claim;
                if holder == self.identity {
                    self.hold(begun, now);
                }
                let record = Record { uid, version, holder, duration, transitions };
                self.seen = Seen::Lease { record, since: now };
                self.fresh = true;
                self.conflicts = 0;
                self.next = (begun + self.pause()).max(now);
            }
            Written::Conflict => {
                self.fresh = false;
                self.conflicts += 1;
                self.next = if self.conflicts > 1 { now + self.pause() } else { now };
            }
            Written::Missing => self.missing(now),
            Written::Failed => {
                self.fresh = self.leads(now);
                self.next = now + self.pause();
            }
        }
    }

    /// The Lease is its own by a write that began then.
    fn hold(&mut self, begun: Instant, now: Instant) {
        let leads = self.leads(now);
        if let Some(Doubt { wait, over }) = &mut self.doubt {
            // Who leads is the other of the doubt.
            if !leads && over.is_none_or(|over| begun < over) {
                over.get_or_insert(now + *wait);
                return;
            }
            self.doubt = None;
        }
        self.held = Some(begun);
    }

    /// The write that gives the Lease up, if it is held as far as is known. From now on this
    /// candidate does not lead. A Lease in doubt is left to run out, since who takes an empty
    /// one does so at once.
    pub(super) fn release(&mut self) -> Option<Claim> {
        self.held = None;
        match &self.seen {
            _ if self.doubt.is_some() => None,
            Seen::Lease { record, .. } if record.holder == self.identity => Some(Claim {
                replaces: Some(record.version.clone()),
                holder: String::new(),
                duration: Duration::from_secs(1),
                transitions: record.transitions,
                acquires: false,
            }),
            _ => None,
        }
    }

    /// The time to the next attempt, with jitter, so that candidates do not meet each time.
    fn pause(&mut self) -> Duration {
        self.times.retry.mul_f64(1.0 + 0.2 * self.random.f64())
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
