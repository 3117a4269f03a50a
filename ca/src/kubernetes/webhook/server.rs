//! The HTTPS server that the API server calls.
//!
//! Anybody who reaches it may ask: an answer says nothing that the configuration does
//! not, and changes nothing. So what one caller can make it hold is bounded: handshakes
//! and requests by time, connections by number, bodies by their bytes taken together.

use std::{io, sync::Arc, time::Duration};

use axum::{
    Router,
    body::to_bytes,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::post,
};
use http::{
    StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use rulecast_identity::tls;
use rulecast_runtime::http as runtime_http;
use rustls::{ServerConfig, server::NoServerSessionStorage};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    ServingCertificate, WebhookConfig,
    review::{Answer, Asked, NotAReview, Reviewer, Verdict},
};
use crate::{CaError, metrics::Metrics};

/// Longest body. The API server takes objects of 3 MiB at most, and what it stores of them
/// is half of that; as JSON, with its own notes, it can be longer.
pub const MAX_BODY: usize = 6 << 20;
/// Bodies at a time, taken together. Read, each is some times its size.
const BODIES: usize = 4 * MAX_BODY;
/// Reviews at a time that are read and answered; each occupies a core.
const REVIEWS: usize = 2;
/// Open connections; more wait in the listener's queue.
const CONNECTIONS: usize = 512;
/// For a handshake, and for a request from its head to the answer; the API server gives up
/// after 5 s.
const PATIENCE: Duration = Duration::from_secs(5);
/// For the next request on a connection. The API server closes idle connections after 90 s;
/// one that closes first could meet a call, which then fails.
const IDLE: Duration = Duration::from_secs(150);

/// Serves on `config.listen` until `shutdown`, then lets open calls end within
/// `config.drain`. [`ConfigInvalid`](rulecast_api::Code::ConfigInvalid) for a bad
/// configuration, [`ListenFailed`](rulecast_api::Code::ListenFailed) for an address that
/// cannot be had; both before anything is served.
pub async fn serve(
    config: WebhookConfig,
    certificate: ServingCertificate,
    metrics: Metrics,
    shutdown: CancellationToken,
) -> Result<(), CaError> {
    let listener = runtime_http::bind(config.listen).await?;
    serve_on(listener, config, certificate, metrics, shutdown).await
}

