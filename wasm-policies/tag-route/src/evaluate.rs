//! One evaluation.

use rulecast_policy::{bits, outcome::Did, request::Request, router::Step, trace::Trace};

use crate::{Tags, compile::Rule};

/// Applies a rule to a list of endpoints.
pub(crate) fn rule(
    step: &Step<'_, Tags>,
    list: &mut Vec<u64>,
    kept: &mut Vec<u64>,
    trace: &mut impl Trace,
) -> Did {
    let &Step { rule, selected, table, request, .. } = step;
    let Some(tag) = tag(rule, request) else {
        let before = bits::count(list);
        bits::intersect(list, &selected.plain);
        let after = bits::count(list);
        trace.say(|| format!("the call has no tag: {after} of {before} endpoints have none"));
        return did(after != before);
    };
    let forced = forced(rule, request);
    trace.say(|| {
        let must = if forced { ", which is a must" } else { "" };
        format!("the call has the tag {:?}{must}", shown(tag))
    });
    // The whole of it, then without its last part, and so on.
    let mut level = tag;
    loop {
        let group = rule.find(level).and_then(|at| selected.groups.get(at)?.as_ref());
        if let Some(group) = group {
            let some = keep(list, group, kept);
            trace.say(|| {
                let count = bits::count(kept);
                format!("  the rule's group {:?} keeps {count} endpoints", shown(level))
            });
            if some || rule.force {
                std::mem::swap(list, kept);
                return Did::Applied;
            }
        }
        kept.clear();
        kept.resize(list.len(), 0);
        table.select_equal(selected.own, kept, level);
        bits::intersect(kept, list);
        trace.say(|| {
            let count = bits::count(kept);
            format!("  {count} endpoints carry the tag {:?} themselves", shown(level))
        });
        if !bits::is_empty(kept) {
            std::mem::swap(list, kept);
            return Did::Applied;
        }
        // Nothing before the separator is no tag.
        match level.iter().rposition(|&byte| byte == b'|').filter(|&at| at > 0) {
            Some(at) => level = level.get(..at).unwrap_or_default(),
            None => break,
        }
    }
    if forced {
        list.fill(0);
        trace.say(|| "  nothing remains: the tag is a must".to_owned());
        return Did::Applied;
    }
    let before = bits::count(list);
    bits::intersect(list, &selected.untagged);
    let after = bits::count(list);
    trace.say(|| format!("  falls back to the {after} endpoints of no tag"));
    did(after != before)
}

fn did(applied: bool) -> Did {
    if applied { Did::Applied } else { Did::Skipped }
}

/// Puts those of the list that are in a group into `kept`; whether there are any.
fn keep(list: &[u64], group: &[u64], kept: &mut Vec<u64>) -> bool {
    kept.clear();
    kept.extend(list.iter().zip(group).map(|(a, b)| a & b));
    !bits::is_empty(kept)
}

/// The tag of a call: its attachment, else its caller's parameter. An empty one is none.
fn tag<'r>(rule: &Rule, request: &'r Request<'_>) -> Option<&'r [u8]> {
    let value = |slot| request.attribute(slot).filter(|tag| !tag.is_empty());
    value(rule.slots.tag).or_else(|| value(rule.slots.consumer_tag))
}

/// Whether the call's tag is a must.
fn forced(rule: &Rule, request: &Request<'_>) -> bool {
    let value = |slot| request.attribute(slot).filter(|value| !value.is_empty());
    let value = value(rule.slots.force).or_else(|| value(rule.slots.consumer_force));
    value.is_some_and(|value| value.eq_ignore_ascii_case(b"true"))
}

fn shown(tag: &[u8]) -> String {
    String::from_utf8_lossy(tag).chars().take(64).collect()
}
