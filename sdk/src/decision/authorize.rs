//! Whether a call may be taken, and how connections are.

use std::{fmt, sync::Arc};

use rulecast_policy::{
    abi::MAX_RULES,
    bits,
    outcome::{self, Did, tag, verdict},
};

use super::{
    DecisionFault, Effect, RuleEffect,
    explained::{self, Explained, Lines},
    inbound::Inbound,
    kinds::{POLICIES, slot},
    local::{Asked, LOCAL, Local, Ran},
    policies::Policies,
    rule_set::{Address, Entry, RuleSet},
    worker::{Evaluated, Sink, Tally},
};
use crate::{
    host::{Fault, FaultKind},
    metrics::{Outcome, Verdict},
};

/// Bytes of a policy's words that are passed on.
const MAX_WORDS: usize = 1024;

/// Whether a call may be taken, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Authorization {
    /// Why it may, or may not.
    pub reason: Reason,
    /// Why it would be denied if the shadow rules were in force; `None`: nothing would change.
    pub would_deny: Option<Reason>,
    /// AUDIT policies and shadow rules that spoke of the call, in order.
    pub noted: Vec<RuleEffect>,
    /// What went wrong. With a fault of a rule in force the call is denied.
    pub faults: Vec<DecisionFault>,
    /// The number from which chance came, when a rule needed it.
    pub draw: Option<u64>,
}

impl Authorization {
    /// Whether the call may go on.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.reason.allows()
    }

    pub(crate) fn outcome(&self) -> Outcome {
        match &self.reason {
            Reason::Fault(_) => Outcome::Undecided,
            reason if !reason.allows() => Outcome::Denied,
            _ if self.would_deny.is_some() => Outcome::WouldDeny,
            _ => Outcome::Allowed,
        }
    }

    pub(crate) fn of(reason: Reason) -> Self {
        Self { reason, would_deny: None, noted: Vec::new(), faults: Vec::new(), draw: None }
    }
}

impl fmt::Display for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", if self.is_allowed() { "allowed" } else { "denied" }, self.reason)?;
        if let Some(reason) = &self.would_deny {
            write!(f, "; would be denied: {reason}")?;
        }
        Ok(())
    }
}

/// Why a call is allowed or denied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Allowed: no ALLOW policy is for this server, and no DENY policy matched.
    NoPolicy,
    /// Allowed by this rule, `<name>/<namespace>`; no DENY policy matched.
    AllowedBy(Arc<str>),
    /// Denied by a rule.
    DeniedBy {
        /// `<name>/<namespace>`.
        key: Arc<str>,
        /// The policy's words for the caller; may be empty.
        message: String,
    },
    /// Denied: ALLOW policies are for this server, and none of them allows the call.
    NoneAllows {
        /// One of them, `<name>/<namespace>`.
        key: Arc<str>,
    },
    /// Denied: the policies could not be asked.
    Fault(Fault),
}

impl Reason {
    /// Whether a call goes on.
    #[inline]
    pub fn allows(&self) -> bool {
        matches!(self, Self::NoPolicy | Self::AllowedBy(_))
    }

    /// The rule that decided, when one did.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::AllowedBy(key) | Self::DeniedBy { key, .. } => Some(key),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPolicy => f.write_str("no policy speaks against it"),
            Self::AllowedBy(key) => write!(f, "{key} allows it"),
            Self::DeniedBy { key, message } if message.is_empty() => write!(f, "{key} denies it"),
            Self::DeniedBy { key, message } => write!(f, "{key} denies it: {message}"),
            Self::NoneAllows { key } => {
                write!(f, "no ALLOW policy matches it, {key} does not")
            }
            Self::Fault(fault) => write!(f, "it cannot be decided: {fault}"),
        }
    }
}

impl Policies {
    /// Decides whether a call may be taken. A matching DENY policy denies; else, when ALLOW
    /// policies are there, one of them must match. Shadow rules are evaluated and reported,
    /// never enforced. A fault of a rule in force denies.
    pub fn authorize(&self, rules: &RuleSet, call: &Inbound<'_>) -> Authorization {
        self.decide_authorization(rules, call, None)
    }

