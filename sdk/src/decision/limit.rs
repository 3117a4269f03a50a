//! Whether a server takes a call now.

mod buckets;
mod quota;

use std::{
    fmt,
    ops::Deref,
    sync::Arc,
    time::{Duration, Instant},
};

use rulecast_policy::outcome::{self, tag};
use smallvec::SmallVec;

pub(crate) use self::{buckets::Buckets, quota::Quota};
use super::{
    DecisionFault, Effect, RuleEffect,
    explained::{self, Explained, Lines},
    inbound::Inbound,
    kinds::{POLICIES, slot},
    local::{Asked, LOCAL, Local},
    policies::Policies,
    request::{Attribute, Call},
    rule_set::{Address, Entry, KindRules, RuleSet},
    worker::{Evaluated, Sink, Tally},
};
use crate::{
    host::{Fault, FaultKind},
    metrics::{self, Counter, Outcome, Verdict},
};

/// Bytes of a value that count: one more than a value that a rule may ask for.
const MAX_VALUE: usize = 4097;

/// Whether a server takes a call now, and why not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admission {
    /// The rule that refuses it; `None`: the call is taken.
    pub limited: Option<Limited>,
    /// The shadow rule that would refuse it. Shadows hear of the calls that are taken.
    pub would_limit: Option<Limited>,
    /// Rules that counted the call, shadow rules among them, in the order of their application.
    /// A call that is refused none counts.
    pub counted: Counted,
    /// What went wrong; those rules refuse nothing.
    pub faults: Vec<DecisionFault>,
}

impl Admission {
    /// Whether the call may go on.
    #[inline]
    pub fn is_admitted(&self) -> bool {
        self.limited.is_none()
    }

    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self { limited: Some(_), .. } => Outcome::Limited,
            Self { faults, .. } if faults.iter().any(|fault| !fault.shadow) => {
                Outcome::AdmittedBlind
            }
            Self { would_limit: Some(_), .. } => Outcome::WouldLimit,
            _ => Outcome::Admitted,
        }
    }

    pub(crate) fn fault(kind: FaultKind, message: impl Into<String>) -> Self {
        let fault = DecisionFault {
            kind: Some(POLICIES[slot::RATE_LIMIT].type_name),
            key: None,
            shadow: false,
            fault: Fault::new(kind, message),
            aside: false,
        };
        Self { faults: vec![fault], ..Self::default() }
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.limited {
            None => f.write_str("admitted")?,
            Some(limited) => write!(f, "refused: {limited}")?,
        }
        match &self.would_limit {
            None => Ok(()),
            Some(limited) => write!(f, "; would be refused: {limited}"),
        }
    }
}

/// A refusal for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// The rule, `<name>/<namespace>`; of several that refuse, the first.
    pub key: Arc<str>,
    /// When the same call would be taken, if no other comes before it.
    pub retry_after: Duration,
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} limits it; again in {:?}", self.key, self.retry_after)
    }
}

/// Rules that counted a call. Takes no memory of its own while they are few.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted(SmallVec<[RuleEffect; 4]>);

impl Deref for Counted {
    type Target = [RuleEffect];
    fn deref(&self) -> &[RuleEffect] {
        &self.0
    }
}

impl<'a> IntoIterator for &'a Counted {
    type Item = &'a RuleEffect;
    type IntoIter = std::slice::Iter<'a, RuleEffect>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// What a rule is counted by.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    pub(crate) quota: Quota,
    pub(crate) buckets: Arc<Buckets>,
}

impl Policies {
    /// Decides whether a call is taken at this moment, and counts it. The first rule in order
    /// that finds its bucket empty refuses the call; then no rule has counted it. Shadow rules
    /// have buckets of their own and are evaluated and reported, never enforced. A fault
    /// refuses nothing. Of a value above 4 KiB the beginning counts.
    pub fn admit(&self, rules: &RuleSet, call: &Inbound<'_>, now: Instant) -> Admission {
        self.decide_admission(rules, call, now, None)
    }

