use std::{borrow::Cow, fmt};

use super::inbound::Headers;
use crate::endpoints::Params;

/// Headers, without their content in debug output: they may carry secrets.
#[derive(Clone, Copy, Default)]
pub(crate) struct Borrowed<'a>(Option<&'a (dyn Headers + Sync)>);

impl fmt::Debug for Borrowed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "borrowed" } else { "none" })
    }
}

/// A call that is to be decided. Borrows what it is given, or owns it.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub(crate) service: Cow<'a, str>,
    pub(crate) method: Cow<'a, str>,
    pub(crate) arguments: Vec<Cow<'a, str>>,
    pub(crate) attachments: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub(crate) headers: Borrowed<'a>,
    pub(crate) consumer: Cow<'a, Params>,
    pub(crate) draw: Option<u64>,
}

impl<'a> Request<'a> {
    /// A call of a service, `[group/]interface[:version]` (without version `0.0.0`), by a
    /// consumer with these parameters: `application`, `host`, `region` …
    pub fn new(service: impl Into<Cow<'a, str>>, consumer: &'a Params) -> Self {
        Self::with_consumer(service, Cow::Borrowed(consumer))
    }

    /// As [`Request::new`], owning the parameters.
    pub fn owned(service: impl Into<Cow<'a, str>>, consumer: Params) -> Self {
        Self::with_consumer(service, Cow::Owned(consumer))
    }

    fn with_consumer(service: impl Into<Cow<'a, str>>, consumer: Cow<'a, Params>) -> Self {
        Self {
            service: service.into(),
            method: Cow::Borrowed(""),
            arguments: Vec::new(),
            attachments: Vec::new(),
            headers: Borrowed::default(),
            consumer,
            draw: None,
        }
    }

    /// The invoked method. Without one, conditions on the method do not match.
    #[must_use]
    pub fn method(mut self, method: impl Into<Cow<'a, str>>) -> Self {
        self.method = method.into();
        self
    }

    /// The next argument, as text.
    #[must_use]
    pub fn argument(mut self, text: impl Into<Cow<'a, str>>) -> Self {
        self.arguments.push(text.into());
        self
    }

    /// An attachment; of several with one name the first counts.
    #[must_use]
    pub fn attachment(
        mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Self {
        self.attachments.push((name.into(), value.into()));
        self
    }

    /// Headers or metadata as further attachments, after those that are given one by one.
    /// Nothing is copied.
    #[must_use]
    pub fn headers(mut self, headers: &'a (dyn Headers + Sync)) -> Self {
        self.headers = Borrowed(Some(headers));
        self
    }

    /// The first attachment of that name.
    pub(crate) fn attached(&self, name: &str) -> Option<&[u8]> {
        let own = self.attachments.iter().find(|(n, _)| n == name);
        match own {
            Some((_, value)) => Some(value.as_bytes()),
            None => self.headers.0?.get(name),
        }
    }

    /// Decides by this number instead of a fresh random one: to repeat a decision.
    #[must_use]
    pub fn draw(mut self, draw: u64) -> Self {
        self.draw = Some(draw);
        self
    }
}

/// A call as policies may look at it.
pub(crate) trait Call {
    /// The value of an attribute; `None`: absent.
    fn value(&self, attribute: &Attribute) -> Option<&[u8]>;
}

/// What a rule looks at, by the name that its policy declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attribute {
    Service,
    Method,
    Argument(usize),
    Attachment(String),
    Consumer(String),
    Path,
    Header(String),
    RequestId,
    SourcePrincipal,
    SourceNamespace,
    SourceIp,
    SourceApplication,
    DestinationPort,
    DestinationApplication,
    Extension(String),
    /// A name that this version does not know: absent.
    Unknown,
}

impl Attribute {
    pub(crate) fn parse(name: &str) -> Self {
        let named = name.strip_suffix(']').and_then(|name| name.split_once('['));
        if let Some((of, name)) = named {
            return match of {
                "arguments" => name.parse().map_or(Self::Unknown, Self::Argument),
                "attachments" => Self::Attachment(name.to_owned()),
                "consumer" => Self::Consumer(name.to_owned()),
                "request.headers" => Self::Header(name.to_ascii_lowercase()),
                "extension" => Self::Extension(name.to_owned()),
                _ => Self::Unknown,
            };
        }
        match name {
            "service" => Self::Service,
            "method" => Self::Method,
            "path" => Self::Path,
            "request.id" => Self::RequestId,
            "source.principal" => Self::SourcePrincipal,
            "source.namespace" => Self::SourceNamespace,
            "source.ip" => Self::SourceIp,
            "source.application" => Self::SourceApplication,
            "destination.port" => Self::DestinationPort,
            "destination.application" => Self::DestinationApplication,
            _ => Self::Unknown,
        }
    }
}

impl Call for Request<'_> {
    #[inline]
    fn value(&self, attribute: &Attribute) -> Option<&[u8]> {
        let text = match attribute {
            Attribute::Method => Some(&*self.method).filter(|method| !method.is_empty()),
            Attribute::Service => Some(&*self.service),
            Attribute::Argument(index) => self.arguments.get(*index).map(|a| &**a),
            Attribute::Attachment(name) => return self.attached(name),
            Attribute::Consumer(name) => self.consumer.get(name),
            Attribute::SourceApplication => self.consumer.get("application"),
            _ => None,
        };
        text.map(str::as_bytes)
    }
}
