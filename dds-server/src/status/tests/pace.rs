//! How often is written, who goes first, and what is not written at all.

use super::*;

/// The rates hold, whatever was written.
pub(super) fn check_rates(writes: &[(Instant, ResourceId, RuleStatus)]) {
    for (at, (since, id, _)) in writes.iter().enumerate() {
        let second = writes[at..].iter().take_while(|(now, ..)| *now < *since + secs(1));
        assert!(second.clone().count() <= 20, "more than 20 in a second");
        let same = second.filter(|(_, other, _)| other == id).count();
        assert_eq!(same, 1, "{id} was written twice in a second");
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("rule-{n:03}")).collect()
}

fn many(bench: &mut Bench, count: usize) -> Vec<String> {
    let names = names(count);
    for name in &names {
        bench.rule(name, 1, 1);
    }
    names
}

#[test]
fn two_hundred_rules_take_ten_seconds_and_no_more() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(3);
    bench.all_apply(&mut clients);
    let names = many(&mut bench, 200);
    bench.all_apply(&mut clients);
    bench.pass(secs(11));
    check_rates(&bench.writes);
    for name in &names {
        assert_eq!(bench.programmed(name), is(True, "Applied", 1));
    }
    assert_eq!((bench.written(), bench.planner.waiting()), (200, 0));
    bench.pass(secs(60));
    assert_eq!(bench.written(), 0);
}

#[test]
fn what_rolls_out_goes_before_what_merely_moved() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(3);
    bench.all_apply(&mut clients);
    many(&mut bench, 200);
    bench.all_apply(&mut clients);
    bench.pass(secs(30));
    bench.written();
    // One client goes: all counts move.
    clients.pop();
    bench.settle();
    bench.pass(secs(11));
    assert!(bench.planner.waiting() > 100);
    bench.rule("new", 1, 1);
    bench.all_apply(&mut clients);
    assert_eq!(bench.programmed("new"), is(True, "Applied", 1), "it did not wait for any");
    bench.pass(secs(30));
    check_rates(&bench.writes);
    assert_eq!((bench.written(), bench.planner.waiting()), (201, 0));
    assert_eq!(bench.counts("rule-007"), (2, 2, 0));
}

#[test]
fn clients_that_come_back_with_the_same_result_cost_nothing() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(5);
    clients[4].applies(bench.now, &[]);
    many(&mut bench, 20);
    let refuses = |bench: &mut Bench, clients: &mut [Client]| {
        for (n, client) in clients.iter_mut().enumerate() {
            client.applies(bench.now, if n < 2 { &["rule-003/default"] } else { &[] });
        }
        bench.settle();
    };
    refuses(&mut bench, &mut clients);
    bench.pass(secs(20));
    assert_eq!(bench.programmed("rule-003"), is(False, "Rejected", 1));
    bench.written();
    for _ in 0..5 {
        drop(std::mem::take(&mut clients));
        bench.settle();
        bench.pass(secs(3));
        // One after the other.
        for n in 0..5 {
            clients.push(bench.connect(&format!("app-{n:02}")));
            bench.settle();
            bench.pass(secs(1));
        }
        refuses(&mut bench, &mut clients);
        bench.pass(secs(2));
    }
    bench.pass(secs(60));
    assert_eq!(bench.written(), 0);
}

#[test]
fn a_move_is_written_when_it_has_stayed() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(2);
    bench.all_apply(&mut clients);
    bench.rule("a", 1, 1);
    bench.all_apply(&mut clients);
    bench.pass(secs(5));
    bench.written();
    let mut third = bench.connect("third");
    third.applies(bench.now, &[]);
    bench.settle();
    bench.pass(ms(9_900));
    assert_eq!((bench.written(), bench.counts("a")), (0, (2, 2, 0)));
    bench.pass(ms(100));
    assert_eq!((bench.written(), bench.counts("a")), (1, (3, 3, 0)));
}

#[test]
fn a_restarted_plane_waits_for_its_clients() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(5);
    bench.all_apply(&mut clients);
    many(&mut bench, 30);
    bench.all_apply(&mut clients);
    bench.pass(secs(5));
    // A roll-out is under way when it ends.
    bench.rule("rolling", 1, 1);
    bench.all_hear(&mut clients);
    clients[0].applies(bench.now, &[]);
    bench.settle();
    bench.pass(secs(1));
    assert_eq!(bench.counts("rolling"), (5, 1, 0));
    let mut bench = bench.restarted();
    drop(clients);
    bench.rule("fresh", 1, 1);
    bench.pass(secs(3));
    assert_eq!(bench.programmed("fresh"), is(ConditionStatus::Unknown, "Pending", 1));
    bench.writes.retain(|(_, rule, _)| *rule != id("fresh"));
    assert_eq!(bench.written(), 0, "they are no fewer only because it cannot know");
    let mut clients = bench.fleet(5);
    bench.all_apply(&mut clients);
    // With everybody back there is nothing to wait for.
    assert_eq!(bench.programmed("rolling"), is(True, "Applied", 1));
    assert_eq!(bench.programmed("fresh"), is(True, "Applied", 1));
    assert_eq!(bench.written(), 2);
    bench.pass(secs(60));
    assert_eq!(bench.written(), 0);
}

#[test]
fn a_restarted_plane_whose_clients_stay_away_says_so_in_the_end() {
    let mut bench = Bench::new();
    let mut clients = bench.fleet(5);
    bench.all_apply(&mut clients);
    bench.rule("a", 1, 1);
    bench.all_apply(&mut clients);
    let mut bench = bench.restarted();
    drop(clients);
    bench.pass(secs(9));
    assert_eq!((bench.written(), bench.counts("a")), (0, (5, 5, 0)));
    bench.pass(secs(2));
    assert_eq!((bench.programmed("a"), bench.counts("a")), (is(True, "NoClients", 1), (0, 0, 0)));
}