    /// Decides as [`admit`](Self::admit) and says why. Counts nothing.
    pub fn explain_admit(
        &self,
        rules: &RuleSet,
        call: &Inbound<'_>,
        now: Instant,
    ) -> Explained<Admission> {
        let mut lines = Lines::new(slot::RATE_LIMIT);
        let decision = self.decide_admission(rules, call, now, Some(&mut lines));
        lines.explain(rules, decision, |decision| &decision.faults)
    }

    fn decide_admission(
        &self,
        rules: &RuleSet,
        call: &Inbound<'_>,
        now: Instant,
        lines: Option<&mut Lines>,
    ) -> Admission {
        let kind = rules.kind(slot::RATE_LIMIT);
        let type_name = POLICIES[slot::RATE_LIMIT].type_name;
        let Some(engine) = self.engine(slot::RATE_LIMIT) else {
            return match kind.entries().is_empty() {
                true => Admission::default(),
                false => {
                    let message = format!("no policy decides {type_name}");
                    Admission::fault(FaultKind::Unavailable, message)
                }
            };
        };
        LOCAL.with_borrow_mut(|local| {
            let Local { workers, list, takes, .. } = local;
            let matching = kind.matching(Address::default(), list);
            if matching.list.is_empty() {
                return Admission::default();
            }
            let explain = lines.is_some();
            let asked = Asked {
                type_name,
                engine,
                rules: kind,
                matching,
                call: &Clipped(call),
                endpoints: None,
                candidates: &[],
                draw: call.draw,
                explain,
            };
            let mut admission = Admission::default();
            explained::run(&asked, workers, takes, &mut admission.faults, lines);
            takes.settle(kind, call, now, !explain, &mut admission);
            takes.clear();
            admission
        })
    }
}

/// What the rules want to take for a call.
#[derive(Debug, Default)]
pub(super) struct Takes {
    list: Vec<Take>,
    /// The names of the buckets, one behind the other.
    names: Vec<u8>,
}

#[derive(Debug)]
struct Take {
    /// Of the rule.
    index: u32,
    /// Of the rule, among those asked.
    place: usize,
    key: Arc<str>,
    /// What the rule's verdict is counted by.
    counter: Option<Counter>,
    cost: u32,
    /// Where the name of its bucket ends.
    end: usize,
}

/// A take, with its bucket.
struct Draft<'a> {
    take: &'a Take,
    entry: &'a Entry,
    meter: &'a Meter,
    name: &'a [u8],
}

impl Draft<'_> {
    fn take(&self, now: Instant) -> Result<(), Duration> {
        self.meter.buckets.take(&self.meter.quota, self.name, self.take.cost, now)
    }

    fn check(&self, now: Instant) -> Result<(), Duration> {
        self.meter.buckets.check(&self.meter.quota, self.name, self.take.cost, now)
    }

    fn give_back(&self) {
        self.meter.buckets.give_back(&self.meter.quota, self.name, self.take.cost);
    }

    fn note(&self, verdict: Verdict) {
        if let Some(counter) = &self.take.counter {
            metrics::count(counter, &self.entry.stats, verdict);
        }
    }

    fn limited(&self, retry_after: Duration) -> Limited {
        Limited { key: self.take.key.clone(), retry_after }
    }
}

impl Takes {
    fn clear(&mut self) {
        self.list.clear();
        self.names.clear();
    }

