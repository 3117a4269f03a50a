//! Manifests: rules as people write them, in YAML or JSON.
//!
//! [`parse`] reads a whole file and gives each document its own outcome, so that
//! one bad document costs no other. Every [`Problem`] says where it is.

mod json;
mod tree;
mod write;
mod yaml;

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

use crate::{
    code::Code,
    kind::{FieldError, Kind, Kinds},
    resource::{ENFORCEMENT, Resource, ResourceId},
};
use tree::{Node, NodeKind, Source};

pub use write::{to_json, to_yaml};

/// Largest file that is read, in bytes.
pub const MAX_FILE: usize = 4 << 20;
/// Largest document, in bytes.
pub const MAX_DOCUMENT: usize = 1 << 20;
/// Deepest nesting of lists and maps in a document.
pub const MAX_DEPTH: usize = 64;
/// Most values in a document, those that aliases repeat counted each time.
pub const MAX_NODES: usize = 100_000;

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML, or JSON where the text is that.
    Yaml,
    /// JSON: one value after the other.
    Json,
}

impl Format {
    /// By a file's name, in capitals or not; `None` for a file that is no manifest.
    pub fn of(file_name: &str) -> Option<Self> {
        let (stem, extension) = file_name.rsplit_once('.')?;
        let is = |other: &str| extension.eq_ignore_ascii_case(other);
        if stem.is_empty() {
            None
        } else if is("yaml") || is("yml") {
            Some(Self::Yaml)
        } else if is("json") {
            Some(Self::Json)
        } else {
            None
        }
    }
}

/// What is wrong with a document, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// For `docs/errors.md`.
    pub code: Code,
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
    /// Path of the field, `spec.conditions[0]`; may be empty.
    pub field: String,
    /// The value at fault, shortened.
    pub value: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: String,
    /// `<Kind> <name>/<namespace>` where it is known, else empty.
    pub resource: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.code)?;
        if !self.field.is_empty() {
            write!(f, " {}", self.field)?;
        }
        if let Some(value) = &self.value {
            write!(f, " = {value:?}")?;
        }
        write!(f, ": {}", self.message)?;
        if !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

/// One resource of a file, or why there is none.
#[derive(Debug)]
pub struct Document {
    /// Which of the file's resources, from 0; empty documents do not count.
    pub index: usize,
    /// Where it begins, from 1.
    pub line: u32,
    /// What it is called, where that much can be read; also when the rest is bad.
    pub id: Option<ResourceId>,
    /// The resource.
    pub outcome: Result<Resource, Vec<Problem>>,
}

/// A file as read.
#[derive(Debug, Default)]
pub struct Manifest {
    /// In the order of the file.
    pub documents: Vec<Document>,
    /// What ended the reading before the end of the file.
    pub syntax: Option<Problem>,
}

impl Manifest {
    /// All problems, in the order of the file.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.documents
            .iter()
            .filter_map(|d| d.outcome.as_ref().err())
            .flatten()
            .chain(self.syntax.as_ref())
    }
}

/// Reads a file. `kinds` are those that may occur. Never panics; takes time and
/// memory in proportion to the limits of this module.
pub fn parse(kinds: Kinds, source: &[u8], format: Format) -> Manifest {
    let text = match decode(source) {
        Ok(text) => text,
        Err(problem) => return Manifest { documents: Vec::new(), syntax: Some(*problem) },
    };
    let source = Source::new(text);
    let looks_like_json = source.text.trim_start().starts_with(['{', '[']);
    let read = match format {
        Format::Json => json::read(&source),
        // JSON has things that YAML has not: tabs between values, surrogate pairs.
        Format::Yaml if looks_like_json => {
            let read = json::read(&source);
            if read.syntax.is_none() { read } else { yaml::read(&source) }
        }
        Format::Yaml => yaml::read(&source),
    };

    let mut documents = Vec::new();
    for document in read.documents {
        Reader { kinds, source: &source, documents: &mut documents }.document(document);
    }
    Manifest { documents, syntax: read.syntax }
}

