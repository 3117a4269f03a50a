//! Which endpoints a call may use: the routing kinds, one after the other.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use rulecast_policy::{
    draw::mix,
    outcome::{self, Did, tag},
};

use super::{
    Decision, Effect, Explanation, RuleEffect,
    kinds::{POLICIES, slot},
    local::{Asked, LOCAL, Local, Ran},
    policies::Policies,
    request::Request,
    rule_set::{Address, Entry, RuleSet},
    worker::{Evaluated, Sink, Tally},
};
use crate::{
    endpoints::{EndpointSet, TAG},
    metrics::Verdict,
};

/// Lines of an explanation.
const MAX_LINES: usize = 10_000;

/// A line of an explanation: slot of the kind, index of the rule, text.
type Line = (usize, u32, String);

impl Policies {
    /// Decides which endpoints a call may use: ConditionRoute first, then TagRoute, then
    /// AffinityRoute, each among those that the one before left. Never fails: a rule at fault
    /// is passed over, and the decision says so.
    pub fn route(
        &self,
        rules: &RuleSet,
        request: &Request<'_>,
        endpoints: &EndpointSet,
    ) -> Decision {
        let mut decision = Decision::default();
        self.route_into(rules, request, endpoints, &mut decision);
        decision
    }

    /// As [`route`](Self::route), into a decision whose memory is used again: after the first
    /// calls nothing is allocated.
    pub fn route_into(
        &self,
        rules: &RuleSet,
        request: &Request<'_>,
        endpoints: &EndpointSet,
        decision: &mut Decision,
    ) {
        self.decide(rules, request, endpoints, decision, None);
    }

    /// Decides the same, and says why.
    pub fn explain(
        &self,
        rules: &RuleSet,
        request: &Request<'_>,
        endpoints: &EndpointSet,
    ) -> Explanation {
        let (mut decision, mut lines) = (Decision::default(), Vec::new());
        self.decide(rules, request, endpoints, &mut decision, Some(&mut lines));
        let text = describe(rules, &decision, &lines, endpoints.len());
        Explanation { decision, text }
    }

    fn decide(
        &self,
        rules: &RuleSet,
        request: &Request<'_>,
        endpoints: &EndpointSet,
        decision: &mut Decision,
        mut lines: Option<&mut Vec<Line>>,
    ) {
        decision.clear();
        LOCAL.with_borrow_mut(|local| {
            let Local { workers, list, candidates, narrowed, .. } = local;
            let of = Address {
                service: &request.service,
                application: request.consumer.get("application"),
                served_by: endpoints.applications(),
            };
            // `candidates` count, instead of all.
            let mut fewer = false;
            for slot in slot::ROUTING {
                let Some(engine) = self.engine(slot) else { continue };
                let kind = rules.kind(slot);
                // Tags and affinity are of those who serve; conditions are of callers too.
                let application = of.application.filter(|_| slot == slot::CONDITION_ROUTE);
                let matching = kind.matching(Address { application, ..of }, list);
                if matching.list.is_empty() || matching.implicit && !tagged(request, endpoints) {
                    continue;
                }
                let draw = request.draw.or(decision.draw);
                let asked = Asked {
                    type_name: POLICIES[slot].type_name,
                    engine,
                    rules: kind,
                    matching,
                    call: request,
                    endpoints: Some(endpoints),
                    candidates: if fewer { candidates } else { endpoints.all() },
                    draw: draw.map(|draw| own(slot, draw)),
                    explain: lines.is_some(),
                };
                let mut sink = Narrowing {
                    slot,
                    request,
                    candidates: asked.candidates,
                    endpoints: endpoints.len(),
                    first: decision.rules.len(),
                    rules: &mut decision.rules,
                    narrowed,
                    narrows: false,
                    first_line: lines.as_ref().map_or(0, |lines| lines.len()),
                    lines: lines.as_deref_mut(),
                };
                let ran = asked.run(workers, &mut sink, &mut decision.faults);
                let narrows = sink.narrows;
                if let Ran::Done(Some(drawn)) = ran {
                    decision.draw = draw.or(Some(own(slot, drawn)));
                }
                if narrows {
                    std::mem::swap(candidates, narrowed);
                    fewer = true;
                }
            }
            match fewer {
                true => list_of(candidates, &mut decision.endpoints),
                false => decision.endpoints.extend(0..endpoints.len() as u32),
            }
        });
    }
}

