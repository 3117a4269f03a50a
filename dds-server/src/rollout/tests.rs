use super::*;
use crate::view::Item;
use rulecast_api::proto::rules::v1::Rule;

const KIND: Kind = Kind::CONDITION_ROUTE;

fn item(key: &str, version: u8) -> Arc<Item> {
    let spec = vec![version].into();
    Arc::new(Item::new(&Rule { key: key.into(), spec, ..Rule::default() }))
}

fn view(revision: i64, items: &[&Arc<Item>]) -> Arc<View> {
    let items = items.iter().map(|&i| i.clone()).collect();
    Arc::new(View::new(KIND, "l".into(), Digest::default(), revision, items))
}

fn peer(name: &str) -> Peer {
    let connected_at = SystemTime::UNIX_EPOCH;
    Peer { spiffe_id: name.into(), address: None, connected_at }
}

fn should_have(client: &Tracked, view: &Arc<View>) {
    client.report(Report::View { kind: KIND, view: view.clone() });
    let revision = view.revision;
    client.report(Report::Sent { kind: KIND, view: view.clone(), revision });
}

fn applies(client: &Tracked, view: &Arc<View>, rejected: &[(&Arc<Item>, &str)]) {
    let rejected = rejected.iter().map(|(item, reason)| Rejected {
        key: item.key.clone(),
        digest: item.digest,
        reason: (*reason).into(),
    });
    client.report(Report::Applied {
        kind: KIND,
        view: view.clone(),
        revision: view.revision,
        rejected: rejected.collect(),
        took: Duration::ZERO,
    });
}

#[test]
fn counts_who_should_have_has_and_refuses() {
    let rollout = Rollout::new();
    let (a1, a2, b) = (item("a", 1), item("a", 2), item("b", 1));
    let (old, new) = (view(1, &[&a1, &b]), view(2, &[&a2, &b]));
    let clients: Vec<_> =
        ["x", "y", "z", "w"].iter().map(|name| rollout.track(peer(name))).collect();
    for client in &clients {
        client.report(Report::Subscribed { kind: KIND });
        should_have(client, &old);
        applies(client, &old, &[]);
    }
    let counts = |key: &str, item: &Arc<Item>| {
        let rule = rollout.kind(KIND).rule(key, &item.digest);
        (rule.matched, rule.applied, rule.rejected)
    };
    assert_eq!(counts("a", &a1), (4, 4, 0));
    for client in &clients {
        should_have(client, &new);
    }
    assert_eq!((counts("a", &a2), counts("b", &b)), ((4, 0, 0), (4, 4, 0)));
    assert_eq!((rollout.kind(KIND).converged(), rollout.kind(KIND).streams()), (0, 4));
    applies(&clients[0], &new, &[]);
    applies(&clients[1], &new, &[(&a2, "bad")]);
    let (kind, reason) = (KIND, "RC0601 none of it".to_owned());
    clients[2].report(Report::Refused { kind, view: new.clone(), reason });
    let rule = rollout.kind(KIND).rule("a", &a2.digest);
    assert_eq!((rule.matched, rule.applied, rule.rejected), (4, 1, 2));
    assert!(rule.reasons.contains(&("y".into(), "bad".into())));
    assert!(rule.reasons.contains(&("z".into(), "RC0601 none of it".into())));
    // Who refused the whole still holds what it had.
    assert_eq!(counts("b", &b), (4, 4, 0));
    assert_eq!(rollout.kind(KIND).converged(), 3);
    let states: Vec<_> = rollout.clients().iter().map(|c| c.kinds[0].state).collect();
    assert_eq!(states, [State::Synced, State::Rejected, State::Rejected, State::Pending]);
    let acked: Vec<_> = rollout.clients().iter().map(|c| c.kinds[0].acked_revision).collect();
    assert_eq!(acked, [2, 2, 1, 1]);
    drop(clients);
    assert!(rollout.is_empty() && rollout.kind(KIND).streams() == 0);
}

#[test]
fn clients_at_one_state_are_one_group() {
    let rollout = Rollout::new();
    let a = item("a", 1);
    let clients: Vec<_> = (0..100).map(|n| rollout.track(peer(&n.to_string()))).collect();
    for client in &clients {
        // Equal content, whether or not it is the same pointer.
        let view = view(1, &[&a]);
        should_have(client, &view);
        applies(client, &view, &[]);
    }
    let kind = rollout.kind(KIND);
    assert_eq!(kind.rule("a", &a.digest).applied, 100);
}

fn at(rollout: &Rollout, views: &[&Arc<View>], now: Instant) -> KindRollout {
    let views = views.iter().map(|view| (view.scope_hash, Arc::clone(view))).collect();
    rollout.kind_at(KIND, &views, now, Duration::from_secs(10))
}

fn sees(client: &Tracked, now: Instant, view: &Arc<View>) {
    client.report_at(now, Report::View { kind: KIND, view: view.clone() });
}

fn answers(client: &Tracked, now: Instant, view: &Arc<View>) {
    let (revision, rejected) = (view.revision, Arc::from([]));
    let took = Duration::ZERO;
    let report = Report::Applied { kind: KIND, view: view.clone(), revision, rejected, took };
    client.report_at(now, report);
}

