//! gRPC channels over TLS with SPIFFE names.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::rt::TokioIo;
use rulecast_api::Code;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, TlsStream};
use tonic::transport::{Channel, Endpoint};

use crate::{
    IdentityError,
    error::Chain,
    stream::{Stream, explain},
};

/// Times of a connection.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// How long opening the connection may take, TLS included. Default 5 s.
    pub connect_timeout: Duration,
    /// A connection that says nothing for this long is pinged. Default 10 s.
    pub keep_alive_interval: Duration,
    /// And closed when it does not answer for this long. Default 20 s.
    pub keep_alive_timeout: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            keep_alive_interval: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(20),
        }
    }
}

/// How long a new connection waits for the server's first bytes. They say that
/// the server accepted our certificate; a server that waits for ours first is
/// used without that.
const FIRST_BYTES: Duration = Duration::from_secs(1);

/// A channel to `address` (`host:port`, `https://` before it is allowed), which
/// connects with the first call and again whenever the connection is lost.
/// [`IdentityError::find`] finds in a failed call why the connection failed.
pub fn channel(
    address: &str,
    tls: Arc<ClientConfig>,
    options: &ConnectOptions,
) -> Result<Channel, IdentityError> {
    let endpoint = endpoint(address, options)?;
    Ok(endpoint.connect_with_connector_lazy(Connector::tls(tls, options)))
}

/// As [`channel`], connected when it returns. A refusal by the server has its
/// code; a server that is not reached counts as [`Code::PlaneUnreachable`].
pub async fn connect(
    address: &str,
    tls: Arc<ClientConfig>,
    options: &ConnectOptions,
) -> Result<Channel, IdentityError> {
    let endpoint = endpoint(address, options)?;
    endpoint.connect_with_connector(Connector::tls(tls, options)).await.map_err(|error| {
        IdentityError::find(&error).unwrap_or_else(|| {
            IdentityError::new(
                Code::PlaneUnreachable,
                format!("{address} cannot be reached: {}", Chain(&error)),
            )
        })
    })
}

fn endpoint(address: &str, options: &ConnectOptions) -> Result<Endpoint, IdentityError> {
    let invalid = || {
        IdentityError::new(
            Code::ConfigInvalid,
            format!("\"{address}\" is no address; it would be host:port"),
        )
    };
    let rest = address.strip_prefix("https://").unwrap_or(address);
    let uri: Uri = format!("https://{rest}").parse().map_err(|_| invalid())?;
    if uri.port_u16().is_none() || uri.host().is_none_or(str::is_empty) || uri.path() != "/" {
        return Err(invalid());
    }
    Ok(Endpoint::from(uri)
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(options.keep_alive_interval)
        .keep_alive_timeout(options.keep_alive_timeout)
        .keep_alive_while_idle(true))
}

type Opening = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

/// Opens connections, over TLS or in the clear: for
/// [`Endpoint::connect_with_connector_lazy`], with a TLS configuration for HTTP/2 only, and for
/// the client of hyper-util. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connector {
    tls: Option<Arc<ClientConfig>>,
    connect_timeout: Duration,
}

impl Connector {
    /// Over TLS. Of `options` it uses the time for connecting.
    pub fn tls(config: Arc<ClientConfig>, options: &ConnectOptions) -> Self {
        Self { tls: Some(config), connect_timeout: options.connect_timeout }
    }

    /// In the clear.
    pub fn plaintext(options: &ConnectOptions) -> Self {
        Self { tls: None, connect_timeout: options.connect_timeout }
    }
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Opening;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Opening {
        let Self { tls, connect_timeout } = self.clone();
        Box::pin(async move {
            let opened = timeout(connect_timeout, open(tls, uri)).await;
            opened.map_err(io::Error::from)?.map(TokioIo::new)
        })
    }
}

async fn open(tls: Option<Arc<ClientConfig>>, uri: Uri) -> io::Result<Stream> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let host = uri.host().ok_or_else(invalid)?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let port = uri.port_u16().ok_or_else(invalid)?;
    let name = ServerName::try_from(host.to_owned()).map_err(|_| invalid())?;
    let tcp = TcpStream::connect((host, port)).await?;
    tcp.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(tcp.into()) };
    let tls = TlsConnector::from(tls).connect(name, tcp).await.map_err(explain)?;
    let mut stream = Stream::from(TlsStream::from(tls));
    // HTTP/1.1 waits for us to speak first.
    if stream.protocol() != Some(b"h2") {
        return Ok(stream);
    }
    // In TLS 1.3 our side is done before the server has looked at our certificate.
    let mut first = vec![0; 4096];
    if let Ok(read) = timeout(FIRST_BYTES, stream.read(&mut first)).await {
        let len = read?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        first.truncate(len);
        stream.unread(first);
    }
    Ok(stream)
}
