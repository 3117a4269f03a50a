//! A document as a tree that remembers where everything stands.

use serde_json::Value;

use super::{MAX_DEPTH, MAX_DOCUMENT, MAX_NODES, Problem, shorten};
use crate::code::Code;

/// A file's text and where its lines begin.
pub(super) struct Source {
    pub(super) text: String,
    lines: Vec<usize>,
}

impl Source {
    pub(super) fn new(text: String) -> Self {
        let lines =
            std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, lines }
    }

    /// Line and column of a byte offset, both from 1; the column in characters.
    pub(super) fn position(&self, offset: usize) -> (u32, u32) {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        let before = self.text.get(start..offset.min(self.text.len())).unwrap_or_default();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        (number(line), number(before.chars().count() + 1))
    }

    pub(super) fn problem(
        &self,
        code: Code,
        offset: usize,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Problem {
        let (line, column) = self.position(offset);
        Problem {
            code,
            line,
            column,
            field: String::new(),
            value: None,
            message: message.into(),
            hint: hint.into(),
            resource: String::new(),
        }
    }
}

/// What a reader makes of a file.
#[derive(Default)]
pub(super) struct Read {
    pub(super) documents: Vec<Document>,
    pub(super) syntax: Option<Problem>,
}

/// A document that can be looked at, and what is wrong with it as a tree.
pub(super) struct Document {
    pub(super) root: Node,
    pub(super) problems: Vec<Problem>,
}

/// How a text is written, as far as positions inside it depend on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Single,
    /// With escapes as in YAML, of which JSON's are some.
    Double,
    Literal,
    /// Inner positions cannot be told.
    Opaque,
}

#[derive(Clone)]
pub(super) struct Node {
    /// Byte offsets.
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) style: Style,
    /// Levels below, 0 for a scalar.
    pub(super) height: usize,
    /// Values in it, itself counted.
    pub(super) count: usize,
    pub(super) kind: NodeKind,
}

#[derive(Clone)]
pub(super) enum NodeKind {
    /// Never an array or object.
    Scalar(Value),
    Seq(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_start: usize,
    pub(super) value: Node,
}

/// Where a path leads.
pub(super) struct Located<'a> {
    /// The last node on the way that there is.
    pub(super) node: &'a Node,
    /// Where the key that leads to it begins.
    pub(super) key_start: usize,
    /// It is the one that the path names.
    pub(super) exact: bool,
}

impl Node {
    pub(super) fn scalar(start: usize, end: usize, style: Style, value: Value) -> Self {
        Self { start, end, style, height: 0, count: 1, kind: NodeKind::Scalar(value) }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self.kind, NodeKind::Scalar(Value::Null))
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        match &self.kind {
            NodeKind::Map(entries) => entries.iter().find(|e| e.key == key).map(|e| &e.value),
            _ => None,
        }
    }

    /// For a message.
    pub(super) fn shown(&self) -> String {
        match &self.kind {
            NodeKind::Scalar(Value::String(text)) => shorten(text),
            NodeKind::Scalar(value) => value.to_string(),
            NodeKind::Seq(_) => "a list".into(),
            NodeKind::Map(_) => "a map".into(),
        }
    }

    /// Depth is bounded by [`MAX_DEPTH`], so recursion is.
    pub(super) fn to_value(&self) -> Value {
        match &self.kind {
            NodeKind::Scalar(value) => value.clone(),
            NodeKind::Seq(items) => Value::Array(items.iter().map(Node::to_value).collect()),
            NodeKind::Map(entries) => {
                Value::Object(entries.iter().map(|e| (e.key.clone(), e.value.to_value())).collect())
            }
        }
    }

    /// Follows a path such as `spec.conditions[0]`. A key with dots in it is
    /// found too, as the longest that fits.
    pub(super) fn locate(&self, path: &str) -> Located<'_> {
        let mut at = Located { node: self, key_start: self.start, exact: true };
        let mut rest = path;
        loop {
            rest = rest.strip_prefix('.').unwrap_or(rest);
            if rest.is_empty() {
                return at;
            }
            let step = match &at.node.kind {
                NodeKind::Map(entries) => entries
                    .iter()
                    .filter_map(|entry| {
                        let after = rest.strip_prefix(entry.key.as_str())?;
                        let whole = after.is_empty() || after.starts_with(['.', '[']);
                        (whole && !entry.key.is_empty()).then_some((entry, after))
                    })
                    .max_by_key(|(entry, _)| entry.key.len())
                    .map(|(entry, after)| (&entry.value, entry.key_start, after)),
                NodeKind::Seq(items) => rest.strip_prefix('[').and_then(|rest| {
                    let (index, after) = rest.split_once(']')?;
                    let item = items.get(index.parse::<usize>().ok()?)?;
                    Some((item, item.start, after))
                }),
                NodeKind::Scalar(_) => None,
            };
            match step {
                Some((node, key_start, after)) => {
                    at = Located { node, key_start, exact: true };
                    rest = after;
                }
                None => {
                    at.exact = false;
                    return at;
                }
            }
        }
    }

    /// Where in the file a byte of this text stands; its beginning where that
    /// cannot be told.
    pub(super) fn offset_in(&self, source: &Source, offset: usize) -> usize {
        let Some(text) = self.as_str() else { return self.start };
        // An offset inside a character counts as at it.
        let wanted = text.char_indices().take_while(|(at, _)| *at < offset).count();
        let Some(written) = source.text.get(self.start..self.end) else { return self.start };
        let found =
            match self.style {
                Style::Opaque => None,
                Style::Plain if written.contains('\n') => None,
                Style::Plain => nth(written, wanted),
                Style::Single => quoted(written, wanted, |rest| {
                    if rest.starts_with("''") { 2 } else { first_len(rest) }
                }),
                Style::Double => quoted(written, wanted, |rest| match rest.strip_prefix('\\') {
                    None => first_len(rest),
                    Some(escaped) => match escaped.chars().next() {
                        Some('x') => 4,
                        Some('u') => surrogate_pair(rest).unwrap_or(6),
                        Some('U') => 10,
                        Some(c) => 1 + c.len_utf8(),
                        None => 1,
                    },
                }),
                Style::Literal => {
                    let (_, column) = source.position(self.start);
                    literal(written, column as usize - 1, text, wanted)
                }
            };
        found.map_or(self.start, |at| self.start + at)
    }
}

