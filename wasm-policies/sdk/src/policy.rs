use std::{collections::BTreeMap, fmt};

use crate::{abi, endpoints::Table, outcome::OutcomeWriter, request::Request};

/// Gives rules their meaning.
///
/// One instance lives in each thread of an application. Rules and endpoint sets come and go
/// one by one; an evaluation then names those it speaks of. A policy keeps no other state:
/// instances are recycled at any time, and their rules and tables given again.
pub trait Policy {
    /// Takes a rule. Everything that can be computed before a call belongs here.
    /// `attributes` are the names of what it will look at, each turned into a slot.
    fn commit(
        &mut self,
        id: u32,
        spec: &[u8],
        attributes: &mut Attributes,
    ) -> Result<(), CommitError>;

    /// Forgets a rule. An unknown id is ignored.
    fn remove(&mut self, id: u32);

    /// Takes a set of endpoints; `None` forgets it.
    fn endpoints(&mut self, set: u32, table: Option<Table>) -> Result<(), CommitError>;

    /// Whether it holds this rule.
    fn has_rule(&self, id: u32) -> bool;

    /// Whether it holds this set.
    fn has_set(&self, set: u32) -> bool;

    /// Sees a list of rules before it is evaluated the first time, and again after a rule was
    /// taken or forgotten: what can be worked out of the list as a whole belongs here. All of
    /// its rules are known; attributes and candidates are those of the first call.
    fn prepare(&mut self, _request: &Request<'_>, _at_work: &mut dyn FnMut(u32)) {}

    /// Decides. All rules and the set of the request are known, `at_work` is to be called
    /// with the id of each rule before it is looked at.
    fn evaluate(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    );

    /// Decides the same and says why, as [`tag::TEXT`](crate::outcome::tag::TEXT) effects.
    fn explain(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    );
}

/// Why a rule or a table is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitError {
    /// A stable code, for machines and manuals.
    pub code: String,
    /// Path inside the spec, `conditions[0]`.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl CommitError {
    /// From its parts.
    pub fn new(
        code: impl Into<String>,
        field: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { code: code.into(), field: field.into(), message: message.into() }
    }
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.field, self.message)
    }
}

impl std::error::Error for CommitError {}

/// The attributes of a rule, each name with a slot that stays its own for as long as a rule
/// needs it.
#[derive(Debug, Default)]
pub struct Attributes {
    slots: Vec<Option<Slot>>,
    by_name: BTreeMap<String, u16>,
    /// Those of the rule that is being committed.
    current: Vec<u16>,
    draw: bool,
    overflow: bool,
}

#[derive(Debug)]
struct Slot {
    name: String,
    users: u32,
}

impl Attributes {
    /// The slot of an attribute: `method`, `arguments[0]`, `attachments[user]`,
    /// `consumer[region]`.
    pub fn slot(&mut self, name: &str) -> u16 {
        if let Some(&slot) = self.by_name.get(name) {
            if !self.current.contains(&slot) {
                self.current.push(slot);
                if let Some(Some(entry)) = self.slots.get_mut(usize::from(slot)) {
                    entry.users += 1;
                }
            }
            return slot;
        }
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        let slot = match u16::try_from(free) {
            Ok(slot) if slot != abi::DRAW_SLOT => slot,
            _ => {
                self.overflow = true;
                return 0;
            }
        };
        let entry = Some(Slot { name: name.to_owned(), users: 1 });
        match self.slots.get_mut(free) {
            Some(place) => *place = entry,
            None => self.slots.push(entry),
        }
        self.by_name.insert(name.to_owned(), slot);
        self.current.push(slot);
        slot
    }

    /// Declares that the rule needs the draw.
    pub fn draw(&mut self) {
        self.draw = true;
    }

    /// Begins a rule.
    pub(crate) fn begin(&mut self) {
        self.current.clear();
        self.draw = false;
        self.overflow = false;
    }

    /// Ends a rule: its slots, or `None` when there were too many.
    pub(crate) fn end(&mut self) -> Option<Vec<u16>> {
        let slots = std::mem::take(&mut self.current);
        if self.overflow {
            self.release(&slots);
            return None;
        }
        Some(slots)
    }

    /// Gives back the slots of a rule that is gone.
    pub(crate) fn release(&mut self, slots: &[u16]) {
        for &slot in slots {
            let Some(place) = self.slots.get_mut(usize::from(slot)) else { continue };
            if let Some(entry) = place {
                entry.users -= 1;
                if entry.users == 0 {
                    self.by_name.remove(&entry.name);
                    *place = None;
                }
            }
        }
    }

    pub(crate) fn names<'a>(&'a self, slots: &'a [u16]) -> Vec<(u16, &'a str)> {
        let mut names: Vec<_> = slots
            .iter()
            .filter_map(|&s| Some((s, self.slots.get(usize::from(s))?.as_ref()?.name.as_str())))
            .collect();
        if self.draw {
            names.push((abi::DRAW_SLOT, abi::DRAW));
        }
        names
    }
}
