//! From a rule's text to what is evaluated.

use prost::Message as _;
use rulecast_api::{
    Code,
    condition::{Condition, Key, Role, Side, SyntaxError, Term, Then, Value},
    proto::rules::v1 as wire,
};
use rulecast_policy::{Attributes, CommitError, bits, endpoints::Table};

/// A rule, ready to be evaluated.
#[derive(Debug)]
pub struct Rule {
    pub(crate) force: bool,
    pub(crate) blocks: Vec<Block>,
}

/// One condition.
#[derive(Debug)]
pub(crate) struct Block {
    /// As written, for explanations.
    pub(crate) text: String,
    /// About the caller and the call.
    pub(crate) when: Vec<Asked>,
    /// What is kept; without destinations nothing.
    pub(crate) to: Vec<Destination>,
    /// Whether one destination is drawn by weight (v3.1), or there is one (v3.0).
    pub(crate) weighted: bool,
}

/// A term with the slots of what it looks at.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) term: Term,
    /// `None`: never there.
    pub(crate) slot: Option<u16>,
    /// The slots of the caller's parameters that its values name.
    pub(crate) parameters: Vec<(String, u16)>,
}

#[derive(Debug)]
pub(crate) struct Destination {
    /// As written, for explanations.
    pub(crate) text: String,
    pub(crate) weight: u32,
    /// Terms about the call; with one false the destination is empty.
    pub(crate) call: Vec<Asked>,
    /// Terms about the endpoints alone: known per set.
    fixed: Vec<Term>,
    /// Terms about the endpoints with parameters of the caller.
    pub(crate) dynamic: Vec<Dynamic>,
}

/// A term whose values name parameters of the caller.
#[derive(Debug)]
pub(crate) struct Dynamic {
    name: String,
    /// The values that need no parameter.
    rest: Term,
    /// Slots of the parameters.
    pub(crate) matches: Vec<u16>,
    pub(crate) mismatches: Vec<u16>,
    /// Whether there are matches at all.
    pub(crate) must_hit: bool,
}

/// What a destination selects from one set, as far as it is known before a call.
#[derive(Debug)]
pub struct Selected {
    /// One per destination, in order of conditions and destinations.
    pub(crate) fixed: Vec<u64>,
    /// One per dynamic term.
    pub(crate) dynamic: Vec<SelectedDynamic>,
}

#[derive(Debug)]
pub(crate) struct SelectedDynamic {
    /// The parameter's column in the set's table.
    pub(crate) column: Option<usize>,
    /// The endpoints with that parameter that no fixed mismatch hits.
    pub(crate) open: Vec<u64>,
    /// Those that a fixed match hits.
    pub(crate) hit: Vec<u64>,
}

impl Rule {
    pub(crate) fn compile(spec: &[u8], attributes: &mut Attributes) -> Result<Self, CommitError> {
        let message = wire::ConditionRoute::decode(spec).map_err(|error| {
            let message = format!("is no ConditionRoute message: {error}");
            CommitError::new(Code::RuleRefused.as_str(), "spec", message)
        })?;
        if message.weighted && !message.conditions.is_empty()
            || !message.weighted && !message.destinations.is_empty()
        {
            let message = "mixes conditions of v3.0 and v3.1; send one of the two";
            return Err(CommitError::new(Code::RuleRefused.as_str(), "conditions", message));
        }
        let mut blocks = Vec::new();
        for (i, text) in message.conditions.into_iter().enumerate() {
            let condition =
                Condition::parse(&text).map_err(|e| refuse(format!("conditions[{i}]"), &e))?;
            let to = match condition.then {
                Then::Nothing => Vec::new(),
                Then::Endpoints(side) => vec![Destination::compile(side, 100, attributes)],
            };
            let when = asked(condition.when.terms, attributes);
            blocks.push(Block { text, when, to, weighted: false });
        }
        for (i, item) in message.destinations.into_iter().enumerate() {
            let path = format!("conditions[{i}]");
            let when = Side::parse_from(&item.from)
                .map_err(|e| refuse(format!("{path}.from.match"), &e))?;
            let mut to = Vec::with_capacity(item.to.len());
            for (j, destination) in item.to.into_iter().enumerate() {
                let side = Side::parse_to(&destination.r#match)
                    .map_err(|e| refuse(format!("{path}.to[{j}].match"), &e))?;
                to.push(Destination::compile(side, destination.weight, attributes));
            }
            if to.len() > 1 {
                attributes.draw();
            }
            let when = asked(when.terms, attributes);
            blocks.push(Block { text: format!("from {}", item.from), when, to, weighted: true });
        }
        Ok(Self { force: message.force, blocks })
    }

    /// What its destinations select from a set.
    pub(crate) fn select(&self, table: &Table) -> Vec<Selected> {
        self.blocks.iter().flat_map(|b| &b.to).map(|to| to.select(table)).collect()
    }
}

impl Destination {
    fn compile(side: Side, weight: u32, attributes: &mut Attributes) -> Self {
        let text = side.to_string();
        let (mut fixed, mut dynamic, mut call) = (Vec::new(), Vec::new(), Vec::new());
        for term in side.terms {
            match &term.key {
                Key::Param(_) if term.has_parameters() => {
                    dynamic.push(Dynamic::compile(term, attributes));
                }
                Key::Param(_) => fixed.push(term),
                _ => call.push(term),
            }
        }
        Self { text, weight, call: asked(call, attributes), fixed, dynamic }
    }

