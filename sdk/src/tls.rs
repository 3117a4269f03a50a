//! TLS between services: both sides are known by their SPIFFE names, and certificates follow
//! the client's identity.
//!
//! A server gives its listener to [`serve`], with any tower service for HTTP: the `Routes` of
//! tonic, a `Router` of axum, a service of its own. AuthenticationPolicies say which connections
//! it takes, and every request has a [`Peer`] in its extensions:
//!
//! ```no_run
//! # async fn run(client: rulecast_sdk::Client, routes: tonic::service::Routes) -> std::io::Result<()> {
//! use rulecast_sdk::tls::{self, ServeOptions};
//! use tokio_util::sync::CancellationToken;
//!
//! let listener = tokio::net::TcpListener::bind("0.0.0.0:50051").await?;
//! let shutdown = CancellationToken::new();
//! tls::serve(listener, &client, routes, shutdown, ServeOptions::default()).await
//! # }
//! ```
//!
//! A caller opens connections with a [`connector`], or gives [`client_config`] to an HTTP client
//! of its own:
//!
//! ```no_run
//! # fn run(client: rulecast_sdk::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use rulecast_sdk::tls::{self, Expected, Wire};
//!
//! let orders = Expected::Workload { namespace: "shop".into(), name: "orders".into() };
//! let connector = tls::connector(&client, Wire::Tls(orders))?;
//! let endpoint = tonic::transport::Endpoint::from_static("http://10.0.0.1:50051");
//! let channel = endpoint.connect_with_connector_lazy(connector);
//! # Ok(())
//! # }
//! ```
//!
//! Certificates are renewed without a new configuration and without a new connection: each
//! handshake uses the newest, and an open connection goes on, also beyond the end of the
//! certificates that opened it. Before the first certificate handshakes fail, and say so.
//! Configurations keep the client that they were made of running.

use std::{error::Error as StdError, io, sync::Arc};

use http::{Request, Response};
use rulecast_identity::{
    ClientAuth, IdentitySource, Svid,
    serve::{self as listen, Throttle},
    tls,
};
use rustls::{ClientConfig, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

mod counts;
mod modes;

pub use counts::ConnectionCounts;
pub(crate) use counts::Counts;
pub use rulecast_identity::{
    ConnectOptions, Connector, Expected, IdentityError, Peer, PeerIdentity, ServeOptions as Limits,
    Stream,
    serve::{Incoming, Refused},
};

use crate::{Client, TlsMode};
use modes::Modes;

impl IdentitySource for Client {
    fn svid(&self) -> Option<Arc<Svid>> {
        self.identity().map(|identity| identity.current())
    }
}

/// For callers: shows this process's certificate, and wants `expected` of its own trust domain
/// at the other end. Speaks HTTP/2 or HTTP/1.1, as ALPN finds out: for reqwest, hyper and the
/// like; tonic needs a [`connector`]. The name in the URL proves nothing and is not looked at.
pub fn client_config(
    client: &Client,
    expected: Expected,
) -> Result<Arc<ClientConfig>, IdentityError> {
    let mut config = Arc::unwrap_or_clone(tls::client_config(client, expected)?);
    config.alpn_protocols = http_versions();
    Ok(Arc::new(config))
}

/// For servers that do their own handshakes: wants a certificate of its own trust domain of
/// every caller. Speaks HTTP/2 or HTTP/1.1, as ALPN finds out. It knows nothing of
/// AuthenticationPolicy; [`Acceptor`] and [`serve`] do.
pub fn server_config(client: &Client) -> Result<Arc<ServerConfig>, IdentityError> {
    let log = Throttle::default();
    let refused = move |error: &IdentityError| {
        if let Some(unsaid) = log.pass() {
            tracing::info!(%error, unsaid, "a caller is not let in");
        }
    };
    let required = tls::server_config(client, ClientAuth::Required, Some(Arc::new(refused)))?;
    let mut config = Arc::unwrap_or_clone(required);
    config.alpn_protocols = http_versions();
    Ok(Arc::new(config))
}

fn http_versions() -> Vec<Vec<u8>> {
    vec![b"h2".to_vec(), b"http/1.1".to_vec()]
}

/// How a caller opens connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    /// In the clear; nobody proves anything.
    Plaintext,
    /// By mutual TLS, to such a peer.
    Tls(Expected),
}

