//! The condition language of ConditionRoute.
//!
//! A side is a list of terms joined by `&`; a term is `key=value,…` or `key!=value,…`.
//! Semantics: those of Apache Dubbo's condition router, with the decisions that
//! docs/condition-route.md lists. The parser runs at admission and inside the policy.

use std::fmt;

/// Where a text goes wrong, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionError {
    /// Byte offset in the text.
    pub offset: usize,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: &'static str,
}

impl fmt::Display for ConditionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}; {}", self.offset, self.message, self.hint)
    }
}

impl std::error::Error for ConditionError {}

/// What a term looks at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The invoked method.
    Method,
    /// The N-th argument as text.
    Argument(u32),
    /// An attachment of the call.
    Attachment(String),
    /// A parameter: of the caller on the left side, of each endpoint on the right.
    Param(String),
    /// `arguments` or `attachments` without an index, or a wrong one: matches nothing.
    Never,
}

/// A value of a term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// `*`: anything.
    Any,
    /// A text with one `*`: what comes before and after it.
    Wildcard(String, String),
    /// Equality.
    Exact(String),
    /// `a~b`, `a~`, `~b`: integers, both ends included.
    Range(Option<i64>, Option<i64>),
    /// `$name`: the caller's parameter of that name. Right side only.
    Reference(String),
}

/// One key with what it must and must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// What is looked at.
    pub key: Key,
    /// One of these must match, when there are any.
    pub matches: Vec<Pattern>,
    /// None of these may match.
    pub mismatches: Vec<Pattern>,
}

/// Terms that must all hold; keys are unique.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side(pub Vec<Term>);

/// What a v3.0 condition leaves over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing: a blacklist.
    Nothing,
    /// Endpoints for which the side holds.
    Endpoints(Side),
}

/// A condition of v3.0: `when => then`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Which calls; an empty side holds for all.
    pub when: Side,
    /// Which endpoints.
    pub then: Then,
}

/// Which side a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// About the caller and the call.
    When,
    /// About each endpoint.
    Then,
}

/// Longest condition, in bytes.
pub const MAX_LEN: usize = 16 * 1024;

impl Condition {
    /// Parses a condition of v3.0. Without `=>` the whole text is the right side.
    pub fn parse(text: &str) -> Result<Self, ConditionError> {
        too_long(text)?;
        let (when, then, at) = match text.find("=>") {
            Some(at) => (&text[..at], &text[at + 2..], at + 2),
            None => ("", text, 0),
        };
        let blank = |side: &str| side.trim().is_empty();
        let when = if blank(when) || when.trim() == "true" {
            Side::default()
        } else {
            parse_side(when, 0, Place::When)?
        };
        let then = if blank(then) || then.trim() == "false" {
            Then::Nothing
        } else {
            Then::Endpoints(parse_side(then, at, Place::Then)?)
        };
        Ok(Self { when, then })
    }
}

impl Side {
    /// Parses a side of v3.1, `from.match` or `to.match`; blank holds for all.
    pub fn parse(text: &str, place: Place) -> Result<Self, ConditionError> {
        too_long(text)?;
        if text.trim().is_empty() || (place == Place::When && text.trim() == "true") {
            return Ok(Self::default());
        }
        parse_side(text, 0, place)
    }
}

fn too_long(text: &str) -> Result<(), ConditionError> {
    if text.len() > MAX_LEN {
        return Err(ConditionError {
            offset: MAX_LEN,
            message: format!("the condition is longer than {MAX_LEN} bytes"),
            hint: "split it",
        });
    }
    Ok(())
}

