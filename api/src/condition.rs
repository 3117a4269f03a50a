//! The condition language of ConditionRoute.
//!
//! ```text
//! condition = [side] "=>" [side] | side        (without "=>" the whole text is the then part)
//! side      = term *( "&" term )
//! term      = key ( "=" | "!=" ) value *( "," value )
//! ```
//!
//! Keys and values have no blanks and none of `& ! = ,`; blanks between tokens mean nothing.
//! Parsing is pure and linear in the text; errors say where, what, and what would be right.

use std::fmt;

/// Longest text of a condition, in bytes.
pub const MAX_TEXT: usize = 16 * 1024;

/// Why a text is no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {message}; {hint}")]
pub struct SyntaxError {
    /// Byte offset inside the text where it goes wrong.
    pub offset: usize,
    /// The piece at fault, shortened; empty where something is missing.
    pub value: String,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: String,
}

/// Which side of a condition a term stands on: it decides what `$name` and ranges mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The left side: of the caller and the call.
    When,
    /// The right side: of each candidate endpoint.
    Then,
}

/// What a term looks at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// `method`, `methods`: the invoked method.
    Method,
    /// `arguments[N]`: the N-th argument as text, from 0. A suffix such as `.inner` is ignored.
    Argument(u32),
    /// `attachments[name]`.
    Attachment(String),
    /// A parameter of the caller (when) or of each candidate endpoint (then).
    Param(String),
    /// Never there: `arguments` or `attachments` without a usable index.
    Never,
}

/// One value of a term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// `*`: anything.
    Any,
    /// Equality.
    Text(String),
    /// A text with `*`: only the last one counts. Prefix and suffix may overlap, as in Java.
    Glob {
        /// What comes before the last `*`.
        prefix: String,
        /// What comes after it.
        suffix: String,
    },
    /// `a~b`, `~b`, `a~`: integers, both ends included.
    Range {
        /// Smallest, if bounded.
        from: Option<i64>,
        /// Largest, if bounded.
        to: Option<i64>,
    },
    /// `$name` on the then side: equal to the caller's parameter of that name.
    Parameter(String),
}

/// One key with all its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// What it looks at.
    pub key: Key,
    /// The key as first written, without `consumer.` or `provider.`.
    pub name: String,
    /// Any of these must hit, if there are any.
    pub matches: Vec<Value>,
    /// None of these may hit; looked at first.
    pub mismatches: Vec<Value>,
}

/// Terms that must all hold. Without terms it holds always.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// In order of their first appearance, one per key.
    pub terms: Vec<Term>,
}

/// What a v3.0 condition keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// No endpoint, whatever `force` says.
    Nothing,
    /// The endpoints for which the side holds.
    Endpoints(Side),
}

/// A v3.0 condition, `when => then`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Which calls.
    pub when: Side,
    /// Which endpoints.
    pub then: Then,
}

impl Condition {
    /// Parses `when => then`.
    ///
    /// ```
    /// use rulecast_api::condition::{Condition, Key};
    /// let parsed = Condition::parse("method=get* & consumer.region=hz => region=$region").unwrap();
    /// assert_eq!(parsed.when.terms[1].key, Key::Param("region".into()));
    /// let error = Condition::parse("host,1.1.1.1 => host=1.2.3.4").unwrap_err();
    /// assert_eq!(error.offset, 4);
    /// ```
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        check_length(text)?;
        let (when, then, at) = match text.find("=>") {
            Some(i) => (&text[..i], &text[i + 2..], i + 2),
            None => ("", text, 0),
        };
        let when = match when.trim() {
            "" | "true" => Side::default(),
            _ => parse_side(when, 0, Role::When)?,
        };
        let then = match then.trim() {
            "" | "false" => Then::Nothing,
            _ => Then::Endpoints(parse_side(then, at, Role::Then)?),
        };
        Ok(Self { when, then })
    }
}

impl Side {
    /// Parses `from.match` of v3.1. Blank or `true`: every call.
    pub fn parse_from(text: &str) -> Result<Self, SyntaxError> {
        check_length(text)?;
        match text.trim() {
            "" | "true" => Ok(Self::default()),
            _ => parse_side(text, 0, Role::When),
        }
    }

    /// Parses `to[].match` of v3.1. Blank: all endpoints.
    pub fn parse_to(text: &str) -> Result<Self, SyntaxError> {
        check_length(text)?;
        match text.trim() {
            "" => Ok(Self::default()),
            _ => parse_side(text, 0, Role::Then),
        }
    }
}