/// Text of a file: UTF-8, one kind of line end, no byte order mark.
fn decode(bytes: &[u8]) -> Result<String, Box<Problem>> {
    let problem = |code, before: &[u8], message: &str, hint: &str| {
        let line = before.split(|b| *b == b'\n').count();
        let column = before
            .rsplit(|b| *b == b'\n')
            .next()
            .map_or(0, |last| String::from_utf8_lossy(last).chars().count());
        Box::new(Problem {
            code,
            line: u32::try_from(line).unwrap_or(u32::MAX),
            column: u32::try_from(column + 1).unwrap_or(u32::MAX),
            field: String::new(),
            value: None,
            message: message.into(),
            hint: hint.into(),
            resource: String::new(),
        })
    };
    if bytes.len() > MAX_FILE {
        return Err(problem(
            Code::ManifestTooLarge,
            &[],
            &format!("the file has more than {MAX_FILE} bytes"),
            "split it into several files",
        ));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(problem(Code::ManifestSyntax, &[], "the file is UTF-16", "save it as UTF-8"));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
        problem(Code::ManifestSyntax, before, "a byte that is not UTF-8", "save it as UTF-8")
    })?;
    // A YAML reader takes NUL for the end and would drop what follows.
    if let Some(at) = text.find('\0') {
        let before = bytes.get(..at).unwrap_or_default();
        return Err(problem(Code::ManifestSyntax, before, "a NUL character", "remove it"));
    }
    Ok(if text.contains('\r') {
        text.replace("\r\n", "\n").replace('\r', "\n")
    } else {
        text.to_owned()
    })
}

struct Reader<'a> {
    kinds: Kinds,
    source: &'a Source,
    documents: &'a mut Vec<Document>,
}

/// Fields of a resource's root.
const ROOT_FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
/// Fields of `metadata` that mean something here.
const METADATA_FIELDS: [&str; 4] = ["name", "namespace", "labels", "annotations"];
/// Fields of `metadata` that Kubernetes writes; read over.
const METADATA_IGNORED: [&str; 11] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "ownerReferences",
    "finalizers",
    "selfLink",
    "generateName",
];

impl Reader<'_> {
    fn document(&mut self, document: tree::Document) {
        let tree::Document { root, problems } = document;
        if problems.is_empty() {
            if root.is_null() {
                return;
            }
            if let Some(items) = list_items(&root) {
                for item in items {
                    self.resource(item, Vec::new());
                }
                return;
            }
        }
        self.resource(&root, problems);
    }

    fn resource(&mut self, root: &Node, problems: Vec<Problem>) {
        let mut envelope = Envelope {
            kinds: self.kinds,
            source: self.source,
            root,
            problems,
            resource: String::new(),
        };
        let (id, resource) = envelope.read();
        let mut problems = envelope.problems;
        if let Some(id) = &id {
            for problem in &mut problems {
                problem.resource = id.to_string();
            }
        }
        let outcome = match resource {
            Some(resource) if problems.is_empty() => Ok(resource),
            _ => Err(problems),
        };
        self.documents.push(Document {
            index: self.documents.len(),
            line: self.source.position(root.start).0,
            id,
            outcome,
        });
    }
}

/// The items of a Kubernetes list.
fn list_items(root: &Node) -> Option<&[Node]> {
    let kind = root.get("kind")?.as_str()?;
    let items = root.get("items")?;
    match &items.kind {
        NodeKind::Seq(items) if kind.ends_with("List") && root.get("spec").is_none() => Some(items),
        _ => None,
    }
}

struct Envelope<'a> {
    kinds: Kinds,
    source: &'a Source,
    root: &'a Node,
    problems: Vec<Problem>,
    resource: String,
}

