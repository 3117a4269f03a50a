//! Matchers of texts, parameters and addresses, as the rule kinds share them.
//!
//! Each is read once, from what people write (feature `manifest`) or from a message, and then
//! matches without allocating and without errors. Kinds keep them in their typed specs, policies
//! in their compiled rules.

#[cfg(feature = "manifest")]
mod compat;
mod plain;
#[cfg(feature = "schema")]
pub(crate) mod schema;
#[cfg(feature = "manifest")]
pub(crate) mod spec;
mod values;

use plain::Plain;
use regex::{Regex, RegexBuilder};

use crate::{
    ip::{self, IpError, IpExpr},
    proto::rules::v1 as wire,
};

pub use values::Values;

/// Longest pattern of a regular expression, in bytes.
pub const MAX_REGEX: usize = 1024;

/// Longest text that is compared, and longest name of a parameter, in bytes.
pub const MAX_TEXT: usize = 1024;

/// Most memory of a compiled expression, in bytes. Compiling takes time with it, in a sandbox
/// that has little.
const MAX_COMPILED: usize = 128 * 1024;

/// Why something is no matcher.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}; {hint}")]
pub struct MatchError {
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: String,
}

impl From<IpError> for MatchError {
    fn from(error: IpError) -> Self {
        Self { message: error.message, hint: error.hint.to_owned() }
    }
}

/// A regular expression that must match the whole value.
#[derive(Clone, Debug)]
pub struct WholeRegex {
    pattern: String,
    how: How,
}

#[derive(Clone, Debug)]
enum How {
    /// What most patterns are. It costs a fraction in time, and next to nothing in memory.
    Plain(Plain),
    Regex(Regex),
}

impl WholeRegex {
    /// Compiles a pattern, in the syntax of the crate `regex`.
    pub fn new(pattern: &str) -> Result<Self, MatchError> {
        let hint = || "write it in the syntax of the Rust crate regex".to_owned();
        if pattern.len() > MAX_REGEX {
            let message = format!("{} bytes are too long for a regular expression", pattern.len());
            return Err(MatchError { message, hint: format!("write at most {MAX_REGEX} bytes") });
        }
        if let Some(plain) = Plain::read(pattern) {
            return Ok(Self { pattern: pattern.to_owned(), how: How::Plain(plain) });
        }
        // The end anchor behind a comment of the extended form would be part of the comment.
        let whole = format!(r"\A(?:{pattern})\z");
        let compile = |text: &str| RegexBuilder::new(text).size_limit(MAX_COMPILED).build();
        let regex = compile(&whole).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => MatchError {
                message: "is too large when compiled".to_owned(),
                hint: "repeat less: counted repetitions multiply what they repeat".to_owned(),
            },
            error => MatchError { message: reason(&error), hint: hint() },
        })?;
        // A pattern such as `a)|(b` is one only with what was put around it.
        #[cfg(feature = "manifest")]
        compile(pattern).map_err(|e| MatchError { message: reason(&e), hint: hint() })?;
        Ok(Self { pattern: pattern.to_owned(), how: How::Regex(regex) })
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.pattern
    }

    /// Whether it matches the whole value; what is no UTF-8 it does not match.
    pub fn matches(&self, value: &[u8]) -> bool {
        match &self.how {
            How::Plain(plain) => plain.matches(value),
            How::Regex(regex) => std::str::from_utf8(value).is_ok_and(|v| regex.is_match(v)),
        }
    }
}

/// The last line of the crate's message, which says what; those before draw where.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    format!("is no regular expression: {}", last.trim_start_matches("error:").trim())
}

impl PartialEq for WholeRegex {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern
    }
}
impl Eq for WholeRegex {}

/// How a text is matched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StringMatch {
    /// Nothing was said: nothing matches.
    #[default]
    Never,
    /// Equality.
    Exact(String),
    /// The value begins with it.
    Prefix(String),
    /// The whole value.
    Regex(Box<WholeRegex>),
    /// `*`, any value that is there, or equality. No glob.
    Wildcard(String),
    /// Absent or empty.
    Empty,
    /// There and not empty.
    NoEmpty,
}

impl StringMatch {
    /// Whether it matches; `None`: there is no value.
    pub fn matches(&self, value: Option<&[u8]>) -> bool {
        let Some(value) = value else { return *self == Self::Empty };
        match self {
            Self::Never => false,
            Self::Exact(text) => text.as_bytes() == value,
            Self::Prefix(text) => value.starts_with(text.as_bytes()),
            Self::Regex(regex) => regex.matches(value),
            Self::Wildcard(text) => text == "*" || text.as_bytes() == value,
            Self::Empty => value.is_empty(),
            Self::NoEmpty => !value.is_empty(),
        }
    }

