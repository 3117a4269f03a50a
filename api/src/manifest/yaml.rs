//! Reads YAML 1.2: documents of core schema values, with anchors and aliases.

use std::{
    borrow::Cow,
    collections::{HashMap, hash_map},
};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};
use serde_json::{Number, Value};

use super::{
    MAX_DEPTH, MAX_DOCUMENT, Problem, shorten,
    tree::{
        Budget, Document, Entry, Node, NodeKind, Read, Source, Style, TooLarge, duplicate,
        too_large,
    },
};
use crate::code::Code;

pub(super) fn read(source: &Source) -> Read {
    let mut builder = Builder::new(source);
    for event in Parser::new_from_str(&source.text) {
        match event {
            Ok((event, span)) => builder.event(event, span),
            Err(error) => {
                let at = builder.offset(error.marker());
                builder.read.syntax = Some(source.problem(
                    Code::ManifestSyntax,
                    at,
                    format!("not YAML: {}", error.info()),
                    "look at indentation, quotes and colons here and in the line before",
                ));
                break;
            }
        }
    }
    builder.read
}

/// A list or map under construction.
struct Open {
    start: usize,
    anchor: usize,
    height: usize,
    count: usize,
    kind: OpenKind,
}

enum OpenKind {
    Seq(Vec<Node>),
    Map { entries: Vec<Entry>, seen: HashMap<String, usize>, key: Option<Key> },
}

struct Key {
    text: String,
    start: usize,
    /// Of no use; its value is read over.
    dropped: bool,
}

struct Builder<'a> {
    source: &'a Source,
    /// Byte offsets of characters; none where all are one byte long.
    bytes: Option<Vec<u32>>,
    read: Read,
    start: usize,
    stack: Vec<Open>,
    anchors: HashMap<usize, Node>,
    budget: Budget,
    problems: Vec<Problem>,
    root: Option<Node>,
    /// Over a limit: the rest of the document is read over.
    overflow: bool,
}

impl<'a> Builder<'a> {
    fn new(source: &'a Source) -> Self {
        let bytes = (!source.text.is_ascii()).then(|| {
            let number = |n| u32::try_from(n).unwrap_or(u32::MAX);
            source.text.char_indices().map(|(at, _)| number(at)).collect()
        });
        Self {
            source,
            bytes,
            read: Read::default(),
            start: 0,
            stack: Vec::new(),
            anchors: HashMap::new(),
            budget: Budget::new(),
            problems: Vec::new(),
            root: None,
            overflow: false,
        }
    }

    fn offset(&self, marker: &Marker) -> usize {
        let end = self.source.text.len();
        match &self.bytes {
            None => marker.index().min(end),
            Some(bytes) => bytes.get(marker.index()).map_or(end, |at| *at as usize),
        }
    }

