//! What the host makes of policies' answers: the routing chain, verdicts, modes, parameters.

mod common;

use common::Scripted;
use rulecast_api::proto::rules::v1::{Enforcement, Rule, Target, target::Scope};
use rulecast_sdk::{
    decision::{Effect, Policies, RuleSet},
    host::FaultKind,
    {Authorization, Endpoint, EndpointSet, Inbound, Params, Reason, Request, TlsMode},
};

const CONDITION: &str = "dubbo.apache.org/v1alpha1/ConditionRoute";
const TAG: &str = "dubbo.apache.org/v1alpha1/TagRoute";
const AFFINITY: &str = "dubbo.apache.org/v1alpha1/AffinityRoute";
const AUTHENTICATION: &str = "dubbo.apache.org/v1alpha1/AuthenticationPolicy";
const AUTHORIZATION: &str = "dubbo.apache.org/v1alpha1/AuthorizationPolicy";
const DYNAMIC: &str = "dubbo.apache.org/v1alpha1/DynamicConfig";

fn policies(types: &[&str]) -> Policies {
    types.iter().fold(Policies::none(), |all, kind| all.with_native(kind, Scripted::native))
}

fn rule(name: &str, spec: &'static str) -> Rule {
    Rule { key: format!("{name}/ns"), spec: spec.as_bytes().into(), ..Rule::default() }
}

fn shadow(rule: Rule) -> Rule {
    Rule { enforcement: Enforcement::Shadow.into(), ..rule }
}

fn endpoints(tagged: bool) -> EndpointSet {
    let all = (0..6).map(|i| {
        let endpoint = Endpoint::new("10.0.0.1", 1000 + i);
        if tagged && i == 5 { endpoint.with("dubbo.tag", "gray") } else { endpoint }
    });
    EndpointSet::new(all).expect("a set")
}

#[test]
fn each_kind_chooses_among_what_the_one_before_left() {
    let rules = RuleSet::default()
        .with(AFFINITY, [rule("c", "drop:2")])
        .with(CONDITION, [rule("a", "drop:0")])
        .with(TAG, [rule("b", "drop:1"), shadow(rule("s", "note"))]);
    assert_eq!((rules.len(), rules.keys().count()), (4, 4));
    let consumer = Params::default();
    let request = Request::new("s", &consumer);
    let all = policies(&[CONDITION, TAG, AFFINITY]);
    let decision = all.route(&rules, &request, &endpoints(false));
    assert_eq!(decision.endpoints, [3, 4, 5]);
    let told: Vec<_> =
        decision.rules.iter().map(|r| (r.kind, &*r.key, r.effect, r.remaining)).collect();
    assert_eq!(
        told,
        [
            (CONDITION, "a/ns", Effect::Applied, 5),
            (TAG, "b/ns", Effect::Applied, 4),
            (TAG, "s/ns", Effect::WouldApply, 4),
            (AFFINITY, "c/ns", Effect::Applied, 3),
        ]
    );
    let explained = all.explain(&rules, &request, &endpoints(false));
    assert_eq!(explained.decision, decision);
    let want = "rule c/ns (AffinityRoute): applied, 3 remain\n  as it says\n";
    assert!(explained.text.contains(want), "{}", explained.text);

    // A kind without a policy is passed over.
    let some = policies(&[CONDITION, AFFINITY]);
    assert_eq!(some.route(&rules, &request, &endpoints(false)).endpoints, [1, 3, 4, 5]);

    // So is one that fails, and says so; the others go on.
    let bad = rules.with(TAG, [rule("b", "refuse")]);
    let decision = all.route(&bad, &request, &endpoints(false));
    assert_eq!(decision.endpoints, [1, 3, 4, 5]);
    assert_eq!(decision.faults.len(), 1);
    assert_eq!(
        (decision.faults[0].kind, decision.faults[0].fault.kind),
        (Some(TAG), FaultKind::Refused)
    );
}

