//! The HTTP endpoint for probes and scrapers: `/livez`, `/readyz`, `/metrics`.
//! Plain HTTP, meant for loopback or the pod network; it tells no rules and no secrets.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::Readiness;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; choose another address or stop who uses it")]
pub struct ListenError {
    /// The address asked for.
    pub address: SocketAddr,
    /// Why.
    #[source]
    pub source: std::io::Error,
}

/// Binds `address`.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|source| ListenError { address, source })
}

/// Serves until `shutdown`.
pub async fn serve(
    listener: TcpListener,
    readiness: Readiness,
    registry: Arc<Registry>,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let app = Router::new()
        // Alive as long as it answers: progress is no matter of liveness.
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state((readiness, registry));
    axum::serve(listener, app)
        .with_graceful_shutdown(async move { shutdown.cancelled().await })
        .await
}

type Shared = (Readiness, Arc<Registry>);

async fn ready(State((readiness, _)): State<Shared>) -> (StatusCode, String) {
    let blockers = readiness.blockers();
    if blockers.is_empty() {
        (StatusCode::OK, "ok\n".into())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, blockers.join("\n") + "\n")
    }
}

async fn metrics(State((_, registry)): State<Shared>) -> impl IntoResponse {
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => (
            StatusCode::OK,
            [(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")],
            text,
        ),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(CONTENT_TYPE, "text/plain; charset=utf-8")],
            format!("metrics cannot be encoded: {error}\n"),
        ),
    }
}
