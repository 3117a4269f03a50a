//! What a test of connections has: a plane, clients of it, servers and callers.

use std::{
    convert::Infallible,
    error::Error as StdError,
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::{
    body::Body,
    client::conn::{http1, http2},
};
use hyper_util::rt::TokioExecutor;
use rulecast_api::{Code, Kind};
use rulecast_identity::{IdentityError, IdentityHandle, Svid, TrustBundle};
use rulecast_sdk::{
    Client, ClientBuilder, Startup, TlsMode,
    tls::{self, ConnectOptions, Connector, Expected, Incoming, Peer, ServeOptions, Wire},
};
use rustls::ClientConfig;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{Mutex, watch},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tower_service::Service;

use crate::site::{Authority, HOUR, Plane, Site, soon};

/// An authority and a plane.
pub(crate) struct World {
    pub(crate) site: Site,
    plane: Plane,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with_life(HOUR).await
    }

    /// Where certificates live that long.
    pub(crate) async fn with_life(life: Duration) -> Self {
        let site = Site::with_life(life).await;
        let plane = site.plane().await;
        Self { site, plane }
    }

    /// A client of namespace `shop`, with a certificate and rules.
    pub(crate) async fn client(&self, name: &str) -> Client {
        let builder = builder(&self.site.authority, name).plane(self.plane.address.to_string());
        soon("it connects", builder.connect()).await.expect("let in")
    }

    /// A client whose authority does not answer.
    pub(crate) async fn waiting(&self) -> Client {
        let builder = builder(&self.site.authority, "late").ca("127.0.0.1:1");
        builder.startup(Startup::Deny).connect().await.expect("it waits for nothing")
    }
}

fn builder(authority: &Authority, name: &str) -> ClientBuilder {
    Client::builder()
        .ca(authority.address.to_string())
        .plane("127.0.0.1:1")
        .join_token(authority.token("shop", name))
        .namespace("shop")
        .application(name)
}

/// A client with a certificate, and without a plane.
pub(crate) async fn without_plane(authority: &Authority, name: &str) -> Client {
    let builder = builder(authority, name).startup(Startup::Deny);
    let client = builder.connect().await.expect("it waits for nothing");
    until("it has a certificate", || client.identity().is_some()).await;
    client
}

/// Asks until it is so.
pub(crate) async fn until(what: &str, so: impl Fn() -> bool) {
    let asked = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, asked).await;
}

/// An AuthenticationPolicy for all servers of the namespace `shop`.
pub(crate) fn policy(action: &str, ports: &[(u16, &str)]) -> Value {
    let kind = Kind::AUTHENTICATION_POLICY;
    let ports: Vec<_> =
        ports.iter().map(|(port, action)| json!({ "port": port, "action": action })).collect();
    json!({
        "apiVersion": kind.api_version, "kind": kind.name,
        "metadata": { "name": "mode", "namespace": "shop" },
        "spec": { "action": action, "portLevel": ports },
    })
}

/// A server that says whose the calls are, until it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    client: Client,
    whose: Whose,
    _stop: DropGuard,
}

impl Server {
    pub(crate) async fn start(client: &Client, options: ServeOptions) -> Self {
        let whose = Whose::default();
        Self { whose: whose.clone(), ..Self::of(client, whose, options).await }
    }

    /// With another service.
    pub(crate) async fn of<S, B>(client: &Client, service: S, options: ServeOptions) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>,
        S: Clone + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let stop = CancellationToken::new();
        let (shutdown, of) = (stop.clone(), client.clone());
        tokio::spawn(async move { tls::serve(listener, &of, service, shutdown, options).await });
        let whose = Whose::default();
        Self { address, client: client.clone(), whose, _stop: stop.drop_guard() }
    }

    /// Waits until the rules say so of its port.
    pub(crate) async fn mode(&self, wanted: TlsMode) {
        until("the mode", || self.client.tls_mode(self.address.port()) == wanted).await;
    }

    /// Waits until so many calls are held.
    pub(crate) async fn held(&self, wanted: usize) {
        let mut held = self.whose.held.subscribe();
        let _ = soon("calls are held", held.wait_for(|held| *held == wanted)).await;
    }

    /// Lets held calls end.
    pub(crate) fn release(&self) {
        self.whose.released.send_replace(true);
    }
}

/// Answers with the caller's principal, or `nobody`; at `/held` when it is released.
#[derive(Clone, Default)]
struct Whose {
    held: watch::Sender<usize>,
    released: watch::Sender<bool>,
}

