//! A listener in front of HTTP services, over TLS, in the clear, or both.

use std::{
    convert::Infallible, error::Error as StdError, io, net::SocketAddr, sync::Arc, time::Duration,
};

use http::{Request, Response};
pub use hyper::body::Incoming;
use rustls::ServerConfig;
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt as _};

mod accept;
mod connection;
mod gate;
mod throttle;

pub use accept::{Acceptor, Refused};
pub use gate::{Event, Gate, Takes};
pub use throttle::Throttle;

use crate::PeerIdentity;
use connection::Versions;

/// Limits of a listener.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// How long a connection may say nothing at its beginning, and how long a TLS handshake
    /// may take. Default 10 s.
    pub handshake_timeout: Duration,
    /// TLS handshakes at a time; more wait. Default 256.
    pub handshakes: usize,
    /// Open connections; more wait in the listener's queue. Default 20,000.
    pub connections: usize,
    /// Calls at a time on one connection. Default 128.
    pub streams: u32,
    /// A connection that says nothing for this long is pinged. Default 20 s.
    pub keep_alive_interval: Duration,
    /// And closed when it does not answer for this long. Default 10 s.
    pub keep_alive_timeout: Duration,
    /// How long open calls may go on after shutdown, or when connections of their kind are
    /// taken no more. Default 5 s.
    pub drain: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            handshakes: 256,
            connections: 20_000,
            streams: 128,
            keep_alive_interval: Duration::from_secs(20),
            keep_alive_timeout: Duration::from_secs(10),
            drain: Duration::from_secs(5),
        }
    }
}

/// Who is at the other end: in the extensions of every request. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its verified certificate, if it showed one.
    pub identity: Option<Arc<PeerIdentity>>,
    principal: Option<Arc<str>>,
    local: Option<SocketAddr>,
}

impl Peer {
    /// Of an address, and of a certificate that was verified.
    pub fn new(address: SocketAddr, identity: Option<Arc<PeerIdentity>>) -> Self {
        let principal = identity.as_ref().map(|identity| identity.spiffe.to_string().into());
        Self { address, identity, principal, local: None }
    }

    /// With the address that it connected to.
    #[must_use]
    pub fn at(self, local: SocketAddr) -> Self {
        Self { local: Some(local), ..self }
    }

    /// Its proven SPIFFE ID as text, with `spiffe://`; `None` without a certificate.
    pub fn principal(&self) -> Option<&str> {
        self.principal.as_deref()
    }

    /// The namespace in its proven identity.
    pub fn namespace(&self) -> Option<&str> {
        self.identity.as_ref().map(|identity| &*identity.spiffe.namespace)
    }

    /// The application or service account in its proven identity.
    pub fn application(&self) -> Option<&str> {
        self.identity.as_ref().map(|identity| identity.spiffe.workload.name())
    }

    /// The address that it connected to, if that is known.
    pub fn local(&self) -> Option<SocketAddr> {
        self.local
    }
}

type BoxError = Box<dyn StdError + Send + Sync>;

/// Serves gRPC, HTTP/2 over TLS, until `shutdown`, then lets open calls finish for
/// `options.drain` and cuts the rest. Each request carries a [`Peer`] in its
/// extensions. Returns early only when the listener is beyond repair.
pub async fn serve_tls<S, B>(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    service: S,
    shutdown: CancellationToken,
    options: ServeOptions,
) -> io::Result<()>
where
    S: Service<Request<tonic::body::Body>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let acceptor = Acceptor::new(tls, Takes::Tls, &options);
    let service =
        service.map_request(|request: Request<Incoming>| request.map(tonic::body::Body::new));
    run(listener, acceptor, service, Versions::Two, shutdown, options).await
}

/// Serves HTTP/2 and HTTP/1.1, with what `acceptor` takes, until `shutdown`; then lets open
/// calls finish for `options.drain` and cuts the rest. The same goes for a connection when
/// those of its kind are taken no more. Each request carries a [`Peer`] in its extensions.
/// Returns early only when the listener is beyond repair.
pub async fn serve<G, S, B>(
    listener: TcpListener,
    acceptor: Acceptor<G>,
    service: S,
    shutdown: CancellationToken,
    options: ServeOptions,
) -> io::Result<()>
where
    G: Gate,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    run(listener, acceptor, service, Versions::OneAndTwo, shutdown, options).await
}

async fn run<G, S, B>(
    listener: TcpListener,
    acceptor: Acceptor<G>,
    service: S,
    versions: Versions,
    shutdown: CancellationToken,
    options: ServeOptions,
) -> io::Result<()>
where
    G: Gate,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let places = Arc::new(Semaphore::new(options.connections));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            // The semaphore is never closed.
            let place = places.clone().acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            next = next => next,
        };
        let tcp = match accepted {
            Ok((tcp, _)) => tcp,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                // Out of file descriptors, most likely: others end meanwhile.
                tracing::warn!(%error, "a connection cannot be accepted");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, service) = (acceptor.clone(), service.clone());
        let (shutdown, options) = (shutdown.clone(), options.clone());
        connections.spawn(async move {
            let _place = place;
            let accepted = tokio::select! {
                () = shutdown.cancelled() => return,
                accepted = acceptor.accept(tcp) => accepted,
            };
            // What was refused is in the log.
            let Ok((stream, peer)) = accepted else { return };
            let gate = acceptor.gate();
            connection::serve(stream, peer, service, versions, gate, &shutdown, &options).await;
        });
    }
    drop(listener);
    let drained =
        timeout(options.drain, async { while connections.join_next().await.is_some() {} });
    if drained.await.is_err() {
        tracing::info!(connections = connections.len(), "cut after the time for draining");
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
