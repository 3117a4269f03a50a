//! From a TCP connection to a peer that is known.

use std::{fmt, io, sync::Arc, time::Duration};

use rustls::ServerConfig;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::{Event, Gate, Peer, ServeOptions, Throttle};
use crate::{IdentityError, PeerIdentity, error::Chain, stream::Stream};

/// The first byte of every TLS connection: a record with a handshake in it. No HTTP request
/// begins so.
const TLS_HANDSHAKE: u8 = 0x16;

/// Why a connection was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It was in the clear where only TLS is taken.
    #[error("plaintext, but only mutual TLS is taken here")]
    Plaintext,
    /// It began with TLS where only plaintext is taken.
    #[error("TLS, but only plaintext is taken here")]
    Tls,
    /// This process has no certificate yet.
    #[error("there is no certificate of our own yet")]
    NoCertificate,
    /// The handshake failed, or the peer was not let in.
    #[error("TLS handshake refused: {}", Chain(.0))]
    Handshake(#[source] io::Error),
    /// The certificate says nothing that can be used.
    #[error("verified certificate cannot be read: {0}")]
    Certificate(#[source] IdentityError),
    /// It said nothing, or did not finish its handshake, in the time for it.
    #[error("no handshake in time")]
    Late,
    /// It ended before it said anything.
    #[error("closed before it said anything")]
    Closed,
}

impl Refused {
    fn event(&self) -> Event {
        match self {
            Self::Plaintext => Event::PlaintextRefused,
            Self::Tls => Event::TlsRefused,
            Self::NoCertificate | Self::Handshake(_) | Self::Certificate(_) => {
                Event::HandshakeFailed
            }
            Self::Late | Self::Closed => Event::Silent,
        }
    }
}

/// Takes connections as its [`Gate`] says: finds out by the first byte whether TLS begins,
/// shakes hands, and reads who is there. Cheap to clone; clones share their limits.
#[derive(Clone)]
pub struct Acceptor<G> {
    tls: TlsAcceptor,
    gate: G,
    handshakes: Arc<Semaphore>,
    handshake_timeout: Duration,
    log: Arc<Throttle>,
}

impl<G: fmt::Debug> fmt::Debug for Acceptor<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl<G: Gate> Acceptor<G> {
    /// Over a TLS configuration. Of `options` it uses those of handshakes.
    pub fn new(tls: Arc<ServerConfig>, gate: G, options: &ServeOptions) -> Self {
        Self {
            tls: tls.into(),
            gate,
            handshakes: Arc::new(Semaphore::new(options.handshakes)),
            handshake_timeout: options.handshake_timeout,
            log: Arc::default(),
        }
    }

    /// Says which connections are taken.
    pub fn gate(&self) -> &G {
        &self.gate
    }

    /// Takes a connection, or refuses it and says so in the log. Waits for the first byte, and
    /// for a place among the handshakes.
    pub async fn accept(&self, tcp: TcpStream) -> Result<(Stream, Peer), Refused> {
        let (stream, peer) = self.take(tcp).await?;
        self.gate.count(if stream.is_tls() { Event::Tls } else { Event::Plaintext });
        Ok((stream, peer))
    }

    async fn take(&self, tcp: TcpStream) -> Result<(Stream, Peer), Refused> {
        let (Ok(address), Ok(local)) = (tcp.peer_addr(), tcp.local_addr()) else {
            self.gate.count(Event::Silent);
            return Err(Refused::Closed);
        };
        let _ = tcp.set_nodelay(true);
        let said = |refused: Refused| {
            self.gate.count(refused.event());
            // Probes of load balancers close at once, all day long.
            if !matches!(refused, Refused::Closed)
                && let Some(unsaid) = self.log.pass()
            {
                tracing::info!(%address, port = local.port(), unsaid, "{refused}");
            }
            refused
        };
        let mut first = [0];
        let peeked = timeout(self.handshake_timeout, tcp.peek(&mut first)).await;
        let tls = match peeked {
            Ok(Ok(1..)) => first[0] == TLS_HANDSHAKE,
            Ok(Ok(0) | Err(_)) => return Err(said(Refused::Closed)),
            Err(_) => return Err(said(Refused::Late)),
        };
        if !self.gate.takes().includes(tls) {
            let refused = said(if tls { Refused::Tls } else { Refused::Plaintext });
            linger(tcp).await;
            return Err(refused);
        }
        if !tls {
            return Ok((tcp.into(), Peer::new(address, None).at(local)));
        }
        // The semaphore is never closed.
        let place = self.handshakes.acquire().await.ok();
        if !self.gate.has_certificate() {
            drop(place);
            let refused = said(Refused::NoCertificate);
            linger(tcp).await;
            return Err(refused);
        }
        let accept = self.tls.accept(tcp).into_fallible();
        let shaken = timeout(self.handshake_timeout, accept).await;
        drop(place);
        let stream = match shaken {
            Ok(Ok(stream)) => stream,
            Ok(Err((error, tcp))) => {
                let refused = said(Refused::Handshake(error));
                linger(tcp).await;
                return Err(refused);
            }
            Err(_) => return Err(said(Refused::Late)),
        };
        let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let identity = leaf.map(|leaf| PeerIdentity::from_der(leaf)).transpose();
        let identity = identity.map_err(|e| said(Refused::Certificate(e)))?.map(Arc::new);
        Ok((tokio_rustls::TlsStream::from(stream).into(), Peer::new(address, identity).at(local)))
    }
}

/// Closes so that the peer can read what it was sent, an alert perhaps: a socket closed with
/// unread data in it resets the connection, and the alert may be lost with it.
async fn linger(mut tcp: TcpStream) {
    let _ = tcp.shutdown().await;
    let mut waste = [0; 1024];
    let drain = async { while matches!(tcp.read(&mut waste).await, Ok(n) if n > 0) {} };
    let _ = timeout(Duration::from_millis(500), drain).await;
}