/// Opens connections for tonic: for `Endpoint::connect_with_connector_lazy`. It gives up after
/// 5 s; [`Connector`] itself has another time for whoever wants one. The scheme of the
/// endpoint's address does not matter.
pub fn connector(client: &Client, wire: Wire) -> Result<Connector, IdentityError> {
    let options = ConnectOptions::default();
    Ok(match wire {
        Wire::Plaintext => Connector::plaintext(&options),
        Wire::Tls(expected) => Connector::tls(tls::client_config(client, expected)?, &options),
    })
}

/// How a server serves.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Which connections are taken where no AuthenticationPolicy decides. Default
    /// [`TlsMode::Permissive`], so that callers can move to mutual TLS one by one; who calls in
    /// the clear has no identity, and no AuthorizationPolicy that asks for one lets it in.
    /// [`TlsMode::Undecided`] is the same.
    pub undecided: TlsMode,
    /// Limits and times.
    pub limits: Limits,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self { undecided: TlsMode::Permissive, limits: Limits::default() }
    }
}

/// Takes connections as the AuthenticationPolicies for this application say: for servers with
/// an accept loop of their own. Cheap to clone.
///
/// STRICT refuses plaintext, DISABLED refuses TLS, PERMISSIVE takes both at one port and tells
/// them apart by the first byte. TLS is mutual in each case: a caller without a certificate of
/// the trust domain is refused. A refused connection is closed, counted in
/// [`Client::connections`] and told in the log.
#[derive(Clone, Debug)]
pub struct Acceptor {
    inner: listen::Acceptor<Modes>,
}

impl Acceptor {
    /// For the connections of one port, the one that policies know. Follows the client's rules
    /// in a task of its own, until it is dropped with all its clones.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(client: &Client, port: u16, options: &ServeOptions) -> Result<Self, IdentityError> {
        let modes = Modes::follow(client.clone(), port, options.undecided);
        let inner = listen::Acceptor::new(server_config(client)?, modes, &options.limits);
        Ok(Self { inner })
    }

    /// Takes a connection: finds out what it is, shakes hands, and reads who is there. Waits for
    /// as long as [`Limits::handshake_timeout`] for the first byte; call it in a task of the
    /// connection's own.
    pub async fn accept(&self, tcp: TcpStream) -> Result<(Stream, Peer), Refused> {
        self.inner.accept(tcp).await
    }

    /// Waits until open connections, over TLS or in the clear, would be taken no more, because
    /// the rules have changed: let their calls end, and close them.
    pub async fn closes(&self, tls: bool) {
        listen::Gate::closes(self.inner.gate(), tls).await;
    }
}

/// Serves HTTP/2 and HTTP/1.1 until `shutdown`, with mutual TLS and plaintext as the
/// AuthenticationPolicies for this application say of the listener's port; see [`Acceptor`].
///
/// A change of the rules goes for new connections at once. Open ones that would be taken no more
/// are drained: they are told to take no further calls (GOAWAY, `Connection: close`), and open
/// calls may go on for [`Limits::drain`]. The same goes for all of them after `shutdown`.
///
/// Each request has a [`Peer`] in its extensions. Returns early only when the listener is
/// beyond repair.
pub async fn serve<S, B>(
    listener: TcpListener,
    client: &Client,
    service: S,
    shutdown: CancellationToken,
    options: ServeOptions,
) -> io::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<Box<dyn StdError + Send + Sync>>,
    S::Future: Send,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let port = listener.local_addr()?.port();
    let acceptor = Acceptor::new(client, port, &options).map_err(io::Error::other)?;
    listen::serve(listener, acceptor.inner, service, shutdown, options.limits).await
}
