use std::collections::BTreeMap;

use proptest::prelude::*;
use prost::Message;
use prost_types::Any;
use rulecast_api::proto::{RULE_TYPE_URL, observe::v1::WithheldItem, rules::v1::Rule};

use super::*;

const A: &str = "t/v1/A";
const B: &str = "t/v1/B";

/// An observer with the rules it holds, as a driver would keep them.
struct Driver {
    observer: Observer,
    held: BTreeMap<String, KindSnapshot>,
    now: Instant,
}

impl Driver {
    fn new(types: &[&str]) -> Self {
        let config = ObserverConfig { seed: 1, max_response_bytes: 4096, ..Default::default() };
        let node = Node { instance: "i".into(), engine_digest: "engine".into(), ..Node::default() };
        let observer = Observer::new(config, node, types.iter().copied(), vec!["com.A".into()]);
        Self { observer, held: BTreeMap::new(), now: Instant::now() }
    }

    fn connect(&mut self) -> Vec<ObserveRequest> {
        self.observer.connected();
        self.requests()
    }

    fn requests(&mut self) -> Vec<ObserveRequest> {
        std::iter::from_fn(|| self.observer.next_request()).collect()
    }

    /// Applies what waits; rules whose spec begins with `bad` are refused.
    fn settle(&mut self) -> Vec<ObserveRequest> {
        while let Some(Apply { type_name, change }) = self.observer.next_apply() {
            let held = self.held.entry(type_name.clone()).or_default();
            let (next, refused) = held.apply(&change, |rule| {
                if rule.spec.starts_with(b"bad") { Err("RC0601 bad".into()) } else { Ok(()) }
            });
            *held = next;
            self.observer.applied(&type_name, held, &refused);
        }
        self.requests()
    }

    fn specs(&self, type_name: &str) -> Vec<(String, String)> {
        let spec = |rule: &Rule| String::from_utf8_lossy(&rule.spec).into_owned();
        let held = self.held.get(type_name).into_iter();
        held.flat_map(|h| h.items.iter().map(|(k, i)| (k.clone(), spec(&i.rule)))).collect()
    }
}

fn rule(key: &str, spec: &str) -> Any {
    let rule = Rule { key: key.into(), spec: spec.as_bytes().to_vec().into(), ..Rule::default() };
    Any { type_url: RULE_TYPE_URL.into(), value: rule.encode_to_vec() }
}

fn response(type_name: &str, nonce: &str, revision: i64, data: Vec<Any>) -> ObserveResponse {
    ObserveResponse {
        nonce: nonce.into(),
        r#type: type_name.into(),
        revision,
        data,
        lineage: "l".into(),
        resume_token: format!("token {revision}").into(),
        ..ObserveResponse::default()
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
}

#[test]
fn subscribes_to_all_types_and_says_once_who_it_is() {
    let mut driver = Driver::new(&[A, B]);
    assert_eq!(driver.observer.connect_at(driver.now), Some(driver.now));
    let requests = driver.connect();
    assert_eq!(driver.observer.connect_at(driver.now), None);
    let types: Vec<_> = requests.iter().map(|r| (r.r#type.as_str(), r.node.is_some())).collect();
    assert_eq!(types, [(A, true), (B, false)]);
    assert!(requests.iter().all(|r| r.nonce.is_empty() && r.resume_token.is_empty()));
    assert_eq!(requests[1].subscription.as_ref().map(|s| s.services.len()), Some(1));
}

#[test]
fn chunks_are_applied_at_once_and_acknowledged_once() {
    let mut driver = Driver::new(&[A]);
    driver.connect();
    let first = ObserveResponse {
        more_chunks: true,
        resume_token: Bytes::new(),
        ..response(A, "1", 5, vec![rule("a", "1")])
    };
    driver.observer.on_response(first).expect("in order");
    assert!(driver.observer.next_apply().is_none() && driver.requests().is_empty());
    driver.observer.on_response(response(A, "1", 5, vec![rule("b", "1")])).expect("in order");
    let answers = driver.settle();
    assert_eq!(driver.specs(A), pairs(&[("a", "1"), ("b", "1")]));
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0].nonce.as_str(), answers[0].error_detail.is_none()), ("1", true));
    assert!(driver.observer.is_synced());
    // Of an incomplete response nothing remains.
    let cut = ObserveResponse { more_chunks: true, ..response(A, "2", 6, vec![rule("c", "1")]) };
    driver.observer.on_response(cut).expect("in order");
    driver.observer.disconnected(driver.now);
    let again = driver.connect();
    assert_eq!(again[0].resume_token, "token 5");
    driver.observer.on_response(response(A, "1", 6, vec![rule("d", "1")])).expect("in order");
    driver.settle();
    assert_eq!(driver.specs(A), pairs(&[("d", "1")]));
}