impl Term {
    /// Whether it holds for a value that is there. A term whose value is missing is false,
    /// also with `!=`; that is the caller's to see.
    pub fn holds<'a>(
        &self,
        role: Role,
        value: &[u8],
        parameter: &impl Fn(&str) -> Option<&'a [u8]>,
    ) -> bool {
        let hit = |v: &Value| v.matches(role, value, parameter);
        !self.mismatches.iter().any(hit)
            && (self.matches.is_empty() || self.matches.iter().any(hit))
    }

    /// Whether it depends on a parameter of the caller.
    pub fn has_parameters(&self) -> bool {
        self.matches.iter().chain(&self.mismatches).any(|v| matches!(v, Value::Parameter(_)))
    }
}

impl Value {
    /// Whether `value` is one of those it stands for. `parameter` gives the caller's parameters.
    pub fn matches<'a>(
        &self,
        role: Role,
        value: &[u8],
        parameter: &impl Fn(&str) -> Option<&'a [u8]>,
    ) -> bool {
        match self {
            Value::Any => true,
            Value::Text(text) => text.as_bytes() == value,
            Value::Glob { prefix, suffix } => {
                value.starts_with(prefix.as_bytes()) && value.ends_with(suffix.as_bytes())
            }
            Value::Range { from, to } => match integer(value) {
                Some(n) => {
                    from.is_none_or(|from| i128::from(from) <= n)
                        && to.is_none_or(|to| n <= i128::from(to))
                }
                None => role == Role::Then,
            },
            Value::Parameter(name) => parameter(name) == Some(value),
        }
    }
}

/// Decimal digits with an optional minus; anything else is no integer. One beyond 128 bits becomes
/// the nearest that fits, which is on the same side of every bound of a range.
fn integer(value: &[u8]) -> Option<i128> {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // The usual case: an i64, which is much cheaper than an i128.
    if digits.len() <= 18 {
        return std::str::from_utf8(value).ok()?.parse::<i64>().ok().map(i128::from);
    }
    let end = if digits.len() == value.len() { i128::MAX } else { i128::MIN };
    // Only the size can be wrong by now.
    Some(std::str::from_utf8(value).ok()?.parse().unwrap_or(end))
}

fn check_length(text: &str) -> Result<(), SyntaxError> {
    if text.len() <= MAX_TEXT {
        return Ok(());
    }
    Err(SyntaxError {
        offset: text.floor_char_boundary(MAX_TEXT),
        value: String::new(),
        message: format!("{} bytes is too long for a condition", text.len()),
        hint: format!("write at most {MAX_TEXT} bytes, or several conditions"),
    })
}

struct Cursor<'a> {
    text: &'a str,
    /// Where `text` begins in the whole text.
    base: usize,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// A key or a value: a run without blanks and operators. May be empty.
    fn content(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest
            .find(|c: char| c.is_whitespace() || matches!(c, '&' | '!' | '=' | ','))
            .unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn operators(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !matches!(c, '!' | '=')).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn error(&self, at: usize, value: &str, message: String, hint: &str) -> SyntaxError {
        SyntaxError {
            offset: self.base + at,
            value: shorten(value),
            message,
            hint: hint.to_owned(),
        }
    }

    fn second_arrow(&self, at: usize) -> SyntaxError {
        let hint = "a condition has one =>, between when and then; \
                    from.match and to.match have none";
        self.error(at, "=>", "a second \"=>\"".to_owned(), hint)
    }
}

/// At most 64 characters of a value, for messages.
pub(crate) fn shorten(value: &str) -> String {
    match value.char_indices().nth(64) {
        Some((i, _)) => format!("{}…", &value[..i]),
        None => value.to_owned(),
    }
}