    fn drafts<'a>(&'a self, rules: &'a KindRules) -> impl Iterator<Item = Draft<'a>> + 'a {
        let mut begin = 0;
        self.list.iter().filter_map(move |take| {
            let name = self.names.get(std::mem::replace(&mut begin, take.end)..take.end)?;
            let entry = rules.entry(take.index)?;
            Some(Draft { take, entry, meter: entry.meter.as_ref()?, name })
        })
    }

    /// Takes for all rules, or for none of those in force; `count`: else only looks.
    fn settle(
        &self,
        rules: &KindRules,
        call: &Inbound<'_>,
        now: Instant,
        count: bool,
        admission: &mut Admission,
    ) {
        let attempt = |draft: &Draft<'_>| if count { draft.take(now) } else { draft.check(now) };
        let enforced = || self.drafts(rules).filter(|draft| !draft.entry.shadow);
        for (at, draft) in enforced().enumerate() {
            if let Some(limited) = &mut admission.limited {
                // Until when one of them would refuse it.
                if let Err(wait) = draft.check(now) {
                    limited.retry_after = limited.retry_after.max(wait);
                }
            } else if let Err(wait) = attempt(&draft) {
                admission.limited = Some(draft.limited(wait));
                if count {
                    enforced().take(at).for_each(|before| before.give_back());
                    draft.note(Verdict::Limited);
                    let text = || format!("limited {}", call.described());
                    draft.entry.stats.sample(Verdict::Limited, text);
                }
            }
        }
        if admission.limited.is_some() {
            return;
        }
        for draft in self.drafts(rules) {
            let (effect, verdict) = match draft.entry.shadow.then(|| attempt(&draft)) {
                None => (Effect::Applied, Verdict::Applied),
                Some(Ok(())) => (Effect::WouldApply, Verdict::WouldApply),
                Some(Err(wait)) => {
                    admission.would_limit.get_or_insert_with(|| draft.limited(wait));
                    if count {
                        draft.note(Verdict::WouldLimit);
                        let text = || format!("would limit {}", call.described());
                        draft.entry.stats.sample(Verdict::WouldLimit, text);
                    }
                    continue;
                }
            };
            draft.note(verdict);
            let (kind, key) = (POLICIES[slot::RATE_LIMIT].type_name, draft.take.key.clone());
            admission.counted.0.push(RuleEffect { kind, key, effect, remaining: 0 });
        }
    }
}

/// Takes over what the policy wants to take. Nothing is taken before all rules have spoken.
impl Sink for Takes {
    fn begin(&mut self) {
        self.clear();
    }

    fn effect(
        &mut self,
        effect: outcome::Effect<'_>,
        rule: Option<(u32, &Entry, &Arc<str>)>,
    ) -> Result<(), &'static str> {
        if effect.tag != tag::TAKE {
            return Ok(());
        }
        let Some((index, entry, key)) = rule else { return Err("a take is no rule's") };
        let Some((cost, name)) = effect.bytes.split_first_chunk() else {
            return Err("a take does not say how much");
        };
        if entry.meter.is_none() {
            return Err("a rule without a bucket takes");
        }
        // Indices ascend as the rules do.
        if self.list.last().is_some_and(|last| last.index >= index) {
            return Err("a rule takes twice, or takes are not in the order of the rules");
        }
        self.names.extend_from_slice(name);
        let (cost, end) = (u32::from_le_bytes(*cost), self.names.len());
        let (place, key) = (usize::from(effect.rule), key.clone());
        self.list.push(Take { index, place, key, counter: None, cost, end });
        Ok(())
    }

    fn rule(&mut self, _: Evaluated<'_>) -> Result<(), &'static str> {
        Ok(())
    }

    fn count(&mut self, tally: &Tally<'_>) {
        for take in &mut self.list {
            take.counter = tally.counter(take.place);
        }
    }
}

/// A call of whose values only the beginning counts: with one that is too long, a caller must
/// not get past a limit by the fault.
struct Clipped<'a>(&'a Inbound<'a>);

impl Call for Clipped<'_> {
    #[inline]
    fn value(&self, attribute: &Attribute) -> Option<&[u8]> {
        let value = self.0.value(attribute)?;
        Some(value.get(..MAX_VALUE).unwrap_or(value))
    }
}
