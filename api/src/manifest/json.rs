//! Reads JSON: any number of values, one after the other.

use std::collections::HashMap;

use serde_json::Value;

use super::{
    MAX_DEPTH, MAX_DOCUMENT,
    tree::{
        Budget, Document, Entry, Node, NodeKind, Read, Source, Style, TooLarge, duplicate,
        too_large,
    },
};
use crate::{code::Code, manifest::Problem};

pub(super) fn read(source: &Source) -> Read {
    let mut read = Read::default();
    let mut parser = Parser { source, at: 0, budget: Budget::new(), problems: Vec::new() };
    loop {
        parser.blank();
        if parser.at >= source.text.len() {
            return read;
        }
        parser.budget = Budget::new();
        match parser.value(0) {
            Ok(root) => {
                let mut problems = std::mem::take(&mut parser.problems);
                if root.end - root.start > MAX_DOCUMENT {
                    problems.push(too_large(source, root.start, TooLarge::Bytes));
                }
                read.documents.push(Document { root, problems });
            }
            Err(problem) => {
                read.syntax = Some(*problem);
                return read;
            }
        }
    }
}

struct Parser<'a> {
    source: &'a Source,
    at: usize,
    budget: Budget,
    problems: Vec<Problem>,
}

type Outcome<T> = Result<T, Box<Problem>>;

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.source.text.as_bytes().get(self.at).copied()
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn fail<T>(&self, at: usize, message: &str, hint: &str) -> Outcome<T> {
        Err(Box::new(self.source.problem(Code::ManifestSyntax, at, message, hint)))
    }

    fn take(&mut self, start: usize, bytes: usize) -> Outcome<()> {
        if self.budget.take(1, bytes) {
            Ok(())
        } else {
            Err(Box::new(too_large(self.source, start, TooLarge::Nodes)))
        }
    }

    fn value(&mut self, depth: usize) -> Outcome<Node> {
        let start = self.at;
        if depth > MAX_DEPTH {
            return Err(Box::new(too_large(self.source, start, TooLarge::Depth)));
        }
        self.take(start, 0)?;
        match self.peek() {
            Some(b'{') => self.map(depth),
            Some(b'[') => self.seq(depth),
            Some(b'"') => {
                let text = self.string()?;
                Ok(Node::scalar(start, self.at, Style::Double, Value::String(text)))
            }
            Some(_) => {
                let rest = self.source.text.get(start..).unwrap_or_default();
                let len = rest
                    .find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '+' | '-' | '.'))
                    .unwrap_or(rest.len());
                let word = rest.get(..len).unwrap_or_default();
                match serde_json::from_str::<Value>(word) {
                    Ok(value) => {
                        self.at += len;
                        Ok(Node::scalar(start, self.at, Style::Plain, value))
                    }
                    Err(_) => self.fail(
                        start,
                        "not a JSON value",
                        "write a map, a list, a text in double quotes, a number, true, false or null",
                    ),
                }
            }
            None => self.fail(start, "the file ends in the middle of a value", "complete it"),
        }
    }

    fn map(&mut self, depth: usize) -> Outcome<Node> {
        let start = self.at;
        self.at += 1;
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen: HashMap<String, usize> = HashMap::new();
        let (mut height, mut count) = (0, 1);
        self.blank();
        if self.peek() == Some(b'}') {
            self.at += 1;
        } else {
            loop {
                self.blank();
                let key_start = self.at;
                if self.peek() != Some(b'"') {
                    return self.fail(key_start, "no key here", "write a key in double quotes");
                }
                let key = self.string()?;
                self.blank();
                if self.peek() != Some(b':') {
                    return self.fail(self.at, "no ':' after the key", "write one");
                }
                self.at += 1;
                self.blank();
                let value = self.value(depth + 1)?;
                match seen.get(&key) {
                    Some(first) => {
                        self.problems.push(duplicate(self.source, &key, *first, key_start));
                    }
                    None => {
                        seen.insert(key.clone(), key_start);
                        height = height.max(value.height + 1);
                        count += value.count;
                        entries.push(Entry { key, key_start, value });
                    }
                }
                if self.more(b'}')? {
                    break;
                }
            }
        }
        let kind = NodeKind::Map(entries);
        Ok(Node { start, end: self.at, style: Style::Opaque, height, count, kind })
    }

    fn seq(&mut self, depth: usize) -> Outcome<Node> {
        let start = self.at;
        self.at += 1;
        let mut items = Vec::new();
        let (mut height, mut count) = (0, 1);
        self.blank();
        if self.peek() == Some(b']') {
            self.at += 1;
        } else {
            loop {
                self.blank();
                let item = self.value(depth + 1)?;
                height = height.max(item.height + 1);
                count += item.count;
                items.push(item);
                if self.more(b']')? {
                    break;
                }
            }
        }
        let kind = NodeKind::Seq(items);
        Ok(Node { start, end: self.at, style: Style::Opaque, height, count, kind })
    }

    /// Takes a comma or the end; true at the end.
    fn more(&mut self, end: u8) -> Outcome<bool> {
        self.blank();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(false)
            }
            Some(byte) if byte == end => {
                self.at += 1;
                Ok(true)
            }
            _ => {
                let hint = format!("write ',' or '{}'", char::from(end));
                self.fail(self.at, "the value before is not followed by ',' or its end", &hint)
            }
        }
    }

    fn string(&mut self) -> Outcome<String> {
        let start = self.at;
        let bytes = self.source.text.as_bytes();
        let mut at = start + 1;
        loop {
            match bytes.get(at) {
                Some(b'"') => break,
                Some(b'\\') => at += 2,
                Some(0x20..) => at += 1,
                Some(_) => return self.fail(at, "a control character in a text", "escape it"),
                None => return self.fail(start, "the text has no end", "close it with '\"'"),
            }
        }
        let written = self.source.text.get(start..=at).unwrap_or_default();
        match serde_json::from_str::<String>(written) {
            Ok(text) => {
                self.at = at + 1;
                self.take(start, text.len())?;
                Ok(text)
            }
            Err(_) => {
                self.fail(start, "an escape in the text is wrong", "write \\\\ for a backslash")
            }
        }
    }
}