    fn event(&mut self, event: Event<'_>, span: Span) {
        let (start, end) = (self.offset(&span.start), self.offset(&span.end));
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd => {}
            Event::DocumentStart(_) => {
                self.start = start;
                self.stack.clear();
                self.anchors.clear();
                self.budget = Budget::new();
                self.problems.clear();
                self.root = None;
                self.overflow = false;
            }
            Event::DocumentEnd => self.finish(start),
            _ if self.overflow => {}
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(node) => {
                    let node = node.clone();
                    let bytes = text_bytes(&node);
                    self.add(node, bytes, start, 0);
                }
                None => {
                    self.problems.push(self.source.problem(
                        Code::ManifestSyntax,
                        start,
                        "an alias of what it stands in",
                        "write out what is meant",
                    ));
                    self.add(Node::scalar(start, end, Style::Opaque, Value::Null), 0, start, 0);
                }
            },
            Event::Scalar(text, style, anchor, tag) => {
                let value = self.resolve(&text, style, tag.as_deref(), start);
                let style = match style {
                    ScalarStyle::Plain => Style::Plain,
                    ScalarStyle::SingleQuoted => Style::Single,
                    ScalarStyle::DoubleQuoted => Style::Double,
                    ScalarStyle::Literal => Style::Literal,
                    ScalarStyle::Folded => Style::Opaque,
                };
                let node = Node::scalar(start, end, style, value);
                if self.key_is_next() {
                    self.key(text, start);
                    if anchor > 0 {
                        self.anchors.insert(anchor, node);
                    }
                } else {
                    self.add(node, text.len(), start, anchor);
                }
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_tag(tag, "seq", start);
                self.open(start, anchor, OpenKind::Seq(Vec::new()));
            }
            Event::MappingStart(anchor, tag) => {
                self.check_tag(tag, "map", start);
                let kind = OpenKind::Map { entries: Vec::new(), seen: HashMap::new(), key: None };
                self.open(start, anchor, kind);
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(end),
        }
    }

    fn key_is_next(&self) -> bool {
        matches!(self.stack.last(), Some(Open { kind: OpenKind::Map { key: None, .. }, .. }))
    }

    fn overflow(&mut self, at: usize, what: TooLarge) {
        self.problems.push(too_large(self.source, at, what));
        self.overflow = true;
    }

    fn key(&mut self, text: Cow<'_, str>, start: usize) {
        if !self.budget.take(1, text.len()) {
            return self.overflow(start, TooLarge::Nodes);
        }
        let Some(Open { kind: OpenKind::Map { seen, key, .. }, .. }) = self.stack.last_mut() else {
            return;
        };
        let text = text.into_owned();
        let mut dropped = false;
        match seen.entry(text.clone()) {
            hash_map::Entry::Vacant(entry) => {
                entry.insert(start);
            }
            hash_map::Entry::Occupied(entry) => {
                self.problems.push(duplicate(self.source, &text, *entry.get(), start));
                dropped = true;
            }
        }
        *key = Some(Key { text, start, dropped });
    }

    fn open(&mut self, start: usize, anchor: usize, kind: OpenKind) {
        if self.stack.len() >= MAX_DEPTH {
            return self.overflow(start, TooLarge::Depth);
        }
        self.stack.push(Open { start, anchor, height: 0, count: 1, kind });
    }

    fn close(&mut self, end: usize) {
        let Some(open) = self.stack.pop() else { return };
        let Open { start, anchor, height, count, kind } = open;
        let kind = match kind {
            OpenKind::Seq(items) => NodeKind::Seq(items),
            OpenKind::Map { entries, .. } => NodeKind::Map(entries),
        };
        let node = Node { start, end, style: Style::Opaque, height, count, kind };
        // Its parts have been counted.
        self.place(node, anchor, 1, 0);
    }

    fn add(&mut self, node: Node, bytes: usize, at: usize, anchor: usize) {
        if self.stack.len() + node.height > MAX_DEPTH {
            return self.overflow(at, TooLarge::Depth);
        }
        let count = node.count;
        self.place(node, anchor, count, bytes);
    }

    fn place(&mut self, node: Node, anchor: usize, nodes: usize, bytes: usize) {
        if !self.budget.take(nodes, bytes) {
            return self.overflow(node.start, TooLarge::Nodes);
        }
        if anchor > 0 {
            // Kept beside the document, so it counts again.
            if !self.budget.take(node.count, text_bytes(&node)) {
                return self.overflow(node.start, TooLarge::Nodes);
            }
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.stack.last_mut() else {
            self.root.get_or_insert(node);
            return;
        };
        let (height, count) = (node.height + 1, node.count);
        match &mut open.kind {
            OpenKind::Seq(items) => items.push(node),
            OpenKind::Map { entries, key, .. } => match key.take() {
                Some(Key { text, start, dropped: false }) => {
                    entries.push(Entry { key: text, key_start: start, value: node });
                }
                Some(_) => return,
                None => {
                    self.problems.push(self.source.problem(
                        Code::ManifestSyntax,
                        node.start,
                        "a key that is no text",
                        "write a text before the ':'; one that begins with '{' or '[' in quotes",
                    ));
                    *key = Some(Key { text: String::new(), start: node.start, dropped: true });
                    return;
                }
            },
        }
        open.height = open.height.max(height);
        open.count += count;
    }

    fn finish(&mut self, end: usize) {
        if !self.overflow && end.saturating_sub(self.start) > MAX_DOCUMENT {
            self.overflow(self.start, TooLarge::Bytes);
        }
        let mut problems = std::mem::take(&mut self.problems);
        let root = match self.root.take() {
            Some(root) => root,
            None => {
                // Only a document over a limit has no root; its start says where it is.
                if problems.is_empty() {
                    return;
                }
                problems.truncate(100);
                Node::scalar(self.start, self.start, Style::Opaque, Value::Null)
            }
        };
        problems.truncate(100);
        self.read.documents.push(Document { root, problems });
    }

    fn check_tag(&mut self, tag: Option<Cow<'_, Tag>>, own: &str, at: usize) {
        if let Some(tag) = tag
            && !(tag.is_yaml_core_schema() && tag.suffix == own)
        {
            self.bad_tag(&tag, at);
        }
    }

    fn bad_tag(&mut self, tag: &Tag, at: usize) {
        self.problems.push(self.source.problem(
            Code::ManifestSyntax,
            at,
            format!("the tag {}{} means nothing here", shorten(&tag.handle), shorten(&tag.suffix)),
            "remove it",
        ));
    }

    fn resolve(&mut self, text: &str, style: ScalarStyle, tag: Option<&Tag>, at: usize) -> Value {
        let plain = style == ScalarStyle::Plain;
        let Some(tag) = tag else {
            return if plain { core_schema(text) } else { Value::String(text.to_owned()) };
        };
        let value = match (tag.is_yaml_core_schema(), tag.suffix.as_str()) {
            (true, "str") => return Value::String(text.to_owned()),
            (true, "int" | "float" | "bool" | "null") => core_schema(text),
            _ => {
                self.bad_tag(tag, at);
                return Value::Null;
            }
        };
        let fits = match tag.suffix.as_str() {
            "int" => value.is_i64() || value.is_u64(),
            "float" => value.is_number(),
            "bool" => value.is_boolean(),
            _ => value.is_null(),
        };
        if !fits {
            self.problems.push(self.source.problem(
                Code::ManifestSyntax,
                at,
                format!("\"{}\" is no {}", shorten(text), tag.suffix),
                "remove the tag, or write a value that fits it",
            ));
        }
        value
    }
}

