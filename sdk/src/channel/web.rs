//! HTTP calls by reqwest.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use reqwest::{Body, Request, Response, ResponseBuilderExt as _, StatusCode, redirect::Policy};
use rulecast_identity::IdentityError;
use tokio::time::{sleep, timeout};

use super::{Choice, Governor, NoEndpoint, Tries, replay::MAX_KEPT, said::Said};
use crate::{
    layer::Attributes,
    tls::{self, Expected, Wire},
};

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// No endpoint is left; it says by which rules.
    #[error(transparent)]
    NoEndpoint(#[from] NoEndpoint),
    /// An endpoint's host and port make no URL.
    #[error("\"{0}\" is no address; it would be host:port")]
    Address(String),
    /// An endpoint took longer than it may.
    #[error("{address} has not answered in {after:?}")]
    Late {
        /// The endpoint.
        address: String,
        /// The time that it had.
        after: Duration,
    },
    /// The call failed, or there can be no client.
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] IdentityError),
}

/// HTTP calls of a service by reqwest, each to an endpoint that the [`Governor`] chooses. Cheap
/// to clone. Made by [`Governor::http`].
///
/// ```no_run
/// # use rulecast_sdk::{Client, EndpointSet, channel::Governor};
/// # async fn run(client: Client, endpoints: EndpointSet) -> Result<(), Box<dyn std::error::Error>> {
/// let stock = Governor::builder(&client, "stock").endpoints(endpoints).build().http()?;
/// let request = stock.client().get("http://stock/items/7").build()?;
/// let answer = stock.execute(request).await?;
/// # Ok(())
/// # }
/// ```
///
/// Scheme, host and port of the URL are replaced. `method` is for rules the verb.
#[derive(Clone, Debug)]
pub struct GovernedHttp {
    governor: Governor,
    client: reqwest::Client,
}

impl GovernedHttp {
    pub(super) fn of(governor: Governor) -> Result<Self, HttpError> {
        let inner = governor.inner();
        let expected = match &inner.wire {
            Wire::Tls(expected) => expected.clone(),
            // Not used then, but reqwest wants one.
            Wire::Plaintext => Expected::Any,
        };
        let config = tls::client_config(&inner.client, expected)?;
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(std::sync::Arc::unwrap_or_clone(config))
            .connect_timeout(inner.connect.connect_timeout)
            .redirect(Policy::none())
            .no_proxy()
            .build()?;
        Ok(Self { governor, client })
    }

    /// By another client of reqwest, with options of its own; for mutual TLS it needs
    /// [`client_config`](tls::client_config).
    #[must_use]
    pub fn with_client(self, client: reqwest::Client) -> Self {
        Self { client, ..self }
    }

    /// The client of reqwest, to build requests with. What it sends by itself is not governed.
    pub fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// What chooses the endpoints.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// Makes a call, as often as it takes and is allowed.
    pub async fn execute(&self, request: Request) -> Result<Response, HttpError> {
        self.execute_with(request, &Attributes::default()).await
    }

    /// The same, of a call of which the application says more than its headers do.
    pub async fn execute_with(
        &self,
        mut request: Request,
        attributes: &Attributes,
    ) -> Result<Response, HttpError> {
        let mut tries = Tries::new();
        let choose = |request: &Request, tries: &mut Tries| {
            let headers: &HeaderMap = request.headers();
            let said = Said { attributes: Some(attributes), headers };
            self.governor.choose_for(request.method().as_str(), &said, tries)
        };
        let mut choice = choose(&request, &mut tries)?;
        let retries = choice.retries();
        loop {
            let kept = request
                .body()
                .is_none_or(|body| body.as_bytes().is_some_and(|bytes| bytes.len() <= MAX_KEPT));
            let again = match tries.count() <= retries && kept {
                true => request.try_clone(),
                false => None,
            };
            let repeatable = request.method().is_idempotent();
            let Tried { answer, may_repeat } = self.send(choice, request).await;
            let Some(same) = again.filter(|_| may_repeat.allows(repeatable)) else {
                return answer;
            };
            if !self.governor.may_retry(&tries, retries) {
                return answer;
            }
            let Ok(next) = choose(&same, &mut tries) else { return answer };
            sleep(tries.pause()).await;
            (choice, request) = (next, same);
        }
    }