#[test]
fn a_rejection_is_told_now_and_at_every_new_stream() {
    let mut driver = Driver::new(&[A]);
    driver.connect();
    let data = vec![rule("a", "1"), rule("b", "1"), rule("c", "1")];
    driver.observer.on_response(response(A, "1", 1, data)).expect("in order");
    driver.settle();
    let bad = rule("b", "bad");
    let digest = Digest::of(&bad.value);
    let data = vec![rule("a", "2"), bad, rule("c", "2")];
    driver.observer.on_response(response(A, "2", 2, data)).expect("in order");
    let answers = driver.settle();
    let detail = answers[0].error_detail.as_ref().expect("a rejection");
    assert_eq!((detail.code.as_str(), detail.message.as_str()), ("RC0601", "b: RC0601 bad"));
    let told = &answers[0].rejected;
    assert_eq!((told.len(), told[0].key.as_str(), told[0].reason.as_str()), (1, "b", "RC0601 bad"));
    assert_eq!(told[0].item_digest.as_ref(), digest.as_bytes());
    assert_eq!(told[0].engine_digest, "engine");
    assert_eq!(driver.specs(A), pairs(&[("a", "2"), ("b", "1"), ("c", "2")]));
    driver.observer.disconnected(driver.now);
    let again = driver.connect();
    assert_eq!((&again[0].rejected, again[0].resume_token.as_ref()), (told, &b"token 2"[..]));
    // Withheld: what is held under the key stays, and so does the rejection.
    let withheld = ObserveResponse {
        withheld: vec![WithheldItem { key: "b".into(), item_digest: digest.to_bytes() }],
        ..response(A, "1", 3, vec![rule("a", "3")])
    };
    driver.observer.on_response(withheld).expect("in order");
    assert!(driver.settle()[0].error_detail.is_none());
    assert_eq!(driver.specs(A), pairs(&[("a", "3"), ("b", "1")]));
    driver.observer.disconnected(driver.now);
    assert_eq!(driver.connect()[0].rejected.len(), 1);
    // Mended.
    let data = vec![rule("b", "2")];
    driver.observer.on_response(response(A, "1", 4, data)).expect("in order");
    driver.settle();
    driver.observer.disconnected(driver.now);
    assert!(driver.connect()[0].rejected.is_empty());
}

#[test]
fn a_delta_needs_a_state_to_change() {
    let delta = |nonce: &str, revision, data, removed: &[&str]| ObserveResponse {
        delta: true,
        removed: removed.iter().map(|&k| k.into()).collect(),
        ..response(A, nonce, revision, data)
    };
    let mut driver = Driver::new(&[A]);
    driver.connect();
    let error = driver.observer.on_response(delta("1", 1, vec![], &[]));
    assert!(matches!(error, Err(ProtocolError::Base(_))));
    driver.observer.disconnected(driver.now);
    driver.connect();
    let data = vec![rule("a", "1"), rule("b", "1")];
    driver.observer.on_response(response(A, "1", 1, data)).expect("in order");
    driver.settle();
    driver.observer.on_response(delta("2", 2, vec![rule("c", "1")], &["a"])).expect("in order");
    driver.settle();
    assert_eq!(driver.specs(A), pairs(&[("b", "1"), ("c", "1")]));
    driver.observer.disconnected(driver.now);
    driver.connect();
    driver.observer.on_response(delta("1", 2, vec![], &[])).expect("resumed");
    driver.settle();
    assert_eq!(driver.specs(A), pairs(&[("b", "1"), ("c", "1")]));
    assert!(driver.observer.is_synced());
}

