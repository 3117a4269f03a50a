//! What is said of a call, for rules that ask for attachments.

use http::HeaderMap;

use crate::{decision::Headers, layer::Attributes};

/// What the application says of a call by itself, and its headers.
pub(super) struct Said<'a> {
    pub(super) attributes: Option<&'a Attributes>,
    pub(super) headers: &'a HeaderMap,
}

impl Headers for Said<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        let own = self.attributes.and_then(|attributes| attributes.get(name));
        own.map(str::as_bytes).or_else(|| self.headers.get(name).map(|value| value.as_bytes()))
    }
}
