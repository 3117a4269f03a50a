//! A thread's instance of a policy, with the rules and endpoints that it was given.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use rulecast_policy::{
    Guest, abi,
    outcome::{self, Did, Outcome, tag},
    request::{self, Frame, RuleRef},
};

use super::{
    Decision, Effect, RuleEffect,
    request::{Attribute, Request},
    rule_set::RuleSet,
};
use crate::{
    endpoints::EndpointSet,
    host::{Fault, FaultKind, MAX_MEMORY, Module, Runner},
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
/// Lines of an explanation.
const MAX_LINES: usize = 10_000;

/// Where instances come from.
#[derive(Clone)]
pub(crate) enum Source {
    Module(Module),
    Native(fn() -> Box<dyn Guest>),
}

impl Source {
    pub(crate) fn runner(&self) -> Result<Runner, Fault> {
        match self {
            Self::Module(module) => Runner::sandboxed(module),
            Self::Native(make) => Ok(Runner::Native(make())),
        }
    }
}

/// What a rule needs, once committed.
struct Committed {
    /// This thread's own copy: counting references to a shared one, threads hinder each other.
    key: Arc<str>,
    attributes: Vec<(u16, Arc<Attribute>)>,
    draw: bool,
}

/// How a list of rules is evaluated.
struct Plan {
    rules: Vec<RuleRef>,
    /// Index of each in the rule set.
    indices: Vec<u32>,
    /// The key of each.
    keys: Vec<Arc<str>>,
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

/// Lists the endpoints of a set. Makes room for all first: to grow with each costs more than
/// the rest.
fn list(words: impl Iterator<Item = u64> + Clone, endpoints: &mut Vec<u32>) {
    let count = words.clone().map(|word| word.count_ones() as usize).sum();
    endpoints.clear();
    endpoints.resize(count, 0);
    let mut places = endpoints.iter_mut();
    for (i, mut word) in words.enumerate() {
        let base = i as u32 * u64::BITS;
        while word != 0
            && let Some(place) = places.next()
        {
            *place = base + word.trailing_zeros();
            word &= word - 1;
        }
    }
}

/// One try: which rules of the set, by index, and their places in the list.
pub(crate) struct Try<'a> {
    pub(crate) rule_set: &'a RuleSet,
    pub(crate) request: &'a Request<'a>,
    pub(crate) endpoints: &'a EndpointSet,
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

    /// Decides once; after a fault the instance is gone.
    pub(crate) fn run(
        &mut self,
        wanted: &Try<'_>,
        decision: &mut Decision,
        lines: &mut Vec<(u32, String)>,
    ) -> Result<(), Fault> {
        let done = self.try_run(wanted, decision, lines);
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

    fn try_run(
        &mut self,
        wanted: &Try<'_>,
        decision: &mut Decision,
        lines: &mut Vec<(u32, String)>,
    ) -> Result<(), Fault> {
        if self.rule_set != wanted.rule_set.id() || self.live.is_none() {
            self.follow(wanted.rule_set)?;
        }
        let Self { live: Some(live), groups, plans, .. } = self else {
            return Err(Fault::new(FaultKind::Unavailable, "no instance"));
        };
        let plan = match wanted.group.and_then(|g| groups.get_mut(g)) {
            Some(slot) if wanted.without.is_empty() => match slot {
                Some(plan) => plan,
                None => slot.insert(live.plan(wanted)?),
            },
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
                    std::collections::hash_map::Entry::Occupied(plan) => plan.into_mut(),
                    std::collections::hash_map::Entry::Vacant(place) => {
                        place.insert(live.plan(wanted)?)
                    }
                }
            }
        };
        live.hold(wanted.endpoints)?;
        live.evaluate(plan, wanted, decision, lines)
    }

    /// Takes over the difference to another rule set.
    fn follow(&mut self, rule_set: &RuleSet) -> Result<(), Fault> {
        self.forget_plans(rule_set.groups());
        match &mut self.live {
            Some(live) => {
                let keep: HashSet<u32> = rule_set.entries().iter().map(|e| e.id).collect();
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
        self.rule_set = rule_set.id();
        Ok(())
    }
}

impl Live {
    /// Commits what is needed and says how the list is evaluated.
    fn plan(&mut self, wanted: &Try<'_>) -> Result<Plan, Fault> {
        let mut plan = Plan {
            rules: Vec::new(),
            indices: Vec::new(),
            keys: Vec::new(),
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
            let Some(entry) = wanted.rule_set.entry(index) else { continue };
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
                let key = Arc::from(&*entry.key);
                self.committed.insert(entry.id, Committed { key, attributes, draw });
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
            plan.rules.push(RuleRef {
                id: entry.id,
                position: position as u16,
                flags: if entry.shadow { request::SHADOW } else { 0 },
            });
        }
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

    fn evaluate(
        &mut self,
        plan: &Plan,
        wanted: &Try<'_>,
        decision: &mut Decision,
        lines: &mut Vec<(u32, String)>,
    ) -> Result<(), Fault> {
        self.calls += 1;
        let Try { request, endpoints, .. } = wanted;
        let too_long = Cell::new(false);
        let values = plan.attributes.iter().map(|(slot, attribute)| {
            let value = attribute.of(request);
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
            set: endpoints.id(),
            draw,
            endpoints: endpoints.len(),
            candidates: endpoints.all(),
        };
        let scratch = self.runner.scratch();
        // Half is for the answer.
        let half = scratch.len() / 2;
        let written =
            request::write(&mut scratch[..half], frame, plan.rules.iter().copied(), values);
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
        decision.endpoints.clear();
        let mut narrowed = false;
        for effect in answer.effects() {
            match effect.tag {
                tag::ENDPOINTS if narrowed => return Err(bad("it narrows the endpoints twice")),
                tag::ENDPOINTS => {
                    narrowed = true;
                    if effect.bytes.len() != endpoints.all().len() * 8 {
                        return Err(bad("its endpoints are not as many as were asked"));
                    }
                    let words = effect.bytes.chunks_exact(8).map(|w| {
                        u64::from_le_bytes([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]])
                    });
                    if words.clone().zip(endpoints.all()).any(|(word, all)| word & !all != 0) {
                        return Err(bad("it answers an endpoint that was no candidate"));
                    }
                    list(words, &mut decision.endpoints);
                }
                tag::TEXT if wanted.explain && lines.len() < MAX_LINES => {
                    let text = String::from_utf8_lossy(effect.bytes).replace(char::is_control, " ");
                    let index = plan.indices.get(usize::from(effect.rule)).copied();
                    if effect.rule != outcome::ALL_RULES {
                        lines.push((index.unwrap_or(u32::MAX), text));
                    }
                }
                _ => {}
            }
        }
        if !narrowed {
            decision.endpoints.extend(0..endpoints.len() as u32);
        }
        decision.rules.clear();
        decision.rules.reserve(plan.rules.len());
        for ((rule, &index), key) in answer.rules().zip(&plan.indices).zip(&plan.keys) {
            let Some(entry) = wanted.rule_set.entry(index) else { continue };
            if rule.remaining as usize > endpoints.len() {
                return Err(bad("more endpoints remain than there were"));
            }
            if entry.health.is_ill() {
                entry.health.succeeded();
            }
            let effect = match (rule.did, entry.shadow) {
                (Did::Skipped, false) => Effect::Skipped,
                (Did::Applied, false) => Effect::Applied,
                (Did::Skipped, true) => Effect::WouldSkip,
                (Did::Applied, true) => Effect::WouldApply,
            };
            let (key, remaining) = (key.clone(), rule.remaining);
            decision.rules.push(RuleEffect { key, effect, remaining });
        }
        decision.draw = plan.draw.then_some(draw);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rulecast_policy::bits;

    #[test]
    fn lists_the_endpoints_of_a_set() {
        for words in [&[][..], &[0], &[u64::MAX, 1], &[0, 1 << 63, 0b101]] {
            let mut listed = vec![7];
            super::list(words.iter().copied(), &mut listed);
            let wanted: Vec<u32> = bits::indices(words).map(|i| i as u32).collect();
            assert_eq!(listed, wanted);
        }
    }
}