fn parse_side(text: &str, base: usize, role: Role) -> Result<Side, SyntaxError> {
    let mut cursor = Cursor { text, base, at: 0 };
    let mut side = Side::default();
    loop {
        cursor.skip_blanks();
        let start = cursor.at;
        let written = cursor.content();
        if written.is_empty() {
            return Err(missing_key(&cursor, start, side.terms.is_empty()));
        }
        let mut name = written;
        while let Some(rest) =
            name.strip_prefix("consumer.").or_else(|| name.strip_prefix("provider."))
        {
            name = rest;
        }
        if name.is_empty() {
            let message = format!("\"{}\" names no parameter", shorten(written));
            return Err(cursor.error(start, written, message, "write a name after the dot"));
        }
        cursor.skip_blanks();
        let at = cursor.at;
        let negated = match cursor.operators() {
            "=" => false,
            "!=" => true,
            "" => return Err(no_operator(&cursor, start, at, written)),
            other => {
                let message = format!("\"{}\" is no operator", shorten(other));
                return Err(cursor.error(at, other, message, "write key=value or key!=value"));
            }
        };
        if !negated && cursor.peek() == Some('>') {
            return Err(cursor.second_arrow(at));
        }
        let key = key(name);
        let known = side.terms.iter().position(|t| t.key == key && key != Key::Never);
        let index = known.unwrap_or(side.terms.len());
        if known.is_none() {
            let name = name.to_owned();
            side.terms.push(Term { key, name, matches: Vec::new(), mismatches: Vec::new() });
        }
        loop {
            cursor.skip_blanks();
            let at = cursor.at;
            let written = cursor.content();
            if written.is_empty() {
                return Err(missing_value(&cursor, at, name));
            }
            let value = value(&cursor, at, written, role)?;
            let term = &mut side.terms[index];
            let values = if negated { &mut term.mismatches } else { &mut term.matches };
            if !values.contains(&value) {
                values.push(value);
            }
            cursor.skip_blanks();
            let at = cursor.at;
            match cursor.peek() {
                Some(',') => cursor.at += 1,
                None => return Ok(side),
                Some('&') => {
                    cursor.at += 1;
                    break;
                }
                Some('=' | '!') => {
                    let operator = cursor.operators();
                    if operator == "=" && cursor.peek() == Some('>') {
                        return Err(cursor.second_arrow(at));
                    }
                    let message = format!("a second operator after {}", shorten(name));
                    let hint = "join conditions with &: key=a & key!=b";
                    return Err(cursor.error(at, operator, message, hint));
                }
                Some(_) => {
                    let next = cursor.content();
                    let message = format!("\"{}\" stands after a complete value", shorten(next));
                    let hint = "values have no blanks; join values with , and conditions with &";
                    return Err(cursor.error(at, next, message, hint));
                }
            }
        }
    }
}

fn missing_key(cursor: &Cursor<'_>, at: usize, first: bool) -> SyntaxError {
    let found = cursor.peek().map(String::from).unwrap_or_default();
    let message = match cursor.peek() {
        None => "nothing follows the \"&\"".to_owned(),
        Some(c) if first => format!("a key is missing before \"{c}\""),
        Some(c) => format!("a key is missing between \"&\" and \"{c}\""),
    };
    cursor.error(at, &found, message, "write key=value [& key=value]")
}

fn no_operator(cursor: &Cursor<'_>, start: usize, at: usize, name: &str) -> SyntaxError {
    let name = &shorten(name);
    match cursor.peek() {
        Some(',') => {
            let message = format!("\",\" before any \"=\" or \"!=\" after {name}");
            cursor.error(at, ",", message, &format!("write {name}=value,value"))
        }
        None | Some('&') => {
            let message = format!("the key {name} has no value");
            cursor.error(start, name, message, &format!("write {name}=value or {name}!=value"))
        }
        Some(_) => {
            let rest = cursor.rest().split(char::is_whitespace).next().unwrap_or("");
            let rest = shorten(rest);
            let message = format!("\"{rest}\" where \"=\" or \"!=\" should follow {name}");
            cursor.error(at, &rest, message, &format!("write {name}=value; keys have no blanks"))
        }
    }
}

fn missing_value(cursor: &Cursor<'_>, at: usize, name: &str) -> SyntaxError {
    let name = shorten(name);
    let (found, message) = match cursor.peek() {
        None => (String::new(), format!("a value of {name} is empty")),
        Some(c @ ('=' | '!')) => (c.to_string(), format!("a doubled operator after {name}")),
        Some(c) => (c.to_string(), format!("a value of {name} is empty before \"{c}\"")),
    };
    cursor.error(at, &found, message, &format!("write {name}=value, or * for anything"))
}

fn key(name: &str) -> Key {
    if matches!(name, "method" | "methods") {
        return Key::Method;
    }
    for (word, is_argument) in [("arguments", true), ("attachments", false)] {
        let Some(rest) = name.strip_prefix(word) else { continue };
        if !(rest.is_empty() || rest.starts_with(['[', '.'])) {
            continue;
        }
        let inner = rest.strip_prefix('[').and_then(|r| r.split_once(']')).map(|(inner, _)| inner);
        return match inner {
            Some(inner) if is_argument && inner.bytes().all(|b| b.is_ascii_digit()) => {
                inner.parse().map_or(Key::Never, Key::Argument)
            }
            Some(inner) if !is_argument && !inner.is_empty() => Key::Attachment(inner.to_owned()),
            _ => Key::Never,
        };
    }
    Key::Param(name.to_owned())
}