/// Reads terms; `base` is the offset of `text` in the whole.
fn parse_side(text: &str, base: usize, place: Place) -> Result<Side, ConditionError> {
    let error = |offset: usize, message: String, hint| ConditionError {
        offset: base + offset,
        message,
        hint,
    };
    let mut side = Side::default();
    let mut start = 0;
    for part in text.split('&') {
        let begin = start;
        start += part.len() + 1;
        let lead = part.len() - part.trim_start().len();
        if part.trim().is_empty() {
            return Err(error(begin, "a term is missing".into(), "write key=value on both sides of &"));
        }
        let Some(at) = part.find('=') else {
            let message = match part.find(',') {
                Some(_) => format!("\",\" before any \"=\" in \"{}\"", part.trim()),
                None => format!("\"{}\" has no operator", part.trim()),
            };
            return Err(error(begin + lead, message, "write key=value or key!=value"));
        };
        let negated = part[..at].ends_with('!');
        let name = part[..at - usize::from(negated)].trim();
        if name.is_empty() {
            return Err(error(begin + lead, "the key is missing".into(), "write key=value"));
        }
        if let Some(bad) = name.find(|c: char| matches!(c, ',' | '!' | '>') || c.is_whitespace()) {
            let message = format!("a key cannot hold {:?}", &name[bad..bad + char_len(name, bad)]);
            return Err(error(begin + lead + bad, message, "write key=value or key!=value"));
        }
        let key = parse_key(name);
        let mut patterns = Vec::new();
        let mut offset = at + 1;
        for value in part[at + 1..].split(',') {
            let shift = value.len() - value.trim_start().len();
            let here = begin + offset + shift;
            let value_text = value.trim();
            if value_text.is_empty() {
                return Err(error(here, "a value is missing".into(), "write key=value, or several with \",\" between them"));
            }
            if let Some(bad) = value_text.find(['=', '!', '>']) {
                let message = format!("an operator stands inside the value \"{value_text}\"");
                return Err(error(here + bad, message, "write key=value or key!=value once, and & before the next key"));
            }
            patterns.push(parse_pattern(value_text, place));
            offset += value.len() + 1;
        }
        // A repeated key merges into the same sets.
        let at = side.0.iter().position(|t| t.key == key && key != Key::Never);
        let at = at.unwrap_or_else(|| {
            side.0.push(Term { key, matches: Vec::new(), mismatches: Vec::new() });
            side.0.len() - 1
        });
        let term = &mut side.0[at];
        if negated { &mut term.mismatches } else { &mut term.matches }.extend(patterns);
    }
    Ok(side)
}

fn char_len(text: &str, at: usize) -> usize {
    text[at..].chars().next().map_or(0, char::len_utf8)
}

fn parse_key(name: &str) -> Key {
    // What side it is on says whose parameter it is; the prefix is only for readers.
    let name = name
        .strip_prefix("consumer.")
        .or_else(|| name.strip_prefix("provider."))
        .unwrap_or(name);
    match name {
        "method" | "methods" => return Key::Method,
        "arguments" | "attachments" => return Key::Never,
        _ => {}
    }
    let index = |prefix: &str| {
        let rest = name.strip_prefix(prefix)?.strip_prefix('[')?;
        let (inside, _suffix) = rest.split_once(']')?;
        Some(inside.trim())
    };
    if let Some(inside) = index("arguments") {
        return inside.parse().map_or(Key::Never, Key::Argument);
    }
    if let Some(inside) = index("attachments") {
        return if inside.is_empty() { Key::Never } else { Key::Attachment(inside.to_owned()) };
    }
    Key::Param(name.to_owned())
}

fn parse_pattern(text: &str, place: Place) -> Pattern {
    if place == Place::Then
        && let Some(name) = text.strip_prefix('$')
    {
        return Pattern::Reference(name.to_owned());
    }
    if text == "*" {
        return Pattern::Any;
    }
    if let Some((from, to)) = text.split_once('~') {
        let end = |text: &str| match text.trim() {
            "" => Some(None),
            number => number.parse().ok().map(Some),
        };
        if let (Some(from), Some(to)) = (end(from), end(to))
            && (from.is_some() || to.is_some())
        {
            return Pattern::Range(from, to);
        }
    }
    match text.rsplit_once('*') {
        Some((before, after)) => Pattern::Wildcard(before.to_owned(), after.to_owned()),
        None => Pattern::Exact(text.to_owned()),
    }
}

impl Pattern {
    /// Whether `value` matches. `reference` gives the caller's parameters.
    pub fn matches<'a>(
        &self,
        value: &[u8],
        place: Place,
        reference: impl FnOnce(&str) -> Option<&'a [u8]>,
    ) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(text) => value == text.as_bytes(),
            Self::Wildcard(before, after) => {
                value.len() >= before.len() + after.len()
                    && value.starts_with(before.as_bytes())
                    && value.ends_with(after.as_bytes())
            }
            Self::Range(from, to) => {
                let number = std::str::from_utf8(value).ok().and_then(|v| v.trim().parse::<i64>().ok());
                match number {
                    Some(n) => from.is_none_or(|from| n >= from) && to.is_none_or(|to| n <= to),
                    // No integer: false in the when part and true in the then part, as in Java.
                    None => place == Place::Then,
                }
            }
            Self::Reference(name) => reference(name).is_some_and(|wanted| value == wanted),
        }
    }
}

