use std::time::UNIX_EPOCH;

use bytes::Bytes;
use rulecast_api::SpiffeId;

use super::*;
use crate::{
    index::Index,
    scope::{Owners, Root},
    store::{
        Event,
        conformance::{KIND, KINDS, stored},
    },
    views::Debounce,
};

fn scope(namespace: &str) -> Scope {
    Scope::new(&SpiffeId::application("td", namespace, "app").expect("identity"), None)
}

/// A plane with rules of the namespace `shop`, each of its service alone, in a revision.
fn plane(names: &[&str]) -> (Index, Views, Reports) {
    let index = Index::new(KINDS, "l".into());
    let owners = Owners::new([("com.A", "shop")]);
    let views = Views::new(index.clone(), owners, Root::default(), Debounce::default());
    let reports = Reports::new(views.clone(), KINDS);
    let mut events = vec![Event::Listing];
    events.extend(names.iter().map(|name| Event::Upsert(stored(name, "shop", "com.B", 1, 1))));
    events.push(Event::Listed { revision: 1 });
    index.apply(events);
    views.refresh();
    (index, views, reports)
}

fn id(name: &str) -> ResourceId {
    stored(name, "shop", "com.B", 1, 1).resource.id
}

fn digest(views: &Views, name: &str) -> Bytes {
    views.item(&id(name)).expect("in force").digest.to_bytes()
}

fn report(name: &str, digest: Bytes, given: &[(Verdict, u64, &str)]) -> RuleReport {
    let given = given.iter().map(|&(verdict, count, sample)| Given {
        verdict: verdict.into(),
        count,
        sample: sample.into(),
    });
    RuleReport {
        r#type: KIND.type_name.into(),
        key: format!("{name}/shop"),
        digest,
        given: given.collect(),
    }
}

fn take(reports: &Reports, from: &str, rules: Vec<RuleReport>) -> u32 {
    reports.take(&scope(from), &ReportRequest { rules }, UNIX_EPOCH).expect("taken")
}

#[test]
fn reports_add_up_and_the_last_sample_is_kept() {
    let (_, views, reports) = plane(&["a", "b"]);
    let (deny, skip) = (Verdict::WouldDeny, Verdict::WouldSkip);
    let given = [(skip, 90, ""), (deny, 2, "would deny x")];
    assert_eq!(take(&reports, "shop", vec![report("a", digest(&views, "a"), &given)]), 0);
    let given = [(deny, 1, "would\ndeny y"), (Verdict::Unspecified, 5, ""), (deny, 0, "none")];
    assert_eq!(take(&reports, "shop", vec![report("a", digest(&views, "a"), &given)]), 0);
    let told = reports.of(&id("a"));
    assert_eq!((told.calls(), told.count(deny), told.count(skip)), (93, 3, 90));
    assert_eq!(told.verdicts[&deny].sample, Some(("would deny y".into(), UNIX_EPOCH)));
    assert_eq!(reports.of(&id("b")), Told::default());
    // A count that is too large stays the largest.
    let given = [(deny, u64::MAX, "")];
    take(&reports, "shop", vec![report("a", digest(&views, "a"), &given)]);
    assert_eq!(reports.of(&id("a")).count(deny), u64::MAX);
}

#[test]
fn nobody_reports_on_what_it_does_not_get() {
    let (_, views, reports) = plane(&["a"]);
    let given = [(Verdict::Denied, 1, "")];
    let ours = || report("a", digest(&views, "a"), &given);
    assert_eq!(take(&reports, "other", vec![ours()]), 1, "another's namespace");
    let old = report("a", Digest::of(b"old").to_bytes(), &given);
    assert_eq!(take(&reports, "shop", vec![old]), 1, "another version");
    let unknown = report("x", digest(&views, "a"), &given);
    let typed = RuleReport { r#type: "g/v/Kind".into(), ..ours() };
    assert_eq!(take(&reports, "shop", vec![unknown, typed, ours()]), 2);
    assert_eq!(reports.of(&id("a")).calls(), 1);
    let many = ReportRequest { rules: vec![ours(); MAX_RULES + 1] };
    let refused = reports.take(&scope("shop"), &many, UNIX_EPOCH).expect_err("too many");
    assert!(refused.to_string().starts_with("RC0502: more than 256 rules"), "{refused}");
}

#[test]
fn what_is_told_goes_with_the_version() {
    let (index, views, reports) = plane(&["a", "b"]);
    let given = [(Verdict::Applied, 4, "")];
    for name in ["a", "b"] {
        take(&reports, "shop", vec![report(name, digest(&views, name), &given)]);
    }
    index.apply(vec![Event::Upsert(stored("a", "shop", "com.B", 2, 2))]);
    views.refresh();
    assert_eq!(reports.of(&id("a")), Told::default());
    assert_eq!(reports.of(&id("b")).calls(), 4);
    take(&reports, "shop", vec![report("a", digest(&views, "a"), &given)]);
    assert_eq!(reports.of(&id("a")).calls(), 4);
    // There is never more than rules.
    index.apply(vec![
        Event::Remove { id: id("b"), revision: 3 },
        Event::Upsert(stored("c", "shop", "com.B", 1, 4)),
    ]);
    views.refresh();
    take(&reports, "shop", vec![report("c", digest(&views, "c"), &given)]);
    assert_eq!(reports.lock().len(), 2);
}

#[test]
fn many_clients_report_less_often() {
    assert_eq!(Reports::again(49), Duration::ZERO);
    assert_eq!(Reports::again(1000), Duration::from_secs(20));
    assert_eq!(Reports::again(1_000_000), LONGEST);
}
