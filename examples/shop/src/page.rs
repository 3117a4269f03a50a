//! What operators and the demo read of a process: probes, metrics, and its calls.

use std::net::SocketAddr;

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    routing::get,
};
use rulecast_runtime::http::{ListenError, bind};
use rulecast_sdk::{Client, metrics};
use tokio_util::sync::CancellationToken;

use crate::report::Calls;

/// Serves `/livez`, `/readyz`, `/metrics` and `/report` by plain HTTP until `shutdown`.
pub(crate) async fn serve(
    address: SocketAddr,
    client: Client,
    calls: Calls,
    shutdown: CancellationToken,
) -> Result<(), ListenError> {
    let listener = bind(address).await?;
    let (ready, counted) = (client.clone(), client.clone());
    let app = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route(
            "/readyz",
            get(async move || match ready.status().ready {
                true => (StatusCode::OK, "ok\n"),
                false => (StatusCode::SERVICE_UNAVAILABLE, "no complete rules yet\n"),
            }),
        )
        .route(
            "/metrics",
            get(async move || {
                ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], counted.metrics().openmetrics())
            }),
        )
        .route(
            "/report",
            get(async move || {
                serde_json::to_string(&calls.report(&client))
                    .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
            }),
        );
    tokio::spawn(async move {
        let ended = axum::serve(listener, app).with_graceful_shutdown(shutdown.cancelled_owned());
        if let Err(error) = ended.await {
            tracing::warn!(%error, "the page for operators ended");
        }
    });
    Ok(())
}