/// Bytes of all texts in a node. Depth is bounded.
fn text_bytes(node: &Node) -> usize {
    match &node.kind {
        NodeKind::Scalar(Value::String(text)) => text.len(),
        NodeKind::Scalar(_) => 8,
        NodeKind::Seq(items) => items.iter().map(text_bytes).sum(),
        NodeKind::Map(entries) => entries.iter().map(|e| e.key.len() + text_bytes(&e.value)).sum(),
    }
}

/// The value of a plain scalar by the core schema of YAML 1.2: `yes` is a text.
/// Infinity and not-a-number stay texts, since JSON has neither.
pub(super) fn core_schema(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

fn number(text: &str) -> Option<Number> {
    if let Some(digits) = text.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return radix(digits, 8);
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    if unsigned.is_empty() {
        return None;
    }
    if digits(unsigned) {
        let text = text.strip_prefix('+').unwrap_or(text);
        return text
            .parse::<i64>()
            .map(Number::from)
            .or_else(|_| text.parse::<u64>().map(Number::from))
            .ok()
            .or_else(|| Number::from_f64(text.parse().ok()?));
    }
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    if let Some(exponent) = exponent {
        let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        if exponent.is_empty() || !digits(exponent) {
            return None;
        }
    }
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if (whole.is_empty() && fraction.is_empty()) || !digits(whole) || !digits(fraction) {
        return None;
    }
    Number::from_f64(text.parse().ok()?)
}

fn radix(digits: &str, radix: u32) -> Option<Number> {
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok().map(Number::from)
}
