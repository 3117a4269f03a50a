//! Found by values or looked at one by one, policies say the same of a call.

use std::collections::BTreeSet;

use proptest::prelude::*;
use prost::Message as _;
use rulecast_api::proto::rules::v1::{
    AttributeMatch, AuthorizationPolicy as Message, AuthorizationRule, Source, ValueMatch,
    authorization_policy::Action, value_match::How,
};
use rulecast_authorization_policy::AuthorizationPolicy;
use rulecast_policy::{
    Guest, Native, abi,
    abi::Packed,
    answer,
    outcome::{Did, Outcome, tag, verdict},
    request::{self, Frame, RuleRef, SHADOW},
};

const KEYS: [&str; 3] = ["method", "path", "request.headers[x]"];

fn value() -> impl Strategy<Value = String> {
    // Some longer than a word of the hash.
    prop::sample::select(vec!["a", "b", "c", "namespace/a", "namespace/b"]).prop_map(str::to_owned)
}

fn condition() -> impl Strategy<Value = AttributeMatch> {
    let matched = prop_oneof![
        6 => value().prop_map(How::Equals),
        1 => Just(How::Regex("a|b".to_owned())),
    ];
    let matched = matched.prop_map(|how| ValueMatch { how: Some(how) });
    let values = prop::collection::vec(matched, 1..4);
    (prop::sample::select(KEYS.to_vec()), values, prop::bool::weighted(0.2)).prop_map(
        |(key, values, not)| {
            let key = key.to_owned();
            match not {
                true => AttributeMatch { key, not_values: values, ..Default::default() },
                false => AttributeMatch { key, values, ..Default::default() },
            }
        },
    )
}

fn rule() -> impl Strategy<Value = AuthorizationRule> {
    let from = prop::option::of(prop::collection::vec(value(), 1..3));
    let from = from.prop_map(|principals| {
        principals.map(|principals| Source { principals, ..Source::default() })
    });
    (from, prop::collection::vec(condition(), 0..3))
        .prop_map(|(from, when)| AuthorizationRule { from: from.into_iter().collect(), when })
}

fn policy() -> impl Strategy<Value = (Message, bool)> {
    let action = prop::sample::select(vec![Action::Allow, Action::Deny, Action::Audit]);
    let samples = prop_oneof![8 => Just(100.0), 1 => Just(0.0), 2 => Just(50.0)];
    let rules = prop::collection::vec(rule(), 0..4);
    (action, samples, rules, any::<bool>(), prop::bool::weighted(0.3)).prop_map(
        |(action, samples, rules, match_all, shadow)| {
            let everything = rules.is_empty();
            let action = action.into();
            (Message { action, samples, rules, match_all, everything }, shadow)
        },
    )
}

/// What the policies say, as the host takes it.
#[derive(Debug, Default, PartialEq)]
struct Said {
    applied: BTreeSet<usize>,
    allowed: BTreeSet<u16>,
    denied: BTreeSet<u16>,
    /// Whether a rule in force could have allowed.
    could: bool,
    /// Shadows that could have allowed, where none did.
    could_not: BTreeSet<u16>,
}

type Call = [Option<String>; 4];

/// Asks a policy, natively.
struct Policies {
    guest: Native<AuthorizationPolicy>,
    slots: Vec<(u16, String)>,
}

impl Policies {
    fn new() -> Self {
        Self { guest: Native::new(AuthorizationPolicy::default()), slots: Vec::new() }
    }

    fn commit(&mut self, id: u32, policy: &Message) {
        let packed = self.guest.rule_commit(id, &policy.encode_to_vec());
        let packed = Packed::unpack(packed).expect("an answer");
        assert_eq!(packed.status, abi::Status::Ok);
        let bytes = packed.slice(self.guest.scratch()).expect("inside");
        let needed = answer::read_accepted(bytes).expect("well-formed");
        self.slots.extend(needed.into_iter().map(|(slot, name)| (slot, name.to_owned())));
    }

    fn ask(&mut self, list: &[(u32, bool)], call: &Call, draw: u64, explain: bool) -> Said {
        let values = self.slots.iter().map(|(slot, name)| {
            let at = ["source.principal"].iter().chain(&KEYS).position(|known| known == name);
            (*slot, at.and_then(|at| call[at].as_deref()).map(str::as_bytes))
        });
        let rules: Vec<_> = list
            .iter()
            .enumerate()
            .map(|(at, (id, shadow))| {
                let flags = if *shadow { SHADOW } else { 0 };
                RuleRef { id: *id, position: at as u16, flags }.encode()
            })
            .collect();
        let frame = Frame { set: abi::NO_SET, draw, endpoints: 0, candidates: &[], rules: &rules };
        let values: Vec<_> = values.collect();
        let len = request::write(self.guest.scratch(), frame, values.into_iter()).expect("fits");
        let packed = match explain {
            true => self.guest.explain(len as u32),
            false => self.guest.evaluate(len as u32),
        };
        let packed = Packed::unpack(packed).expect("an answer");
        assert_eq!(packed.status, abi::Status::Ok);
        let bytes = packed.slice(self.guest.scratch()).expect("inside");
        let answer = Outcome::read(bytes, list.len()).expect("well-formed");
        let mut said = Said::default();
        for effect in answer.effects().filter(|effect| effect.tag == tag::VERDICT) {
            let shadow = list[usize::from(effect.rule)].1;
            match effect.bytes[0] {
                verdict::ALLOW => {
                    said.allowed.insert(effect.rule);
                    said.could |= !shadow;
                }
                verdict::DENY => {
                    said.denied.insert(effect.rule);
                }
                _ if shadow => {
                    said.could_not.insert(effect.rule);
                }
                _ => said.could = true,
            }
        }
        if said.allowed.iter().any(|place| list[usize::from(*place)].1) {
            said.could_not.clear();
        }
        let rules = answer.rules().enumerate();
        said.applied =
            rules.filter(|(_, rule)| rule.did == Did::Applied).map(|(at, _)| at).collect();
        said
    }
}

fn calls() -> impl Strategy<Value = Vec<(Call, u64)>> {
    let call = [(); 4].map(|()| prop::option::weighted(0.9, value()));
    prop::collection::vec((call, any::<u64>()), 1..8)
}

proptest! {
    #[test]
    fn policies_are_found_as_if_all_were_looked_at(
        policies in prop::collection::vec(policy(), 0..20),
        calls in calls(),
        gone in any::<prop::sample::Index>(),
    ) {
        let mut guest = Policies::new();
        let mut list = Vec::new();
        for (id, (policy, shadow)) in policies.iter().enumerate() {
            guest.commit(id as u32, policy);
            list.push((id as u32, *shadow));
        }
        for (call, draw) in &calls {
            let found = guest.ask(&list, call, *draw, false);
            prop_assert_eq!(&found, &guest.ask(&list, call, *draw, true));
        }
        // What was worked out of a list goes with it.
        if !list.is_empty() {
            let (gone, _) = list.remove(gone.index(list.len()));
            guest.guest.rule_remove(gone);
        }
        if let [(_, shadow), ..] = &mut list[..] {
            *shadow ^= true;
        }
        for (call, draw) in &calls {
            let found = guest.ask(&list, call, *draw, false);
            prop_assert_eq!(&found, &guest.ask(&list, call, *draw, true));
        }
    }
}
