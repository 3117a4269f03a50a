//! A thread's instance of a policy, with the rules and endpoints that it was given.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet, hash_map},
    sync::Arc,
};

use rulecast_policy::{
    abi,
    outcome::{self, Did, Outcome, RuleOutcome},
    request::{self, Frame, RuleRef},
};

use super::{
    engine::Source,
    health::Health,
    request::{Attribute, Call},
    rule_set::{Entry, KindRules},
};
use crate::{
    endpoints::EndpointSet,
    host::{Fault, FaultKind, MAX_MEMORY, Runner},
    metrics::{self, Counter, Verdict},
};

/// An instance is recycled after about this many evaluations.
const CALLS: u32 = 1_000_000;
/// An instance whose memory has grown to this is recycled, unless it is young.
const HIGH_WATER: usize = MAX_MEMORY / 4 * 3;
/// How young: a rule set that needs so much memory must not recycle on every call.
const YOUNG: u32 = 10_000;
/// Endpoint sets that an instance holds.
const SETS: usize = 32;
/// Bytes of their tables altogether.
const SET_BYTES: usize = 4 * 1024 * 1024;
/// Plans that an instance remembers for lists of rules outside of any group.
const PLANS: usize = 256;

/// What a rule needs, once committed.
struct Committed {
    /// This thread's own copy: counting references to a shared one, threads hinder each other.
    key: Arc<str>,
    counter: Counter,
    attributes: Vec<(u16, Arc<Attribute>)>,
    draw: bool,
}

/// How a list of rules is evaluated.
struct Plan {
    /// As they stand in a request.
    rules: Vec<[u8; request::RULE]>,
    /// Index of each in the rule set.
    indices: Vec<u32>,
    /// The key of each.
    keys: Vec<Arc<str>>,
    /// What each is counted by.
    counters: Vec<Counter>,
    attributes: Vec<(u16, Arc<Attribute>)>,
    draw: bool,
}

struct Live {
    runner: Runner,
    committed: HashMap<u32, Committed>,
    /// Id and size of each table, the last used at the end.
    sets: Vec<(u32, usize)>,
    set_bytes: usize,
    calls: u32,
    /// Recycled when `calls` reaches it.
    limit: u32,
}

/// See the module.
pub(crate) struct Worker {
    source: Source,
    live: Option<Live>,
    rule_set: u64,
    groups: Vec<Option<Plan>>,
    plans: HashMap<Vec<u32>, Plan>,
}

/// One try: which rules of a kind, by index, and their places in the list.
pub(crate) struct Try<'a, C> {
    pub(crate) rules: &'a KindRules,
    pub(crate) call: &'a C,
    /// `None`: the kind's phase has none.
    pub(crate) endpoints: Option<&'a EndpointSet>,
    /// Those of the endpoints that are left to choose from.
    pub(crate) candidates: &'a [u64],
    /// The number of the group of which `list` is the whole list.
    pub(crate) group: Option<usize>,
    /// All rules that speak of the call.
    pub(crate) list: &'a [u32],
    /// Those of them that are passed over.
    pub(crate) without: &'a [u32],
    /// `None`: a fresh one, if any rule needs it.
    pub(crate) draw: Option<u64>,
    pub(crate) explain: bool,
}

/// A rule in an answer.
pub(crate) struct Evaluated<'a> {
    /// Its place among those asked.
    pub(crate) place: usize,
    pub(crate) entry: &'a Entry,
    /// The thread's own copy of its key.
    pub(crate) key: &'a Arc<str>,
    pub(crate) outcome: RuleOutcome,
}

/// Takes an answer over. An error is what is wrong with it, and undoes the evaluation.
pub(crate) trait Sink {
    /// Whether it is told of rules that did nothing. Where many rules speak of a call, that
    /// costs more than the decision.
    const SKIPPED: bool = true;
    /// Before each try: what came of the last one does not count.
    fn begin(&mut self);
    /// An effect, with the rule that it belongs to. All effects come before the rules.
    fn effect(
        &mut self,
        effect: outcome::Effect<'_>,
        rule: Option<(u32, &Entry, &Arc<str>)>,
    ) -> Result<(), &'static str>;
    /// A rule, in the order asked; see [`SKIPPED`](Self::SKIPPED).
    fn rule(&mut self, rule: Evaluated<'_>) -> Result<(), &'static str>;
    /// Counts what the rules made of the call, once the whole answer is taken over.
    fn count(&mut self, _tally: &Tally<'_>) {}
}

/// What the rules of an answer are counted by, each at its place among those asked.
pub(crate) struct Tally<'a> {
    plan: &'a Plan,
    rules: &'a KindRules,
}

impl Tally<'_> {
    /// How many were asked.
    pub(crate) fn len(&self) -> usize {
        self.plan.indices.len()
    }

    pub(crate) fn entry(&self, place: usize) -> Option<&Entry> {
        self.rules.entry(*self.plan.indices.get(place)?)
    }

    /// For what is known of a rule only later.
    pub(crate) fn counter(&self, place: usize) -> Option<Counter> {
        self.plan.counters.get(place).cloned()
    }

