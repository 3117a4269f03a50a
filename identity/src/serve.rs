//! A TLS listener in front of gRPC services.

use std::{
    convert::Infallible, error::Error as StdError, io, net::SocketAddr, pin::pin, sync::Arc,
    time::Duration,
};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt as _};

use crate::{PeerIdentity, error::Chain};

/// Limits of a listener.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// How long a TLS handshake may take. Default 10 s.
    pub handshake_timeout: Duration,
    /// Handshakes at a time; more wait in the listener's queue. Default 256.
    pub handshakes: usize,
    /// Open connections; more wait in the listener's queue. Default 20,000.
    pub connections: usize,
    /// Calls at a time on one connection. Default 128.
    pub streams: u32,
    /// A connection that says nothing for this long is pinged. Default 20 s.
    pub keep_alive_interval: Duration,
    /// And closed when it does not answer for this long. Default 10 s.
    pub keep_alive_timeout: Duration,
    /// How long open calls may go on after shutdown. Default 5 s.
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

/// Who is at the other end: in the extensions of every request.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its verified certificate, if it showed one.
    pub identity: Option<Arc<PeerIdentity>>,
}

type BoxError = Box<dyn StdError + Send + Sync>;

/// Serves HTTP/2 over TLS until `shutdown`, then lets open calls finish for
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
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let acceptor = TlsAcceptor::from(tls);
    let handshakes = Arc::new(Semaphore::new(options.handshakes));
    let places = Arc::new(Semaphore::new(options.connections));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            // Neither semaphore is ever closed.
            let place = places.clone().acquire_owned().await.ok();
            let handshake = handshakes.clone().acquire_owned().await.ok();
            (place, handshake, listener.accept().await)
        };
        let (place, handshake, accepted) = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            next = next => next,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
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
                accepted = handshake_with(&acceptor, stream, address, &options) => accepted,
            };
            drop(handshake);
            if let Some((stream, peer)) = accepted {
                serve_connection(stream, peer, service, &shutdown, &options).await;
            }
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

/// `None`: refused, and logged.
async fn handshake_with(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
    options: &ServeOptions,
) -> Option<(TlsStream<TcpStream>, Peer)> {
    let _ = stream.set_nodelay(true);
    let accept = acceptor.accept(stream).into_fallible();
    let stream = match timeout(options.handshake_timeout, accept).await {
        Ok(Ok(stream)) => stream,
        Ok(Err((error, stream))) => {
            tracing::info!(%address, error = %Chain(&error), "TLS handshake refused");
            linger(stream).await;
            return None;
        }
        Err(_) => {
            tracing::info!(%address, "TLS handshake took too long");
            return None;
        }
    };
    let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let identity = match leaf.map(|leaf| PeerIdentity::from_der(leaf)).transpose() {
        Ok(identity) => identity.map(Arc::new),
        Err(error) => {
            tracing::warn!(%address, %error, "verified certificate cannot be read");
            return None;
        }
    };
    Some((stream, Peer { address, identity }))
}

/// Closes so that the peer can read the alert: a socket closed with unread data
/// in it resets the connection, and the alert may be lost with it.
async fn linger(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let mut waste = [0; 1024];
    let drain = async { while matches!(stream.read(&mut waste).await, Ok(n) if n > 0) {} };
    let _ = timeout(Duration::from_millis(500), drain).await;
}

async fn serve_connection<S, B>(
    stream: TlsStream<TcpStream>,
    peer: Peer,
    service: S,
    shutdown: &CancellationToken,
    options: &ServeOptions,
) where
    S: Service<Request<tonic::body::Body>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let address = peer.address;
    let service = TowerToHyperService::new(tower::service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(tonic::body::Body::new);
        request.extensions_mut().insert(peer.clone());
        service.clone().oneshot(request)
    }));
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(options.keep_alive_interval)
        .keep_alive_timeout(options.keep_alive_timeout)
        .max_concurrent_streams(options.streams)
        .max_header_list_size(16 * 1024);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%address, %error, "connection ended");
    }
}
