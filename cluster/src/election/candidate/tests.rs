//! Single decisions.

use super::*;

const TIMES: Times = Times {
    duration: Duration::from_secs(15),
    deadline: Duration::from_secs(10),
    retry: Duration::from_secs(2),
};

fn candidate(now: Instant) -> Candidate {
    Candidate::new("me".into(), TIMES, 1, now)
}

fn record(version: &str, holder: &str) -> Record {
    let duration = Duration::from_secs(15);
    let uid = "u".into();
    Record { uid, version: version.into(), holder: holder.into(), duration, transitions: 3 }
}

fn done(version: &str) -> Written {
    Written::Done { uid: "u".into(), version: version.into() }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Lets a candidate take a free Lease at `now`.
fn leader(now: Instant) -> Candidate {
    let mut me = candidate(now);
    assert_eq!(me.next(now), Action::Read);
    me.read(now, Some(record("1", "")));
    let Action::Write(claim) = me.next(now) else { panic!("a free Lease is taken") };
    assert_eq!((claim.transitions, claim.acquires), (4, true));
    me.written(now, now, claim, done("2"));
    assert_eq!(me.leads_until(), Some(now + seconds(10)));
    me
}

#[test]
fn a_lease_that_is_not_there_is_made_and_leads_at_once() {
    let now = Instant::now();
    let mut me = candidate(now);
    assert_eq!(me.next(now), Action::Read);
    me.read(now, None);
    let Action::Write(claim) = me.next(now) else { panic!("it is made") };
    assert_eq!((claim.replaces.as_deref(), claim.transitions), (None, 0));
    let answered = now + seconds(1);
    me.written(now, answered, claim, done("1"));
    // From the beginning of the write, not from its answer.
    assert_eq!(me.leads_until(), Some(now + seconds(10)));
}

#[test]
fn a_holders_duration_counts_from_when_this_candidate_saw_the_last_change() {
    let start = Instant::now();
    let mut me = candidate(start);
    me.read(start, Some(record("1", "other")));
    let seen = start + seconds(14);
    me.read(seen, Some(record("2", "other")));
    let early = seen + seconds(15) - Duration::from_millis(1);
    me.read(early, Some(record("2", "other")));
    assert_eq!(me.next(early), Action::Wait(seen + seconds(15)), "not a moment later than it may");
    let free = seen + seconds(15);
    assert_eq!(me.next(free), Action::Read);
    me.read(free, Some(record("2", "other")));
    let Action::Write(claim) = me.next(free) else { panic!("it is taken") };
    assert_eq!((claim.replaces.as_deref(), claim.transitions), (Some("2"), 4));
}

#[test]
fn the_holders_own_duration_is_respected() {
    let start = Instant::now();
    let mut me = candidate(start);
    let slow = Record { duration: seconds(60), ..record("1", "other") };
    me.read(start, Some(slow.clone()));
    me.read(start + seconds(59), Some(slow.clone()));
    assert!(matches!(me.next(start + seconds(59)), Action::Wait(_)));
    me.read(start + seconds(60), Some(slow));
    assert!(matches!(me.next(start + seconds(60)), Action::Write(_)));
}

#[test]
fn a_leader_renews_without_reading_and_keeps_the_transitions() {
    let start = Instant::now();
    let mut me = leader(start);
    let Action::Wait(at) = me.next(start) else { panic!("it waits") };
    assert!((seconds(2)..=seconds(3)).contains(&(at - start)));
    let Action::Write(claim) = me.next(at) else { panic!("it renews") };
    assert_eq!((claim.replaces.as_deref(), claim.transitions), (Some("2"), 4));
    assert!(!claim.acquires);
    me.written(at, at, claim, done("3"));
    assert_eq!(me.leads_until(), Some(at + seconds(10)));
}

#[test]
fn an_answer_after_the_deadline_gives_no_lead() {
    let start = Instant::now();
    let mut me = leader(start);
    let at = start + seconds(3);
    let Action::Write(claim) = me.next(at) else { panic!("it renews") };
    let late = at + seconds(11);
    me.written(at, late, claim, done("3"));
    assert_eq!(me.next(late), Action::Read);
    assert_eq!(me.leads_until(), None);
}

#[test]
fn failed_renewals_end_the_lead_by_the_deadline() {
    let start = Instant::now();
    let mut me = leader(start);
    let mut now = start;
    while me.leads_until().is_some() {
        match me.next(now) {
            Action::Wait(at) => now = at,
            Action::Read => me.unreadable(now),
            Action::Write(claim) => me.written(now, now, claim, Written::Failed),
        }
        assert!(me.leads_until().is_none_or(|until| until == start + seconds(10)));
    }
    assert!(now >= start + seconds(10));
}

#[test]
fn a_lease_taken_by_force_ends_the_lead_when_it_is_seen() {
    let start = Instant::now();
    let mut me = leader(start);
    let now = start + seconds(3);
    let Action::Write(claim) = me.next(now) else { panic!("it renews") };
    me.written(now, now, claim, Written::Conflict);
    assert!(me.leads_until().is_some(), "somebody may only have put a label on it");
    assert_eq!(me.next(now), Action::Read);
    me.read(now, Some(record("9", "other")));
    assert_eq!(me.leads_until(), None);
}

#[test]
fn a_label_by_somebody_else_costs_no_lead() {
    let start = Instant::now();
    let mut me = leader(start);
    let now = start + seconds(3);
    let Action::Write(claim) = me.next(now) else { panic!("it renews") };
    me.written(now, now, claim, Written::Conflict);
    me.next(now);
    me.read(now, Some(record("3", "me")));
    let Action::Write(claim) = me.next(now) else { panic!("it renews what is there now") };
    assert_eq!((claim.replaces.as_deref(), claim.acquires), (Some("3"), false));
    me.written(now, now, claim, done("4"));
    assert_eq!(me.leads_until(), Some(now + seconds(10)));
}

#[test]
fn a_leader_makes_a_deleted_lease_again_and_still_leads() {
    let start = Instant::now();
    let mut me = leader(start);
    let now = start + seconds(3);
    let Action::Write(claim) = me.next(now) else { panic!("it renews") };
    me.written(now, now, claim, Written::Missing);
    let Action::Write(claim) = me.next(now) else { panic!("it makes it again, at once") };
    assert_eq!(claim.replaces, None);
    me.written(now, now, claim, done("9"));
    assert_eq!(me.leads_until(), Some(now + seconds(10)));
}

#[test]
fn another_makes_a_deleted_lease_but_leads_only_after_the_leaders_time() {
    let start = Instant::now();
    let mut me = candidate(start);
    me.read(start, Some(record("1", "other")));
    let mut now = start + seconds(1);
    me.read(now, None);
    let begun = now;
    let mut version = 1;
    while me.leads_until().is_none() {
        assert!(now < begun + seconds(20), "it leads in the end");
        match me.next(now) {
            Action::Wait(at) => now = at,
            Action::Read => panic!("nothing needs to be read"),
            Action::Write(claim) => {
                version += 1;
                me.written(now, now, claim, done(&version.to_string()));
            }
        }
    }
    assert!(now >= begun + seconds(15));
}

#[test]
fn only_a_holder_gives_up() {
    let now = Instant::now();
    let mut me = leader(now);
    let claim = me.release().expect("it holds the Lease");
    assert_eq!((claim.holder.as_str(), claim.duration, claim.transitions), ("", seconds(1), 4));
    assert_eq!(me.leads_until(), None);

    let mut me = candidate(now);
    assert_eq!(me.release(), None);
    me.read(now, Some(record("1", "other")));
    assert_eq!(me.release(), None);
}
