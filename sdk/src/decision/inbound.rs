use std::{fmt, fmt::Write as _, net::IpAddr};

use tonic::codegen::http::HeaderMap;

use super::request::{Attribute, Call};
use crate::layer::Attributes;

/// Headers of a call, or its metadata or attachments, by name.
pub trait Headers {
    /// The value of a header; names are in lower case. Of several with one name the first.
    fn get(&self, name: &str) -> Option<&[u8]>;
}

impl Headers for [(&str, &str)] {
    fn get(&self, name: &str) -> Option<&[u8]> {
        let found = self.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_bytes())
    }
}

impl<const N: usize> Headers for [(&str, &str); N] {
    fn get(&self, name: &str) -> Option<&[u8]> {
        Headers::get(self.as_slice(), name)
    }
}

impl Headers for HeaderMap {
    fn get(&self, name: &str) -> Option<&[u8]> {
        HeaderMap::get(self, name).map(|value| value.as_bytes())
    }
}

/// A call as the server that gets it knows it. It borrows everything and is cheap to copy.
/// What is not said is absent for rules, and matches nothing.
#[derive(Clone, Copy, Default)]
#[must_use]
pub struct Inbound<'a> {
    method: Option<&'a str>,
    path: Option<&'a str>,
    headers: Option<&'a dyn Headers>,
    principal: Option<&'a str>,
    namespace: Option<&'a str>,
    source_application: Option<&'a str>,
    ip: Text<39>,
    port: Text<5>,
    application: Option<&'a str>,
    request_id: Option<&'a str>,
    extensions: &'a [(&'a str, &'a str)],
    attributes: Option<&'a Attributes>,
    pub(crate) draw: Option<u64>,
}

impl fmt::Debug for Inbound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without headers and extensions: they may carry secrets.
        f.debug_struct("Inbound")
            .field("method", &self.method)
            .field("path", &self.path)
            .field("principal", &self.principal)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl<'a> Inbound<'a> {
    /// A call of which nothing is known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The invoked method: of RPC its name, of HTTP `GET`, `POST` …
    pub fn method(self, method: &'a str) -> Self {
        Self { method: Some(method), ..self }
    }

    /// The path, beginning with `/`.
    pub fn path(self, path: &'a str) -> Self {
        Self { path: Some(path), ..self }
    }

    /// Its headers.
    pub fn headers(self, headers: &'a dyn Headers) -> Self {
        Self { headers: Some(headers), ..self }
    }

    /// The caller's proven SPIFFE ID, with or without `spiffe://`. Only what its certificate
    /// proves belongs here.
    pub fn principal(self, spiffe_id: &'a str) -> Self {
        let id = spiffe_id.strip_prefix("spiffe://").unwrap_or(spiffe_id);
        Self { principal: Some(id), ..self }
    }

    /// The namespace in the caller's proven identity.
    pub fn namespace(self, namespace: &'a str) -> Self {
        Self { namespace: Some(namespace), ..self }
    }

    /// The application or service account in the caller's proven identity.
    pub fn source_application(self, application: &'a str) -> Self {
        Self { source_application: Some(application), ..self }
    }

    /// The caller's address. An IPv4 address that is written as IPv6 counts as IPv4.
    pub fn ip(self, ip: IpAddr) -> Self {
        let ip = match ip.to_canonical() {
            IpAddr::V4(ip) => Text::of_numbers(ip.octets().map(u16::from)),
            IpAddr::V6(ip) => Text::of(ip),
        };
        Self { ip, ..self }
    }

    /// The port that the call came in at.
    pub fn port(self, port: u16) -> Self {
        Self { port: Text::of_numbers([port]), ..self }
    }

    /// The application that is called. [`Client::authorize`](crate::Client::authorize) fills
    /// in its own.
    pub fn application(self, application: &'a str) -> Self {
        Self { application: Some(application), ..self }
    }

    /// What it is, for people: method, path without its query, and who calls.
    pub(crate) fn described(&self) -> String {
        let mut text = self.method.unwrap_or("a call").to_owned();
        if let Some(path) = self.path {
            // What is asked for may be secret.
            let path = path.split(['?', '#']).next().unwrap_or_default();
            let _ = write!(text, " {path}");
        }
        match self.principal {
            Some(principal) => text + " of spiffe://" + principal,
            None => text + " of an unproven caller",
        }
    }

    pub(crate) fn or_application(self, application: Option<&'a str>) -> Self {
        Self { application: self.application.or(application), ..self }
    }

    /// What names the call everywhere, a trace or request id.
    pub fn request_id(self, id: &'a str) -> Self {
        Self { request_id: Some(id), ..self }
    }

    /// What the application itself knows of the call, by name.
    pub fn extensions(self, extensions: &'a [(&'a str, &'a str)]) -> Self {
        Self { extensions, ..self }
    }

    /// As [`extensions`](Self::extensions), as the application adds them to a request. Those
    /// of one name in `extensions` come first.
    pub fn attributes(self, attributes: &'a Attributes) -> Self {
        Self { attributes: Some(attributes), ..self }
    }

    /// Decides by this number instead of a fresh random one: to repeat a decision.
    pub fn draw(self, draw: u64) -> Self {
        Self { draw: Some(draw), ..self }
    }
}

