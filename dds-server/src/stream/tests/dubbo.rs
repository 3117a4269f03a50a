//! Clients of the Dubbo control plane.

use rulecast_api::{kind::KINDS as ALL, proto::dubbo::v1alpha1 as dubbo};
use serde_json::json;

use super::*;

const URL: &str = "type.googleapis.com/dubbo.apache.org.v1alpha1.ConditionRouteToClient";

fn bench(config: StreamConfig) -> Bench {
    let now = Instant::now();
    let stream = Stream::new(config, ALL, now).on_wire(Wire::Dubbo);
    Bench { stream, now, reports: Vec::new() }
}

/// What such a client can say.
fn say(nonce: &str) -> ObserveRequest {
    ObserveRequest {
        nonce: nonce.into(),
        r#type: ROUTE.type_name.into(),
        ..ObserveRequest::default()
    }
}

/// A rule with one condition of v3.0; with none it is one of v3.1.
fn rule(key: &str, condition: Option<&str>) -> Arc<Item> {
    let spec = match condition {
        Some(text) => json!({
            "configVersion": "v3.0", "scope": "service", "key": "com.Foo", "force": true,
            "priority": 3, "runtime": true, "conditions": [text],
        }),
        None => json!({
            "configVersion": "v3.1", "scope": "service", "key": "com.Foo", "conditions": [],
        }),
    };
    let spec = ConditionRouteSpec::parse(spec).expect("a rule");
    let rule = Rule { key: key.into(), spec: spec.encode(), ..Rule::default() };
    Arc::new(Item::new(&rule).with_compat(spec.compat()))
}

fn state(revision: i64, rules: Vec<Arc<Item>>) -> Arc<View> {
    Arc::new(View::new(ROUTE, "l".into(), Digest::of(b"s"), revision, rules))
}

fn held(frame: &ObserveResponse) -> BTreeMap<String, String> {
    let rule = |any: &prost_types::Any| {
        assert_eq!(any.type_url, URL);
        let rule = dubbo::ConditionRouteToClient::decode(&*any.value).expect("the wire's message");
        (rule.key, rule.spec.expect("a spec").conditions.join(";"))
    };
    frame.data.iter().map(rule).collect()
}

#[test]
fn a_rule_is_in_the_words_of_that_wire() {
    let mut bench = bench(StreamConfig::default());
    bench.ask(say(""));
    bench.view(state(7, vec![rule("a/shop", Some("method=x => host=1.2.3.4"))]));
    let frame = bench.frame();
    assert_eq!((frame.r#type.as_str(), frame.revision), (ROUTE.type_name, 7));
    assert_eq!(frame.data[0].type_url, URL);
    let rule = dubbo::ConditionRouteToClient::decode(&*frame.data[0].value).expect("decodes");
    let spec = dubbo::ConditionRoute {
        priority: 3,
        enabled: true,
        force: true,
        runtime: true,
        key: "com.Foo".into(),
        scope: "service".into(),
        conditions: vec!["method=x => host=1.2.3.4".into()],
        config_version: "v3.0".into(),
    };
    assert_eq!((rule.key.as_str(), rule.spec), ("a/shop", Some(spec)));
    // Nothing of the rest of the contract.
    let rest = (frame.resume_token.len(), frame.lineage.len(), frame.withheld.len());
    assert_eq!((rest, frame.delta, frame.more_chunks), ((0, 0, 0), false, false));
}

#[test]
fn every_response_is_the_full_state_in_one_message() {
    let config = StreamConfig { chunk_bytes: 10, ..StreamConfig::default() };
    let mut bench = bench(config);
    bench.ask(say(""));
    let many = |texts: &[&str]| {
        let rule = |(at, text): (usize, &&str)| rule(&format!("r{at}/shop"), Some(text));
        texts.iter().enumerate().map(rule).collect::<Vec<_>>()
    };
    bench.view(state(1, many(&["a=1 => b=1", "a=2 => b=2", "a=3 => b=3"])));
    let first = bench.frame();
    assert_eq!(held(&first).len(), 3);
    bench.view(state(2, many(&["a=1 => b=1", "a=2 => b=9"])));
    assert!(bench.frames().is_empty(), "one is under way");
    bench.ask(say("nonsense"));
    assert!(bench.frames().is_empty(), "and that acknowledges nothing");
    bench.ask(say(&first.nonce));
    let second = bench.frame();
    let wanted = [("r0/shop", "a=1 => b=1"), ("r1/shop", "a=2 => b=9")];
    assert_eq!(held(&second), wanted.map(|(k, v)| (k.into(), v.into())).into());
    bench.ask(say(&second.nonce));
    // Asked again: again all of it, within the rate.
    bench.ask(say(""));
    assert_eq!(held(&bench.frame()), held(&second));
    for _ in 0..10 {
        bench.ask(say(""));
    }
    let burst = bench.frames().len();
    bench.ask(say(""));
    bench.ask(say(""));
    assert!(burst <= 1 && bench.stream.counters().responses <= 4);
}

#[test]
fn what_that_wire_cannot_say_is_not_sent_and_counts_as_rejected() {
    let mut bench = bench(StreamConfig::default());
    bench.ask(say(""));
    let newer = rule("new/shop", None);
    bench.view(state(1, vec![rule("old/shop", Some("a=1 => b=1")), newer.clone()]));
    let frame = bench.take();
    assert_eq!(held(&frame).into_keys().collect::<Vec<_>>(), ["old/shop"]);
    bench.actions();
    let Some(Report::Applied { rejected, .. }) = bench.reports.last() else {
        panic!("{:?}", bench.reports)
    };
    assert_eq!(rejected.len(), 1);
    assert_eq!((rejected[0].key.as_str(), rejected[0].digest), ("new/shop", newer.digest));
    assert!(rejected[0].reason.starts_with("RC0508 "), "{}", rejected[0].reason);
}

#[test]
fn a_state_above_the_limit_ends_the_stream() {
    let one = vec![rule("a/shop", Some("a=1 => b=1"))];
    let size = wire::size(&state(1, one.clone()));
    let mut bench = bench(StreamConfig { dubbo_bytes: size, ..StreamConfig::default() });
    bench.ask(say(""));
    bench.view(state(1, one.clone()));
    let frame = bench.take();
    assert!(frame.encoded_len() <= size + 100, "{} > {size}", frame.encoded_len());
    bench.view(state(2, [one, vec![rule("b/shop", Some("a=1 => b=1"))]].concat()));
    assert!(bench.stream.next_frame(bench.now).is_none());
    assert_eq!(bench.closed(), (Code::StateTooLarge, tonic::Code::ResourceExhausted));
    let reason = bench
        .reports
        .iter()
        .any(|r| matches!(r, Report::Refused { reason, .. } if reason.contains("rules")));
    assert!(reason, "{:?}", bench.reports);
}

#[test]
fn other_kinds_are_refused() {
    for name in ["rulecast.io/v1alpha1/RateLimit", "dubbo.apache.org/v1alpha1/AffinityRoute", ""] {
        let mut bench = bench(StreamConfig::default());
        bench.ask(ObserveRequest { r#type: name.into(), ..ObserveRequest::default() });
        assert_eq!(bench.closed(), (Code::TypeUnsupported, tonic::Code::InvalidArgument));
    }
}
