//! What is under way, what fails, and who leads.

use super::*;

fn down() -> Failure {
    Failure { code: Code::StoreDown, reason: "refused".into() }
}

/// Does all reads; gives the writes back undone.
fn writes(bench: &mut Bench) -> Vec<(crate::status::Ticket, ResourceId, RuleStatus)> {
    let mut writes = Vec::new();
    while let Some(step) = bench.planner.next(bench.now, bench.wall()) {
        match step {
            Step::Write { ticket, id, status } => writes.push((ticket, id, status)),
            read => bench.step(read),
        }
    }
    writes
}

/// Puts a rule without doing what the planner wants.
fn put(bench: &mut Bench, name: &str, generation: i64) {
    let stored = bench.stored(name, generation, u32::try_from(generation).expect("small"));
    bench.index.apply(vec![Event::Upsert(stored)]);
    bench.views.refresh();
    bench.look();
}

#[test]
fn one_write_of_an_object_is_under_way_and_the_newest_follows() {
    let mut bench = Bench::new();
    put(&mut bench, "a", 1);
    let under_way = writes(&mut bench);
    assert_eq!(under_way.len(), 1);
    for generation in 2..5 {
        bench.now += secs(2);
        put(&mut bench, "a", generation);
        assert!(writes(&mut bench).is_empty());
    }
    let (ticket, rule, status) = under_way.into_iter().next().expect("one");
    let result = bench.write(rule, status);
    bench.planner.on_written(bench.now, ticket, result);
    let next = writes(&mut bench);
    let generations: Vec<_> = next.iter().map(|(.., s)| s.observed_generation).collect();
    assert_eq!(generations, [4]);
}

#[test]
fn who_loses_the_lead_writes_no_more_and_forgets_what_was_under_way() {
    let mut bench = Bench::new();
    put(&mut bench, "a", 1);
    put(&mut bench, "b", 1);
    let under_way = writes(&mut bench);
    assert_eq!(under_way.len(), 2);
    put(&mut bench, "a", 2);
    bench.lead(false);
    assert_eq!((bench.planner.deadline(), bench.planner.waiting()), (None, 0));
    bench.settle();
    // Another writes, and the lead comes back.
    let (old, ..) = under_way[0];
    bench.pass(secs(20));
    bench.objects.insert(id("a"), serde_json::json!({ "observedGeneration": 1, "applied": 7 }));
    bench.lead(true);
    let reads = bench.reads;
    bench.planner.on_written(bench.now, old, Ok(()));
    bench.settle();
    assert_eq!((reads, bench.reads), (4, 4), "what stands is read again, once");
    assert_eq!(bench.written(), 2);
    assert_eq!(bench.programmed("a"), is(True, "NoClients", 2));
}

#[test]
fn a_new_leader_writes_only_what_differs() {
    let mut bench = Bench::new();
    for name in ["a", "b", "c"] {
        bench.rule(name, 1, 1);
    }
    let other = bench.objects.get_mut(&id("b")).expect("stands");
    other["conditions"].as_array_mut().expect("a list").reverse();
    other["theirs"] = Value::from(true);
    other["conditions"][0]["lastTransitionTime"] = Value::from("2020-01-01T00:00:00Z");
    let wrong = bench.objects.get_mut(&id("c")).expect("stands");
    wrong["matched"] = Value::from(9);
    let mut bench = bench.restarted();
    bench.pass(secs(20));
    let written: Vec<_> = bench.writes.iter().map(|(_, rule, _)| rule.clone()).collect();
    assert_eq!((written, bench.reads), (vec![id("c")], 3));
}

#[test]
fn a_failed_write_is_repeated_with_longer_and_longer_pauses_and_told_once() {
    let mut bench = Bench::new();
    bench.fails = Some(down());
    for n in 0..50 {
        bench.rule(&n.to_string(), 1, 1);
    }
    bench.pass(secs(30));
    super::pace::check_rates(&bench.writes);
    let tried = bench.written();
    assert!((4..40).contains(&tried), "{tried} attempts: no storm, and no giving up");
    assert_eq!(bench.notices.len(), 1);
    bench.pass(secs(300));
    let tried = bench.written();
    assert!((28..60).contains(&tried), "{tried} attempts: one each ten seconds");
    assert!((2..=6).contains(&bench.notices.len()), "once a minute: {:?}", bench.notices);
    bench.fails = None;
    bench.pass(secs(20));
    assert_eq!((bench.written(), bench.objects.len()), (50, 50), "soon after it works again");
    assert_eq!(bench.notices.last(), Some(&Notice::Recovered));
    bench.notices.clear();
    bench.pass(secs(100));
    assert_eq!((bench.written(), bench.notices.len()), (0, 0));
}