fn value(cursor: &Cursor<'_>, at: usize, text: &str, role: Role) -> Result<Value, SyntaxError> {
    if let (Role::Then, Some(name)) = (role, text.strip_prefix('$')) {
        if name.is_empty() {
            let message = "\"$\" names no parameter of the consumer".to_owned();
            return Err(cursor.error(at, text, message, "write $name, for example $region"));
        }
        return Ok(Value::Parameter(name.to_owned()));
    }
    if let Some((from, to)) = text.split_once('~') {
        let bound = |text: &str| match text {
            "" => Some(None),
            _ => integer(text.as_bytes()).map(Some),
        };
        // Anything else with a tilde is a text, such as a version "1.0~rc".
        if let (Some(from), Some(to)) = (bound(from), bound(to))
            && (from.is_some() || to.is_some())
        {
            let fits = |bound: Option<i128>| bound.map(i64::try_from).transpose();
            let (Ok(from), Ok(to)) = (fits(from), fits(to)) else {
                let message = "a bound of the range is beyond 64 bits".to_owned();
                let hint = format!("write {} to {}, or leave that end open", i64::MIN, i64::MAX);
                return Err(cursor.error(at, text, message, &hint));
            };
            return Ok(Value::Range { from, to });
        }
    }
    Ok(match text.rsplit_once('*') {
        Some(("", "")) => Value::Any,
        Some((prefix, suffix)) => {
            Value::Glob { prefix: prefix.to_owned(), suffix: suffix.to_owned() }
        }
        None => Value::Text(text.to_owned()),
    })
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Any => f.write_str("*"),
            Value::Text(text) => f.write_str(text),
            Value::Glob { prefix, suffix } => write!(f, "{prefix}*{suffix}"),
            Value::Range { from, to } => {
                if let Some(from) = from {
                    write!(f, "{from}")?;
                }
                f.write_str("~")?;
                if let Some(to) = to {
                    write!(f, "{to}")?;
                }
                Ok(())
            }
            Value::Parameter(name) => write!(f, "${name}"),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (operator, values) in [("=", &self.matches), ("!=", &self.mismatches)] {
            if values.is_empty() {
                continue;
            }
            if !first {
                f.write_str(" & ")?;
            }
            first = false;
            write!(f, "{}{operator}", self.name)?;
            for (i, value) in values.iter().enumerate() {
                if i > 0 {
                    f.write_str(",")?;
                }
                write!(f, "{value}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            if i > 0 {
                f.write_str(" & ")?;
            }
            write!(f, "{term}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn none<'a>(_: &str) -> Option<&'a [u8]> {
        None
    }

    fn term(text: &str) -> Term {
        Side::parse_from(text).expect(text).terms.remove(0)
    }

    fn holds(text: &str, value: &str) -> bool {
        term(text).holds(Role::When, value.as_bytes(), &none)
    }

    #[test]
    fn splits_at_the_first_arrow() {
        let all = Condition::parse(" => host=1.2.3.4").expect("parses");
        assert!(all.when.terms.is_empty());
        assert!(matches!(Condition::parse("a=b =>").expect("parses").then, Then::Nothing));
        assert!(matches!(Condition::parse("a=b => false").expect("parses").then, Then::Nothing));
        let then_only = Condition::parse("host=1.2.3.4").expect("parses");
        assert!(then_only.when.terms.is_empty());
        assert!(matches!(then_only.then, Then::Endpoints(side) if side.terms.len() == 1));
        assert!(Condition::parse("true => a=b").expect("parses").when.terms.is_empty());
    }

    #[test]
    fn keys() {
        for (name, expected) in [
            ("method", Key::Method),
            ("methods", Key::Method),
            ("arguments[10].inner", Key::Argument(10)),
            ("arguments", Key::Never),
            ("arguments[]", Key::Never),
            ("arguments[x]", Key::Never),
            ("arguments[99999999999]", Key::Never),
            ("attachments.foo", Key::Never),
            ("attachments", Key::Never),
            ("attachments[dubbo.tag]", Key::Attachment("dubbo.tag".into())),
            ("argumentsx", Key::Param("argumentsx".into())),
            ("host", Key::Param("host".into())),
        ] {
            assert_eq!(key(name), expected, "{name}");
        }
        assert_eq!(term("consumer.provider.host=a").name, "host");
    }

    #[test]
    fn a_repeated_key_merges() {
        let merged = term("host=a,b & consumer.host!=c & host=d");
        assert_eq!((merged.matches.len(), merged.mismatches.len()), (3, 1));
        assert_eq!(term("method=a & methods=b").matches.len(), 2);
    }

    #[test]
    fn values() {
        assert!(holds("a=x,y", "y"));
        assert!(!holds("a=x & a!=x", "x"));
        assert!(!holds("a!=x,y", "y"));
        assert!(holds("a!=x,y", "z"));
        assert!(holds("a=*", ""));
        assert!(holds("a=g*o", "getFoo"));
        assert!(holds("a=a*a", "a"), "prefix and suffix may overlap, as in Java");
        assert!(holds("a=*Foo", "getFoo"));
        assert!(!holds("a=x*y*z", "xyz"), "only the last * counts");
        assert!(holds("a=1~100", "100"));
        assert!(holds("a=~100", "-3"));
        assert!(holds("a=5~", "5"));
        assert!(!holds("a=5~", "five"));
        assert!(!holds("a=1~2", "99999999999999999999"));
        let huge = "9".repeat(60);
        assert!(holds("a=1~", &huge) && holds("a=~1", &format!("-{huge}")));
        assert!(
            !term("a=1~2").holds(Role::Then, huge.as_bytes(), &none),
            "also what is beyond any machine's integers is an integer"
        );
        for range in ["9223372036854775808~", "~-9223372036854775809", &format!("1~{huge}")] {
            let error = Side::parse_from(&format!("a={range}")).expect_err("too large");
            assert!(error.message.contains("64 bits"), "{error}");
        }
        assert!(holds("a=1.0~rc", "1.0~rc"), "no range of integers is a text");
        assert!(term("a=5~").holds(Role::Then, b"five", &none));
        assert!(holds("a=$x", "$x"), "on the left a dollar means itself");
        let then = Side::parse_to("a=$x").expect("parses").terms.remove(0);
        assert!(!then.holds(Role::Then, b"1", &none));
        assert!(then.holds(Role::Then, b"1", &|_| Some(b"1".as_slice())));
    }

    #[test]
    fn says_where_it_goes_wrong() {
        for (text, offset, word) in [
            ("host,1.1.1.1 => host=1.2.3.4", 4, "before any"),
            ("host => host=1.2.3.4", 0, "no value"),
            ("a=b => host", 7, "no value"),
            ("a= => b=c", 3, "empty"),
            ("a= & b=c => d=e", 3, "empty"),
            ("a==b => d=e", 1, "no operator"),
            ("a=b,,c => d=e", 4, "empty"),
            ("a=b & & c=d => d=e", 6, "missing"),
            ("a=b & => d=e", 6, "follows"),
            ("a=b c => d=e", 4, "complete value"),
            ("a=b=c => d=e", 3, "second operator"),
            ("a=b => d=e => f=g", 11, "second \"=>\""),
            ("a=b => d=>g", 8, "second \"=>\""),
            ("a b=c => d=e", 2, "should follow"),
            ("a=b => d=$", 9, "\"$\""),
            ("consumer.=b => d=e", 0, "names no"),
            ("a ! = b => d=e", 2, "no operator"),
            ("=b => d=e", 0, "missing"),
        ] {
            let error = Condition::parse(text).expect_err(text);
            assert_eq!(error.offset, offset, "{text}: {error}");
            assert!(error.message.contains(word), "{text}: {error}");
            assert!(!error.hint.is_empty());
        }
        assert!(Side::parse_to("true").is_err());
        assert!(Condition::parse(&"a".repeat(MAX_TEXT + 1)).is_err());
    }

    proptest! {
        #[test]
        fn never_panics_and_points_into_the_text(text in "[a-z$~*.&!=,>\\[\\] é]{0,40}") {
            if let Err(error) = Condition::parse(&text) {
                prop_assert!(error.offset <= text.len());
                prop_assert!(text.is_char_boundary(error.offset));
            }
        }

        #[test]
        fn prints_what_parses_to_the_same(text in "[ab$*]{1,3}(!=|=)[ab$*1~]{1,4}(,[ab*]{1,2})?( & [ab]{1,2}!?=[ab1]{1,3})?") {
            if let Ok(side) = Side::parse_to(&text) {
                prop_assert_eq!(Side::parse_to(&side.to_string()).expect("prints valid"), side);
            }
        }
    }
}
