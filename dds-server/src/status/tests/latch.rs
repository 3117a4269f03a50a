//! Conditions: what they say, and when they change.

use super::*;
use ConditionStatus::Unknown;

#[test]
fn who_is_late_is_named_and_the_rule_is_programmed_when_it_answers() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(3);
    bench.all_apply(&mut clients);
    bench.rule("a", 1, 1);
    bench.all_hear(&mut clients);
    clients[0].applies(bench.now, &[]);
    clients[1].applies(bench.now, &[]);
    bench.settle();
    bench.pass(secs(1));
    assert_eq!((bench.programmed("a"), bench.counts("a")), (is(Unknown, "Pending", 1), (3, 2, 0)));
    let message = bench.condition("a", PROGRAMMED).message;
    assert_eq!(message, "1 of 3 clients has not answered yet");
    bench.pass(secs(10));
    assert_eq!(bench.programmed("a"), is(False, "Lagging", 1));
    let message = bench.condition("a", PROGRAMMED).message;
    let told = "1 of 3 clients has not answered within 10 s: spiffe://td/ns/default/app/app-02";
    assert_eq!(message, told);
    assert_eq!(bench.condition("a", PROGRAMMED).last_transition_time, "2026-11-30T12:00:10Z");
    clients[2].applies(bench.now, &[]);
    bench.settle();
    assert_eq!((bench.programmed("a"), bench.counts("a")), (is(True, "Applied", 1), (3, 3, 0)));
}

#[test]
fn clients_that_come_go_and_are_silent_do_not_unset_it() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(3);
    bench.all_apply(&mut clients);
    bench.rule("a", 1, 1);
    bench.all_apply(&mut clients);
    assert_eq!(bench.programmed("a"), is(True, "Applied", 1));
    let silent = bench.connect("silent");
    bench.settle();
    assert_eq!(bench.written(), 1);
    bench.pass(secs(30));
    assert_eq!((bench.programmed("a"), bench.counts("a")), (is(True, "Applied", 1), (4, 3, 0)));
    drop((silent, clients));
    bench.settle();
    bench.pass(secs(9));
    assert_eq!(bench.written(), 1, "only that the silent one has come");
    bench.pass(secs(1));
    assert_eq!((bench.programmed("a"), bench.counts("a")), (is(True, "NoClients", 1), (0, 0, 0)));
}

#[test]
fn a_refusal_unsets_it_at_once_and_its_end_is_believed_when_it_stays() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(3);
    bench.all_apply(&mut clients);
    bench.rule("a", 1, 1);
    bench.rule("b", 1, 1);
    bench.all_apply(&mut clients);
    bench.pass(secs(5));
    let mut other = bench.connect("other");
    other.applies(bench.now, &["a/default"]);
    bench.settle();
    assert_eq!((bench.programmed("a"), bench.counts("a")), (is(False, "Rejected", 1), (4, 3, 1)));
    let message = bench.condition("a", PROGRAMMED).message;
    let told = "1 of 4 clients refuses it: spiffe://td/ns/default/app/other: RC0601 cannot";
    assert_eq!(message, told);
    let reasons = bench.status("a").reasons;
    assert_eq!((reasons.len(), reasons[0].reason.as_str()), (1, "RC0601 cannot"));
    assert_eq!(bench.programmed("b"), is(True, "Applied", 1));
    bench.written();
    // It comes back and refuses again: nothing new.
    drop(other);
    bench.settle();
    bench.pass(secs(9));
    let mut other = bench.connect("other");
    other.applies(bench.now, &["a/default"]);
    bench.settle();
    bench.pass(secs(60));
    // Rule b did see one client more for a while.
    bench.writes.retain(|(_, rule, _)| *rule == id("a"));
    assert_eq!(bench.written(), 0);
    // It goes for good.
    drop(other);
    bench.settle();
    bench.pass(secs(10));
    assert_eq!((bench.programmed("a"), bench.counts("a")), (is(True, "Applied", 1), (3, 3, 0)));
    assert!(bench.status("a").reasons.is_empty());
}

