//! What rules may ask of a call as a server sees it: attributes by name, and conditions on them.

mod condition;
#[cfg(feature = "schema")]
pub(crate) mod schema;

pub use condition::{Condition, ValueMatch};

use crate::condition::shorten;

/// Names that stand alone.
pub const PLAIN: &[&str] = &[
    "method",
    "path",
    "source.principal",
    "source.namespace",
    "source.ip",
    "source.application",
    "request.id",
    "destination.port",
    "destination.application",
];

/// Names that have another in brackets.
pub const INDEXED: &[&str] = &["request.headers", "extension"];

/// Longest name, in bytes.
pub const MAX_NAME: usize = 256;

/// Why a text is no name of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}; {hint}")]
pub struct AttributeError {
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: String,
}

/// The name as a policy asks for it: names of headers in lower case.
pub fn name(text: &str) -> Result<String, AttributeError> {
    let error = |message: String, hint: String| Err(AttributeError { message, hint });
    if text.len() > MAX_NAME {
        let message = format!("a name of {} bytes is too long", text.len());
        return error(message, format!("write at most {MAX_NAME}"));
    }
    if PLAIN.contains(&text) {
        return Ok(text.to_owned());
    }
    let (base, index) = match text.split_once('[') {
        Some((base, rest)) => (base, rest.strip_suffix(']')),
        None => (text, None),
    };
    let Some(known) = INDEXED.iter().find(|known| **known == base) else {
        let message = format!("\"{}\" is no attribute of a call", shorten(text));
        return error(message, hint(base));
    };
    match index {
        None | Some("") => error(format!("{known} of which name?"), format!("write {known}[name]")),
        Some(name) if *known == "request.headers" => {
            Ok(format!("{known}[{}]", name.to_ascii_lowercase()))
        }
        Some(name) => Ok(format!("{known}[{name}]")),
    }
}

/// The nearest name, or all of them.
fn hint(text: &str) -> String {
    let distance = |known: &str| strsim::damerau_levenshtein(known, &text.to_ascii_lowercase());
    let all = || PLAIN.iter().chain(INDEXED).copied();
    let shown = |known: &str| match INDEXED.contains(&known) {
        true => format!("{known}[name]"),
        false => known.to_owned(),
    };
    // What Dubbo calls attachments are headers here; and whoever writes `headers[x]` or
    // `principal` left out what it belongs to.
    let text = if text == "attachments" { "headers" } else { text };
    let tail = all().find(|known| known.rsplit('.').next() == Some(text) && known.contains('.'));
    let near = || {
        all()
            .min_by_key(|known| distance(known))
            .filter(|known| distance(known) <= 1 + known.len().max(text.len()) / 3)
    };
    match tail.or_else(near) {
        Some(known) => format!("did you mean {}?", shown(known)),
        None => format!("known are {}", all().map(shown).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_the_nearest_is_named() {
        for known in PLAIN {
            assert_eq!(name(known).as_deref(), Ok(*known));
        }
        for (text, wanted) in [
            ("request.headers[X-Team]", "request.headers[x-team]"),
            ("extension[a[0]]", "extension[a[0]]"),
        ] {
            assert_eq!(name(text).as_deref(), Ok(wanted));
        }
        for (text, words) in [
            ("header[x]", "request.headers[name]"),
            ("headers[x]", "request.headers[name]"),
            ("principal", "did you mean source.principal?"),
            ("source.namspace", "did you mean source.namespace?"),
            ("Method", "did you mean method?"),
            ("attachments[user]", "did you mean request.headers[name]?"),
            ("arguments[0]", "known are method"),
            ("extension", "extension[name]"),
            ("extension[]", "extension[name]"),
            ("zzzzzzzzzzzzzzzzzzzzz", "known are method, path"),
            ("", "known are method"),
            ("request.headers[x", "request.headers[name]"),
        ] {
            let error = name(text).expect_err(text);
            assert!(error.hint.contains(words), "{text}: {error}");
        }
    }
}