#[test]
fn tags_count_without_any_rule_once_there_are_tags() {
    let all = policies(&[TAG]);
    let rules = RuleSet::default();
    let (consumer, gray) =
        (Params::default(), [("dubbo.tag", "gray")].into_iter().collect::<Params>());
    let plain = Request::new("s", &consumer);
    // The scripted policy drops the last endpoint when it is asked.
    for (request, tagged, asked) in [
        (plain.clone(), false, false),
        (plain.clone(), true, true),
        (plain.clone().attachment("dubbo.tag", "gray"), false, true),
        (Request::new("s", &gray), false, true),
    ] {
        let decision = all.route(&rules, &request, &endpoints(tagged));
        assert_eq!(decision.endpoints.len(), if asked { 5 } else { 6 });
        assert!(decision.rules.is_empty(), "the implicit rule is nobody's");
    }
    let text = all.explain(&rules, &plain, &endpoints(true)).text;
    assert!(text.contains("no rule (TagRoute)\n  as it says\n"), "{text}");
    // Where a rule speaks, the implicit one does not.
    let target = Some(Target { scope: Scope::Service.into(), key: "s".into() });
    let rules = rules.with(TAG, [Rule { target, ..rule("a", "drop:0") }]);
    let decision = all.route(&rules, &plain, &endpoints(true));
    assert_eq!((decision.endpoints.len(), decision.endpoints[0]), (5, 1));
    let other = Request::new("other", &consumer);
    assert_eq!(all.route(&rules, &other, &endpoints(true)).endpoints, [0, 1, 2, 3, 4]);
}

fn authorize(rules: impl IntoIterator<Item = Rule>) -> Authorization {
    let rules = RuleSet::default().with(AUTHORIZATION, rules);
    policies(&[AUTHORIZATION]).authorize(&rules, &Inbound::new().method("get").port(80))
}

