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
    decision::{Authorization, Effect, Inbound, Reason},
    trace::TARGET,
};

/// Takes the calls that AuthorizationPolicies allow, and refuses the others: gRPC callers get
/// PERMISSION_DENIED, HTTP callers 403. See [`layer`](crate::layer) for what rules see of a call.
///
/// Before the first complete rules, and when a policy fails, calls are refused. A call that an
/// AUDIT policy matches is in the log, target `rulecast::audit`; one that a shadow rule would
/// refuse is in the log as a refused one is.
///
/// For tonic:
/// ```no_run
/// # use rulecast_sdk::{Client, layer::AuthorizeLayer};
/// # async fn run(client: Client, routes: tonic::service::Routes)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let mut server = tonic::transport::Server::builder().layer(AuthorizeLayer::grpc(&client));
/// server.add_routes(routes).serve("[::]:8080".parse()?).await?;
/// # Ok(())
/// # }
/// ```
/// For axum, `router.layer(AuthorizeLayer::http(&client))`.
#[derive(Clone, Debug)]
pub struct AuthorizeLayer {
    guard: Arc<Guard>,
}

impl AuthorizeLayer {
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

impl<S> Layer<S> for AuthorizeLayer {
    type Service = Authorize<S>;

    fn layer(&self, inner: S) -> Authorize<S> {
        Authorize { inner, guard: self.guard.clone() }
    }
}

/// A service behind an [`AuthorizeLayer`].
#[derive(Clone, Debug)]
pub struct Authorize<S> {
    inner: S,
    guard: Arc<Guard>,
}

impl<S, A, B> Service<Request<A>> for Authorize<S>
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
        match self.guard.refuse::<Authorizing>(Head::of(&request)) {
            None => GuardedFuture::served(self.inner.call(request)),
            Some(answer) => GuardedFuture::refused(answer),
        }
    }
}

impl<S: NamedService> NamedService for Authorize<S> {
    const NAME: &'static str = S::NAME;
}

struct Authorizing;

impl Decide for Authorizing {
    type Given = Authorization;

    fn span(principal: Option<&str>, path: &str) -> Span {
        tracing::info_span!(
            target: TARGET,
            "rulecast.authorize",
            principal,
            path,
            verdict = field::Empty,
            rule = field::Empty,
            draw = field::Empty,
        )
    }

    #[inline]
    fn decide(client: &Client, call: &Inbound<'_>) -> Authorization {
        client.authorize(call)
    }

    fn record(given: &Authorization, span: &Span) {
        span.record("verdict", if given.is_allowed() { "allowed" } else { "denied" });
        span.record("rule", given.reason.key());
        span.record("draw", given.draw);
    }

    fn refusal(given: &Authorization, about: &About<'_>) -> Option<Refusal> {
        let verdict = if given.is_allowed() { "allowed" } else { "denied" };
        for audit in given.noted.iter().filter(|noted| noted.effect == Effect::Applied) {
            tracing::info!(
                target: "rulecast::audit",
                rule = %audit.key,
                principal = about.principal,
                path = about.head.path(),
                verdict,
                "call recorded",
            );
        }
        if let Some(reason) = &given.would_deny {
            denial(reason, reason.key(), about, "call would be denied");
        }
        if given.is_allowed() {
            return None;
        }
        let failed = || given.faults.iter().find(|fault| !fault.shadow)?.key.as_deref();
        let rule = given.reason.key().or_else(failed);
        denial(&given.reason, rule, about, "call denied");
        let words = match &given.reason {
            _ if !about.disclosed => "call denied".to_owned(),
            // What went wrong here is not the caller's business.
            Reason::Fault(_) => "call denied: it cannot be decided now".to_owned(),
            reason => format!("call denied: {reason}"),
        };
        Some(Refusal { words, retry_after: None })
    }
}

fn denial(reason: &Reason, rule: Option<&str>, about: &About<'_>, what: &str) {
    if let Some(omitted) = about.log.room(rule.unwrap_or_default(), Instant::now()) {
        tracing::warn!(
            target: TARGET,
            rule,
            principal = about.principal,
            path = about.head.path(),
            %reason,
            omitted,
            "{what}",
        );
    }
}
