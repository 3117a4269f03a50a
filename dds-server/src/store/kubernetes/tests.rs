//! Units of the store; what it does with a real server is tested in tests/kube.

use std::sync::Arc;

use rulecast_api::Code;
use serde_json::{Value, json};

use super::{
    fault::{Fault, Why},
    hub::Hub,
    object::{Content, Object, Reading, read},
    state::{Change, List, State, Taken, Trust},
};
use crate::store::{
    Event,
    conformance::{KIND, KINDS, value},
};

fn reading(name: &str, uid: &str, revision: i64, spec: Value) -> Reading {
    from(json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": uid,
            "resourceVersion": revision.to_string(), "generation": revision,
        },
        "spec": spec,
    }))
}

fn from(object: Value) -> Reading {
    let object: Object = serde_json::from_value(object).expect("an object");
    read(KINDS, KIND, object).expect("readable")
}

fn rule(name: &str, revision: i64, value: u32) -> Reading {
    reading(name, name, revision, json!({ "key": "com.A", "value": value }))
}

fn list(at: i64, readings: Vec<Reading>) -> List {
    List { at, readings }
}

/// A state that has given out its first list.
fn listed(at: i64, readings: Vec<Reading>) -> State {
    let mut state = State::new(KINDS);
    state.name(0, "c");
    assert_eq!(state.complete(KIND, 0, list(at, readings), Trust::Most), Taken::Whole);
    assert!(state.output().all);
    state
}

fn apply(state: &mut State, change: Change, at: i64) -> Vec<Event> {
    let epoch = state.epoch();
    assert!(state.apply(KIND, epoch, vec![change], at));
    state.output().events
}

/// Name, content and revision of each upsert; name and `None` of each removal.
fn told(events: &[Event]) -> Vec<(String, Option<u64>, i64)> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::Upsert(s) => Some((s.resource.id.name.clone(), value(s), s.revision)),
            Event::Remove { id, revision } => Some((id.name.clone(), None, *revision)),
            _ => None,
        })
        .collect()
}

#[test]
fn nothing_is_given_out_before_every_part_is_known() {
    let mut state = State::new(KINDS);
    assert_eq!(state.complete(KIND, 0, list(5, vec![rule("a", 3, 1)]), Trust::Most), Taken::Whole);
    let output = state.output();
    assert!(!output.all && output.events.is_empty() && state.list().is_empty());
    state.name(0, "c");
    assert!(state.output().all);
    let list = state.list();
    assert!(matches!(&list[0], Event::Lineage(lineage) if &**lineage == "c"));
    assert!(matches!(list[1], Event::Listing));
    assert_eq!(told(&list), [("a".into(), Some(1), 3)]);
    assert!(list.iter().any(|event| matches!(event, Event::Listed { revision: 5 })));
}

#[test]
fn only_what_changed_is_told_and_equal_content_keeps_its_revision() {
    let mut state = listed(5, vec![rule("a", 3, 1), rule("b", 4, 1)]);
    // A list that says the same, also after writes that changed no content.
    let again = list(9, vec![rule("a", 3, 1), rule("b", 4, 1)]);
    assert_eq!(state.complete(KIND, 0, again, Trust::Most), Taken::Whole);
    assert!(state.output().events.is_empty());
    // Another writing of the same.
    assert_eq!(
        told(&apply(&mut state, Change::Upsert(rule("a", 10, 1)), 10)),
        [("a".into(), Some(1), 3)]
    );
    let mut light = rule("a", 11, 1);
    state.lighten(&mut light);
    assert!(matches!(light.content, Content::Same));
    assert_eq!(told(&apply(&mut state, Change::Upsert(light), 11)), [("a".into(), Some(1), 3)]);
    // Other content, and nothing older after it.
    let events = apply(&mut state, Change::Upsert(rule("a", 12, 2)), 12);
    assert_eq!(told(&events), [("a".into(), Some(2), 12)]);
    assert!(apply(&mut state, Change::Upsert(rule("a", 11, 1)), 12).is_empty());
    let id = rule("a", 1, 1).id;
    assert!(apply(&mut state, Change::Remove { id: id.clone(), revision: 11 }, 12).is_empty());
    let events = apply(&mut state, Change::Remove { id: id.clone(), revision: 13 }, 13);
    assert_eq!(told(&events), [("a".into(), None, 13)]);
    assert_eq!((state.removed(&id, 12), state.removed(&id, 13)), (Some(13), None));
}

