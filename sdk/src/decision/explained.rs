//! Why a server decides as it does.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use rulecast_policy::outcome::{self, tag};

use super::{
    DecisionFault,
    local::{Asked, Ran, Workers},
    request::Call,
    rule_set::{Entry, RuleSet},
    worker::{Evaluated, Sink},
};

/// Most lines of an explanation.
const MAX_LINES: usize = 10_000;

/// A decision with its reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained<T> {
    /// What is decided.
    pub decision: T,
    /// Why, line by line, for people.
    pub text: String,
}

impl<T: fmt::Display> Explained<T> {
    /// Of what no rule was asked for.
    pub(crate) fn bare(decision: T) -> Self {
        let text = format!("{decision}\n");
        Self { decision, text }
    }
}

/// What the policy of a kind says of its rules.
pub(super) struct Lines {
    slot: usize,
    /// With the rule's index.
    list: Vec<(u32, String)>,
}

impl Lines {
    pub(super) fn new(slot: usize) -> Self {
        Self { slot, list: Vec::new() }
    }

    /// The decision, then what was said of each rule, then what went wrong.
    pub(super) fn explain<T: fmt::Display>(
        self,
        rules: &RuleSet,
        decision: T,
        faults: impl FnOnce(&T) -> &[DecisionFault],
    ) -> Explained<T> {
        let mut text = format!("{decision}\n");
        let mut write = |line: fmt::Arguments<'_>| {
            let _ = text.write_fmt(format_args!("{line}\n"));
        };
        let mut of = None;
        for (index, line) in &self.list {
            if of.replace(index) != Some(index)
                && let Some(entry) = rules.kind(self.slot).entry(*index)
            {
                let shadow = if entry.shadow { " (shadow)" } else { "" };
                write(format_args!("rule {}{shadow}", entry.key));
            }
            write(format_args!("  {line}"));
        }
        faults(&decision).iter().for_each(|fault| write(format_args!("{fault}")));
        Explained { decision, text }
    }
}

/// Evaluates; with `lines` keeps what the policy says.
pub(super) fn run<C: Call, S: Sink>(
    asked: &Asked<'_, C>,
    workers: &mut Workers,
    sink: &mut S,
    faults: &mut Vec<DecisionFault>,
    lines: Option<&mut Lines>,
) -> Ran {
    match lines {
        None => asked.run(workers, sink, faults),
        Some(lines) => asked.run(workers, &mut Hearing { sink, lines }, faults),
    }
}

/// Keeps lines on their way.
struct Hearing<'a, S> {
    sink: &'a mut S,
    lines: &'a mut Lines,
}

impl<S: Sink> Sink for Hearing<'_, S> {
    fn begin(&mut self) {
        self.lines.list.clear();
        self.sink.begin();
    }

    fn effect(
        &mut self,
        effect: outcome::Effect<'_>,
        rule: Option<(u32, &Entry, &Arc<str>)>,
    ) -> Result<(), &'static str> {
        if effect.tag == tag::TEXT
            && let Some((index, ..)) = rule
            && self.lines.list.len() < MAX_LINES
        {
            let line = String::from_utf8_lossy(effect.bytes).replace(char::is_control, " ");
            self.lines.list.push((index, line));
        }
        self.sink.effect(effect, rule)
    }

    fn rule(&mut self, rule: Evaluated<'_>) -> Result<(), &'static str> {
        self.sink.rule(rule)
    }
}
