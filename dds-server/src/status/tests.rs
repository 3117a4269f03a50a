//! The planner over real index, views and tracker, with a store that is a map and a clock that
//! is set.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use rulecast_api::{
    Code, ResourceId, SpiffeId,
    rule_status::{ACCEPTED, Condition, ConditionStatus, PROGRAMMED, RuleStatus},
};
use serde_json::Value;

use super::{Failure, Notice, Planner, StatusConfig, Step};
use crate::{
    index::Index,
    rollout::{Peer, Rejected, Report, Rollout, Tracked},
    scope::{Owners, Root, Scope},
    store::{
        Event, StoreProblem, Stored, Version,
        conformance::{KIND, KINDS, stored},
    },
    view::View,
    views::{Debounce, Subscription, Views},
};

mod latch;
mod pace;
mod property;
mod shell;
mod trouble;

/// A client that answers when it is told to.
struct Client {
    place: Subscription,
    tracked: Tracked,
}

impl Client {
    fn view(&mut self, now: Instant) -> Arc<View> {
        let view = self.place.current().expect("listed");
        self.tracked.report_at(now, Report::View { kind: KIND, view: view.clone() });
        view
    }

    /// Takes the newest view and applies it but for the rules named.
    fn applies(&mut self, now: Instant, but: &[&str]) {
        let view = self.view(now);
        let rejected = view.items.iter().filter(|item| but.contains(&item.key.as_str()));
        let rejected = rejected.map(|item| Rejected {
            key: item.key.clone(),
            digest: item.digest,
            reason: "RC0601 cannot".into(),
        });
        let rejected = rejected.collect();
        let (revision, took) = (view.revision, Duration::ZERO);
        self.tracked.report_at(now, Report::Applied { kind: KIND, view, revision, rejected, took });
    }
}

/// A plane's parts, and the objects of a server.
struct Bench {
    start: Instant,
    now: Instant,
    index: Index,
    views: Views,
    rollout: Rollout,
    planner: Planner,
    revision: i64,
    problems: Vec<StoreProblem>,
    /// What stands, by rule.
    objects: HashMap<ResourceId, Value>,
    writes: Vec<(Instant, ResourceId, RuleStatus)>,
    reads: usize,
    /// Why the server refuses writes.
    fails: Option<Failure>,
    notices: Vec<Notice>,
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn id(name: &str) -> ResourceId {
    ResourceId { kind: KIND, namespace: "default".into(), name: name.into() }
}

impl Bench {
    /// A plane that leads, over an empty store.
    fn new() -> Self {
        let index = Index::new(KINDS, "l".into());
        index.apply(vec![Event::Listing, Event::Listed { revision: 1 }]);
        let mut bench = Self::over(index, HashMap::new());
        bench.lead(true);
        bench
    }

    fn over(index: Index, objects: HashMap<ResourceId, Value>) -> Self {
        let none: [(String, String); 0] = [];
        let root = Root::new(["root"]);
        let views = Views::new(index.clone(), Owners::new(none), root, Debounce::default());
        let start = Instant::now();
        Self {
            start,
            now: start,
            revision: index.snapshot().revision,
            index,
            views,
            rollout: Rollout::new(),
            planner: Planner::new(StatusConfig::default()),
            problems: Vec::new(),
            objects,
            writes: Vec::new(),
            reads: 0,
            fails: None,
            notices: Vec::new(),
        }
    }

    /// The same store and the same objects under a new process.
    fn restarted(self) -> Self {
        let revision = self.revision;
        let mut bench = Self::over(self.index, self.objects);
        bench.revision = revision;
        bench.problems = self.problems;
        bench.now = self.now;
        bench.lead(true);
        bench
    }

    fn lead(&mut self, leads: bool) {
        self.planner.set_leading(self.now, leads);
        self.settle();
    }

    fn connect(&mut self, name: &str) -> Client {
        let spiffe = SpiffeId::application("td", "default", name).expect("an identity");
        let peer = Peer {
            spiffe_id: spiffe.to_string(),
            address: None,
            connected_at: SystemTime::UNIX_EPOCH,
        };
        let tracked = self.rollout.track(peer);
        tracked.report_at(self.now, Report::Subscribed { kind: KIND });
        let mut client =
            Client { place: self.views.subscribe(&Scope::new(&spiffe, None), KIND), tracked };
        client.view(self.now);
        client
    }