#[test]
fn who_is_silent_for_long_lags_with_what_it_does_not_hold() {
    let rollout = Rollout::new();
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let (a1, a2, b, c) = (item("a", 1), item("a", 2), item("b", 1), item("c", 1));
    let (one, two) = (view(1, &[&a1, &b]), view(2, &[&a2, &b]));
    let three = view(3, &[&a2, &b, &c]);
    let (quick, slow) = (rollout.track(peer("quick")), rollout.track(peer("slow")));
    for client in [&quick, &slow] {
        sees(client, start, &one);
        answers(client, start, &one);
        sees(client, after(1), &two);
    }
    answers(&quick, after(2), &two);
    let early = at(&rollout, &[&two], after(10));
    assert_eq!((early.current("a").lagging, early.next_late()), (0, Some(after(11))));
    // A newer view gives no new time to a client that owes an answer.
    sees(&slow, after(9), &three);
    sees(&quick, after(9), &three);
    let late = at(&rollout, &[&three], after(11));
    assert_eq!(late.next_late(), Some(after(19)), "the quick one owes one too");
    let held = |key: &str| {
        let rule = late.current(key);
        (rule.matched, rule.applied, rule.lagging, rule.pending(), rule.laggards)
    };
    let slow_one = vec!["slow".to_owned()];
    assert_eq!(held("a"), (2, 1, 1, 1, slow_one.clone()));
    assert_eq!(held("b"), (2, 2, 0, 0, vec![]), "both hold it");
    assert_eq!(held("c"), (2, 0, 1, 2, slow_one), "who is silent is late with all");
    // An answer for what was replaced since is an answer.
    answers(&slow, after(12), &two);
    let again = at(&rollout, &[&three], after(13));
    assert_eq!((again.current("a").applied, again.current("c").lagging), (2, 0));
    assert_eq!(again.next_late(), Some(after(19)));
    answers(&slow, after(13), &three);
    answers(&quick, after(13), &three);
    assert_eq!(at(&rollout, &[&three], after(60)).next_late(), None);
}

#[test]
fn the_newest_views_count_before_streams_hear_of_them() {
    let rollout = Rollout::new();
    let start = Instant::now();
    let (a1, a2, b) = (item("a", 1), item("a", 2), item("b", 1));
    let old = view(1, &[&a1]);
    let client = rollout.track(peer("x"));
    sees(&client, start, &old);
    answers(&client, start, &old);
    let new = view(2, &[&a2, &b]);
    let kind = at(&rollout, &[&new], start);
    let counts = |key: &str| {
        let rule = kind.current(key);
        (rule.matched, rule.applied, rule.pending())
    };
    assert_eq!((counts("a"), counts("b")), ((1, 0, 1), (1, 0, 1)));
}

#[test]
fn who_still_holds_a_rule_that_it_should_not_is_leaving() {
    let rollout = Rollout::new();
    let start = Instant::now();
    let (a, b) = (item("a", 1), item("b", 1));
    let (old, new) = (view(1, &[&a, &b]), view(2, &[&b]));
    let clients = [rollout.track(peer("x")), rollout.track(peer("y"))];
    for client in &clients {
        sees(client, start, &old);
        answers(client, start, &old);
        sees(client, start, &new);
    }
    answers(&clients[0], start, &new);
    let rule = at(&rollout, &[&new], start).current("a");
    assert_eq!((rule.matched, rule.leaving, rule.pending(), rule.lagging_leaving), (0, 1, 1, 0));
    let rule = at(&rollout, &[&new], start + Duration::from_secs(10)).current("a");
    assert_eq!((rule.lagging_leaving, rule.laggards), (1, vec!["y".to_owned()]));
    answers(&clients[1], start, &new);
    assert_eq!(at(&rollout, &[&new], start).current("a"), RuleRollout::default());
}

#[test]
fn the_sample_of_reasons_is_the_same_in_whatever_order_clients_come() {
    let a = item("a", 1);
    let held = view(1, &[&a]);
    let sample = |names: &[usize]| {
        let rollout = Rollout::new();
        let clients: Vec<_> = names.iter().map(|n| rollout.track(peer(&n.to_string()))).collect();
        for client in &clients {
            should_have(client, &held);
            applies(client, &held, &[(&a, "no")]);
        }
        rollout.kind(KIND).current("a")
    };
    let rule = sample(&[3, 9, 1, 7, 5, 8, 2]);
    assert_eq!((rule.rejected, rule.applied), (7, 0));
    let names: Vec<_> = rule.reasons.iter().map(|(client, _)| client.as_str()).collect();
    assert_eq!(names, ["1", "2", "3", "5", "7"]);
    assert_eq!(rule, sample(&[1, 2, 3, 5, 7, 8, 9]));
}

#[test]
fn changes_are_told_but_not_of_what_was_merely_sent() {
    let rollout = Rollout::new();
    let changes = rollout.changes();
    let a = item("a", 1);
    let held = view(1, &[&a]);
    let client = rollout.track(peer("x"));
    let mut count = 0;
    let mut told = |changed: bool| {
        let before = std::mem::replace(&mut count, *changes.borrow());
        assert_eq!(count != before, changed);
    };
    client.report(Report::View { kind: KIND, view: held.clone() });
    told(true);
    client.report(Report::Sent { kind: KIND, view: held.clone(), revision: 1 });
    told(false);
    applies(&client, &held, &[]);
    told(true);
    drop(client);
    told(true);
}