/// What there are tags to speak of: without any, TagRoute has nothing to say.
fn tagged(request: &Request<'_>, endpoints: &EndpointSet) -> bool {
    endpoints.tagged() || request.attached(TAG).is_some() || request.consumer.get(TAG).is_some()
}

/// A kind's own draw, so that two kinds' chances do not hang together; and the other way.
fn own(slot: usize, draw: u64) -> u64 {
    match slot {
        slot::CONDITION_ROUTE => draw,
        _ => draw ^ mix(slot as u64),
    }
}

/// Takes over what a kind leaves of the endpoints.
struct Narrowing<'a> {
    slot: usize,
    request: &'a Request<'a>,
    candidates: &'a [u64],
    endpoints: usize,
    rules: &'a mut Vec<RuleEffect>,
    /// How many of `rules` are of the kinds before.
    first: usize,
    narrowed: &'a mut Vec<u64>,
    narrows: bool,
    lines: Option<&'a mut Vec<Line>>,
    first_line: usize,
}

impl Sink for Narrowing<'_> {
    fn begin(&mut self) {
        self.rules.truncate(self.first);
        self.narrows = false;
        if let Some(lines) = &mut self.lines {
            lines.truncate(self.first_line);
        }
    }

    #[inline]
    fn effect(
        &mut self,
        effect: outcome::Effect<'_>,
        rule: Option<(u32, &Entry, &Arc<str>)>,
    ) -> Result<(), &'static str> {
        match (effect.tag, &mut self.lines) {
            (tag::ENDPOINTS, _) if self.narrows => Err("it narrows the endpoints twice"),
            (tag::ENDPOINTS, _) => {
                if effect.bytes.len() != self.candidates.len() * 8 {
                    return Err("its endpoints are not as many as were asked");
                }
                let words = effect
                    .bytes
                    .chunks_exact(8)
                    .map(|w| u64::from_le_bytes([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]]));
                if words.clone().zip(self.candidates).any(|(word, all)| word & !all != 0) {
                    return Err("it answers an endpoint that was no candidate");
                }
                self.narrowed.clear();
                self.narrowed.extend(words);
                self.narrows = true;
                Ok(())
            }
            (tag::TEXT, Some(lines)) if lines.len() < MAX_LINES => {
                if let Some((index, ..)) = rule {
                    let text = String::from_utf8_lossy(effect.bytes).replace(char::is_control, " ");
                    lines.push((self.slot, index, text));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    #[inline]
    fn rule(&mut self, rule: Evaluated<'_>) -> Result<(), &'static str> {
        let Evaluated { entry, key, outcome, .. } = rule;
        if outcome.remaining as usize > self.endpoints {
            return Err("more endpoints remain than there were");
        }
        // The implicit rule is nobody's.
        if key.is_empty() {
            return Ok(());
        }
        let effect = match (outcome.did, entry.shadow) {
            (Did::Skipped, false) => Effect::Skipped,
            (Did::Applied, false) => Effect::Applied,
            (Did::Skipped, true) => Effect::WouldSkip,
            (Did::Applied, true) => Effect::WouldApply,
        };
        self.rules.push(RuleEffect {
            kind: POLICIES[self.slot].type_name,
            key: key.clone(),
            effect,
            remaining: outcome.remaining,
        });
        Ok(())
    }

    #[inline]
    fn count(&mut self, tally: &Tally<'_>) {
        // The implicit rule, which is not among these, has the last place.
        for (place, rule) in self.rules[self.first..].iter().enumerate() {
            let Some(entry) = tally.entry(place) else { continue };
            let verdict = match rule.effect {
                Effect::Skipped => Verdict::Skipped,
                Effect::Applied => Verdict::Applied,
                Effect::WouldSkip => Verdict::WouldSkip,
                Effect::WouldApply => Verdict::WouldApply,
            };
            tally.count(place, entry, verdict);
            if verdict == Verdict::WouldApply {
                entry.stats.sample(verdict, || {
                    let Request { service, method, .. } = self.request;
                    let (left, of) = (rule.remaining, self.endpoints);
                    let a = if method.is_empty() { "" } else { " to " };
                    format!("would leave {left} of {of} endpoints{a}{method} of {service}")
                });
            }
        }
    }
}

/// Lists the endpoints of a set. Makes room for all first: to grow with each costs more than
/// the rest.
fn list_of(words: &[u64], endpoints: &mut Vec<u32>) {
    let count = words.iter().map(|word| word.count_ones() as usize).sum();
    endpoints.clear();
    endpoints.resize(count, 0);
    let mut places = endpoints.iter_mut();
    for (i, &word) in words.iter().enumerate() {
        let (base, mut word) = (i as u32 * u64::BITS, word);
        while word != 0
            && let Some(place) = places.next()
        {
            *place = base + word.trailing_zeros();
            word &= word - 1;
        }
    }
}

fn describe(rules: &RuleSet, decision: &Decision, lines: &[Line], endpoints: usize) -> String {
    let mut text = String::new();
    let mut write = |line: std::fmt::Arguments<'_>| {
        let _ = text.write_fmt(format_args!("{line}\n"));
    };
    match decision.draw {
        Some(draw) => write(format_args!("{endpoints} endpoints, draw {draw}")),
        None => write(format_args!("{endpoints} endpoints, no draw needed")),
    }
    let of = |kind: &str, key: &str| {
        let key = key.to_owned();
        let kind = kind.to_owned();
        lines.iter().filter_map(move |(slot, index, line)| {
            let same = POLICIES[*slot].type_name == kind
                && rules.kind(*slot).entry(*index).is_some_and(|entry| *entry.key == *key);
            same.then_some(line)
        })
    };
    if decision.rules.is_empty() && decision.faults.is_empty() {
        write(format_args!("no rule speaks of this call"));
    }
    for rule in &decision.rules {
        let RuleEffect { kind, key, effect, remaining } = rule;
        write(format_args!("rule {key}{}: {effect}, {remaining} remain", Of(kind)));
        of(kind, key).for_each(|line| write(format_args!("  {line}")));
    }
    for kind in POLICIES {
        let mut nobodys = of(kind.type_name, "").peekable();
        if nobodys.peek().is_some() {
            write(format_args!("no rule{}", Of(kind.type_name)));
            nobodys.for_each(|line| write(format_args!("  {line}")));
        }
    }
    decision.faults.iter().for_each(|fault| write(format_args!("{fault}")));
    write(format_args!("remaining: {:?}", decision.endpoints));
    text
}

/// Says of which kind a rule is, unless it is the most usual one.
pub(super) struct Of<'a>(pub(super) &'a str);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.rsplit('/').next().unwrap_or_default() {
            "" | "ConditionRoute" => Ok(()),
            kind => write!(f, " ({kind})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rulecast_policy::bits;

    #[test]
    fn lists_the_endpoints_of_a_set() {
        for words in [&[][..], &[0], &[u64::MAX, 1], &[0, 1 << 63, 0b101]] {
            let mut listed = vec![7];
            super::list_of(words, &mut listed);
            let wanted: Vec<u32> = bits::indices(words).map(|i| i as u32).collect();
            assert_eq!(listed, wanted);
        }
    }
}