    /// Counts what a rule made of the call.
    #[inline]
    pub(crate) fn count(&self, place: usize, entry: &Entry, verdict: Verdict) {
        if let Some(counter) = self.plan.counters.get(place) {
            metrics::count(counter, &entry.stats, verdict);
        }
    }
}

impl Worker {
    pub(crate) fn new(source: Source) -> Self {
        Self { source, live: None, rule_set: 0, groups: Vec::new(), plans: HashMap::new() }
    }

    fn recycle(&mut self) {
        self.live = None;
        self.forget_plans(0);
    }

    fn forget_plans(&mut self, groups: usize) {
        self.plans.clear();
        self.groups.clear();
        self.groups.resize_with(groups, || None);
    }

    /// Decides once, and says by which draw; after a fault the instance is gone.
    pub(crate) fn run<C: Call, S: Sink>(
        &mut self,
        wanted: &Try<'_, C>,
        sink: &mut S,
    ) -> Result<Option<u64>, Fault> {
        let done = self.try_run(wanted, sink);
        let worn = self.live.as_ref().is_some_and(|live| {
            live.calls >= live.limit
                || live.calls >= YOUNG && live.runner.memory_size() >= HIGH_WATER
        });
        if done.as_ref().is_err_and(|f| !matches!(f.kind, FaultKind::Oversize | FaultKind::Refused))
            || worn
        {
            self.recycle();
            self.rule_set = 0;
        }
        done
    }

    fn try_run<C: Call, S: Sink>(
        &mut self,
        wanted: &Try<'_, C>,
        sink: &mut S,
    ) -> Result<Option<u64>, Fault> {
        if self.rule_set != wanted.rules.id() || self.live.is_none() {
            self.follow(wanted.rules)?;
        }
        let Self { live: Some(live), groups, plans, .. } = self else {
            return Err(Fault::new(FaultKind::Unavailable, "no instance"));
        };
        let plan = match wanted.group.and_then(|g| groups.get_mut(g)) {
            Some(slot) if wanted.without.is_empty() => match slot {
                Some(plan) => plan,
                None => slot.insert(live.plan(wanted)?),
            },
            // What is known costs no allocation.
            _ if wanted.without.is_empty() && plans.contains_key(wanted.list) => {
                let known = plans.get_mut(wanted.list);
                known.ok_or_else(|| Fault::new(FaultKind::Unavailable, "no plan"))?
            }
            _ => {
                let rest = |i: &&u32| !wanted.without.contains(i);
                // The places of the others must not move: they keep their draws.
                let mut name: Vec<u32> = wanted.list.iter().filter(rest).copied().collect();
                if !wanted.without.is_empty() {
                    name.push(u32::MAX);
                    name.extend_from_slice(wanted.list);
                }
                if plans.len() >= PLANS && !plans.contains_key(&name) {
                    plans.clear();
                }
                match plans.entry(name) {
                    hash_map::Entry::Occupied(plan) => plan.into_mut(),
                    hash_map::Entry::Vacant(place) => place.insert(live.plan(wanted)?),
                }
            }
        };
        if let Some(endpoints) = wanted.endpoints {
            live.hold(endpoints)?;
        }
        live.evaluate(plan, wanted, sink)
    }

    /// Takes over the difference to another rule set.
    fn follow(&mut self, rules: &KindRules) -> Result<(), Fault> {
        self.forget_plans(rules.groups());
        match &mut self.live {
            Some(live) => {
                let keep: HashSet<u32> = rules.entries().iter().map(|e| e.id).collect();
                let gone: Vec<u32> =
                    live.committed.keys().copied().filter(|id| !keep.contains(id)).collect();
                for id in gone {
                    live.committed.remove(&id);
                    live.runner.remove(id)?;
                }
            }
            None => {
                self.live = Some(Live {
                    runner: self.source.runner()?,
                    committed: HashMap::new(),
                    sets: Vec::new(),
                    set_bytes: 0,
                    calls: 0,
                    limit: CALLS + fastrand::u32(0..CALLS / 4),
                });
            }
        }
        self.rule_set = rules.id();
        Ok(())
    }
}