fn first_len(text: &str) -> usize {
    text.chars().next().map_or(1, char::len_utf8)
}

/// 12 where two escapes stand for one character.
fn surrogate_pair(text: &str) -> Option<usize> {
    let unit = |at: usize| u16::from_str_radix(text.get(at..at + 4)?, 16).ok();
    let high = unit(2).filter(|u| (0xd800..0xdc00).contains(u));
    let low = text.get(6..8).filter(|t| *t == "\\u").and_then(|_| unit(8));
    (high.is_some() && low.is_some_and(|u| (0xdc00..0xe000).contains(&u))).then_some(12)
}

fn nth(text: &str, count: usize) -> Option<usize> {
    text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(count)
}

/// The offset of a character in a text in quotes, where it stands on one line.
fn quoted(written: &str, wanted: usize, len: impl Fn(&str) -> usize) -> Option<usize> {
    if written.contains('\n') {
        return None;
    }
    let mut at = 1;
    for _ in 0..wanted {
        let rest = written.get(at..)?;
        if rest.is_empty() {
            break;
        }
        at += len(rest);
    }
    written.is_char_boundary(at).then_some(at)
}

/// The offset of a character in a block whose lines stand as they are, each after
/// the indentation that the first one has.
fn literal(written: &str, indent: usize, text: &str, wanted: usize) -> Option<usize> {
    let before: String = text.chars().take(wanted).collect();
    let (line, column) = match before.rsplit_once('\n') {
        None => (0, before.chars().count()),
        Some((lines, last)) => (lines.matches('\n').count() + 1, last.chars().count()),
    };
    let start = match line.checked_sub(1) {
        None => 0,
        Some(breaks) => written.match_indices('\n').nth(breaks)?.0 + 1 + indent,
    };
    let at = start + nth(written.get(start..)?, column)?;
    // Blank lines at the beginning may stand otherwise: then nothing is said.
    let same = written.get(at..)?.chars().next() == text.chars().nth(wanted);
    same.then_some(at)
}

/// What a document may still hold.
pub(super) struct Budget {
    nodes: usize,
    bytes: usize,
}

impl Budget {
    pub(super) fn new() -> Self {
        // An alias repeats text too: four times a document at most.
        Self { nodes: MAX_NODES, bytes: 4 * MAX_DOCUMENT }
    }

    /// Counts values and bytes; false when there are too many.
    pub(super) fn take(&mut self, nodes: usize, bytes: usize) -> bool {
        match (self.nodes.checked_sub(nodes), self.bytes.checked_sub(bytes)) {
            (Some(nodes), Some(bytes)) => {
                *self = Self { nodes, bytes };
                true
            }
            _ => {
                *self = Self { nodes: 0, bytes: 0 };
                false
            }
        }
    }
}

/// The problem of a document above a limit.
pub(super) fn too_large(source: &Source, offset: usize, what: TooLarge) -> Problem {
    let (message, hint) = match what {
        TooLarge::Bytes => (
            "the document is too large",
            format!("split it into documents of at most {MAX_DOCUMENT} bytes"),
        ),
        TooLarge::Nodes => (
            "the document has too many values",
            format!("write at most {MAX_NODES}, those that aliases repeat counted each time"),
        ),
        TooLarge::Depth => {
            ("lists and maps are nested too deep", format!("nest at most {MAX_DEPTH} deep"))
        }
    };
    source.problem(Code::ManifestTooLarge, offset, message, hint)
}

/// Which limit.
#[derive(Clone, Copy)]
pub(super) enum TooLarge {
    Bytes,
    Nodes,
    Depth,
}

/// The problem of a key that a map has twice.
pub(super) fn duplicate(source: &Source, key: &str, first: usize, second: usize) -> Problem {
    let (line, _) = source.position(first);
    source.problem(
        Code::ManifestSyntax,
        second,
        format!("\"{}\" is written twice, first in line {line}", shorten(key)),
        "keep one of them",
    )
}
