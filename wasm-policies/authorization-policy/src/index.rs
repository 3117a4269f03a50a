//! Which rules of a list of policies may match a call, found by values instead of by looking
//! at each.

use rulecast_api::matcher::Values;
use rulecast_policy::request::Request;

use crate::compile::{Action, Check, Rules, Samples, Test};

/// With so few rules to look at, looking is faster.
const FEW: usize = 4;
/// A rule with more values for every attribute is not found by value.
const MAX_VALUES: usize = 64;
/// Most values of an index; rules beyond them are looked at for every call.
const MAX_LINKS: usize = 1 << 15;
const END: u32 = u32::MAX;

/// Over one list of policies.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Rules in the order of their policies.
    entries: Vec<Entry>,
    /// Those that are looked at for every call, as a set.
    always: Vec<u64>,
    /// The attributes by which the others are found.
    slots: Vec<u16>,
    /// By hash, where in `links` its chain begins; a power of two.
    heads: Vec<u32>,
    links: Vec<Link>,
    /// ALLOW policies in force.
    pub(crate) allowing: Allowing,
    /// ALLOW policies that are shadows, each with its place in the list.
    pub(crate) shadows: Vec<(u32, u16)>,
    /// Room for a set.
    found: Vec<u64>,
}

/// A rule of a policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The policy's id.
    pub(crate) id: u32,
    /// The policy's place in the list.
    pub(crate) place: u16,
    /// The rule in the policy; `None`: the policy as a whole.
    pub(crate) rule: Option<u32>,
}

#[derive(Debug)]
struct Link {
    hash: u32,
    entry: u32,
    next: u32,
}

/// Where there are ALLOW policies, a call that none of them allows is refused.
#[derive(Debug, Default)]
pub(crate) struct Allowing {
    /// The place of one that looks at every call.
    pub(crate) every: Option<u16>,
    /// Id and place of those that look at a share of the calls; only where no other looks at
    /// all.
    pub(crate) some: Vec<(u32, u16)>,
}

/// What a value of an attribute is found by.
fn hash(slot: u16, value: u32) -> u32 {
    let mixed = (u64::from(value) << 16 | u64::from(slot)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}

impl Index {
    /// Of policies in order; each with its id and whether it is a shadow.
    pub(crate) fn new<'r>(list: impl Iterator<Item = (u32, bool, &'r Rules)> + Clone) -> Self {
        let mut index = Self::default();
        for (place, (id, shadow, rules)) in list.clone().enumerate() {
            let place = place as u16;
            let mut entry = |rule| index.entries.push(Entry { id, place, rule });
            match rules.everything || rules.all {
                true => entry(None),
                false => (0..rules.rules.len()).for_each(|rule| entry(Some(rule as u32))),
            }
            match (rules.action, &rules.samples) {
                (Action::Allow, _) if shadow => index.shadows.push((id, place)),
                (Action::Allow, Samples::All) => {
                    index.allowing.every.get_or_insert(place);
                }
                (Action::Allow, Samples::Below(..)) => index.allowing.some.push((id, place)),
                _ => {}
            }
        }
        let words = index.entries.len().div_ceil(64);
        index.found = vec![0; words];
        index.always = vec![0; words];
        if index.entries.len() <= FEW {
            (0..index.entries.len()).for_each(|entry| index.always[0] |= 1 << entry);
            return index;
        }
        index.link(list);
        index
    }

    /// Makes each rule to be found by that one of its attributes whose values the fewest rules
    /// have.
    fn link<'r>(&mut self, list: impl Iterator<Item = (u32, bool, &'r Rules)> + Clone) {
        let size = (self.entries.len() * 2).next_power_of_two().min(MAX_LINKS * 2);
        let place = |hash: u32| hash as usize & (size - 1);
        let parts = || list.clone().flat_map(|(_, _, rules)| parts(rules));
        let mut users = vec![0u32; size];
        for hash in parts().flatten().flat_map(|(slot, values)| hashes(slot, values)) {
            users[place(hash)] += 1;
        }
        self.heads = vec![END; size];
        for (entry, part) in parts().enumerate() {
            let crowd = |(slot, values): &(u16, &Values)| {
                hashes(*slot, values).map(|hash| users[place(hash)]).max()
            };
            match part.min_by_key(crowd) {
                Some((slot, values)) if self.links.len() + values.len() <= MAX_LINKS => {
                    if !self.slots.contains(&slot) {
                        self.slots.push(slot);
                    }
                    for hash in hashes(slot, values) {
                        let head = &mut self.heads[place(hash)];
                        let next = std::mem::replace(head, self.links.len() as u32);
                        self.links.push(Link { hash, entry: entry as u32, next });
                    }
                }
                _ => self.always[entry / 64] |= 1 << (entry % 64),
            }
        }
    }

    /// Calls `look` with every rule that may match, in order.
    #[inline]
    pub(crate) fn find(&mut self, request: &Request<'_>, mut look: impl FnMut(Entry)) {
        self.found.copy_from_slice(&self.always);
        for &slot in &self.slots {
            let Some(value) = request.attribute(slot) else { continue };
            let hash = hash(slot, Values::hash(value));
            let mut at = self.heads[hash as usize & (self.heads.len() - 1)];
            while let Some(link) = self.links.get(at as usize) {
                if link.hash == hash {
                    self.found[link.entry as usize / 64] |= 1 << (link.entry % 64);
                }
                at = link.next;
            }
        }
        for (at, &word) in self.found.iter().enumerate() {
            let mut word = word;
            while word != 0 {
                look(self.entries[at * 64 + word.trailing_zeros() as usize]);
                word &= word - 1;
            }
        }
    }
}

/// For each entry of a policy, the tests by which it may be found: each must hold.
fn parts(rules: &Rules) -> impl Iterator<Item = impl Iterator<Item = (u16, &Values)>> {
    let whole = (rules.everything || rules.all).then_some(&rules.rules[..]);
    let each = rules.rules.chunks(if whole.is_some() { usize::MAX } else { 1 });
    let each = each.take(if whole.is_some() { 0 } else { usize::MAX });
    whole.into_iter().chain(each).map(|part| part.iter().flatten().filter_map(of))
}

/// The attribute and the values, one of which a test wants.
fn of(test: &Test) -> Option<(u16, &Values)> {
    match &test.check {
        Check::OneOf(values) if values.len() <= MAX_VALUES && values.hashes().is_some() => {
            Some((test.slot, values))
        }
        _ => None,
    }
}

fn hashes(slot: u16, values: &Values) -> impl Iterator<Item = u32> {
    values.hashes().into_iter().flatten().map(move |value| hash(slot, value))
}
