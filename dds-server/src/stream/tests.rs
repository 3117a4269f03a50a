use std::collections::BTreeMap;

use proptest::prelude::*;
use prost::Message;
use rulecast_api::{
    condition_route::ConditionRouteSpec,
    kind::{KindInfo, Phase},
    proto::{
        observe::v1::{ErrorDetail, Node, ResumeToken, Subscription},
        rules::v1::Rule,
    },
};

use super::*;
use crate::view::Item;

mod dubbo;

static OTHER_INFO: KindInfo = KindInfo {
    api_version: "test/v1",
    name: "Other",
    plural: "others",
    short_names: &[],
    type_name: "test/v1/Other",
    phase: Phase::Route,
    parse: ConditionRouteSpec::parse,
    crd: None,
};
const ROUTE: Kind = Kind::CONDITION_ROUTE;
const OTHER: Kind = Kind(&OTHER_INFO);
static KINDS: Kinds = &[ROUTE, OTHER];

fn item(key: &str, spec: &str) -> Arc<Item> {
    let spec = spec.as_bytes().to_vec().into();
    Arc::new(Item::new(&Rule { key: key.into(), spec, ..Rule::default() }))
}

fn scoped(scope: &str, kind: Kind, revision: i64, items: &[(&str, &str)]) -> Arc<View> {
    let items = items.iter().map(|(key, spec)| item(key, spec)).collect();
    let scope = Digest::of(scope.as_bytes());
    Arc::new(View::new(kind, "l".into(), scope, revision, items))
}

fn view(kind: Kind, revision: i64, items: &[(&str, &str)]) -> Arc<View> {
    scoped("s", kind, revision, items)
}