#[test]
fn a_revision_that_goes_back_is_refused_within_a_lineage() {
    let mut driver = Driver::new(&[A]);
    driver.connect();
    driver.observer.on_response(response(A, "1", 9, vec![rule("a", "9")])).expect("in order");
    driver.settle();
    let error = driver.observer.on_response(response(A, "2", 8, vec![rule("a", "8")]));
    let error = error.expect_err("it went back");
    assert_eq!(error.code(), Code::ReplicaBehind);
    driver.observer.disconnected(driver.now);
    assert!(driver.connect()[0].resume_token.is_empty(), "what the token says is in doubt");
    assert!(driver.observer.on_response(response(A, "1", 8, vec![])).is_err());
    driver.observer.disconnected(driver.now);
    driver.connect();
    // A store that was restored says so by another lineage.
    let restored =
        ObserveResponse { lineage: "m".into(), ..response(A, "1", 3, vec![rule("a", "3")]) };
    driver.observer.on_response(restored).expect("another lineage");
    driver.settle();
    assert_eq!((driver.specs(A), driver.observer.lineage(A)), (pairs(&[("a", "3")]), Some("m")));
    driver.observer.disconnected(driver.now);
    assert_eq!(driver.connect()[0].resume_token, "token 3");
}

#[test]
fn what_breaks_the_contract_ends_the_stream() {
    let refused = |prepare: &[ObserveResponse], last: ObserveResponse| {
        let mut driver = Driver::new(&[A]);
        driver.connect();
        for response in prepare {
            driver.observer.on_response(response.clone()).expect("in order");
        }
        driver.observer.on_response(last).expect_err("against the contract")
    };
    let more = ObserveResponse { more_chunks: true, ..response(A, "1", 1, vec![rule("a", "1")]) };
    assert!(matches!(refused(&[], response(B, "1", 1, vec![])), ProtocolError::Type(_)));
    assert!(matches!(refused(&[], response(A, "", 1, vec![])), ProtocolError::Nonce(_)));
    for other in [
        response(A, "2", 1, vec![]),
        response(A, "1", 2, vec![]),
        ObserveResponse { delta: true, ..response(A, "1", 1, vec![]) },
        ObserveResponse { lineage: "m".into(), ..response(A, "1", 1, vec![]) },
    ] {
        assert!(matches!(refused(std::slice::from_ref(&more), other), ProtocolError::Chunk(_)));
    }
    // The limit counts over all chunks.
    let big = ObserveResponse {
        more_chunks: true,
        ..response(A, "1", 1, vec![rule("a", &"x".repeat(2500))])
    };
    assert!(matches!(refused(std::slice::from_ref(&big), big.clone()), ProtocolError::Size { .. }));
    let many = [response(A, "1", 1, vec![]), response(A, "2", 1, vec![])];
    assert!(matches!(refused(&many, response(A, "3", 1, vec![])), ProtocolError::Flood(_)));
}

#[test]
fn an_apply_that_outlives_its_stream_counts_and_is_not_answered() {
    let mut driver = Driver::new(&[A]);
    driver.connect();
    driver.observer.on_response(response(A, "1", 1, vec![rule("a", "1")])).expect("in order");
    let Apply { change, .. } = driver.observer.next_apply().expect("complete");
    driver.observer.disconnected(driver.now);
    assert!(driver.connect().is_empty(), "where it stands is not settled yet");
    let (held, refused) = KindSnapshot::default().apply(&change, |_| Ok(()));
    driver.observer.applied(A, &held, &refused);
    let requests = driver.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(
        (requests[0].nonce.as_str(), requests[0].resume_token.as_ref()),
        ("", &b"token 1"[..])
    );
    assert!(!driver.observer.is_synced() && driver.observer.is_complete());
}

#[test]
fn waits_longer_until_a_stream_has_synced() {
    let mut driver = Driver::new(&[A]);
    let mut waits = Vec::new();
    for _ in 0..40 {
        driver.observer.disconnected(driver.now);
        let at = driver.observer.connect_at(driver.now).expect("no stream is open");
        waits.push(at - driver.now);
        driver.connect();
    }
    let most = Duration::from_secs(30);
    assert!(waits.iter().all(|w| *w >= Duration::from_millis(100) && *w <= most));
    assert!(waits[0] <= Duration::from_millis(200) && waits.iter().any(|w| *w > most / 2));
    driver.observer.on_response(response(A, "1", 1, vec![])).expect("in order");
    driver.settle();
    driver.observer.disconnected(driver.now);
    let at = driver.observer.connect_at(driver.now).expect("no stream is open");
    assert!(at - driver.now <= Duration::from_millis(200));
}