    /// From its message.
    pub fn from_wire(message: &wire::StringMatch) -> Result<Self, MatchError> {
        use wire::string_match::How;
        Ok(match &message.how {
            None | Some(How::Empty(false) | How::Noempty(false)) => Self::Never,
            Some(How::Exact(text)) => Self::Exact(text.clone()),
            Some(How::Prefix(text)) => Self::Prefix(text.clone()),
            Some(How::Regex(pattern)) => Self::Regex(Box::new(WholeRegex::new(pattern)?)),
            Some(How::Wildcard(text)) => Self::Wildcard(text.clone()),
            Some(How::Empty(true)) => Self::Empty,
            Some(How::Noempty(true)) => Self::NoEmpty,
        })
    }

    /// Its message.
    pub fn to_wire(&self) -> wire::StringMatch {
        use wire::string_match::How;
        let how = match self {
            Self::Never => None,
            Self::Exact(text) => Some(How::Exact(text.clone())),
            Self::Prefix(text) => Some(How::Prefix(text.clone())),
            Self::Regex(regex) => Some(How::Regex(regex.as_str().to_owned())),
            Self::Wildcard(text) => Some(How::Wildcard(text.clone())),
            Self::Empty => Some(How::Empty(true)),
            Self::NoEmpty => Some(How::Noempty(true)),
        };
        wire::StringMatch { how }
    }
}

/// A parameter by name. One that is missing does not match, whatever is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamMatch {
    /// The parameter's name.
    pub key: String,
    /// What its value must be.
    pub value: StringMatch,
}

impl ParamMatch {
    /// Whether the parameter's value matches; `None`: it is missing.
    pub fn matches(&self, value: Option<&[u8]>) -> bool {
        value.is_some() && self.value.matches(value)
    }

    /// From its message.
    pub fn from_wire(message: &wire::ParamMatch) -> Result<Self, MatchError> {
        let value = match &message.value {
            Some(value) => StringMatch::from_wire(value)?,
            None => StringMatch::Never,
        };
        Ok(Self { key: message.key.clone(), value })
    }

    /// Its message.
    pub fn to_wire(&self) -> wire::ParamMatch {
        wire::ParamMatch { key: self.key.clone(), value: Some(self.value.to_wire()) }
    }
}

/// How an address is matched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressMatch {
    /// Nothing was said: nothing matches.
    #[default]
    Never,
    /// An IP expression: as written, and as read.
    Cidr(String, IpExpr),
    /// `*` and `0.0.0.0` are any; else a glob, of which only the last `*` counts.
    Wildcard(String),
    /// Equality.
    Exact(String),
}

impl AddressMatch {
    /// Whether it matches `host`, `host:port`, or `[host]:port` of IPv6. Globs and equality are
    /// about the whole text.
    pub fn matches(&self, address: &str) -> bool {
        match self {
            Self::Never => false,
            Self::Cidr(text, expression) => {
                let (host, port) = ip::split(address);
                text == address || expression.matches(host, port.and_then(|p| p.parse().ok()))
            }
            Self::Wildcard(pattern) if matches!(pattern.as_str(), "*" | "0.0.0.0") => true,
            Self::Wildcard(pattern) => glob(pattern, address.as_bytes()),
            Self::Exact(text) => text == address,
        }
    }

    /// With an IP expression.
    pub fn cidr(text: &str) -> Result<Self, MatchError> {
        Ok(Self::Cidr(text.to_owned(), IpExpr::parse(text)?))
    }

    /// From its message.
    pub fn from_wire(message: &wire::AddressMatch) -> Result<Self, MatchError> {
        use wire::address_match::How;
        Ok(match &message.how {
            None => Self::Never,
            Some(How::Cidr(text)) => Self::cidr(text)?,
            Some(How::Wildcard(text)) => Self::Wildcard(text.clone()),
            Some(How::Exact(text)) => Self::Exact(text.clone()),
        })
    }

    /// Its message.
    pub fn to_wire(&self) -> wire::AddressMatch {
        use wire::address_match::How;
        let how = match self {
            Self::Never => None,
            Self::Cidr(text, _) => Some(How::Cidr(text.clone())),
            Self::Wildcard(text) => Some(How::Wildcard(text.clone())),
            Self::Exact(text) => Some(How::Exact(text.clone())),
        };
        wire::AddressMatch { how }
    }
}

/// A pattern of which only the last `*` counts, as Dubbo reads it: prefix, suffix or middle, which
/// may overlap. Without one: equality.
pub fn glob(pattern: &str, value: &[u8]) -> bool {
    match pattern.rsplit_once('*') {
        Some((prefix, suffix)) => {
            value.starts_with(prefix.as_bytes()) && value.ends_with(suffix.as_bytes())
        }
        None => pattern.as_bytes() == value,
    }
}

#[cfg(test)]
mod tests;