#[test]
fn a_great_loss_waits_and_a_small_one_does_not() {
    let all = |count: i64| (0..count).map(|n| rule(&format!("r{n:02}"), n + 1, 1)).collect();
    let mut state = listed(30, all(20));
    assert_eq!(state.complete(KIND, 0, list(31, all(9)), Trust::Most), Taken::Doubted);
    assert!(state.output().events.is_empty());
    // Half of them is no great loss.
    assert_eq!(state.complete(KIND, 0, list(32, all(10)), Trust::Most), Taken::Whole);
    assert_eq!(told(&state.output().events).len(), 10);
    // Few rules are no many.
    assert_eq!(state.complete(KIND, 0, list(33, all(1)), Trust::Most), Taken::Whole);
    assert_eq!(told(&state.output().events).len(), 9);
    // After its kind was gone, any loss is doubted, once.
    assert_eq!(state.complete(KIND, 0, list(34, vec![]), Trust::Little), Taken::Doubted);
    assert_eq!(state.complete(KIND, 0, list(35, vec![]), Trust::Full), Taken::Whole);
    assert_eq!(told(&state.output().events), [("r00".into(), None, 35)]);
}

#[test]
fn a_storage_that_was_set_back_is_another_lineage() {
    let mut state = listed(100, vec![rule("a", 90, 1), rule("b", 95, 1)]);
    assert_eq!(state.complete(KIND, 0, list(50, vec![]), Trust::Most), Taken::Outdated);
    assert!(state.lineage().is_none() && state.output().events.is_empty());
    // What others read before is of no use; not even changes are.
    assert!(!state.apply(KIND, 0, vec![Change::Upsert(rule("a", 96, 7))], 96));
    assert_eq!(state.complete(KIND, 0, list(101, vec![]), Trust::Most), Taken::Outdated);
    state.name(0, "c");
    assert!(state.lineage().is_none());

    state.name(1, "c");
    let restored = list(51, vec![rule("a", 40, 1)]);
    assert_eq!(state.complete(KIND, 1, restored, Trust::Most), Taken::Whole);
    assert!(state.output().all);
    let list = state.list();
    let Event::Lineage(lineage) = &list[0] else { panic!("{list:?}") };
    assert!(lineage.starts_with("c.") && lineage.len() > 2, "{lineage}");
    assert_eq!(told(&list), [("a".into(), Some(1), 40)], "its revision is of this history");
    assert_eq!(state.revision(), 51);
}

#[test]
fn a_bad_object_keeps_what_was_good_of_that_very_object() {
    let bad = |uid: &str, revision| reading("a", uid, revision, json!({ "key": "com.A" }));
    let mut state = listed(5, vec![rule("a", 3, 1)]);
    let events = apply(&mut state, Change::Upsert(bad("a", 6)), 6);
    assert_eq!(told(&events), [("a".into(), Some(1), 3)]);
    let Some(Event::Problems(problems)) = events.last() else { panic!("{events:?}") };
    assert!(problems.len() == 1 && problems[0].last_good_in_force);
    assert_eq!((problems[0].code, problems[0].line), (Code::FieldInvalid, 0));
    // Another object of that name was never good.
    let events = apply(&mut state, Change::Upsert(bad("other", 7)), 7);
    assert_eq!(told(&events), [("a".into(), None, 7)]);
    let Some(Event::Problems(problems)) = events.last() else { panic!("{events:?}") };
    assert!(!problems[0].last_good_in_force);
    let id = rule("a", 1, 1).id;
    let events = apply(&mut state, Change::Remove { id, revision: 8 }, 8);
    assert!(matches!(&events[..], [Event::Problems(none)] if none.is_empty()), "{events:?}");
}

#[test]
fn a_status_of_the_writer_counts_until_a_newer_one_is_seen() {
    let with = |revision: i64, status: Value| {
        from(json!({
            "metadata": {
                "name": "a", "namespace": "default", "uid": "a",
                "resourceVersion": revision.to_string(), "generation": 1,
            },
            "spec": { "key": "com.A", "value": 1 },
            "status": status,
        }))
    };
    let mut state = listed(5, vec![with(3, json!(1))]);
    let id = rule("a", 1, 1).id;
    assert_eq!(state.status(&id), Some("1"));
    state.note_status(&id, "2", 7);
    assert!(apply(&mut state, Change::Upsert(with(6, json!(1))), 6).is_empty());
    assert_eq!(state.status(&id), Some("2"), "the watch is behind");
    assert!(apply(&mut state, Change::Upsert(with(8, json!(3))), 8).is_empty());
    assert_eq!(state.status(&id), Some("3"));
    state.note_status(&id, "2", 7);
    assert_eq!(state.status(&id), Some("3"), "the writer is behind");
}