fn ask(kind: Kind) -> ObserveRequest {
    let node = Node { engine_digest: "engine".into(), ..Node::default() };
    ObserveRequest { r#type: kind.type_name.into(), node: Some(node), ..ObserveRequest::default() }
}

fn answer(kind: Kind, nonce: &str) -> ObserveRequest {
    ObserveRequest {
        nonce: nonce.into(),
        r#type: kind.type_name.into(),
        ..ObserveRequest::default()
    }
}

fn rejected(item: &Item, engine: &'static str, reason: &str) -> RejectedItem {
    RejectedItem {
        key: item.key.clone(),
        item_digest: item.digest.to_bytes(),
        engine_digest: engine.into(),
        reason: reason.into(),
    }
}

/// A stream on a clock of its own.
struct Bench {
    stream: Stream,
    now: Instant,
    reports: Vec<Report>,
}

impl Bench {
    fn new() -> Self {
        Self::with(StreamConfig::default())
    }

    fn with(config: StreamConfig) -> Self {
        let now = Instant::now();
        Self { stream: Stream::new(config, KINDS, now), now, reports: Vec::new() }
    }

    /// Subscribed to the route kind, which shows `items` at revision 1.
    fn subscribed(items: &[(&str, &str)]) -> Self {
        let mut bench = Self::new();
        bench.ask(ask(ROUTE));
        bench.view(view(ROUTE, 1, items));
        bench
    }

    fn ask(&mut self, request: ObserveRequest) {
        self.stream.on_request(self.now, request);
    }

    fn view(&mut self, view: Arc<View>) {
        self.stream.on_view(self.now, view);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.stream.on_tick(self.now);
    }

    fn frames(&mut self) -> Vec<ObserveResponse> {
        let frames: Vec<_> = std::iter::from_fn(|| {
            let wants = self.stream.wants_to_send(self.now);
            let frame = self.stream.next_frame(self.now);
            assert_eq!(wants, frame.is_some());
            frame
        })
        .collect();
        self.actions();
        frames
    }

    fn frame(&mut self) -> ObserveResponse {
        let mut frames = self.frames();
        assert_eq!(frames.len(), 1, "{frames:?}");
        frames.remove(0)
    }

    /// Takes one response and acknowledges it.
    fn take(&mut self) -> ObserveResponse {
        let frame = self.frame();
        let kind = Kind::by_type(KINDS, &frame.r#type).expect("a known kind");
        self.ask(answer(kind, &frame.nonce));
        frame
    }

    fn actions(&mut self) -> (Vec<(Kind, Services)>, Option<Close>) {
        let (mut subscribed, mut closed) = (Vec::new(), None);
        while let Some(action) = self.stream.next_action() {
            match action {
                Action::Subscribe { kind, services } => subscribed.push((kind, services)),
                Action::Report(report) => self.reports.push(report),
                Action::Close(close) => closed = Some(close),
            }
        }
        (subscribed, closed)
    }

    fn closed(&mut self) -> (Code, tonic::Code) {
        let close = self.actions().1.expect("closed");
        assert!(self.stream.is_closed());
        (close.code, close.status)
    }
}

fn specs(frames: &[ObserveResponse]) -> BTreeMap<String, String> {
    let rules = frames.iter().flat_map(|f| &f.data);
    rules
        .map(|any| Rule::decode(any.value.as_slice()).expect("a rule"))
        .map(|rule| (rule.key, String::from_utf8_lossy(&rule.spec).into_owned()))
        .collect()
}

#[test]
fn a_subscription_is_answered_at_once_also_with_nothing() {
    let mut bench = Bench::new();
    bench.ask(ask(ROUTE));
    assert_eq!(bench.actions().0, [(ROUTE, None)]);
    assert!(bench.frames().is_empty(), "there is no view yet");
    bench.view(view(ROUTE, 1, &[]));
    let frame = bench.frame();
    assert!(frame.data.is_empty() && !frame.delta && !frame.more_chunks);
    assert_eq!((frame.revision, frame.lineage.as_str()), (1, "l"));
    assert!(!frame.nonce.is_empty() && !frame.resume_token.is_empty());
}

#[test]
fn only_changed_content_is_pushed_and_only_the_newest() {
    let mut bench = Bench::subscribed(&[("a", "1")]);
    let first = bench.take();
    bench.view(view(ROUTE, 5, &[("a", "1")]));
    assert!(bench.frames().is_empty(), "the same content, whatever the revision");
    bench.view(view(ROUTE, 6, &[("a", "2")]));
    let second = bench.frame();
    for revision in 7..20 {
        bench.view(view(ROUTE, revision, &[("a", &revision.to_string())]));
    }
    assert!(bench.frames().is_empty(), "one is under way");
    bench.ask(answer(ROUTE, &second.nonce));
    let third = bench.take();
    assert_eq!(specs(std::slice::from_ref(&third))["a"], "19");
    assert!(bench.frames().is_empty());
    assert!(first.nonce != second.nonce && second.nonce != third.nonce);
    // There and back is no change.
    bench.view(view(ROUTE, 21, &[("a", "20")]));
    bench.view(view(ROUTE, 22, &[("a", "19")]));
    assert!(bench.frames().is_empty());
}

#[test]
fn an_older_view_is_ignored() {
    let mut bench = Bench::subscribed(&[("a", "1")]);
    bench.view(view(ROUTE, 9, &[("a", "9")]));
    bench.view(view(ROUTE, 8, &[("a", "8")]));
    assert_eq!(specs(&[bench.take()])["a"], "9");
    bench.view(view(ROUTE, 8, &[("a", "8")]));
    assert!(bench.frames().is_empty());
    // A restored store begins a lineage.
    let restored = View { lineage: "m".into(), ..View::clone(&view(ROUTE, 3, &[("a", "3")])) };
    bench.view(Arc::new(restored));
    let frame = bench.take();
    assert_eq!((frame.revision, frame.lineage.as_str()), (3, "m"));
}

#[test]
fn kinds_do_not_wait_for_each_other() {
    let mut bench = Bench::subscribed(&[("a", "1")]);
    bench.ask(ask(OTHER));
    bench.view(view(OTHER, 1, &[]));
    let frames = bench.frames();
    assert_eq!(frames.len(), 2);
    // The route kind stays silent.
    let other = frames.iter().find(|f| f.r#type == OTHER.type_name).expect("both kinds");
    bench.ask(answer(OTHER, &other.nonce));
    for revision in 2..50 {
        bench.view(view(ROUTE, revision, &[("a", &revision.to_string())]));
        bench.view(view(OTHER, revision, &[("o", &revision.to_string())]));
        let frame = bench.take();
        assert_eq!(specs(&[frame])["o"], revision.to_string());
    }
}

#[test]
fn chunks_share_a_nonce_and_kinds_take_turns() {
    let config = StreamConfig { chunk_bytes: 1000, ..StreamConfig::default() };
    let mut bench = Bench::with(config);
    let long = "x".repeat(600);
    let items: Vec<_> = ["a", "b", "c", "d"].iter().map(|key| (*key, long.as_str())).collect();
    for kind in [ROUTE, OTHER] {
        bench.ask(ask(kind));
        bench.view(view(kind, 1, &items));
    }
    let first = bench.stream.next_frame(bench.now).expect("a chunk");
    assert!(first.more_chunks && first.resume_token.is_empty());
    // An answer before the last chunk has left is to nothing.
    bench.ask(answer(ROUTE, &first.nonce));
    assert_eq!(bench.stream.counters().stale_nonces, 1);
    // What changes now waits; the response under way is one state.
    bench.view(view(ROUTE, 2, &[("a", "new")]));
    let mut frames = vec![first];
    frames.extend(bench.frames());
    let turns: Vec<_> = frames.iter().map(|f| f.r#type == ROUTE.type_name).collect();
    assert_eq!(turns, [true, false, true, false, true, false, true, false]);
    for kind in [ROUTE, OTHER] {
        let of: Vec<_> = frames.iter().filter(|f| f.r#type == kind.type_name).collect();
        assert!(of.iter().all(|f| f.nonce == of[0].nonce && f.revision == 1));
        let more: Vec<_> = of.iter().map(|f| f.more_chunks).collect();
        assert_eq!(more, [true, true, true, false]);
        assert!(!of[3].resume_token.is_empty());
    }
    assert_eq!(specs(&frames).len(), 4);
    let nonce = frames[0].nonce.clone();
    bench.ask(answer(ROUTE, &nonce));
    assert_eq!(specs(&[bench.take()])["a"], "new");
}

#[test]
fn stale_unknown_and_foreign_nonces_are_counted_and_change_nothing() {
    let mut bench = Bench::subscribed(&[("a", "1")]);
    bench.ask(ask(OTHER));
    bench.view(view(OTHER, 1, &[]));
    let frames = bench.frames();
    bench.ask(answer(OTHER, &frames[0].nonce));
    bench.ask(answer(ROUTE, "nothing"));
    bench.view(view(ROUTE, 2, &[("a", "2")]));
    assert!(bench.frames().is_empty(), "the first response has no answer yet");
    bench.ask(answer(ROUTE, &frames[0].nonce));
    bench.ask(answer(ROUTE, &frames[0].nonce));
    assert_eq!(bench.stream.counters().stale_nonces, 3);
    assert_eq!(specs(&[bench.take()])["a"], "2");
    assert_eq!(bench.stream.counters().acks, 2);
    let mut bench = Bench::new();
    bench.ask(answer(ROUTE, "1"));
    assert_eq!((bench.stream.counters().stale_nonces, bench.stream.is_closed()), (1, false));
}

#[test]
fn asking_again_gives_the_current_state_at_a_limited_rate() {
    let mut bench = Bench::subscribed(&[("a", "1")]);
    bench.take();
    for _ in 0..4 {
        bench.ask(ask(ROUTE));
        assert_eq!(specs(&[bench.take()])["a"], "1");
    }
    for _ in 0..50 {
        bench.ask(ask(ROUTE));
    }
    assert!(bench.frames().is_empty(), "delayed");
    let at = bench.stream.deadline().expect("it is not forgotten");
    bench.pass(at - bench.now);
    bench.take();
    bench.pass(Duration::from_secs(60));
    assert!(bench.frames().is_empty(), "what came too fast is one");
    // A change does not wait for the rate.
    for _ in 0..5 {
        bench.ask(ask(ROUTE));
        bench.frames();
    }
    let last = bench.stream.counters();
    bench.ask(answer(ROUTE, &last.responses.to_string()));
    bench.ask(ask(ROUTE));
    bench.view(view(ROUTE, 2, &[("a", "2")]));
    assert_eq!(specs(&[bench.take()])["a"], "2");
    assert!(bench.frames().is_empty(), "and answers what was asked");
}

#[test]
fn asking_again_without_an_answer_gives_the_first_response_up() {
    let mut bench = Bench::subscribed(&[("a", "1")]);
    let first = bench.frame();
    bench.ask(ask(ROUTE));
    let second = bench.frame();
    assert_ne!(first.nonce, second.nonce);
    bench.ask(answer(ROUTE, &first.nonce));
    assert_eq!((bench.stream.counters().stale_nonces, bench.stream.counters().acks), (1, 0));
    bench.ask(answer(ROUTE, &second.nonce));
    assert_eq!(bench.stream.counters().acks, 1);
}

#[test]
fn rejected_content_is_withheld_until_it_changes() {
    let mut bench = Bench::subscribed(&[("a", "1"), ("b", "1"), ("c", "1")]);
    let frame = bench.frame();
    let b = item("b", "1");
    let mut nack = answer(ROUTE, &frame.nonce);
    nack.error_detail = Some(ErrorDetail { code: "RC0601".into(), message: "b".into() });
    nack.rejected = vec![rejected(&b, "engine", "not\nlike this")];
    bench.ask(nack);
    assert!(bench.frames().is_empty(), "a rejection is no reason to send");
    let Some(Report::Applied { rejected, .. }) = bench.reports.last() else {
        panic!("{:?}", bench.reports.last());
    };
    assert_eq!((rejected.len(), rejected[0].reason.as_str()), (1, "not like this"));
    bench.view(view(ROUTE, 2, &[("a", "2"), ("b", "1"), ("c", "1")]));
    let frame = bench.take();
    assert_eq!(specs(std::slice::from_ref(&frame)).keys().collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(frame.withheld.len(), 1);
    assert_eq!(frame.withheld[0].item_digest.as_ref(), b.digest.as_bytes());
    // Also when the client asks for everything.
    bench.ask(ask(ROUTE));
    assert_eq!(bench.take().withheld.len(), 1);
    bench.view(view(ROUTE, 3, &[("a", "2"), ("b", "2"), ("c", "1")]));
    let frame = bench.take();
    assert_eq!((specs(std::slice::from_ref(&frame))["b"].as_str(), frame.withheld.len()), ("2", 0));
    // It was another item in between, so it may come again.
    bench.view(view(ROUTE, 4, &[("a", "2"), ("b", "1"), ("c", "1")]));
    assert_eq!(specs(&[bench.take()])["b"], "1");
}

#[test]
fn an_item_that_the_client_could_not_even_name_is_withheld() {
    let mut bench = Bench::subscribed(&[("a", "1"), ("b", "1")]);
    let frame = bench.frame();
    let mut nack = answer(ROUTE, &frame.nonce);
    let unnamed = RejectedItem { key: String::new(), ..rejected(&item("b", "1"), "engine", "?") };
    nack.rejected = vec![unnamed];
    bench.ask(nack);
    bench.view(view(ROUTE, 2, &[("a", "2"), ("b", "1")]));
    let frame = bench.take();
    assert_eq!((frame.withheld.len(), frame.withheld[0].key.as_str()), (1, "b"));
}

#[test]
fn a_response_refused_whole_is_not_sent_again() {
    let mut bench = Bench::subscribed(&[("a", "1")]);
    let frame = bench.frame();
    let mut nack = answer(ROUTE, &frame.nonce);
    nack.error_detail = Some(ErrorDetail { code: "RC0609".into(), message: "no".into() });
    bench.ask(nack);
    assert!(bench.frames().is_empty());
    let Some(Report::Refused { reason, .. }) = bench.reports.last() else {
        panic!("{:?}", bench.reports.last());
    };
    assert_eq!(reason, "RC0609 no");
    assert_eq!(bench.stream.counters().nacks, 1);
    bench.view(view(ROUTE, 2, &[("a", "2")]));
    assert!(!bench.take().delta);
}

/// A new stream of a client that stands at `token`, over `now`.
fn resume(token: &Bytes, rejected: Vec<RejectedItem>, now: Arc<View>) -> Bench {
    let mut bench = Bench::new();
    bench.ask(ObserveRequest { resume_token: token.clone(), rejected, ..ask(ROUTE) });
    bench.view(now);
    bench
}

#[test]
fn resuming_at_the_same_state_sends_nothing_but_the_place() {
    let items = [("a", "1"), ("b", "1")];
    let token = Bench::subscribed(&items).take().resume_token;
    let frame = resume(&token, vec![], view(ROUTE, 7, &items)).take();
    assert!(frame.delta && frame.data.is_empty() && frame.removed.is_empty());
    assert_eq!(frame.revision, 7);
    // Behind in revision with the same content is not behind; the client's revision stays.
    let frame = resume(&frame.resume_token, vec![], view(ROUTE, 2, &items)).take();
    assert_eq!((frame.delta, frame.revision), (true, 7));
    for other in [
        view(ROUTE, 7, &[("a", "2"), ("b", "1")]),
        scoped("t", ROUTE, 7, &items),
        Arc::new(View { lineage: "m".into(), ..View::clone(&view(ROUTE, 7, &items)) }),
    ] {
        let frame = resume(&token, vec![], other).take();
        assert!(!frame.delta && frame.data.len() == 2);
    }
    for noise in [&b"\xff\xff"[..], b"x"] {
        let noise = Bytes::from_static(noise);
        let frame = resume(&noise, vec![], view(ROUTE, 7, &items)).take();
        assert!(!frame.delta && frame.data.len() == 2);
    }
}

#[test]
fn rejections_declared_at_a_new_stream_hold_for_the_same_engine_only() {
    let items = [("a", "1"), ("b", "1")];
    let b = item("b", "1");
    let token = Bench::subscribed(&items).take().resume_token;
    let same = || vec![rejected(&b, "engine", "no")];
    // It rejected b of the response that the token came with.
    let mut bench = resume(&token, same(), view(ROUTE, 1, &items));
    let frame = bench.take();
    assert!(frame.delta);
    assert!(matches!(bench.reports.last(), Some(Report::Sent { .. })));
    bench.actions();
    assert!(matches!(
        bench.reports.last(),
        Some(Report::Applied { rejected, .. }) if rejected.len() == 1
    ));
    let lacking = frame.resume_token;
    // Without a token, or with other content: the rest, and b withheld.
    let full = resume(&Bytes::new(), same(), view(ROUTE, 1, &items)).take();
    assert_eq!((full.data.len(), full.withheld.len()), (1, 1));
    assert!(resume(&full.resume_token, same(), view(ROUTE, 1, &items)).take().delta);
    // The token says that b is missing; the client no longer rejects it.
    for token in [&lacking, &full.resume_token] {
        let frame = resume(token, vec![], view(ROUTE, 1, &items)).take();
        assert_eq!((frame.delta, frame.data.len()), (false, 2));
    }
    // Another engine rejected it: the client lacks it and would take it.
    let frame = resume(&token, vec![rejected(&b, "old", "no")], view(ROUTE, 1, &items)).take();
    assert_eq!((frame.delta, frame.data.len(), frame.withheld.len()), (false, 2, 0));
}

#[test]
fn a_replica_behind_its_client_waits_and_then_says_so() {
    let token = ResumeToken {
        lineage: "l".into(),
        revision: 100,
        scope_hash: Digest::of(b"s").to_bytes(),
        set_digest: Digest::of(b"elsewhere").to_bytes(),
        withheld: vec![],
    };
    let token = Bytes::from(token.encode_to_vec());
    let mut bench = resume(&token, vec![], view(ROUTE, 50, &[("a", "50")]));
    assert!(bench.frames().is_empty());
    // Another kind is served meanwhile.
    bench.ask(ask(OTHER));
    bench.view(view(OTHER, 1, &[]));
    bench.take();
    bench.pass(Duration::from_secs(4));
    bench.view(view(ROUTE, 99, &[("a", "99")]));
    assert!(bench.frames().is_empty());
    let mut late = resume(&token, vec![], view(ROUTE, 50, &[("a", "50")]));
    bench.view(view(ROUTE, 100, &[("a", "100")]));
    assert_eq!(specs(&[bench.take()])["a"], "100");
    bench.pass(Duration::from_secs(60));
    assert!(!bench.stream.is_closed());
    let at = late.stream.deadline().expect("it waits");
    assert_eq!(at, late.now + Duration::from_secs(5));
    late.pass(Duration::from_secs(5));
    assert_eq!(late.closed(), (Code::ReplicaBehind, tonic::Code::Unavailable));
}

#[test]
fn other_services_are_another_view_and_the_revision_stays() {
    let mut bench = Bench::subscribed(&[("a", "1")]);
    bench.view(view(ROUTE, 9, &[("a", "9")]));
    let frame = bench.frame();
    bench.actions();
    let services = Some(Subscription { services: vec!["com.A".into(), "com.B:0.0.0".into()] });
    let declared: Services =
        Some(["com.A", "com.B"].iter().map(|s| s.parse().expect("a key")).collect());
    bench.ask(ObserveRequest { subscription: services.clone(), ..answer(ROUTE, &frame.nonce) });
    assert_eq!(bench.actions().0, [(ROUTE, declared.clone())]);
    assert!(bench.frames().is_empty());
    // A view that has not changed for long is current all the same.
    bench.view(scoped("t", ROUTE, 4, &[("a", "9")]));
    let frame = bench.take();
    assert_eq!((frame.revision, frame.data.len()), (9, 1));
    bench.ask(ObserveRequest { subscription: services, ..ask(ROUTE) });
    assert!(bench.actions().0.is_empty(), "they are the same");
    bench.frames();
    // Flapping costs a view per second, not per request.
    let mut subscribed = 0;
    for n in 0..100 {
        let services = vec![format!("com.S{n}")];
        bench.ask(ObserveRequest { subscription: Some(Subscription { services }), ..ask(ROUTE) });
        subscribed += bench.actions().0.len();
    }
    assert!(subscribed <= 4, "{subscribed}");
    bench.pass(Duration::from_secs(1));
    let last = bench.actions().0;
    assert_eq!(last, [(ROUTE, Some(["com.S99".parse().expect("a key")].into()))]);
    bench.ask(ObserveRequest { subscription: Some(Subscription::default()), ..ask(ROUTE) });
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.actions().0, [(ROUTE, None)]);
}

#[test]
fn a_token_is_no_base_once_something_else_was_sent() {
    let declare = |services: &[&str]| {
        let services = services.iter().map(|s| (*s).into()).collect();
        Some(Subscription { services })
    };
    let mut bench = Bench::new();
    bench.ask(ObserveRequest { subscription: declare(&["com.A"]), ..ask(ROUTE) });
    bench.view(scoped("a", ROUTE, 1, &[("a", "1")]));
    let token = bench.take().resume_token;
    bench.ask(ObserveRequest { subscription: declare(&["com.B"]), ..ask(ROUTE) });
    bench.view(scoped("b", ROUTE, 1, &[("b", "1")]));
    bench.frame();
    // Said before the client got that.
    let subscription = declare(&["com.A"]);
    bench.ask(ObserveRequest { resume_token: token.clone(), subscription, ..ask(ROUTE) });
    bench.view(scoped("a", ROUTE, 1, &[("a", "1")]));
    let frame = bench.take();
    assert_eq!((frame.delta, frame.data.len()), (false, 1));
    bench.ask(ObserveRequest { resume_token: frame.resume_token, ..ask(ROUTE) });
    assert!(bench.take().delta, "now it stands there");
}

#[test]
fn what_is_outside_the_limits_ends_the_stream() {
    let long = "x".repeat(5000);
    let huge = Bytes::from(vec![0; 20 << 10]);
    let subscription = |services: Vec<String>| Some(Subscription { services });
    let item = rejected(&item("a", "1"), "engine", "");
    let node = |node| Some(node);
    let base = || ask(ROUTE);
    for request in [
        ObserveRequest { nonce: long.clone(), ..base() },
        ObserveRequest { r#type: long.clone(), ..base() },
        ObserveRequest { resume_token: huge.clone(), ..base() },
        ObserveRequest { subscription: subscription(vec!["a b".into()]), ..base() },
        ObserveRequest { subscription: subscription(vec![long.clone()]), ..base() },
        ObserveRequest { subscription: subscription(vec!["a".into(); 2000]), ..base() },
        ObserveRequest { rejected: vec![item.clone(); 5000], ..base() },
        ObserveRequest {
            rejected: vec![RejectedItem { item_digest: "short".into(), ..item.clone() }],
            ..base()
        },
        ObserveRequest {
            rejected: vec![RejectedItem { reason: long.clone(), ..item.clone() }],
            ..base()
        },
        ObserveRequest { node: node(Node { instance: long.clone(), ..Node::default() }), ..base() },
        ObserveRequest { node: node(Node { engine_digest: huge, ..Node::default() }), ..base() },
        ObserveRequest { node: node(Node { abi: vec![1; 100], ..Node::default() }), ..base() },
    ] {
        let mut bench = Bench::new();
        bench.ask(request);
        assert_eq!(bench.closed(), (Code::RequestInvalid, tonic::Code::InvalidArgument));
        bench.ask(base());
        bench.view(view(ROUTE, 1, &[]));
        assert!(bench.frames().is_empty() && bench.stream.deadline().is_none());
    }
    let mut bench = Bench::new();
    bench.ask(ObserveRequest { r#type: "x/y/Z".into(), ..base() });
    assert_eq!(bench.closed(), (Code::TypeUnsupported, tonic::Code::InvalidArgument));
}

#[test]
fn silence_and_draining_end_the_stream() {
    let mut bench = Bench::new();
    let at = bench.stream.deadline().expect("the first request is due");
    bench.pass(at - bench.now);
    assert_eq!(bench.closed(), (Code::RequestInvalid, tonic::Code::DeadlineExceeded));
    let mut bench = Bench::subscribed(&[]);
    bench.pass(Duration::from_secs(3600));
    assert!(!bench.stream.is_closed());
    bench.stream.on_draining();
    assert_eq!(bench.closed(), (Code::Draining, tonic::Code::Unavailable));
    assert!(bench.frames().is_empty());
}

fn any_request() -> impl Strategy<Value = ObserveRequest> {
    let bytes = |most| prop::collection::vec(any::<u8>(), 0..most).prop_map(Bytes::from);
    let digest = prop_oneof![
        Just(item("a", "1").digest.to_bytes()),
        prop::collection::vec(any::<u8>(), 32).prop_map(Bytes::from),
        bytes(40),
    ];
    let rejected = (prop::sample::select(vec!["a", "b", ""]), digest, any::<bool>()).prop_map(
        |(key, item_digest, same)| RejectedItem {
            key: key.into(),
            item_digest,
            engine_digest: if same { "engine".into() } else { "old".into() },
            reason: String::new(),
        },
    );
    let token = (any::<i64>(), any::<bool>(), prop::collection::vec(bytes(33), 0..3)).prop_map(
        |(revision, same, withheld)| {
            let set = scoped("s", ROUTE, 1, &[("a", "1")]).set_digest;
            let token = ResumeToken {
                lineage: "l".into(),
                revision,
                scope_hash: Digest::of(b"s").to_bytes(),
                set_digest: if same { set.to_bytes() } else { Bytes::new() },
                withheld,
            };
            Bytes::from(token.encode_to_vec())
        },
    );
    (
        prop_oneof![4 => "[1-9]?", 1 => ".{0,4}"],
        prop::sample::select(vec![ROUTE.type_name, OTHER.type_name]),
        prop_oneof![Just(Bytes::new()), token, bytes(40)],
        prop::collection::vec(rejected, 0..3),
        prop::option::of(prop::collection::vec("[ab:/ ]{1,3}", 0..2)),
        any::<(bool, bool)>(),
    )
        .prop_map(|(nonce, type_name, resume_token, rejected, services, (node, error))| {
            ObserveRequest {
                nonce,
                r#type: type_name.into(),
                node: node.then(|| Node { engine_digest: "engine".into(), ..Node::default() }),
                resume_token,
                error_detail: error.then(ErrorDetail::default),
                rejected,
                subscription: services.map(|services| Subscription { services }),
            }
        })
}

proptest! {
    #[test]
    fn any_requests_are_taken_without_panic_and_one_response_is_under_way(
        steps in prop::collection::vec((any_request(), 0u8..6, any::<bool>(), -2i64..9), 0..60),
    ) {
        let mut bench = Bench::with(StreamConfig { chunk_bytes: 60, ..StreamConfig::default() });
        let mut incomplete: BTreeMap<String, String> = BTreeMap::new();
        for (request, what, other, number) in steps {
            let kind = if other { OTHER } else { ROUTE };
            match what {
                0 | 1 => bench.ask(request),
                2 => bench.view(scoped("s", kind, number, &[("a", "1"), ("b", "2")])),
                3 => bench.view(scoped("s", kind, number, &[("a", &number.to_string())])),
                4 => bench.pass(Duration::from_millis(700)),
                _ => {
                    // Chunks of two responses of one type never mix.
                    if let Some(frame) = bench.stream.next_frame(bench.now) {
                        if let Some(nonce) = incomplete.remove(&frame.r#type) {
                            prop_assert_eq!(&nonce, &frame.nonce);
                        }
                        if frame.more_chunks {
                            incomplete.insert(frame.r#type, frame.nonce);
                        }
                    }
                }
            }
            bench.actions();
            prop_assert!(bench.reports.len() < 10_000);
            prop_assert!(bench.stream.deliveries.len() <= KINDS.len());
        }
    }

    #[test]
    fn mutated_requests_are_taken_without_panic(
        request in any_request(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = request.encode_to_vec();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(request) = ObserveRequest::decode(bytes.as_slice()) {
            let mut bench = Bench::subscribed(&[("a", "1")]);
            bench.ask(request);
            bench.frames();
        }
    }
}