    /// Decides as [`authorize`](Self::authorize) and says why.
    pub fn explain_authorize(
        &self,
        rules: &RuleSet,
        call: &Inbound<'_>,
    ) -> Explained<Authorization> {
        let mut lines = Lines::new(slot::AUTHORIZATION);
        let decision = self.decide_authorization(rules, call, Some(&mut lines));
        lines.explain(rules, decision, |decision| &decision.faults)
    }

    fn decide_authorization(
        &self,
        rules: &RuleSet,
        call: &Inbound<'_>,
        lines: Option<&mut Lines>,
    ) -> Authorization {
        let kind = rules.kind(slot::AUTHORIZATION);
        let type_name = POLICIES[slot::AUTHORIZATION].type_name;
        let Some(engine) = self.engine(slot::AUTHORIZATION) else {
            if kind.entries().is_empty() {
                return Authorization::of(Reason::NoPolicy);
            }
            let message = format!("no policy decides {type_name}");
            let fault = Fault::new(FaultKind::Unavailable, message);
            return Authorization::of(Reason::Fault(fault));
        };
        LOCAL.with_borrow_mut(|local| {
            let Local { workers, list, .. } = local;
            let matching = kind.matching(Address::default(), list);
            if matching.list.is_empty() {
                return Authorization::of(Reason::NoPolicy);
            }
            let asked = Asked {
                type_name,
                engine,
                rules: kind,
                matching,
                call,
                endpoints: None,
                candidates: &[],
                draw: call.draw,
                explain: lines.is_some(),
            };
            let (mut sink, mut faults) = (Verdicts::of(call), Vec::new());
            let ran = explained::run(&asked, workers, &mut sink, &mut faults, lines);
            let would = match sink.shadow.speaks() {
                true => Some(sink.enforced.clone().with(sink.shadow).reason()),
                false => None,
            };
            let mut given = match faults.iter().find(|fault| !fault.shadow) {
                Some(fault) => Authorization::of(Reason::Fault(fault.fault.clone())),
                None => Authorization::of(sink.enforced.reason()),
            };
            if given.is_allowed() {
                given.would_deny = would.filter(|would| !would.allows());
            }
            if let Ran::Done(draw) = ran {
                given.draw = draw;
            }
            given.noted = sink.noted;
            given.faults = faults;
            given
        })
    }
}

/// What some rules say of a call.
#[derive(Clone, Default)]
struct Said {
    denied: Option<Denial>,
    allowed: Option<Arc<str>>,
    /// One that allows calls, but not this one.
    could: Option<Arc<str>>,
}

impl Said {
    fn speaks(&self) -> bool {
        self.denied.is_some() || self.allowed.is_some() || self.could.is_some()
    }

    fn allows(&self) -> bool {
        self.denied.is_none() && (self.allowed.is_some() || self.could.is_none())
    }

    fn with(self, other: Self) -> Self {
        Self {
            denied: self.denied.or(other.denied),
            allowed: self.allowed.or(other.allowed),
            could: self.could.or(other.could),
        }
    }

    fn reason(self) -> Reason {
        match (self.denied, self.allowed) {
            (Some(Denial { key, message, .. }), _) => Reason::DeniedBy { key, message },
            (None, Some(key)) => Reason::AllowedBy(key),
            (None, None) => match self.could {
                Some(key) => Reason::NoneAllows { key },
                None => Reason::NoPolicy,
            },
        }
    }
}

#[derive(Clone)]
struct Denial {
    /// Of the rule, among those asked.
    place: usize,
    key: Arc<str>,
    message: String,
}

/// Rules, by their place.
type Places = [u64; MAX_RULES / 64];

/// Takes verdicts over.
struct Verdicts<'a> {
    call: &'a Inbound<'a>,
    enforced: Said,
    shadow: Said,
    noted: Vec<RuleEffect>,
    /// Rules that gave a verdict.
    spoke: Places,
    /// Rules that matched the call.
    matched: Places,
}

impl<'a> Verdicts<'a> {
    fn of(call: &'a Inbound<'a>) -> Self {
        let (spoke, matched) = Default::default();
        let (enforced, shadow) = Default::default();
        Self { call, enforced, shadow, noted: Vec::new(), spoke, matched }
    }

