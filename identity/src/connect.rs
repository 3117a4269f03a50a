//! gRPC channels over TLS with SPIFFE names.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::Uri;
use hyper_util::rt::TokioIo;
use rulecast_api::Code;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Endpoint};

use crate::{IdentityError, error::Chain};

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
    Ok(endpoint.connect_with_connector_lazy(connector(tls, options)))
}

/// As [`channel`], connected when it returns. A refusal by the server has its
/// code; a server that is not reached counts as [`Code::PlaneUnreachable`].
pub async fn connect(
    address: &str,
    tls: Arc<ClientConfig>,
    options: &ConnectOptions,
) -> Result<Channel, IdentityError> {
    let endpoint = endpoint(address, options)?;
    endpoint.connect_with_connector(connector(tls, options)).await.map_err(|error| {
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

type Opening = Pin<Box<dyn Future<Output = io::Result<TokioIo<TlsIo>>> + Send>>;

fn connector(
    tls: Arc<ClientConfig>,
    options: &ConnectOptions,
) -> impl tower::Service<Uri, Response = TokioIo<TlsIo>, Error = io::Error, Future = Opening>
+ Send
+ use<> {
    let connect_timeout = options.connect_timeout;
    tower::service_fn(move |uri: Uri| {
        let tls = TlsConnector::from(tls.clone());
        let opened = async move {
            timeout(connect_timeout, open(tls, uri))
                .await
                .map_err(io::Error::from)?
                .map(TokioIo::new)
        };
        Box::pin(opened) as Opening
    })
}

async fn open(tls: TlsConnector, uri: Uri) -> io::Result<TlsIo> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let host = uri.host().ok_or_else(invalid)?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let port = uri.port_u16().ok_or_else(invalid)?;
    let name = ServerName::try_from(host.to_owned()).map_err(|_| invalid())?;
    let tcp = TcpStream::connect((host, port)).await?;
    tcp.set_nodelay(true)?;
    let tls = tls.connect(name, tcp).await.map_err(explain)?;
    let mut stream = TlsIo { tls, first: Vec::new() };
    // In TLS 1.3 our side is done before the server has looked at our certificate.
    let mut first = vec![0; 4096];
    if let Ok(read) = timeout(FIRST_BYTES, stream.tls.read(&mut first)).await {
        let len = read.map_err(explain)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        first.truncate(len);
        stream.first = first;
    }
    Ok(stream)
}

/// Puts our error in the place of TLS's where it says something of identities.
fn explain(error: io::Error) -> io::Error {
    match IdentityError::find(&error) {
        Some(found) => io::Error::new(error.kind(), found),
        None => error,
    }
}

/// A TLS stream that gives bytes again that were read ahead, and explains alerts.
pub(crate) struct TlsIo {
    tls: TlsStream<TcpStream>,
    first: Vec<u8>,
}

impl AsyncRead for TlsIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let len = self.first.len().min(buf.remaining());
            buf.put_slice(&self.first[..len]);
            self.first.drain(..len);
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(ready!(Pin::new(&mut self.tls).poll_read(cx, buf)).map_err(explain))
    }
}

impl AsyncWrite for TlsIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}
