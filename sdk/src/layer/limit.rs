use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use http::{Request, Response};
use tonic::server::NamedService;
use tower_layer::Layer;
use tower_service::Service;
use tracing::{Span, field};

use super::{
    body::GuardedBody,
    call::Head,
    future::GuardedFuture,
    guard::{About, Decide, Guard, Options, Protocol},
    refusal::Refusal,
};
use crate::{
    Client,
    decision::{Admission, Inbound, Limited},
    trace::TARGET,
};

/// Takes the calls that RateLimits have room for, and refuses the others: gRPC callers get
/// RESOURCE_EXHAUSTED with `retry-after` (seconds) and `grpc-retry-pushback-ms`, HTTP callers 429
/// with `retry-after`. See [`layer`](crate::layer) for what rules see of a call.
///
/// Behind an [`AuthorizeLayer`](super::AuthorizeLayer) only calls count that may be made; before
/// it, denied ones take from the limits too. A rule that fails refuses nothing.
///
/// For axum:
/// ```no_run
/// # use rulecast_sdk::{Client, layer::{AuthorizeLayer, RateLimitLayer}};
/// # fn govern(client: &Client, router: axum::Router) -> axum::Router {
/// // Of layers added to a router the last is the outermost.
/// router.layer(RateLimitLayer::http(client)).layer(AuthorizeLayer::http(client))
/// # }
/// ```
/// For tonic, `Server::builder().layer(RateLimitLayer::grpc(&client))`.
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    guard: Arc<Guard>,
}

impl RateLimitLayer {
    /// For services of gRPC: rules know a call by the RPC's name.
    pub fn grpc(client: &Client) -> Self {
        let guard = Guard::new(client, Protocol::Grpc, Options::default());
        Self { guard: Arc::new(guard) }
    }

    /// For other services over HTTP: rules know a call by its verb.
    pub fn http(client: &Client) -> Self {
        let guard = Guard::new(client, Protocol::Http, Options::default());
        Self { guard: Arc::new(guard) }
    }

    /// With other options.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        Self { guard: Arc::new(self.guard.with(options)) }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit { inner, guard: self.guard.clone() }
    }
}

/// A service behind a [`RateLimitLayer`].
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    guard: Arc<Guard>,
}

impl<S, A, B> Service<Request<A>> for RateLimit<S>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    type Response = Response<GuardedBody<B>>;
    type Error = S::Error;
    type Future = GuardedFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        match self.guard.refuse::<Admitting>(Head::of(&request)) {
            None => GuardedFuture::served(self.inner.call(request)),
            Some(answer) => GuardedFuture::refused(answer),
        }
    }
}

impl<S: NamedService> NamedService for RateLimit<S> {
    const NAME: &'static str = S::NAME;
}

struct Admitting;

impl Decide for Admitting {
    type Given = Admission;

    fn span(principal: Option<&str>, path: &str) -> Span {
        tracing::info_span!(
            target: TARGET,
            "rulecast.limit",
            principal,
            path,
            verdict = field::Empty,
            rule = field::Empty,
        )
    }

    #[inline]
    fn decide(client: &Client, call: &Inbound<'_>) -> Admission {
        client.admit(call)
    }

    fn record(given: &Admission, span: &Span) {
        span.record("verdict", if given.is_admitted() { "admitted" } else { "limited" });
        span.record("rule", given.limited.as_ref().map(|limited| &*limited.key));
    }

    fn refusal(given: &Admission, about: &About<'_>) -> Option<Refusal> {
        for fault in given.faults.iter().filter(|fault| !fault.shadow) {
            let rule = fault.key.as_deref();
            if let Some(omitted) = about.log.room(rule.unwrap_or_default(), Instant::now()) {
                tracing::warn!(target: TARGET, rule, fault = %fault.fault, omitted, "limit fails");
            }
        }
        if let Some(limited) = &given.would_limit {
            refused(limited, about, "call would be limited");
        }
        let limited = given.limited.as_ref()?;
        refused(limited, about, "call limited");
        let words = match about.disclosed {
            true => format!("too many calls: {limited}"),
            false => "too many calls".to_owned(),
        };
        Some(Refusal { words, retry_after: Some(limited.retry_after) })
    }
}

fn refused(limited: &Limited, about: &About<'_>, what: &str) {
    if let Some(omitted) = about.log.room(&limited.key, Instant::now()) {
        tracing::info!(
            target: TARGET,
            rule = &*limited.key,
            principal = about.principal,
            path = about.head.path(),
            retry_after = ?limited.retry_after,
            omitted,
            "{what}",
        );
    }
}