    /// Counts the shadow rules by which a call that is allowed would be denied.
    fn would_deny(&self, tally: &Tally<'_>) {
        let count = |place: usize| {
            let Some(entry) = tally.entry(place).filter(|entry| entry.shadow) else { return };
            tally.count(place, entry, Verdict::WouldDeny);
            let call = self.call;
            entry.stats.sample(Verdict::WouldDeny, || format!("would deny {}", call.described()));
        };
        match &self.shadow.denied {
            Some(denial) => count(denial.place),
            // Each that allows calls, but not this one.
            None if self.enforced.allowed.is_none() && self.shadow.allowed.is_none() => {
                let mut left = self.spoke;
                left.iter_mut().zip(&self.matched).for_each(|(left, matched)| *left &= !matched);
                bits::indices(&left[..tally.len().div_ceil(64)]).for_each(count);
            }
            None => {}
        }
    }
}

impl Sink for Verdicts<'_> {
    const SKIPPED: bool = false;

    fn begin(&mut self) {
        *self = Self::of(self.call);
    }

    fn effect(
        &mut self,
        effect: outcome::Effect<'_>,
        rule: Option<(u32, &Entry, &Arc<str>)>,
    ) -> Result<(), &'static str> {
        if effect.tag != tag::VERDICT {
            return Ok(());
        }
        let Some((_, entry, key)) = rule else { return Err("a verdict is no rule's") };
        let Some((&verdict, words)) = effect.bytes.split_first() else {
            return Err("a verdict is empty");
        };
        let place = usize::from(effect.rule);
        let (word, bit) = (place / 64, 1 << (place % 64));
        match self.spoke.get_mut(word) {
            Some(spoke) if *spoke & bit != 0 => return Err("a rule gives two verdicts"),
            Some(spoke) => *spoke |= bit,
            None => return Err("a verdict is no rule's"),
        }
        let said = if entry.shadow { &mut self.shadow } else { &mut self.enforced };
        match verdict {
            verdict::NONE => {
                said.could.get_or_insert_with(|| key.clone());
            }
            verdict::ALLOW => {
                self.matched[word] |= bit;
                said.allowed.get_or_insert_with(|| key.clone());
            }
            verdict::DENY => {
                self.matched[word] |= bit;
                if said.denied.is_none() {
                    let words = &words[..words.len().min(MAX_WORDS)];
                    let message = String::from_utf8_lossy(words).replace(char::is_control, " ");
                    said.denied = Some(Denial { place, key: key.clone(), message });
                }
            }
            // Of a newer policy: what it means cannot be known.
            _ => return Err("a verdict is unknown to this version"),
        }
        Ok(())
    }

    fn rule(&mut self, rule: Evaluated<'_>) -> Result<(), &'static str> {
        let Evaluated { place, entry, key, outcome } = rule;
        let spoke = self.spoke.get(place / 64).is_some_and(|word| word >> (place % 64) & 1 == 1);
        if outcome.did == Did::Applied && (entry.shadow || !spoke) {
            if let Some(word) = self.matched.get_mut(place / 64) {
                *word |= 1 << (place % 64);
            }
            let effect = if entry.shadow { Effect::WouldApply } else { Effect::Applied };
            let kind = POLICIES[slot::AUTHORIZATION].type_name;
            self.noted.push(RuleEffect { kind, key: key.clone(), effect, remaining: 0 });
        }
        Ok(())
    }

    fn count(&mut self, tally: &Tally<'_>) {
        let denied = self.enforced.denied.as_ref().map(|denial| denial.place);
        let allowed = self.enforced.allows();
        // Of a call that is denied anyway a shadow rule would change nothing.
        let would_deny = self.shadow.denied.as_ref().map(|by| by.place).filter(|_| allowed);
        for place in bits::indices(&self.matched[..tally.len().div_ceil(64)]) {
            let Some(entry) = tally.entry(place) else { continue };
            match entry.shadow {
                false if denied == Some(place) => {
                    tally.count(place, entry, Verdict::Denied);
                    let call = self.call;
                    entry.stats.sample(Verdict::Denied, || format!("denied {}", call.described()));
                }
                false => tally.count(place, entry, Verdict::Applied),
                true if would_deny == Some(place) => {}
                true => tally.count(place, entry, Verdict::WouldApply),
            }
        }
        if allowed && self.shadow.speaks() {
            self.would_deny(tally);
        }
    }
}