/// As [`serve`], on a listener that is bound already; `config.listen` is not used.
pub async fn serve_on(
    listener: TcpListener,
    config: WebhookConfig,
    certificate: ServingCertificate,
    metrics: Metrics,
    shutdown: CancellationToken,
) -> Result<(), CaError> {
    config.validate()?;
    let drain = config.drain;
    let acceptor = TlsAcceptor::from(tls_config(certificate)?);
    let router = router(Reviewer::new(config), metrics);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    info!(address = ?listener.local_addr().ok(), "the pod webhook is up");
    loop {
        let next = async {
            // The semaphore is never closed.
            (places.clone().acquire_owned().await.ok(), listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            next = next => next,
        };
        match accepted {
            Ok((stream, address)) => {
                let (acceptor, router) = (acceptor.clone(), router.clone());
                let shutdown = shutdown.clone();
                connections.spawn(async move {
                    let _place = place;
                    if let Err(error) = connection(stream, acceptor, router, &shutdown).await {
                        debug!(%address, %error, "connection ended");
                    }
                });
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // Out of file descriptors, most likely: others end meanwhile.
                warn!(%error, "a connection cannot be accepted");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    let drained = timeout(drain, async { while connections.join_next().await.is_some() {} });
    if drained.await.is_err() {
        info!(connections = connections.len(), "cut after the time for draining");
        connections.shutdown().await;
    }
    Ok(())
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// Callers show no certificate: API servers have none for webhooks unless told so.
fn tls_config(certificate: ServingCertificate) -> Result<Arc<ServerConfig>, CaError> {
    let mut config = ServerConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| CaError::authority(format!("TLS cannot be configured: {error}")))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certificate));
    // What API servers speak to webhooks, so that their calls spread over replicas.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed session would not show a certificate that was replaced meanwhile.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    router: Router,
    shutdown: &CancellationToken,
) -> Result<(), BoxError> {
    let _ = stream.set_nodelay(true);
    let stream = tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        accepted = timeout(PATIENCE, acceptor.accept(stream)) => accepted??,
    };
    let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    let service = TowerToHyperService::new(router);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

struct Shared {
    reviewer: Reviewer,
    metrics: Metrics,
    bodies: Arc<Semaphore>,
    reviews: Arc<Semaphore>,
}

fn router(reviewer: Reviewer, metrics: Metrics) -> Router {
    let shared = Arc::new(Shared {
        reviewer,
        metrics,
        bodies: Arc::new(Semaphore::new(BODIES)),
        reviews: Arc::new(Semaphore::new(REVIEWS)),
    });
    let path = |asked| post(move |State(shared), request| review(shared, asked, request));
    Router::new()
        .route("/inject", path(Asked::Rulecast))
        .route("/inject-dubbo", path(Asked::Dubbo))
        .with_state(shared)
}

/// Why a body is not even looked at. No answer holds anything of it.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("{NotAReview}")]
    NotAReview(#[from] NotAReview),
    #[error("a review has at most {MAX_BODY} bytes")]
    TooLong,
    #[error("the body did not arrive")]
    Incomplete,
    #[error("the body did not arrive in {} s, or too many are under way", PATIENCE.as_secs())]
    Late,
    #[error("the review broke off")]
    Broken,
}

impl Unread {
    fn status(&self) -> StatusCode {
        match self {
            Self::NotAReview(_) | Self::Incomplete => StatusCode::BAD_REQUEST,
            Self::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Late => StatusCode::SERVICE_UNAVAILABLE,
            Self::Broken => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

async fn review(shared: Arc<Shared>, asked: Asked, request: Request) -> Response {
    let answer = timeout(PATIENCE, answer(&shared, asked, request));
    match answer.await.unwrap_or(Err(Unread::Late)) {
        Ok(Answer { verdict, namespace, name, review }) => {
            shared.metrics.pod(verdict.as_str());
            // Quoted: nobody has checked these names yet.
            match verdict {
                Verdict::Unchanged => debug!(?namespace, ?name, "pod unchanged"),
                Verdict::Injected => info!(?namespace, ?name, "pod given trust"),
                Verdict::Refused => warn!(?namespace, ?name, "pod refused"),
            }
            ([(CONTENT_TYPE, "application/json")], review.to_string()).into_response()
        }
        Err(error) => {
            shared.metrics.pod("unread");
            warn!(%error, "a call of the webhook is not answered");
            (error.status(), format!("{error}\n")).into_response()
        }
    }
}

async fn answer(shared: &Arc<Shared>, asked: Asked, request: Request) -> Result<Answer, Unread> {
    let declared = request.headers().get(CONTENT_LENGTH);
    let declared = declared
        .map(|len| len.to_str().ok().and_then(|len| len.parse().ok()).unwrap_or(usize::MAX));
    let len = declared.unwrap_or(MAX_BODY);
    if len > MAX_BODY {
        return Err(Unread::TooLong);
    }
    let room = acquire(&shared.bodies, len).await?;
    let body = to_bytes(request.into_body(), len).await.map_err(|_| match declared {
        Some(_) => Unread::Incomplete,
        None => Unread::TooLong,
    })?;
    let turn = acquire(&shared.reviews, 1).await?;
    let shared = shared.clone();
    let answered = tokio::task::spawn_blocking(move || {
        let _held = (room, turn);
        shared.reviewer.answer(&body, asked)
    });
    Ok(answered.await.map_err(|_| Unread::Broken)??)
}

/// The semaphores are never closed.
async fn acquire(semaphore: &Arc<Semaphore>, n: usize) -> Result<OwnedSemaphorePermit, Unread> {
    let n = u32::try_from(n).unwrap_or(u32::MAX);
    semaphore.clone().acquire_many_owned(n).await.map_err(|_| Unread::Broken)
}

#[cfg(test)]
mod tests;
