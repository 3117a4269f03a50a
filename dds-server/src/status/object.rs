//! One object: what is known of it, and how much it presses to be written.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rulecast_api::rule_status::ConditionStatus;

use super::{
    Key, Reason, StatusConfig, Ticket,
    queue::{Class, Pace, Place, Queue},
    standing::{Standing, content},
    wanted::{self, Wanted},
    world::{self, World},
};

/// What is known of what stands on an object.
#[derive(Debug)]
pub(super) enum Known {
    /// Nothing; it waits to be read at this place.
    Unread(ReadPlace),
    /// It is being read or written.
    Busy(Ticket),
    /// `None`: no status that is ours.
    Read(Option<Box<Standing>>),
}

/// Where an object waits to be read, and from when on.
pub(super) type ReadPlace = (Rank, Instant);

/// What is read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// Objects that changed.
    Changed,
    /// Those that were there when this plane began to lead.
    Rest,
}

#[derive(Debug)]
pub(super) struct Object {
    pub(super) uid: Arc<str>,
    pub(super) generation: i64,
    /// The last generation that was seen valid.
    pub(super) good: Option<i64>,
    pub(super) known: Known,
    /// What was looked at last.
    pub(super) facts: Option<world::Facts>,
    /// The generation for which Programmed has come true.
    pub(super) latched: Option<i64>,
    pub(super) place: Option<Place>,
    pub(super) failures: u32,
    /// In which look it was seen last.
    pub(super) seen: u64,
}

impl Object {
    pub(super) fn wanted(
        &self,
        key: &Key,
        world: &World,
        config: &StatusConfig,
        warm: bool,
    ) -> Wanted {
        let standing = match &self.known {
            Known::Read(standing) => standing.as_deref(),
            Known::Unread(_) | Known::Busy(_) => None,
        };
        let latched = self.latched == Some(self.generation)
            || standing.is_some_and(|standing| standing.programmed(self.generation));
        Wanted::of(&wanted::Facts {
            generation: self.generation,
            stored: world.stored(key),
            problems: &world.problems(key),
            rollout: &world.rollout(key),
            ack_deadline: config.ack_deadline,
            latched,
            awaiting: !warm,
            good: self.good.or_else(|| standing.and_then(Standing::good)),
            standing,
        })
    }

    /// Gives the object its place in the queue, or takes it away, by what should stand and
    /// what does.
    pub(super) fn compare(
        &mut self,
        now: Instant,
        key: &Key,
        world: &World,
        config: &StatusConfig,
        warm: bool,
        (queue, pace): (&mut Queue, &Pace),
    ) {
        let Known::Read(standing) = &self.known else { return };
        let facts = world.facts(key, self.generation, &world.rollout(key));
        if self.facts == Some(facts) {
            return;
        }
        self.facts = Some(facts);
        let wanted = self.wanted(key, world, config, warm);
        let place = if standing
            .as_ref()
            .is_some_and(|standing| standing.content == content(&wanted.status(None, "")))
        {
            None
        } else {
            let class = class(&wanted, standing.as_deref(), warm);
            let delay = match class {
                Class::Now => Duration::ZERO,
                Class::Soon => config.gather,
                Class::Calm => config.stable,
            };
            let fresh = now + delay;
            let due = match self.place {
                // It waits already. What is calmer now starts to wait anew.
                Some(place) if class <= place.class => place.due.min(fresh),
                _ => fresh,
            };
            let due = pace.of(key).map_or(due, |free| free.max(due));
            Some(Place { class, due })
        };
        match wanted.programmed.reason {
            Reason::Rejected => self.latched = None,
            _ if wanted.programmed.status() == ConditionStatus::True
                && place.is_some_and(|place| place.class != Class::Calm) =>
            {
                self.latched = Some(self.generation);
            }
            _ => {}
        }
        if self.place != place {
            if let Some(place) = self.place.take() {
                queue.remove(key, place);
            }
            if let Some(place) = place {
                queue.insert(key, place);
            }
            self.place = place;
        }
    }
}

/// How much it presses that `wanted` comes to stand where `standing` does.
fn class(wanted: &Wanted, standing: Option<&Standing>, warm: bool) -> Class {
    let reason = wanted.programmed.reason;
    let moves = if reason == Reason::Pending { Class::Soon } else { Class::Now };
    let Some(standing) = standing else { return moves };
    if standing.generation != wanted.generation {
        // One that this plane has not seen yet is another's to speak of, unless it never comes.
        return if standing.generation > wanted.generation { Class::Calm } else { moves };
    }
    let stands = standing.programmed.as_ref();
    let stood = stands.and_then(|stands| stands.reason);
    if standing.accepted.as_ref().and_then(|a| a.reason) != Some(wanted.accepted.reason)
        || reason == Reason::Rejected && stood != Some(Reason::Rejected)
    {
        return Class::Now;
    }
    let reached = wanted.programmed.status() == ConditionStatus::True
        && stands.is_some_and(|stands| stands.status != ConditionStatus::True);
    if standing.settled || !warm {
        // Good news are believed at once only if nobody is missing.
        let complete = reached && warm && wanted.applied >= standing.matched;
        return if complete { Class::Now } else { Class::Calm };
    }
    if reached || reason != Reason::Pending && Some(reason) != stood {
        Class::Now
    } else {
        Class::Soon
    }
}