#[test]
fn one_object_that_cannot_be_written_is_in_nobodys_way() {
    let mut bench = Bench::new();
    bench.fails = Some(Failure { code: Code::FieldInvalid, reason: "too long".into() });
    bench.rule("odd", 1, 1);
    bench.pass(secs(60));
    assert!((5..=8).contains(&bench.written()));
    put(&mut bench, "good", 1);
    bench.fails = None;
    bench.pass(ms(1));
    assert_eq!(bench.programmed("good"), is(True, "NoClients", 1));
    bench.delete("odd");
    assert_eq!(bench.notices.last(), Some(&Notice::Recovered), "it is gone");
}

#[test]
fn an_object_with_the_same_name_is_another() {
    let mut bench = Bench::new();
    bench.rule("a", 5, 1);
    bench.pass(secs(2));
    bench.objects.remove(&id("a"));
    let mut again = bench.stored("a", 1, 1);
    again.version.uid = "another".into();
    bench.put(again);
    assert_eq!((bench.programmed("a"), bench.reads), (is(True, "NoClients", 1), 2));
    bench.delete("a");
    bench.pass(secs(60));
    assert_eq!((bench.written(), bench.planner.deadline()), (2, None));
}

#[test]
fn a_generation_that_is_not_seen_yet_is_not_written_over_at_once() {
    let mut bench = Bench::new();
    let ahead = serde_json::json!({ "observedGeneration": 3, "matched": 1 });
    bench.objects.insert(id("a"), ahead);
    bench.rule("a", 2, 1);
    bench.pass(secs(5));
    assert_eq!(bench.written(), 0);
    bench.rule("a", 3, 2);
    assert_eq!((bench.written(), bench.status("a").observed_generation), (1, 3));
    // Nonsense that stays is corrected.
    bench.objects.insert(id("b"), serde_json::json!({ "observedGeneration": 99 }));
    bench.rule("b", 1, 1);
    bench.pass(secs(11));
    assert_eq!(bench.programmed("b"), is(True, "NoClients", 1));
}

#[test]
fn a_write_that_may_have_arrived_is_read_before_it_is_repeated() {
    let mut bench = Bench::new();
    put(&mut bench, "a", 1);
    let (ticket, rule, status) = writes(&mut bench).pop().expect("one");
    bench.write(rule, status).expect("it arrived");
    bench.planner.on_written(bench.now, ticket, Err(down()));
    bench.pass(secs(60));
    assert_eq!((bench.written(), bench.reads), (1, 2), "and what stands is right");
}

#[test]
fn while_many_are_read_a_changed_one_goes_first() {
    let mut bench = Bench::new();
    bench.lead(false);
    for n in 0..100 {
        bench.rule(&format!("rule-{n}"), 1, 1);
    }
    bench.planner.set_leading(bench.now, true);
    bench.look();
    let mut reads = Vec::new();
    let mut read = |bench: &mut Bench| match bench.planner.next(bench.now, bench.wall()) {
        Some(Step::Read { ticket, id }) => {
            reads.push(id);
            bench.planner.on_read(bench.now, ticket, Ok(None));
        }
        other => panic!("{other:?}"),
    };
    read(&mut bench);
    bench.now += ms(1);
    put(&mut bench, "rule-99", 2);
    put(&mut bench, "new", 1);
    read(&mut bench);
    read(&mut bench);
    assert_eq!(reads[1..], [id("rule-99"), id("new")]);
}

#[test]
fn a_write_that_meets_a_deletion_is_not_spoken_of() {
    let mut bench = Bench::new();
    let absent = Failure { code: Code::StoreConflict, reason: "it is absent".into() };
    bench.fails = Some(absent);
    bench.rule("a", 1, 1);
    bench.delete("a");
    assert_eq!((bench.written(), bench.notices.len()), (1, 0));
    bench.rule("b", 1, 1);
    bench.pass(secs(10));
    assert_eq!(bench.notices.len(), 1, "that one is there");
}