impl Term {
    /// Whether the term holds for the value of its key; `None` is a missing one, which
    /// makes it false, also for `!=`.
    pub fn holds<'a>(
        &self,
        value: Option<&[u8]>,
        place: Place,
        reference: impl Fn(&str) -> Option<&'a [u8]> + Copy,
    ) -> bool {
        let Some(value) = value else { return false };
        if self.mismatches.iter().any(|p| p.matches(value, place, reference)) {
            return false;
        }
        self.matches.is_empty() || self.matches.iter().any(|p| p.matches(value, place, reference))
    }

    /// The caller's parameters that the term's values name.
    pub fn references(&self) -> impl Iterator<Item = &str> {
        self.matches.iter().chain(&self.mismatches).filter_map(|pattern| match pattern {
            Pattern::Reference(name) => Some(name.as_str()),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn when(text: &str) -> Side {
        Side::parse(text, Place::When).expect(text)
    }

    fn holds(text: &str, value: Option<&str>, place: Place) -> bool {
        let side = Side::parse(text, place).expect(text);
        side.0[0].holds(value.map(str::as_bytes), place, |name| {
            (name == "host").then_some(b"1.1.1.1")
        })
    }

    #[test]
    fn keys_are_read_as_documented() {
        for (text, key) in [
            ("method=a", Key::Method),
            ("methods=a", Key::Method),
            ("consumer.method=a", Key::Method),
            ("arguments[0]=a", Key::Argument(0)),
            ("arguments[10].inner=a", Key::Argument(10)),
            ("arguments=a", Key::Never),
            ("arguments[x]=a", Key::Never),
            ("attachments[foo]=a", Key::Attachment("foo".into())),
            ("attachments=a", Key::Never),
            ("provider.region=a", Key::Param("region".into())),
            ("host=a", Key::Param("host".into())),
        ] {
            assert_eq!(when(text).0[0].key, key, "{text}");
        }
    }

    #[test]
    fn a_repeated_key_merges() {
        let side = when("host=a,b & host!=c & host=d");
        assert_eq!(side.0.len(), 1);
        assert_eq!((side.0[0].matches.len(), side.0[0].mismatches.len()), (3, 1));
    }

    #[test]
    fn values_match_as_documented() {
        use Place::{Then, When};
        for (text, value, place, right) in [
            ("a=*", Some("x"), When, true),
            ("a=*", None, When, false),
            ("a!=x", None, When, false),
            ("a=x*", Some("xy"), When, true),
            ("a=*x", Some("yx"), When, true),
            ("a=a*a", Some("a"), When, false),
            ("a=a*b*c", Some("a*bzc"), When, true),
            ("a=a*b*c", Some("azbzc"), When, false),
            ("a=1~100", Some("100"), When, true),
            ("a=1~100", Some("101"), When, false),
            ("a=~100", Some("-5"), When, true),
            ("a=5~", Some("5"), When, true),
            ("a=5~", Some("x"), When, false),
            ("a=5~", Some("x"), Then, true),
            ("a=$host", Some("1.1.1.1"), Then, true),
            ("a=$host", Some("$host"), When, true),
            ("a=$none", Some("1.1.1.1"), Then, false),
            ("a=x & a!=x", Some("x"), When, false),
        ] {
            assert_eq!(holds(text, value, place), right, "{text} on {value:?} in {place:?}");
        }
    }

    #[test]
    fn blank_sides_and_missing_arrows() {
        let parse = |text| Condition::parse(text).expect(text);
        assert_eq!(parse(" => host=a").when, Side::default());
        assert_eq!(parse("true => host=a").when, Side::default());
        assert_eq!(parse("host=a").when, Side::default());
        assert_eq!(parse("host=a => ").then, Then::Nothing);
        assert_eq!(parse("host=a => false").then, Then::Nothing);
        assert_eq!(parse("").then, Then::Nothing);
    }

    #[test]
    fn errors_name_the_byte() {
        for (text, offset) in [
            ("host,1.1.1.1 => host=1.2.3.4", 0),
            ("host=a & => host=b", 8),
            ("a=b => host", 7),
            ("a=b => host=", 12),
            ("a=b => host==c", 12),
            ("a=b, => host=c", 4),
            ("=b => host=c", 0),
            ("a=b => x=1 => y=2", 12),
            ("a!!=b => x=1", 1),
        ] {
            let error = Condition::parse(text).expect_err(text);
            assert_eq!(error.offset, offset, "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "[a-z=!&,>~*$ .\\[\\]0-9é]{0,60}") {
            if let Err(error) = Condition::parse(&text) {
                prop_assert!(error.offset <= text.len());
            }
            let _ = Side::parse(&text, Place::Then);
        }
    }
}