    fn fleet(&mut self, count: usize) -> Vec<Client> {
        (0..count).map(|n| self.connect(&format!("app-{n:02}"))).collect()
    }

    fn stored(&mut self, name: &str, generation: i64, value: u32) -> Stored {
        self.revision += 1;
        let uid = format!("uid of {name}").into();
        let version = Version { uid, generation };
        Stored { version, ..stored(name, "default", "com.A", value, self.revision) }
    }

    /// Writes a rule.
    fn rule(&mut self, name: &str, generation: i64, value: u32) {
        let stored = self.stored(name, generation, value);
        self.put(stored);
    }

    fn put(&mut self, stored: Stored) {
        let rule = stored.resource.id.clone();
        self.problems.retain(|p| p.object.as_ref().is_none_or(|(id, _)| *id != rule));
        let problems = Event::Problems(self.problems.clone().into());
        self.index.apply(vec![Event::Upsert(stored), problems]);
        self.settle();
    }

    /// Writes a rule that is invalid; `last` stays in force.
    fn bad(&mut self, name: &str, generation: i64, last: Option<u32>) {
        let stored = last.map(|value| self.stored(name, generation, value));
        let version = Version { uid: format!("uid of {name}").into(), generation };
        self.problems.retain(|p| p.object.as_ref().is_none_or(|(rule, _)| *rule != id(name)));
        self.problems.push(StoreProblem {
            file: String::new(),
            line: 0,
            column: 0,
            code: Code::FieldInvalid,
            field: "spec.value".into(),
            value: Some("x".into()),
            message: "is no number".into(),
            hint: "write one".into(),
            resource: String::new(),
            last_good_in_force: last.is_some(),
            object: Some((id(name), version)),
        });
        let mut events = vec![Event::Problems(self.problems.clone().into())];
        events.extend(stored.map(|s| Event::Upsert(Stored { accepted: false, ..s })));
        self.index.apply(events);
        self.settle();
    }

    fn delete(&mut self, name: &str) {
        self.revision += 1;
        self.index.apply(vec![Event::Remove { id: id(name), revision: self.revision }]);
        self.objects.remove(&id(name));
        self.settle();
    }
}

impl Bench {
    /// Lets the planner see how things are, and does what it wants done.
    fn settle(&mut self) {
        self.views.refresh();
        self.look();
        self.steps();
    }

    fn look(&mut self) {
        let shown = self.views.shown();
        let none = HashMap::new();
        let views = shown.views.get(&KIND).unwrap_or(&none);
        let deadline = StatusConfig::default().ack_deadline;
        let rollout = self.rollout.kind_at(KIND, views, self.now, deadline);
        self.planner.observe(self.now, shown.snapshot, BTreeMap::from([(KIND, rollout)]));
    }

    fn wall(&self) -> SystemTime {
        // 2026-11-30T12:00:00Z
        SystemTime::UNIX_EPOCH + secs(1_796_040_000) + (self.now - self.start)
    }

    fn steps(&mut self) {
        while let Some(step) = self.planner.next(self.now, self.wall()) {
            self.step(step);
        }
        self.notices.extend(self.planner.take_notice());
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Read { ticket, id } => {
                self.reads += 1;
                let value = self.objects.get(&id).cloned();
                self.planner.on_read(self.now, ticket, Ok(value));
            }
            Step::Write { ticket, id, status } => {
                let result = self.write(id, status);
                self.planner.on_written(self.now, ticket, result);
            }
        }
    }

    fn write(&mut self, id: ResourceId, status: RuleStatus) -> Result<(), Failure> {
        self.writes.push((self.now, id.clone(), status.clone()));
        if let Some(failure) = &self.fails {
            return Err(failure.clone());
        }
        self.objects.insert(id, serde_json::to_value(status).expect("JSON"));
        Ok(())
    }