impl Call for Inbound<'_> {
    #[inline]
    fn value(&self, attribute: &Attribute) -> Option<&[u8]> {
        let text = match attribute {
            Attribute::Header(name) => return self.headers?.get(name),
            Attribute::SourceIp => return self.ip.bytes(),
            Attribute::DestinationPort => return self.port.bytes(),
            Attribute::Method => self.method,
            Attribute::Path => self.path,
            Attribute::SourcePrincipal => self.principal,
            Attribute::SourceNamespace => self.namespace,
            Attribute::SourceApplication => self.source_application,
            Attribute::DestinationApplication => self.application,
            Attribute::RequestId => self.request_id,
            Attribute::Extension(name) => {
                let found = self.extensions.iter().find(|(n, _)| n == name);
                found.map(|(_, value)| *value).or_else(|| self.attributes?.get(name))
            }
            Attribute::Service
            | Attribute::Attachment(_)
            | Attribute::Argument(_)
            | Attribute::Consumer(_)
            | Attribute::Unknown => None,
        };
        text.map(str::as_bytes)
    }
}

/// A short text without memory of its own elsewhere.
#[derive(Clone, Copy)]
struct Text<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self { bytes: [0; N], len: 0 }
    }
}

impl<const N: usize> Text<N> {
    fn of(value: impl fmt::Display) -> Self {
        let mut text = Self::default();
        // What is longer than there is room for is absent rather than cut.
        match write!(text, "{value}") {
            Ok(()) => text,
            Err(_) => Self::default(),
        }
    }

    /// Numbers with dots between: what each call has, so without what formatting costs.
    fn of_numbers<const M: usize>(numbers: [u16; M]) -> Self {
        let mut text = Self::default();
        let mut put = |byte: u8| {
            if let Some(place) = text.bytes.get_mut(usize::from(text.len)) {
                *place = byte;
                text.len += 1;
            }
        };
        for (at, number) in numbers.into_iter().enumerate() {
            if at > 0 {
                put(b'.');
            }
            let mut begun = false;
            for power in [10_000, 1000, 100, 10, 1] {
                begun |= number >= power || power == 1;
                if begun {
                    put(b'0' + (number / power % 10) as u8);
                }
            }
        }
        text
    }

    /// `None` when empty.
    fn bytes(&self) -> Option<&[u8]> {
        self.bytes.get(..usize::from(self.len)).filter(|bytes| !bytes.is_empty())
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let (from, to) = (usize::from(self.len), usize::from(self.len) + s.len());
        let room = self.bytes.get_mut(from..to).ok_or(fmt::Error)?;
        room.copy_from_slice(s.as_bytes());
        self.len = to as u8;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_written_as_everywhere(ip: u32, port: u16) {
            let ip = std::net::Ipv4Addr::from(ip);
            let call = Inbound::new().ip(ip.into()).port(port);
            let (ip, port) = (ip.to_string(), port.to_string());
            prop_assert_eq!(call.value(&Attribute::SourceIp), Some(ip.as_bytes()));
            prop_assert_eq!(call.value(&Attribute::DestinationPort), Some(port.as_bytes()));
        }
    }

    #[test]
    fn attributes_are_what_was_said() {
        let mut map = HeaderMap::new();
        map.insert("x-user", "alice".parse().expect("a value"));
        let pairs = [("X-User", "bob")];
        let extensions = [("tier", "gold")];
        let attributes = Attributes::new().with("tier", "silver").with("team", "blue");
        let call = Inbound::new()
            .method("POST")
            .path("/a")
            .principal("spiffe://td/ns/a/app/b")
            .namespace("a")
            .source_application("b")
            .ip("::ffff:10.0.0.1".parse().expect("an address"))
            .port(65_535)
            .application("c")
            .request_id("r")
            .extensions(&extensions)
            .attributes(&attributes);
        for (name, value) in [
            ("method", Some("POST")),
            ("path", Some("/a")),
            ("source.principal", Some("td/ns/a/app/b")),
            ("source.namespace", Some("a")),
            ("source.application", Some("b")),
            ("source.ip", Some("10.0.0.1")),
            ("destination.port", Some("65535")),
            ("destination.application", Some("c")),
            ("request.id", Some("r")),
            ("extension[tier]", Some("gold")),
            ("extension[team]", Some("blue")),
            ("extension[x]", None),
            ("request.headers[x-user]", None),
            ("consumer[a]", None),
            ("request.header[x]", None),
        ] {
            let attribute = Attribute::parse(name);
            assert_eq!(call.value(&attribute), value.map(str::as_bytes), "{name}");
        }
        let header = Attribute::parse("request.headers[X-User]");
        assert_eq!(call.headers(&map).value(&header), Some(&b"alice"[..]));
        assert_eq!(call.headers(&pairs).value(&header), Some(&b"bob"[..]));
        let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().expect("an address");
        let ip = call.ip(longest);
        assert_eq!(ip.value(&Attribute::SourceIp).map(<[u8]>::len), Some(39));
        assert_eq!(Inbound::new().value(&Attribute::SourceIp), None);
    }
}