impl Live {
    /// Commits what is needed and says how the list is evaluated.
    fn plan<C>(&mut self, wanted: &Try<'_, C>) -> Result<Plan, Fault> {
        let mut plan = Plan {
            rules: Vec::new(),
            indices: Vec::new(),
            keys: Vec::new(),
            counters: Vec::new(),
            attributes: Vec::new(),
            draw: false,
        };
        if wanted.list.len() > abi::MAX_RULES {
            let message = format!("{} rules speak of one call", wanted.list.len());
            return Err(Fault::new(FaultKind::Oversize, message));
        }
        for (position, &index) in wanted.list.iter().enumerate() {
            if wanted.without.contains(&index) {
                continue;
            }
            let Some(entry) = wanted.rules.entry(index) else { continue };
            if !self.committed.contains_key(&entry.id) {
                let answer = self.runner.commit(entry.id, &entry.spec);
                let owned = |fault: Fault| Fault { rule: Some(entry.id), ..fault };
                let needs = answer
                    .map_err(owned)?
                    .map_err(|e| owned(Fault::new(FaultKind::Refused, e.to_string())))?;
                let draw = needs.iter().any(|(slot, _)| *slot == abi::DRAW_SLOT);
                let attributes = needs
                    .iter()
                    .filter(|(slot, _)| *slot != abi::DRAW_SLOT)
                    .map(|(slot, name)| (*slot, Arc::new(Attribute::parse(name))))
                    .collect();
                let (key, counter) = (Arc::from(&*entry.key), entry.stats.counter());
                self.committed.insert(entry.id, Committed { key, counter, attributes, draw });
            }
            let Some(committed) = self.committed.get(&entry.id) else { continue };
            plan.draw |= committed.draw;
            for (slot, attribute) in &committed.attributes {
                if !plan.attributes.iter().any(|(known, _)| known == slot) {
                    plan.attributes.push((*slot, attribute.clone()));
                }
            }
            plan.indices.push(index);
            plan.keys.push(committed.key.clone());
            plan.counters.push(committed.counter.clone());
            let reference = RuleRef {
                id: entry.id,
                position: position as u16,
                flags: if entry.shadow { request::SHADOW } else { 0 },
            };
            plan.rules.push(reference.encode());
        }
        // Each then stands where a guest looks first.
        plan.attributes.sort_unstable_by_key(|(slot, _)| *slot);
        Ok(plan)
    }

    /// Makes sure that the instance holds a set of endpoints.
    #[inline]
    fn hold(&mut self, endpoints: &EndpointSet) -> Result<(), Fault> {
        let id = endpoints.id();
        if self.sets.last().is_some_and(|(last, _)| *last == id) {
            return Ok(());
        }
        if let Some(at) = self.sets.iter().position(|(known, _)| *known == id) {
            let set = self.sets.remove(at);
            self.sets.push(set);
            return Ok(());
        }
        let size = endpoints.table().len();
        while !self.sets.is_empty()
            && (self.sets.len() >= SETS || self.set_bytes + size > SET_BYTES)
        {
            let (oldest, bytes) = self.sets.remove(0);
            self.set_bytes -= bytes;
            self.runner.endpoints(oldest, &[])?;
        }
        self.runner.endpoints(id, endpoints.table())?;
        self.sets.push((id, size));
        self.set_bytes += size;
        Ok(())
    }

    fn evaluate<C: Call, S: Sink>(
        &mut self,
        plan: &Plan,
        wanted: &Try<'_, C>,
        sink: &mut S,
    ) -> Result<Option<u64>, Fault> {
        self.calls += 1;
        let too_long = Cell::new(false);
        let values = plan.attributes.iter().map(|(slot, attribute)| {
            let value = wanted.call.value(attribute);
            if value.is_some_and(|v| v.len() > abi::MAX_VALUE) {
                too_long.set(true);
            }
            (*slot, value)
        });
        let draw = match wanted.draw {
            Some(draw) if plan.draw => draw,
            None if plan.draw => fastrand::u64(..),
            _ => 0,
        };
        let frame = Frame {
            set: wanted.endpoints.map_or(abi::NO_SET, EndpointSet::id),
            draw,
            endpoints: wanted.endpoints.map_or(0, EndpointSet::len),
            candidates: wanted.candidates,
            rules: &plan.rules,
        };
        let scratch = self.runner.scratch();
        // Half is for the answer.
        let half = scratch.len() / 2;
        let written = request::write(&mut scratch[..half], frame, values);
        if too_long.get() {
            let message = format!("a value has more than {} bytes", abi::MAX_VALUE);
            return Err(Fault::new(FaultKind::Oversize, message));
        }
        let len = written.ok_or_else(|| {
            Fault::new(FaultKind::Oversize, format!("the request has more than {half} bytes"))
        })?;
        let bytes = self.runner.run(len, wanted.explain)?;
        let bad = |message: &str| Fault::new(FaultKind::BadOutput, message);
        let answer =
            Outcome::read(bytes, plan.rules.len()).ok_or_else(|| bad("its answer is malformed"))?;
        let entry = |at: usize| -> Option<(u32, &Entry, &Arc<str>)> {
            let index = *plan.indices.get(at)?;
            Some((index, wanted.rules.entry(index)?, plan.keys.get(at)?))
        };
        sink.begin();
        for effect in answer.effects() {
            let rule = match effect.rule {
                outcome::ALL_RULES => None,
                at => entry(usize::from(at)),
            };
            sink.effect(effect, rule).map_err(bad)?;
        }
        let some_ill = Health::some_ill();
        for (place, outcome) in answer.rules().enumerate() {
            if outcome.did == Did::Skipped && !S::SKIPPED && !some_ill {
                continue;
            }
            let Some((_, entry, key)) = entry(place) else { continue };
            if entry.health.is_ill() {
                entry.health.succeeded();
            }
            sink.rule(Evaluated { place, entry, key, outcome }).map_err(bad)?;
        }
        if !wanted.explain {
            sink.count(&Tally { plan, rules: wanted.rules });
        }
        Ok(plan.draw.then_some(draw))
    }
}
