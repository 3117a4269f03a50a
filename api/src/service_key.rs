//! Service keys: `[group/]interface[:version]`.

use std::{fmt, str::FromStr};

/// Names a service as Dubbo does. Version `0.0.0` is no version. Equality is of all
/// three parts: a rule for `com.Foo` does not speak of `com.Foo:1.0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// Empty: none.
    pub group: String,
    /// Never empty.
    pub interface: String,
    /// Empty: none.
    pub version: String,
}

/// Why a text is no service key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{value}\" is not a service key: {reason}; write [group/]interface[:version]")]
pub struct ServiceKeyError {
    /// The text.
    pub value: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl FromStr for ServiceKey {
    type Err = ServiceKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |reason| ServiceKeyError { value: text.to_owned(), reason };
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(bad("it has a blank or control character"));
        }
        let (group, rest) = text.split_once('/').unwrap_or(("", text));
        let (interface, version) = rest.split_once(':').unwrap_or((rest, ""));
        if interface.is_empty() {
            return Err(bad("the interface is empty"));
        }
        if interface.contains('/') || version.contains([':', '/']) {
            return Err(bad("it has more parts than three"));
        }
        let version = if version == "0.0.0" { "" } else { version };
        Ok(Self { group: group.into(), interface: interface.into(), version: version.into() })
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.group.is_empty() {
            write!(f, "{}/", self.group)?;
        }
        f.write_str(&self.interface)?;
        if !self.version.is_empty() {
            write!(f, ":{}", self.version)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints() {
        for (text, shown) in [
            ("com.Foo", "com.Foo"),
            ("g/com.Foo:1.0", "g/com.Foo:1.0"),
            ("com.Foo:0.0.0", "com.Foo"),
            ("com.Foo:", "com.Foo"),
        ] {
            assert_eq!(text.parse::<ServiceKey>().expect(text).to_string(), shown);
        }
        for text in ["", "g/", ":1", "a b", "a/b/c", "a:1:2"] {
            assert!(text.parse::<ServiceKey>().is_err(), "{text}");
        }
    }
}
