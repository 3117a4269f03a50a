//! An HTTP service that says its name.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use axum::{Router, http::StatusCode};
use rulecast_sdk::{Client, Endpoint, tls};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A server that takes plaintext and TLS, and runs until it is dropped.
pub(crate) struct Web {
    address: SocketAddr,
    status: Arc<AtomicU16>,
    _stop: DropGuard,
}

impl Web {
    pub(crate) async fn start(client: &Client) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let status = Arc::new(AtomicU16::new(200));
        let stop = CancellationToken::new();
        let answers = status.clone();
        let router = Router::new().fallback(async move || {
            let status = StatusCode::from_u16(answers.load(Ordering::SeqCst)).expect("a status");
            (status, address.to_string())
        });
        let (client, shutdown) = (client.clone(), stop.clone());
        tokio::spawn(async move {
            let options = tls::ServeOptions::default();
            tls::serve(listener, &client, router, shutdown, options).await
        });
        Self { address, status, _stop: stop.drop_guard() }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::new(self.address.ip().to_string(), self.address.port())
    }

    pub(crate) fn name(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn answers(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }
}
