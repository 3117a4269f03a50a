//! One evaluation.

use rulecast_api::condition::Role;
use rulecast_policy::{
    bits, draw, endpoints::Table, outcome::Did, request::Request, router, trace::Trace,
};

use crate::{
    Conditions,
    compile::{Asked, Block, Destination, Selected},
};

/// Memory that evaluations reuse.
#[derive(Debug, Default)]
pub struct Buffers {
    /// What a destination selects.
    chosen: Vec<u64>,
    /// What a dynamic term selects.
    term: Vec<u64>,
    /// Weights of the destinations, 0 for the empty ones.
    weights: Vec<u32>,
}

/// Applies a rule to a list of endpoints.
pub(crate) fn rule(
    step: &router::Step<'_, Conditions>,
    list: &mut Vec<u64>,
    buffers: &mut Buffers,
    trace: &mut impl Trace,
) -> Did {
    let &router::Step { rule, table, request, reference, .. } = step;
    let Buffers { chosen, term, weights } = buffers;
    let mut did = Did::Skipped;
    let mut selected = step.selected.as_slice();
    for (index, block) in rule.blocks.iter().enumerate() {
        let (mine, others) = selected.split_at(block.to.len().min(selected.len()));
        selected = others;
        trace.say(|| format!("condition {index}: {}", block.text));
        if !block.when.iter().all(|asked| holds(asked, Role::When, request)) {
            trace.say(|| format!("  does not match the call: {}", why_not(&block.when, request)));
            continue;
        }
        trace.say(|| format!("  matches the call{}", why(&block.when, request)));
        if block.to.is_empty() {
            list.fill(0);
            did = Did::Applied;
            trace.say(|| "  keeps nothing: the traffic is disabled".to_owned());
            continue;
        }
        let step = Step { block, selected: mine, table, request, list };
        let some = match block.weighted {
            false => step.keep(0, chosen, term),
            true => {
                let number = draw::at(request.draw, u32::from(reference.position), index as u32);
                step.choose(number, weights, chosen, term, trace)
            }
        };
        if !some && !rule.force {
            trace.say(|| "  selects no endpoint and does not force: it is skipped".to_owned());
            continue;
        }
        if some {
            std::mem::swap(list, chosen);
        } else {
            list.fill(0);
        }
        did = Did::Applied;
        trace.say(|| {
            let forced = if some { "" } else { ", by force" };
            format!("  {} of {} endpoints remain{forced}", bits::count(list), table.len())
        });
    }
    did
}

/// A condition at work on a list.
struct Step<'a> {
    block: &'a Block,
    selected: &'a [Selected],
    table: &'a Table,
    request: &'a Request<'a>,
    list: &'a [u64],
}

impl Step<'_> {
    /// Puts what destination `index` selects from the list into `chosen`; whether that is any.
    fn keep(&self, index: usize, chosen: &mut Vec<u64>, term: &mut Vec<u64>) -> bool {
        let destination = self.block.to.get(index);
        let Some((destination, selected)) = destination.zip(self.selected.get(index)) else {
            return false;
        };
        if !destination.call.iter().all(|asked| holds(asked, Role::Then, self.request)) {
            return false;
        }
        chosen.clear();
        chosen.extend(self.list.iter().zip(&selected.fixed).map(|(a, b)| a & b));
        for (dynamic, known) in destination.dynamic.iter().zip(&selected.dynamic) {
            let or = |slots: &[u16], term: &mut [u64]| {
                for &slot in slots {
                    if let Some(value) = self.request.attribute(slot) {
                        self.table.select_equal(known.column, term, value);
                    }
                }
            };
            bits::intersect(chosen, &known.open);
            if dynamic.must_hit {
                term.clone_from(&known.hit);
                or(&dynamic.matches, term);
                bits::intersect(chosen, term);
            }
            if !dynamic.mismatches.is_empty() {
                term.clear();
                term.resize(chosen.len(), 0);
                or(&dynamic.mismatches, term);
                chosen.iter_mut().zip(&*term).for_each(|(word, hit)| *word &= !hit);
            }
        }
        !bits::is_empty(chosen)
    }

    /// Draws one of the destinations that are not empty, by weight.
    fn choose(
        &self,
        number: u64,
        weights: &mut Vec<u32>,
        chosen: &mut Vec<u64>,
        term: &mut Vec<u64>,
        trace: &mut impl Trace,
    ) -> bool {
        weights.clear();
        for (index, destination) in self.block.to.iter().enumerate() {
            let some = self.keep(index, chosen, term);
            weights.push(if some { destination.weight } else { 0 });
            trace.say(|| {
                let size = if some { bits::count(chosen) } else { 0 };
                let Destination { text, weight, .. } = destination;
                let text = if text.is_empty() { "any" } else { text };
                format!("  destination {index} ({text}): {size} endpoints, weight {weight}")
            });
        }
        let Some(picked) = draw::pick(number, weights.iter().copied()) else {
            trace.say(|| "  every destination is empty or has weight 0".to_owned());
            return false;
        };
        trace.say(|| {
            let sum: u64 = weights.iter().copied().map(u64::from).sum();
            let weight = weights.get(picked).copied().unwrap_or_default();
            let share = number as f64 / 18_446_744_073_709_551_616.0;
            format!("  draws {share:.6} of 1: destination {picked}, probability {weight}/{sum}")
        });
        // The last one looked at is often the one picked; then it stands in `chosen` already.
        picked + 1 == self.block.to.len() || self.keep(picked, chosen, term)
    }
}

fn holds(asked: &Asked, role: Role, request: &Request<'_>) -> bool {
    let value = asked.slot.and_then(|slot| request.attribute(slot));
    let parameter = |name: &str| {
        let (_, slot) = asked.parameters.iter().find(|(n, _)| n == name)?;
        request.attribute(*slot)
    };
    value.is_some_and(|value| asked.term.holds(role, value, &parameter))
}

fn shown(asked: &Asked, request: &Request<'_>) -> String {
    match asked.slot.and_then(|slot| request.attribute(slot)) {
        Some(value) => {
            let text: String = String::from_utf8_lossy(value).chars().take(64).collect();
            format!("{} is {text:?}", asked.term.name)
        }
        None => format!("{} is absent", asked.term.name),
    }
}

fn why(when: &[Asked], request: &Request<'_>) -> String {
    let parts: Vec<String> = when.iter().map(|asked| shown(asked, request)).collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
}

fn why_not(when: &[Asked], request: &Request<'_>) -> String {
    when.iter()
        .find(|asked| !holds(asked, Role::When, request))
        .map(|asked| format!("{}, wanted {}", shown(asked, request), asked.term))
        .unwrap_or_default()
}