    fn select(&self, table: &Table) -> Selected {
        let mut fixed = bits::all(table.len());
        for term in &self.fixed {
            let mut hit = vec![0; fixed.len()];
            table.select(&term.name, &mut hit, |v| term.holds(Role::Then, v, &nothing));
            bits::intersect(&mut fixed, &hit);
        }
        let dynamic = self.dynamic.iter().map(|d| d.select(table, fixed.len())).collect();
        Selected { fixed, dynamic }
    }
}

impl Dynamic {
    fn compile(term: Term, attributes: &mut Attributes) -> Self {
        let must_hit = !term.matches.is_empty();
        let mut split = |values: Vec<Value>| {
            let mut slots = Vec::new();
            let mut rest = Vec::new();
            for value in values {
                match value {
                    Value::Parameter(name) => slots.push(attributes.slot(&consumer(&name))),
                    other => rest.push(other),
                }
            }
            (slots, rest)
        };
        let (matches, rest_matches) = split(term.matches);
        let (mismatches, rest_mismatches) = split(term.mismatches);
        let name = term.name;
        let rest = Term {
            key: term.key,
            name: name.clone(),
            matches: rest_matches,
            mismatches: rest_mismatches,
        };
        Self { name, rest, matches, mismatches, must_hit }
    }

    fn select(&self, table: &Table, words: usize) -> SelectedDynamic {
        let column = table.column(&self.name);
        let mut selected = SelectedDynamic { column, open: vec![0; words], hit: vec![0; words] };
        let any = |values: &[Value], value: &[u8]| {
            values.iter().any(|v| v.matches(Role::Then, value, &nothing))
        };
        table.select(&self.name, &mut selected.open, |v| !any(&self.rest.mismatches, v));
        table.select(&self.name, &mut selected.hit, |v| any(&self.rest.matches, v));
        selected
    }
}

fn nothing<'a>(_: &str) -> Option<&'a [u8]> {
    None
}

/// The attribute of a caller's parameter.
fn consumer(name: &str) -> String {
    format!("consumer[{name}]")
}

fn asked(terms: Vec<Term>, attributes: &mut Attributes) -> Vec<Asked> {
    terms
        .into_iter()
        .map(|term| {
            let slot = match &term.key {
                Key::Method => Some(attributes.slot("method")),
                Key::Argument(n) => Some(attributes.slot(&format!("arguments[{n}]"))),
                Key::Attachment(name) => Some(attributes.slot(&format!("attachments[{name}]"))),
                Key::Param(name) => Some(attributes.slot(&consumer(name))),
                Key::Never => None,
            };
            let parameters = term
                .matches
                .iter()
                .chain(&term.mismatches)
                .filter_map(|value| match value {
                    Value::Parameter(name) => {
                        Some((name.clone(), attributes.slot(&consumer(name))))
                    }
                    _ => None,
                })
                .collect();
            Asked { term, slot, parameters }
        })
        .collect()
}

fn refuse(field: String, error: &SyntaxError) -> CommitError {
    CommitError::new(Code::ConditionSyntax.as_str(), field, error.to_string())
}