#[test]
fn a_client_that_applies_what_it_refused_ends_the_refusal_at_once() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(2);
    clients[0].applies(bench.now, &[]);
    bench.rule("a", 1, 1);
    clients[0].applies(bench.now, &[]);
    clients[1].applies(bench.now, &["a/default"]);
    bench.settle();
    assert_eq!(bench.programmed("a"), is(False, "Rejected", 1));
    bench.pass(secs(1));
    bench.all_apply(&mut clients);
    assert_eq!((bench.programmed("a"), bench.counts("a")), (is(True, "Applied", 1), (2, 2, 0)));
}

#[test]
fn a_new_generation_is_programmed_anew_also_with_the_same_content() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(1);
    bench.all_apply(&mut clients);
    bench.rule("a", 1, 1);
    bench.all_apply(&mut clients);
    bench.pass(secs(1));
    bench.rule("a", 2, 1);
    assert_eq!(bench.programmed("a"), is(True, "Applied", 2), "the client has it already");
    bench.pass(secs(1));
    bench.rule("a", 3, 2);
    bench.pass(secs(1));
    assert_eq!(bench.programmed("a"), is(Unknown, "Pending", 3));
    assert_eq!(bench.condition("a", PROGRAMMED).message, "the one client has not answered yet");
}

#[test]
fn a_disabled_rule_is_programmed_when_nobody_has_it_any_more() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(2);
    bench.all_apply(&mut clients);
    bench.rule("a", 1, 1);
    bench.all_apply(&mut clients);
    bench.pass(secs(1));
    let mut off = bench.stored("a", 2, 1);
    off.resource.spec = Arc::new(crate::store::conformance::ProbeSpec {
        key: "com.A".into(),
        application: false,
        enabled: false,
        value: 1,
        labels: Default::default(),
    });
    off.digest = crate::store::digest(&off.resource);
    bench.put(off);
    bench.pass(secs(1));
    assert_eq!((bench.programmed("a"), bench.counts("a")), (is(Unknown, "Pending", 2), (0, 0, 0)));
    bench.all_apply(&mut clients);
    bench.pass(ms(500));
    assert_eq!(bench.programmed("a"), is(True, "Disabled", 2));
}

#[test]
fn an_invalid_generation_keeps_the_last_good_one_on_the_object() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(2);
    bench.all_apply(&mut clients);
    bench.rule("a", 1, 1);
    bench.rule("a", 2, 2);
    bench.all_apply(&mut clients);
    bench.pass(secs(1));
    bench.bad("a", 3, Some(2));
    let accepted = bench.condition("a", ACCEPTED);
    assert_eq!((accepted.status, accepted.reason.as_str()), (False, "Invalid"));
    let told = "RC0203 spec.value = \"x\": is no number; write one";
    assert_eq!(accepted.message.split_once(' ').map(|m| m.1), told.split_once(' ').map(|m| m.1));
    assert_eq!((bench.programmed("a"), bench.counts("a")), (is(False, "LastGood", 3), (2, 2, 0)));
    let message = bench.condition("a", PROGRAMMED).message;
    assert_eq!(message, "generation 3 is refused; generation 2 stays in force");
    let last = bench.status("a").last_accepted.expect("the last good version");
    assert_eq!((last.generation, &last.spec["value"]), (2, &Value::from(2)));
    // A new process knows it from the object, and has nothing to say.
    let mut bench = bench.restarted();
    drop(clients);
    let mut clients = bench.fleet(2);
    bench.all_apply(&mut clients);
    bench.pass(secs(60));
    assert_eq!((bench.written(), bench.reads), (0, 1));
    bench.rule("a", 4, 3);
    bench.all_apply(&mut clients);
    assert_eq!(bench.programmed("a"), is(True, "Applied", 4));
    assert_eq!(bench.status("a").last_accepted, None);
}

#[test]
fn what_was_never_valid_is_told_too() {
    let mut bench = Bench::new();
    bench.bad("a", 1, None);
    assert_eq!(bench.programmed("a"), is(False, "Invalid", 1));
    assert_eq!(bench.condition("a", ACCEPTED).status, False);
    assert_eq!(bench.status("a").last_accepted, None);
    // One that a plane of another version kept, and that this one cannot read.
    bench.pass(secs(1));
    let kept = serde_json::json!({ "generation": 4, "spec": { "new": true } });
    bench.objects.insert(id("b"), serde_json::json!({ "lastAccepted": kept }));
    bench.bad("b", 5, None);
    assert_eq!(bench.programmed("b"), is(False, "Invalid", 5));
    assert_eq!(bench.objects[&id("b")]["lastAccepted"], kept);
}
