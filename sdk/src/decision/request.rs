use std::borrow::Cow;

use crate::endpoints::Params;

/// A call that is to be decided. Borrows what it is given, or owns it.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub(crate) service: Cow<'a, str>,
    pub(crate) method: Cow<'a, str>,
    pub(crate) arguments: Vec<Cow<'a, str>>,
    pub(crate) attachments: Vec<(Cow<'a, str>, Cow<'a, str>)>,
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

    /// Decides by this number instead of a fresh random one: to repeat a decision.
    #[must_use]
    pub fn draw(mut self, draw: u64) -> Self {
        self.draw = Some(draw);
        self
    }
}

/// What a rule looks at, by the name that its policy declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attribute {
    Method,
    Argument(usize),
    Attachment(String),
    Consumer(String),
    /// A name that this version does not know: absent.
    Unknown,
}

impl Attribute {
    pub(crate) fn parse(name: &str) -> Self {
        let inner = |prefix: &str| name.strip_prefix(prefix)?.strip_suffix(']');
        if name == "method" {
            return Self::Method;
        }
        if let Some(index) = inner("arguments[") {
            return index.parse().map_or(Self::Unknown, Self::Argument);
        }
        if let Some(name) = inner("attachments[") {
            return Self::Attachment(name.to_owned());
        }
        inner("consumer[").map_or(Self::Unknown, |name| Self::Consumer(name.to_owned()))
    }

    #[inline]
    pub(crate) fn of<'r>(&self, request: &'r Request<'_>) -> Option<&'r [u8]> {
        let text = match self {
            Self::Method => Some(&*request.method).filter(|method| !method.is_empty()),
            Self::Argument(index) => request.arguments.get(*index).map(|a| &**a),
            Self::Attachment(name) => {
                request.attachments.iter().find(|(n, _)| n == name).map(|(_, value)| &**value)
            }
            Self::Consumer(name) => request.consumer.get(name),
            Self::Unknown => None,
        };
        text.map(str::as_bytes)
    }
}
