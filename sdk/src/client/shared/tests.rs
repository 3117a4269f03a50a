use rulecast_policy::{
    Attributes, CommitError, Guest, Native, Policy,
    endpoints::Table,
    outcome::{OutcomeWriter, verdict},
    request,
};

use super::*;
use crate::{
    endpoints::Endpoint,
    snapshot::{Change, Delivered},
};
use prost::Message;

const LIMIT: &str = POLICIES[slot::RATE_LIMIT].type_name;
const AUTHORIZATION: &str = POLICIES[slot::AUTHORIZATION].type_name;
const DYNAMIC: &str = POLICIES[slot::DYNAMIC_CONFIG].type_name;

/// Allows every call to this application, and gives every endpoint one parameter.
#[derive(Default)]
struct Open {
    application: u16,
}

impl Open {
    fn native() -> Box<dyn Guest> {
        Box::new(Native::new(Self::default()))
    }
}

impl Policy for Open {
    fn commit(&mut self, _: u32, _: &[u8], a: &mut Attributes) -> Result<(), CommitError> {
        self.application = a.slot("destination.application");
        Ok(())
    }
    fn remove(&mut self, _: u32) {}
    fn endpoints(&mut self, _: u32, _: Option<Table>) -> Result<(), CommitError> {
        Ok(())
    }
    fn has_rule(&self, _: u32) -> bool {
        true
    }
    fn has_set(&self, _: u32) -> bool {
        true
    }
    fn evaluate(
        &mut self,
        request: &request::Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        _: &mut dyn FnMut(u32),
    ) {
        if request.endpoints() > 0 {
            return outcome.parameter(0, None, "timeout", "7");
        }
        let ours = request.attribute(self.application) == Some(b"shop");
        outcome.verdict(0, if ours { verdict::ALLOW } else { verdict::NONE }, "");
    }
    fn explain(
        &mut self,
        request: &request::Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        self.evaluate(request, outcome, at_work);
    }
}

fn shared(types: &[&str]) -> Shared {
    let builder = ClientBuilder::default().application("shop").subscribe(types.iter().copied());
    let policies = Policies::none()
        .with_native(AUTHORIZATION, Open::native)
        .with_native(DYNAMIC, Open::native);
    Shared::with(&builder, policies.clone(), policies.digest())
}

fn install(shared: &Shared, type_name: &str, rules: &[&str]) {
    let items = rules.iter().map(|key| {
        let rule = Rule { key: (*key).into(), ..Rule::default() };
        let type_url = rulecast_api::proto::RULE_TYPE_URL.to_owned();
        Delivered { type_url, bytes: rule.encode_to_vec().into() }
    });
    let change = Change { revision: 1, full: true, items: items.collect(), ..Change::default() };
    let (kind, refused) =
        KindSnapshot::default().apply(&change, |rule| shared.check(type_name, rule));
    assert!(refused.is_empty(), "{refused:?}");
    shared.install(shared.held().with([(type_name.to_owned(), kind)]));
}

#[test]
fn no_call_is_taken_before_it_is_known_who_may() {
    let shared = shared(&[AUTHORIZATION]);
    let call = Inbound::new();
    let reason = shared.authorize(&call).reason;
    let Reason::Fault(fault) = &reason else { panic!("{reason:?}") };
    assert_eq!((fault.kind, reason.allows()), (FaultKind::NotReady, false));
    install(&shared, AUTHORIZATION, &[]);
    assert_eq!(shared.authorize(&call).reason, Reason::NoPolicy);
    install(&shared, AUTHORIZATION, &["a/ns"]);
    assert_eq!(shared.authorize(&call).reason, Reason::AllowedBy("a/ns".into()));
    let reason = shared.authorize(&call.application("other")).reason;
    assert_eq!(reason, Reason::NoneAllows { key: "a/ns".into() });
}

#[test]
fn who_does_not_follow_a_kind_learns_so() {
    let other = shared(&[DYNAMIC]);
    let given = other.authorize(&Inbound::new());
    assert!(!given.is_allowed());
    assert!(given.to_string().contains("does not subscribe"), "{given}");
    assert_eq!(other.tls_mode(80), TlsMode::Undecided);
    let waits = shared(&[POLICIES[slot::AUTHENTICATION].type_name]);
    assert_eq!(waits.tls_mode(80), TlsMode::Strict);
}

#[test]
fn calls_are_taken_before_it_is_known_how_many_may_come() {
    let waits = shared(&[LIMIT]);
    let given = waits.admit(&Inbound::new(), Instant::now());
    assert_eq!(given.faults.first().map(|f| f.fault.kind), Some(FaultKind::NotReady));
    assert!(given.is_admitted());
    let other = shared(&[DYNAMIC]);
    assert_eq!(other.admit(&Inbound::new(), Instant::now()), Admission::default());
    assert_eq!(other.explain_admit(&Inbound::new(), Instant::now()).text, "admitted\n");
    let text = other.explain_authorize(&Inbound::new()).text;
    assert!(text.starts_with("denied: ") && text.contains("does not subscribe"), "{text}");
}

#[test]
fn parameters_are_remembered_until_rules_or_endpoints_change() {
    let shared = shared(&[DYNAMIC]);
    let set = || EndpointSet::new([Endpoint::new("10.0.0.1", 1)]).expect("a set");
    let endpoints = set();
    assert!(shared.parameters("s", &endpoints).all.is_empty());
    install(&shared, DYNAMIC, &["a/ns"]);
    let first = shared.parameters("s", &endpoints);
    assert_eq!(first.get(0, "timeout"), Some("7"));
    assert!(Arc::ptr_eq(&first, &shared.parameters("s", &endpoints)));
    for other in [shared.parameters("t", &endpoints), shared.parameters("s", &set())] {
        assert!(!Arc::ptr_eq(&first, &other));
    }
    assert!(Arc::ptr_eq(&first, &shared.parameters("s", &endpoints)));
    install(&shared, DYNAMIC, &["b/ns"]);
    let second = shared.parameters("s", &endpoints);
    assert_eq!(second.rules.first().map(|r| &*r.key), Some("b/ns"));
}