#[test]
fn deny_beats_allow_and_one_allow_suffices() {
    let (yes, no) = ("allow method get", "allow method put");
    let given = |rules: &[(&str, &'static str)]| {
        authorize(rules.iter().map(|(name, spec)| rule(name, spec))).reason
    };
    assert_eq!(given(&[]), Reason::NoPolicy);
    assert_eq!(given(&[("d", "deny method put")]), Reason::NoPolicy);
    let none = Reason::NoneAllows { key: "a/ns".into() };
    assert_eq!(given(&[("a", no)]), none);
    assert_eq!(given(&[("a", no), ("b", no)]), none);
    assert!(none.to_string().contains("a/ns does not"));
    assert_eq!(given(&[("a", no), ("b", yes)]), Reason::AllowedBy("b/ns".into()));
    let denied = Reason::DeniedBy { key: "d/ns".into(), message: "not today".into() };
    assert_eq!(given(&[("a", yes), ("d", "deny destination.port 80")]), denied);
    assert_eq!(given(&[("d", "deny")]), denied);
    assert!(denied.to_string().contains("d/ns denies it: not today"));
    assert_eq!(given(&[("w", "audit method get")]), Reason::NoPolicy);
    // Whatever it is said to speak of: it was sent to this server.
    let target = Some(Target { scope: Scope::Service.into(), key: "s".into() });
    assert_eq!(authorize([Rule { target, ..rule("d", "deny") }]).reason, denied);
}

#[test]
fn what_watches_is_noted_and_shadows_only_would_deny() {
    let noted = |a: &Authorization| {
        a.noted.iter().map(|r| (r.key.to_string(), r.effect)).collect::<Vec<_>>()
    };
    let one = authorize([
        rule("a", "allow"),
        rule("w", "audit method get"),
        rule("x", "audit method put"),
        shadow(rule("d", "deny")),
    ]);
    assert_eq!(one.reason, Reason::AllowedBy("a/ns".into()));
    let would = Some(Reason::DeniedBy { key: "d/ns".into(), message: "not today".into() });
    assert_eq!(one.would_deny, would);
    assert!(one.to_string().contains("would be denied: d/ns"), "{one}");
    let want = [("d/ns".to_owned(), Effect::WouldApply), ("w/ns".to_owned(), Effect::Applied)];
    assert_eq!(noted(&one), want);
    // An ALLOW policy in shadow would deny all that it does not allow.
    let two = authorize([shadow(rule("a", "allow method put"))]);
    let none = Reason::NoneAllows { key: "a/ns".into() };
    assert_eq!((two.reason, two.would_deny), (Reason::NoPolicy, Some(none)));
    // It changes nothing where the call is denied anyway, or it would be allowed.
    let three = authorize([rule("d", "deny"), shadow(rule("e", "deny"))]);
    assert_eq!((three.reason.key(), three.would_deny), (Some("d/ns"), None));
    let four = authorize([rule("a", "allow"), shadow(rule("b", "allow method put"))]);
    assert_eq!((four.is_allowed(), four.would_deny), (true, None));
}

#[test]
fn what_cannot_be_decided_is_denied() {
    let refused = authorize([rule("a", "allow"), rule("b", "refuse")]);
    let Reason::Fault(fault) = &refused.reason else { panic!("{refused:?}") };
    assert_eq!(fault.kind, FaultKind::Refused);
    assert_eq!(refused.faults[0].key.as_deref(), Some("b/ns"));
    // Set aside, it still is in force.
    let rules = RuleSet::default().with(AUTHORIZATION, [rule("a", "allow"), rule("b", "refuse")]);
    let all = policies(&[AUTHORIZATION]);
    for aside in [false, true] {
        let given = all.authorize(&rules, &Inbound::new());
        assert!(!given.is_allowed());
        assert_eq!(given.faults[0].aside, aside);
    }
    let twice = authorize([rule("a", "twice")]);
    assert!(matches!(&twice.reason, Reason::Fault(f) if f.kind == FaultKind::BadOutput));
    // A shadow may fail.
    let shadowed = authorize([rule("a", "allow"), shadow(rule("b", "refuse"))]);
    assert_eq!(shadowed.reason, Reason::AllowedBy("a/ns".into()));
    assert!(shadowed.faults[0].shadow);
    // Rules that nothing can evaluate.
    let given = Policies::none().authorize(&rules, &Inbound::new());
    assert!(matches!(given.reason, Reason::Fault(_)));
    // More in a value than a policy may be given.
    let long = "x".repeat(20_000);
    let rules = RuleSet::default().with(AUTHORIZATION, [rule("a", "deny method put")]);
    let given = all.authorize(&rules, &Inbound::new().method(&long));
    assert!(matches!(&given.reason, Reason::Fault(f) if f.kind == FaultKind::Oversize));
}

#[test]
fn the_first_mode_in_force_counts() {
    let all = policies(&[AUTHENTICATION]);
    let mode = |rules: &[Rule], port| {
        all.authenticate(&RuleSet::default().with(AUTHENTICATION, rules), port)
    };
    assert_eq!(mode(&[], 80), TlsMode::Undecided);
    let old = |created, tier, rule: Rule| Rule { created, tier, ..rule };
    let rules = [
        old(1, 0, rule("root", "mode:1")),
        old(9, 1, rule("newer", "mode:2 destination.port 80")),
        old(5, 1, rule("older", "mode:3 destination.port 81")),
        shadow(old(1, 1, rule("shadow", "mode:2 destination.port 82"))),
    ];
    assert_eq!(mode(&rules, 80), TlsMode::Permissive);
    assert_eq!(mode(&rules, 81), TlsMode::Strict);
    assert_eq!(mode(&rules, 82), TlsMode::Disabled);
    let both = [old(9, 1, rule("a", "mode:1")), old(5, 1, rule("b", "mode:2"))];
    assert_eq!(mode(&both, 80), TlsMode::Permissive, "the older one");
    assert_eq!(mode(&[rule("a", "mode:1"), rule("b", "refuse")], 80), TlsMode::Strict);
    assert_eq!(mode(&[rule("a", "mode:7")], 80), TlsMode::Strict);
}

#[test]
fn parameters_of_services_go_over_those_of_applications() {
    let all = policies(&[DYNAMIC]);
    let consumer: Params = [("application", "shop")].into_iter().collect();
    let target = |scope: Scope, key: &str, rule: Rule| Rule {
        target: Some(Target { scope: scope.into(), key: key.into() }),
        ..rule
    };
    let rules = RuleSet::default().with(
        DYNAMIC,
        [
            target(Scope::Service, "s", rule("a", "give:all:timeout:100 service s")),
            target(Scope::Application, "shop", rule("b", "give:all:timeout:200")),
            target(Scope::Application, "shop", rule("c", "give:all:retries:3")),
            rule("d", "give:4:weight:10"),
            shadow(rule("e", "give:all:retries:9")),
        ],
    );
    let set = endpoints(false);
    let given = all.parameters(&rules, &Request::new("s", &consumer), &set);
    assert!(given.faults.is_empty(), "{given:?}");
    assert_eq!((given.get(0, "timeout"), given.get(0, "retries")), (Some("100"), Some("3")));
    assert_eq!((given.get(4, "weight"), given.get(3, "weight")), (Some("10"), None));
    assert_eq!(given.rules.len(), 5);
    let other = all.parameters(&rules, &Request::new("t", &consumer), &set);
    assert_eq!(other.get(0, "timeout"), Some("200"));
    let far = RuleSet::default().with(DYNAMIC, [rule("d", "give:6:weight:10")]);
    let far = all.parameters(&far, &Request::new("s", &consumer), &set);
    assert_eq!(far.faults[0].fault.kind, FaultKind::BadOutput);
    assert!(far.endpoints.is_empty());
}