    /// One try.
    async fn send(&self, mut choice: Choice, mut request: Request) -> Tried {
        let address = choice.endpoint().address().to_owned();
        if place(&mut request, &choice, &self.governor.inner().wire).is_none() {
            return Tried::finally(Err(HttpError::Address(address)));
        }
        let answer = self.client.execute(request);
        let answer = match choice.timeout() {
            None => answer.await,
            Some(after) => match timeout(after, answer).await {
                Ok(answer) => answer,
                Err(_) => {
                    choice.failed();
                    return Tried::finally(Err(HttpError::Late { address, after }));
                }
            },
        };
        match answer {
            Ok(response) => {
                choice.reached();
                choice.settle(!response.status().is_server_error());
                if response.status() == StatusCode::SERVICE_UNAVAILABLE {
                    return Tried { answer: Ok(response), may_repeat: Repeat::IfIdempotent };
                }
                Tried::finally(Ok(counted(response, choice)))
            }
            Err(error) => {
                let may_repeat = match () {
                    // Of the request's own time there is none left.
                    () if error.is_timeout() && !error.is_connect() => Repeat::Never,
                    () if error.is_connect() => Repeat::Always,
                    () if error.is_request() => Repeat::IfIdempotent,
                    () => Repeat::Never,
                };
                match may_repeat {
                    Repeat::Always => choice.unreachable(),
                    Repeat::Never if !error.is_timeout() => {
                        // A request that cannot be is not the endpoint's doing.
                        drop(choice);
                    }
                    _ => choice.failed(),
                }
                Tried { answer: Err(error.into()), may_repeat }
            }
        }
    }
}

/// How a try ended.
struct Tried {
    /// For the caller, if this was the last try.
    answer: Result<Response, HttpError>,
    may_repeat: Repeat,
}

/// Whether there may be another try.
#[derive(Clone, Copy)]
enum Repeat {
    Never,
    /// The server may have done what was asked.
    IfIdempotent,
    /// Nothing was sent.
    Always,
}

impl Repeat {
    fn allows(self, idempotent: bool) -> bool {
        match self {
            Self::Never => false,
            Self::IfIdempotent => idempotent,
            Self::Always => true,
        }
    }
}

impl Tried {
    fn finally(answer: Result<Response, HttpError>) -> Self {
        Self { answer, may_repeat: Repeat::Never }
    }
}

/// Sends a request to the endpoint that was chosen.
fn place(request: &mut Request, choice: &Choice, wire: &Wire) -> Option<()> {
    let (host, port) = (choice.endpoint().host(), choice.endpoint().port()?);
    let scheme = match wire {
        Wire::Plaintext => "http",
        Wire::Tls(_) => "https",
    };
    let url = request.url_mut();
    url.set_scheme(scheme).ok()?;
    match host.parse() {
        Ok(ip) => url.set_ip_host(ip).ok()?,
        Err(_) => url.set_host(Some(host).filter(|host| !host.is_empty())).ok()?,
    }
    url.set_port(Some(port)).ok()
}

/// Counts a call as under way until its body ends or is dropped.
fn counted(response: Response, choice: Choice) -> Response {
    let url = http::Response::builder().url(response.url().clone()).body(());
    let (mut parts, body) = http::Response::from(response).into_parts();
    if let Ok(url) = url {
        parts.extensions.extend(url.into_parts().0.extensions);
    }
    let body = Body::wrap(Counted { body, _choice: choice });
    Response::from(http::Response::from_parts(parts, body))
}

struct Counted {
    body: Body,
    _choice: Choice,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