    /// Lets time pass, as the shell would.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(next) = self.planner.deadline().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            if self.planner.wants_look(self.now) {
                self.look();
            }
            self.steps();
            // Else the shell would spin.
            let after = self.planner.deadline();
            assert!(after.is_none_or(|after| after > self.now), "nothing to do, and no rest");
        }
        self.now = until;
    }

    /// Answers of clients reach the planner.
    fn all_apply(&mut self, clients: &mut [Client]) {
        clients.iter_mut().for_each(|client| client.applies(self.now, &[]));
        self.settle();
    }

    /// Streams have the newest views before them.
    fn all_hear(&mut self, clients: &mut [Client]) {
        clients.iter_mut().for_each(|client| drop(client.view(self.now)));
        self.settle();
    }

    fn status(&self, name: &str) -> RuleStatus {
        let value = self.objects.get(&id(name)).expect("a status stands");
        serde_json::from_value(value.clone()).expect("valid")
    }

    fn condition(&self, name: &str, kind: &str) -> Condition {
        let status = self.status(name);
        status.conditions.into_iter().find(|c| c.kind == kind).expect("the condition")
    }

    /// Programmed in short: status, reason, generation.
    fn programmed(&self, name: &str) -> (ConditionStatus, String, i64) {
        let condition = self.condition(name, PROGRAMMED);
        (condition.status, condition.reason, condition.observed_generation)
    }

    fn counts(&self, name: &str) -> (i64, i64, i64) {
        let status = self.status(name);
        (status.matched, status.applied, status.rejected)
    }

    /// How many writes there were since the last time.
    fn written(&mut self) -> usize {
        std::mem::take(&mut self.writes).len()
    }
}

fn is(status: ConditionStatus, reason: &str, generation: i64) -> (ConditionStatus, String, i64) {
    (status, reason.to_owned(), generation)
}

use ConditionStatus::{False, True};

#[test]
fn a_rule_without_clients_is_programmed_at_once_and_then_left_alone() {
    let mut bench = Bench::new();
    bench.rule("a", 1, 1);
    assert_eq!(bench.programmed("a"), is(True, "NoClients", 1));
    let accepted = bench.condition("a", ACCEPTED);
    assert_eq!((accepted.status, accepted.reason.as_str()), (True, "Accepted"));
    assert_eq!(accepted.last_transition_time, "2026-11-30T12:00:00Z");
    assert_eq!((bench.counts("a"), bench.status("a").observed_generation), ((0, 0, 0), 1));
    assert_eq!(bench.written(), 1);
    bench.pass(secs(60));
    bench.settle();
    assert_eq!((bench.written(), bench.planner.deadline()), (0, None), "nothing even wakes it");
}

#[test]
fn a_roll_out_ends_in_one_write_when_all_answer_at_once() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(20);
    bench.all_apply(&mut clients);
    bench.rule("a", 1, 1);
    assert_eq!(bench.written(), 0, "a new rule that is on its way does not match nobody");
    bench.pass(ms(100));
    bench.all_apply(&mut clients);
    assert_eq!((bench.programmed("a"), bench.counts("a")), (is(True, "Applied", 1), (20, 20, 0)));
    assert_eq!(bench.written(), 1);
    bench.pass(secs(2));
    bench.rule("a", 2, 2);
    bench.pass(ms(100));
    bench.all_apply(&mut clients);
    assert_eq!((bench.programmed("a"), bench.written()), (is(True, "Applied", 2), 1));
    let time = bench.condition("a", PROGRAMMED).last_transition_time;
    assert_eq!(time, "2026-11-30T12:00:00Z", "true as before");
}

#[test]
fn counts_stand_within_two_seconds_while_a_rule_rolls_out() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(10);
    bench.all_apply(&mut clients);
    bench.rule("a", 1, 1);
    bench.all_hear(&mut clients);
    for (n, client) in clients[..9].iter_mut().enumerate() {
        bench.pass(ms(900));
        client.applies(bench.now, &[]);
        bench.settle();
        // Since two seconds at most this has been so.
        let written = bench.objects.get(&id("a")).map_or(0, |_| bench.counts("a").1);
        assert!(written + 2 > n as i64, "{written} of {n}");
    }
    bench.pass(secs(2));
    assert_eq!(bench.programmed("a"), is(False, "Lagging", 1));
    assert_eq!(bench.counts("a"), (10, 9, 0));
    assert!(bench.written() <= 11, "no more than one a second");
}