#[test]
fn long_words_are_cut_to_what_the_plane_takes() {
    let mut driver = Driver::new(&[A]);
    driver.connect();
    driver.observer.on_response(response(A, "1", 1, vec![rule("a", "1")])).expect("in order");
    let Apply { change, .. } = driver.observer.next_apply().expect("complete");
    let why = format!("RC0601 {}", "\u{00e4}".repeat(4000));
    let (held, refused) = KindSnapshot::default().apply(&change, |_| Err(why.clone()));
    driver.observer.applied(A, &held, &refused);
    let answer = &driver.requests()[0];
    assert!(answer.rejected[0].reason.len() <= MAX_REASON);
    assert!(answer.error_detail.as_ref().is_some_and(|d| d.message.len() <= MAX_REASON));
}

#[test]
fn other_services_are_declared_on_the_open_stream() {
    let mut driver = Driver::new(&[A, B]);
    driver.connect();
    let answers = |driver: &mut Driver, nonce: &str| {
        for of in [A, B] {
            driver.observer.on_response(response(of, nonce, 1, vec![])).expect("in order");
        }
        driver.settle()
    };
    answers(&mut driver, "1");
    driver.observer.set_services(vec!["com.A".into()]);
    assert!(driver.requests().is_empty(), "nothing has changed");
    driver.observer.set_services(vec!["com.B".into()]);
    let requests = driver.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|r| r.nonce.is_empty() && r.node.is_none()));
    driver.observer.refresh();
    driver.observer.refresh();
    assert!(driver.requests().is_empty(), "the first question has no answer yet");
    // Two answers, and then the question, once.
    let requests = answers(&mut driver, "2");
    let asked = requests.iter().filter(|r| r.nonce.is_empty() && r.resume_token.is_empty());
    assert_eq!((asked.count(), requests.len()), (2, 4));
}

fn any_response() -> impl Strategy<Value = ObserveResponse> {
    let item =
        (any::<bool>(), prop::collection::vec(any::<u8>(), 0..12)).prop_map(|(good, value)| {
            if good { rule("a", "1") } else { Any { type_url: RULE_TYPE_URL.into(), value } }
        });
    (
        prop::sample::select(vec!["", "1", "2"]),
        prop::sample::select(vec![A, B, "x"]),
        prop_oneof![Just(i64::MIN), Just(i64::MAX), -2i64..4],
        prop::collection::vec(item, 0..3),
        prop::collection::vec("[ab]?", 0..2),
        any::<(bool, bool, bool)>(),
    )
        .prop_map(|(nonce, type_name, revision, data, keys, (delta, more, other))| {
            let withheld =
                |key: &String| WithheldItem { key: key.clone(), item_digest: Bytes::new() };
            ObserveResponse {
                delta,
                more_chunks: more,
                withheld: keys.iter().map(withheld).collect(),
                removed: keys,
                lineage: if other { String::new() } else { "l".into() },
                ..response(type_name, nonce, revision, data)
            }
        })
}

proptest! {
    #[test]
    fn any_responses_are_taken_without_panic_and_within_bounds(
        steps in prop::collection::vec((any_response(), 0u8..8), 0..60),
    ) {
        let mut driver = Driver::new(&[A, B]);
        driver.connect();
        for (response, step) in steps {
            let revision = |d: &Driver| d.held.get(A).map_or(i64::MIN, |h| h.revision);
            let before = (driver.observer.lineage(A).map(str::to_owned), revision(&driver));
            if driver.observer.on_response(response).is_err() || step == 0 {
                driver.observer.disconnected(driver.now);
                driver.connect();
            }
            let state = &driver.observer.types[0];
            let waiting = state.waiting.len() + usize::from(state.applying.is_some());
            if step < 5 {
                driver.settle();
            }
            let after = (driver.observer.lineage(A).map(str::to_owned), revision(&driver));
            // Not over a detour by another lineage.
            if waiting <= 1 && before.0.is_some() && before.0 == after.0 {
                prop_assert!(after.1 >= before.1);
            }
            for state in &driver.observer.types {
                prop_assert!(state.waiting.len() <= MAX_WAITING);
            }
        }
    }
}