impl Envelope<'_> {
    fn report(
        &mut self,
        code: Code,
        field: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.report_field(FieldError {
            code,
            path: field.into(),
            offset: None,
            value: None,
            message: message.into(),
            hint: hint.into(),
        });
    }

    fn report_value(
        &mut self,
        code: Code,
        field: &str,
        value: &Node,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.report_field(FieldError {
            code,
            path: field.into(),
            offset: None,
            value: Some(value.shown()),
            message: message.into(),
            hint: hint.into(),
        });
    }

    fn report_field(&mut self, error: FieldError) {
        let at = self.root.locate(&error.path);
        let by_key = !at.exact || matches!(error.code, Code::FieldUnknown | Code::FieldMissing);
        let start = match error.offset {
            _ if by_key => at.key_start,
            Some(offset) => at.node.offset_in(self.source, offset),
            None => at.node.start,
        };
        let (line, column) = self.source.position(start);
        self.problems.push(Problem {
            code: error.code,
            line,
            column,
            field: error.path,
            value: error.value,
            message: error.message,
            hint: error.hint,
            resource: self.resource.clone(),
        });
    }

    fn read(&mut self) -> (Option<ResourceId>, Option<Resource>) {
        let NodeKind::Map(entries) = &self.root.kind else {
            // Where reading has failed before, there may be nothing to look at.
            if self.problems.is_empty() {
                self.report_value(
                    Code::ManifestEnvelope,
                    "",
                    self.root,
                    "a document that is no resource",
                    "write apiVersion, kind, metadata and spec",
                );
            }
            return (None, None);
        };
        for entry in entries {
            if !ROOT_FIELDS.contains(&entry.key.as_str()) {
                self.unknown(&entry.key.clone(), "", &ROOT_FIELDS);
            }
        }
        let kind = self.kind();
        let metadata = self.metadata();
        let id = match (kind, &metadata) {
            (Some(kind), Some(Metadata { name: Some(name), namespace: Some(namespace), .. })) => {
                Some(ResourceId { kind, namespace: namespace.clone(), name: name.clone() })
            }
            _ => None,
        };
        let spec = match (kind, self.root.get("spec")) {
            (_, None) => {
                self.report(
                    Code::FieldMissing,
                    "spec",
                    "there is none",
                    "write what the rule does",
                );
                None
            }
            (None, _) => None,
            (Some(kind), Some(spec)) => match (kind.parse)(spec.to_value()) {
                Ok(spec) => Some(spec),
                Err(errors) => {
                    if errors.is_empty() {
                        self.report(Code::FieldInvalid, "spec", "it is refused", "");
                    }
                    for error in errors {
                        self.report_field(error);
                    }
                    None
                }
            },
        };
        let resource = match (&id, metadata, spec) {
            (Some(id), Some(metadata), Some(spec)) => Some(Resource {
                created: 0,
                id: id.clone(),
                labels: metadata.labels,
                annotations: metadata.annotations,
                spec,
            }),
            _ => None,
        };
        (id, resource)
    }

    fn unknown(&mut self, key: &str, parent: &str, known: &[&str]) {
        let path = if parent.is_empty() { key.to_owned() } else { format!("{parent}.{key}") };
        let hint = match nearest(key, known.iter().copied()) {
            Some(near) => format!("perhaps \"{near}\" is meant"),
            None => format!("there are {}", known.join(", ")),
        };
        self.report(
            Code::FieldUnknown,
            &path,
            format!("there is no field \"{}\"", shorten(key)),
            hint,
        );
    }

    /// A string at a root field; reports what is there instead.
    fn text(&mut self, field: &str, hint: &str) -> Option<String> {
        match self.root.get(field) {
            None => {
                self.report(Code::ManifestEnvelope, field, "there is none", hint);
                None
            }
            Some(node) => match node.as_str() {
                Some(text) => Some(text.to_owned()),
                None => {
                    self.report_value(Code::ManifestEnvelope, field, node, "not a text", hint);
                    None
                }
            },
        }
    }

    fn kind(&mut self) -> Option<Kind> {
        let names: Vec<&str> = self.kinds.iter().map(|k| k.name).collect();
        let hint = format!("write one of {}", names.join(", "));
        let name = self.text("kind", &hint);
        let named =
            name.as_deref().and_then(|name| self.kinds.iter().copied().find(|k| k.name == name));
        let version_hint = match (&name, named) {
            (_, Some(kind)) => format!("write {}", kind.api_version),
            _ => {
                "write the version of the rule's kind, such as dubbo.apache.org/v1alpha1".to_owned()
            }
        };
        let version = self.text("apiVersion", &version_hint);
        let (name, version) = (name?, version?);
        if let Some(kind) =
            self.kinds.iter().copied().find(|k| k.name == name && k.api_version == version)
        {
            return Some(kind);
        }
        if let Some(kind) = named {
            if let Some(node) = self.root.get("apiVersion") {
                self.report_value(
                    Code::ManifestKind,
                    "apiVersion",
                    node,
                    format!("{} has another version", kind.name),
                    version_hint,
                );
            }
            return None;
        }
        let hint = match nearest(&name, names.iter().copied()) {
            Some(near) => format!("perhaps {near} is meant"),
            None => hint,
        };
        if let Some(node) = self.root.get("kind") {
            self.report_value(
                Code::ManifestKind,
                "kind",
                node,
                "this plane knows no such kind",
                hint,
            );
        }
        None
    }

    fn metadata(&mut self) -> Option<Metadata> {
        let Some(node) = self.root.get("metadata") else {
            self.report(
                Code::ManifestEnvelope,
                "metadata",
                "there is none",
                "write metadata with a name",
            );
            return None;
        };
        let NodeKind::Map(entries) = &node.kind else {
            self.report_value(
                Code::ManifestEnvelope,
                "metadata",
                node,
                "not a map",
                "write metadata.name",
            );
            return None;
        };
        for entry in entries {
            let key = entry.key.as_str();
            if !METADATA_FIELDS.contains(&key) && !METADATA_IGNORED.contains(&key) {
                self.unknown(key, "metadata", &METADATA_FIELDS);
            }
        }
        let name = match node.get("name") {
            None => {
                self.report(
                    Code::ManifestEnvelope,
                    "metadata.name",
                    "there is none",
                    "name the rule, unique within its kind and namespace",
                );
                None
            }
            Some(name) => self.name("metadata.name", name),
        };
        let namespace = match node.get("namespace") {
            None => Some("default".to_owned()),
            Some(namespace) => self.name("metadata.namespace", namespace),
        };
        let labels = self.strings("metadata.labels", node.get("labels"));
        let annotations = self.strings("metadata.annotations", node.get("annotations"));
        for (field, map) in [("metadata.annotations", &annotations), ("metadata.labels", &labels)] {
            let value = map.get(ENFORCEMENT).map(String::as_str);
            if let Some(value) = value.filter(|v| !matches!(*v, "shadow" | "enforce")) {
                // Taken for enforcing it would do what nobody wanted yet.
                self.report_field(FieldError {
                    code: Code::FieldInvalid,
                    path: format!("{field}.{ENFORCEMENT}"),
                    offset: None,
                    value: Some(shorten(value)),
                    message: "no such enforcement".into(),
                    hint: "write shadow or enforce".into(),
                });
            }
        }
        Some(Metadata { name, namespace, labels, annotations })
    }

    fn name(&mut self, field: &str, node: &Node) -> Option<String> {
        let hint = "write at most 253 of a-z, 0-9, '-' and '.', \
                    with a letter or digit at both ends";
        let hint = match &node.kind {
            NodeKind::Scalar(Value::String(_)) => hint.to_owned(),
            NodeKind::Scalar(_) => format!("put it in quotes; {hint}"),
            _ => hint.to_owned(),
        };
        match node.as_str() {
            Some(name) if valid_name(name) => Some(name.to_owned()),
            _ => {
                self.report_value(Code::ManifestEnvelope, field, node, "not a name", hint);
                None
            }
        }
    }

    fn strings(&mut self, field: &str, node: Option<&Node>) -> BTreeMap<String, String> {
        let mut strings = BTreeMap::new();
        match node.map(|node| (&node.kind, node)) {
            None | Some((NodeKind::Scalar(Value::Null), _)) => {}
            Some((NodeKind::Map(entries), _)) => {
                for entry in entries {
                    match entry.value.as_str() {
                        Some(text) => {
                            strings.insert(entry.key.clone(), text.to_owned());
                        }
                        None => self.report_value(
                            Code::FieldInvalid,
                            &format!("{field}.{}", entry.key),
                            &entry.value,
                            "not a text",
                            "put it in quotes",
                        ),
                    }
                }
            }
            Some((_, node)) => {
                self.report_value(
                    Code::FieldInvalid,
                    field,
                    node,
                    "not a map",
                    "write names and texts",
                );
            }
        }
        strings
    }
}

struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

/// Whether a text may name a resource or namespace: a DNS-1123 subdomain.
pub fn valid_name(name: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.len() <= 253
        && name.split('.').all(|label| {
            let bytes = label.as_bytes();
            match (bytes.first(), bytes.last()) {
                (Some(first), Some(last)) => {
                    alphanumeric(*first)
                        && alphanumeric(*last)
                        && bytes.iter().all(|b| alphanumeric(*b) || *b == b'-')
                }
                _ => false,
            }
        })
}

/// The known word that a wrong one most resembles, if any does.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > 64 {
        return None;
    }
    let word = word.to_ascii_lowercase();
    known
        .map(|k| (strsim::normalized_damerau_levenshtein(&word, &k.to_ascii_lowercase()), k))
        .filter(|(likeness, _)| *likeness >= 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, k)| k)
}

/// At most 80 characters of a text, for a message.
fn shorten(text: &str) -> String {
    let mut chars = text.chars();
    let mut short: String = chars.by_ref().take(80).collect();
    if chars.next().is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests;