#[test]
fn what_was_accepted_last_is_read_from_any_status() {
    let content = |status: Value| {
        let object = json!({
            "metadata": {
                "name": "a", "namespace": "default", "uid": "a", "resourceVersion": "7",
                "generation": 5,
            },
            "spec": { "key": 1 },
            "status": status,
        });
        match from(object).content {
            Content::Bad(_, last) => {
                last.map(|(resource, _)| resource.spec.to_json()["value"].clone())
            }
            _ => panic!("it is bad"),
        }
    };
    let last = |generation: Value, spec: Value| {
        content(json!({ "lastAccepted": { "generation": generation, "spec": spec }, "new": [] }))
    };
    let good = json!({ "key": "com.A", "value": 4 });
    assert_eq!(last(json!(4), good.clone()), Some(json!(4)));
    assert_eq!(last(json!(5), good.clone()), None, "the current one is not an earlier one");
    assert_eq!(last(json!(4), json!({ "key": 2 })), None);
    assert_eq!(content(json!({ "lastAccepted": 7 })), None);
    assert_eq!(content(json!("text")), None);
}

#[test]
fn faults_say_what_was_asked_and_what_would_be_right() {
    let text = |why| {
        let fault = Fault { verb: "list", resource: "probes.rulecast.io".into(), why };
        fault.problem(Some(KIND), true).to_string()
    };
    let missing = text(Why::Missing);
    assert!(missing.contains("RC0306") && missing.contains("kubectl apply -f crds/"), "{missing}");
    let forbidden = text(Why::Forbidden("no".into()));
    assert!(forbidden.contains("list probes.rulecast.io is forbidden: no"), "{forbidden}");
}

#[tokio::test]
async fn a_watcher_that_is_slow_gets_a_list_and_one_without_a_list_learns_why() {
    let hub = Hub::new(KINDS);
    let mut early = hub.watch();
    let fault = Fault::failed("list", "probes", "nobody answers");
    hub.with(|state| state.set_down(Some(KIND), fault.problem(Some(KIND), false)));
    let batch = early.next().await.expect("a batch");
    assert!(matches!(&batch[..], [Event::Down(_)]), "{batch:?}");
    assert!(matches!(&hub.watch().next().await.expect("a batch")[..], [Event::Down(_)]));

    hub.with(|state| {
        state.name(0, "c");
        state.complete(KIND, 0, list(5, vec![rule("a", 3, 1)]), Trust::Most);
        state.set_up(KIND);
    });
    let lists = tokio::spawn({
        let hub = Arc::clone(&hub);
        async move { hub.serve_lists().await }
    });
    for n in 0..500 {
        hub.with(|state| {
            state.apply(KIND, 0, vec![Change::Upsert(rule("a", 10 + n, 1 + n as u32))], 0)
        });
    }
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| *last != Some(500)) {
        let batch = early.next().await.expect("a batch");
        seen.extend(told(&batch).into_iter().map(|(_, value, _)| value));
    }
    assert!(seen.len() < 200, "a watcher may be behind by a bounded number of batches");
    lists.abort();
    hub.end();
    assert!(early.next().await.is_none() && hub.watch().next().await.is_none());
}

#[test]
fn an_object_that_is_nested_too_deep_costs_no_other() {
    let page = |depth: usize| {
        let object = |name: &str, more: String| {
            format!(
                r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"u","resourceVersion":"1",
                "managedFields":[{more}]}},"spec":{{"key":"k","value":1}},"status":{more}}}"#
            )
        };
        let deep = "[".repeat(depth) + &"]".repeat(depth);
        let spec = object("b", "0".into()).replace(r#""value":1"#, &format!(r#""value":{deep}"#));
        format!("[{},{spec}]", object("a", deep))
    };
    for depth in [1, 60, 70, 200, 100_000] {
        let objects: Vec<Object> = serde_json::from_str(&page(depth)).expect("a page");
        let read: Vec<Reading> = objects
            .into_iter()
            .map(|object| read(KINDS, KIND, object).expect("readable"))
            .collect();
        assert!(matches!(read[0].content, Content::Good(..)), "{depth}");
        assert_eq!(read[0].status.is_some(), depth < 64, "{depth}");
        let Content::Bad(problems, None) = &read[1].content else { panic!("{depth}") };
        let code = if depth < 61 { Code::FieldInvalid } else { Code::ManifestTooLarge };
        assert_eq!(problems[0].code, code, "{depth}");
    }
}
