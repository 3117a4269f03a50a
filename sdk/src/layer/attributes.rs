use std::{borrow::Cow, fmt};

/// What the application itself knows of a call, for rules that ask for `extension[name]`. It
/// belongs into the request's extensions, before the layers see it:
///
/// ```
/// use rulecast_sdk::layer::Attributes;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Attributes::new().with("tier", "gold"));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    named: Vec<(Cow<'static, str>, Cow<'static, str>)>,
}

impl Attributes {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// These and one more.
    #[must_use]
    pub fn with(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.insert(name, value);
        self
    }

    /// Adds one; of a name that is there already, the value is replaced.
    pub fn insert(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) {
        let (name, value) = (name.into(), value.into());
        match self.named.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.named.push((name, value)),
        }
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the values: they may be secrets.
        f.debug_set().entries(self.named.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_name_counts_and_none_is_shown() {
        let attributes = Attributes::new().with("tier", "gold").with("key", "secret".to_owned());
        let attributes = attributes.with("tier", "silver");
        assert_eq!(attributes.get("tier"), Some("silver"));
        assert_eq!(attributes.get("Tier"), None);
        assert_eq!(format!("{attributes:?}"), r#"{"tier", "key"}"#);
    }
}