impl Service<Request<Incoming>> for Whose {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let Self { held, released } = self.clone();
        Box::pin(async move {
            if request.uri().path() == "/held" {
                held.send_modify(|held| *held += 1);
                let _ = released.subscribe().wait_for(|released| *released).await;
            }
            let peer = request.extensions().get::<Peer>().expect("told");
            let whose = peer.principal().unwrap_or("nobody").to_owned();
            Ok(Response::new(Full::from(whose)))
        })
    }
}

/// Why a call was not answered.
#[derive(Debug)]
pub(crate) struct Refusal(Box<dyn StdError + Send + Sync>);

impl Refusal {
    pub(crate) fn code(&self) -> Option<Code> {
        IdentityError::find(&*self.0).map(|error| error.code())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl PartialEq for Refusal {
    fn eq(&self, other: &Self) -> bool {
        self.code() == other.code()
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

/// Opens connections and calls over them, by HTTP/1.1 and HTTP/2.
#[derive(Clone)]
pub(crate) struct Caller {
    one: Connector,
    two: Connector,
}

impl Caller {
    pub(crate) fn new(client: &Client, wire: Wire) -> Self {
        let two = tls::connector(client, wire.clone()).expect("a connector");
        let one = match wire {
            Wire::Plaintext => two.clone(),
            Wire::Tls(expected) => {
                old(tls::client_config(client, expected).expect("a configuration"))
            }
        };
        Self { one, two }
    }

    /// With such a certificate, trusting `bundle`.
    pub(crate) fn showing(mut svid: Svid, bundle: Arc<TrustBundle>) -> Self {
        svid.bundle = bundle;
        let identity = IdentityHandle::fixed(svid);
        let config = rulecast_identity::tls::client_config(&identity, Expected::Any);
        let config = config.expect("a configuration");
        let two = Connector::tls(config.clone(), &ConnectOptions::default());
        Self { one: old(config), two }
    }

    /// Calls over a connection of its own.
    pub(crate) async fn call(&self, to: SocketAddr, http2: bool) -> Result<String, Refusal> {
        self.open(to, http2).await?.get("/").await
    }

    /// The same.
    pub(crate) async fn once(&self, server: &Server, http2: bool) -> Result<String, Refusal> {
        soon("it is answered or refused", self.call(server.address, http2)).await
    }

    /// A connection that was used once and stays.
    pub(crate) async fn kept(&self, server: &Server, http2: bool) -> Kept {
        let kept = self.open(server.address, http2).await.expect("connects");
        kept.clone().get("/").await.expect("answered");
        kept
    }

    async fn open(&self, to: SocketAddr, http2: bool) -> Result<Kept, Refusal> {
        let uri: Uri = format!("http://{to}").parse().expect("an address");
        let mut connector = if http2 { self.two.clone() } else { self.one.clone() };
        let io = connector.call(uri).await?;
        let (ends, closed) = watch::channel(false);
        let sender = if http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            tokio::spawn(async move {
                let _ = connection.await;
                ends.send_replace(true);
            });
            Sender::Two(sender)
        } else {
            let (sender, connection) = http1::handshake(io).await?;
            tokio::spawn(async move {
                let _ = connection.await;
                ends.send_replace(true);
            });
            Sender::One(Arc::new(Mutex::new(sender)))
        };
        Ok(Kept { sender, closed })
    }
}

/// For HTTP/1.1 alone.
fn old(config: Arc<ClientConfig>) -> Connector {
    let mut config = ClientConfig::clone(&config);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Connector::tls(Arc::new(config), &ConnectOptions::default())
}

/// An open connection.
#[derive(Clone)]
pub(crate) struct Kept {
    sender: Sender,
    closed: watch::Receiver<bool>,
}

#[derive(Clone)]
enum Sender {
    One(Arc<Mutex<http1::SendRequest<Empty<Bytes>>>>),
    Two(http2::SendRequest<Empty<Bytes>>),
}

impl Kept {
    pub(crate) async fn get(self, path: &'static str) -> Result<String, Refusal> {
        let request = Request::get(format!("http://a{path}")).header("host", "a");
        let request = request.body(Empty::new()).expect("a request");
        let response = match self.sender {
            Sender::One(sender) => {
                let mut sender = sender.lock().await;
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Two(mut sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        };
        let body = response.into_body().collect().await?.to_bytes();
        Ok(String::from_utf8(body.into()).expect("text"))
    }

    /// Waits for its end.
    pub(crate) async fn closed(mut self) {
        let _ = self.closed.wait_for(|closed| *closed).await;
    }
}
