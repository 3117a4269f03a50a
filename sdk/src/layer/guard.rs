use bytes::Bytes;
use http::{HeaderName, Response};
use rulecast_identity::Peer;
use tracing::Span;

use super::{call::Head, log::Log, refusal::Refusal};
use crate::{Client, decision::Inbound};

/// What both layers do alike.
#[derive(Clone, Debug)]
pub struct Options {
    /// The port that rules know as `destination.port`. Default: the one that the connection came
    /// in at, where the server tells.
    pub port: Option<u16>,
    /// The header that names a request everywhere it comes by. Rules that look at a share of
    /// calls take all or none of one name; callers choose it, unless something in front of the
    /// server sets it. Default `x-request-id`.
    pub request_id: HeaderName,
    /// Who is told which rule refused a call. Default [`Disclose::Peers`].
    pub disclose: Disclose,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: None,
            request_id: HeaderName::from_static("x-request-id"),
            disclose: Disclose::default(),
        }
    }
}

/// Who is told which rule refused a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disclose {
    /// Callers with a proven identity.
    #[default]
    Peers,
    /// Every caller.
    Everyone,
    /// No caller; it is in the log.
    Nobody,
}

/// How calls are read and refusals written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Grpc,
    Http,
}

/// What all services of one layer share.
#[derive(Debug)]
pub(super) struct Guard {
    client: Client,
    protocol: Protocol,
    options: Options,
    log: Log,
}

/// What is to be decided of a call, and how it came out.
pub(super) trait Decide {
    type Given;

    /// The span of a call that is traced.
    fn span(principal: Option<&str>, path: &str) -> Span;

    fn decide(client: &Client, call: &Inbound<'_>) -> Self::Given;

    fn record(given: &Self::Given, span: &Span);

    /// Says what is to be said of it; `None`: the call goes on.
    fn refusal(given: &Self::Given, about: &About<'_>) -> Option<Refusal>;
}

/// Of which call something is said.
pub(super) struct About<'a> {
    pub(super) log: &'a Log,
    pub(super) principal: &'a str,
    pub(super) head: Head<'a>,
    /// The caller may know the rule.
    pub(super) disclosed: bool,
}

impl Guard {
    pub(super) fn new(client: &Client, protocol: Protocol, options: Options) -> Self {
        Self { client: client.clone(), protocol, options, log: Log::default() }
    }

    pub(super) fn with(&self, options: Options) -> Self {
        Self::new(&self.client, self.protocol, options)
    }

    /// `None`: the call goes on.
    pub(super) fn refuse<D: Decide>(&self, head: Head<'_>) -> Option<Response<Bytes>> {
        let Options { port, request_id, disclose } = &self.options;
        let principal = head.peer.and_then(Peer::principal);
        let call = head.inbound(self.protocol, *port, request_id);
        let span = match self.client.sampling().takes(head.headers) {
            true => D::span(principal, head.path()),
            false => Span::none(),
        };
        let given = span.in_scope(|| D::decide(&self.client, &call));
        if !span.is_none() {
            D::record(&given, &span);
        }
        let disclosed = match disclose {
            Disclose::Peers => principal.is_some(),
            Disclose::Everyone => true,
            Disclose::Nobody => false,
        };
        let principal = principal.unwrap_or("nobody proven");
        let about = About { log: &self.log, principal, head, disclosed };
        D::refusal(&given, &about).map(|refusal| refusal.answer(self.protocol))
    }
}
