//! HTTP on one connection.

use std::{
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{io::AsyncReadExt as _, time::timeout};
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::{BoxError, Event, Gate, Incoming, Peer, ServeOptions};
use crate::stream::Stream;

/// How an HTTP/2 connection begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long HTTP/1.1 may be idle or in the middle of a header. Longer than the pools of usual
/// clients keep a connection, so that it is them who close it and no request meets the closing.
const HTTP1_IDLE: Duration = Duration::from_secs(120);

/// Which versions of HTTP are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Versions {
    Two,
    OneAndTwo,
}

/// Serves one connection until it ends, or `shutdown`, or the gate closes for it; then open
/// calls may go on for `options.drain`.
pub(super) async fn serve<G, S, B>(
    mut stream: Stream,
    peer: Peer,
    service: S,
    versions: Versions,
    gate: &G,
    shutdown: &CancellationToken,
    options: &ServeOptions,
) where
    G: Gate,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let (address, tls) = (peer.address, stream.is_tls());
    let closes = async {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = gate.closes(tls) => {
                tracing::info!(%address, tls, "connections like this are taken no more, draining");
                gate.count(Event::Drained);
            }
        }
    };
    let mut closes = pin!(closes);
    let http2 = match versions {
        Versions::Two => true,
        Versions::OneAndTwo => {
            let found = timeout(options.handshake_timeout, is_http2(&mut stream));
            tokio::select! {
                () = closes.as_mut() => return,
                found = found => match found {
                    Ok(Ok(http2)) => http2,
                    Ok(Err(_)) | Err(_) => return,
                },
            }
        }
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HTTP1_IDLE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(options.keep_alive_interval)
        .keep_alive_timeout(options.keep_alive_timeout)
        .max_concurrent_streams(options.streams)
        .max_header_list_size(16 * 1024);
    let service = TowerToHyperService::new(Told { service, peer });
    let io = TokioIo::new(stream);
    let ended = if http2 {
        // Not the one with upgrades: it would not say its settings before the client has begun.
        let builder = builder.http2_only();
        let connection = builder.serve_connection(io, service);
        drive(connection, auto::Connection::graceful_shutdown, closes, options.drain).await
    } else {
        let builder = builder.http1_only();
        let connection = builder.serve_connection_with_upgrades(io, service);
        drive(connection, auto::UpgradeableConnection::graceful_shutdown, closes, options.drain)
            .await
    };
    match ended {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%address, %error, "connection ended"),
        None => tracing::info!(%address, "cut after the time for draining"),
    }
}

/// Runs a connection to its end; when `closes`, gracefully. `None`: it took longer than `drain`.
async fn drive<C: Future>(
    connection: C,
    graceful_shutdown: fn(Pin<&mut C>),
    closes: impl Future<Output = ()>,
    drain: Duration,
) -> Option<C::Output> {
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = closes => {
            graceful_shutdown(connection.as_mut());
            timeout(drain, connection).await.ok()
        }
    }
}

/// Whether HTTP/2 begins: as ALPN says, else by the first bytes.
async fn is_http2(stream: &mut Stream) -> io::Result<bool> {
    match stream.protocol() {
        Some(b"h2") => return Ok(true),
        Some(_) => return Ok(false),
        None => {}
    }
    let mut first = Vec::with_capacity(PREFACE.len());
    while PREFACE.starts_with(&first) && first.len() < PREFACE.len() {
        let rest = PREFACE.len() - first.len();
        if (&mut *stream).take(rest as u64).read_buf(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let http2 = first == PREFACE;
    stream.unread(first);
    Ok(http2)
}

/// Tells a service of each request whose it is.
#[derive(Clone)]
struct Told<S> {
    service: S,
    peer: Peer,
}

impl<S: Service<Request<Incoming>>> Service<Request<Incoming>> for Told<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer.clone());
        self.service.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::AsyncWriteExt as _,
        net::{TcpListener, TcpStream},
    };

    /// What is found out, and what is read then.
    async fn found(parts: [&[u8]; 2]) -> io::Result<(bool, Vec<u8>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut there = TcpStream::connect(listener.local_addr().expect("bound")).await?;
        let mut stream = Stream::from(listener.accept().await?.0);
        let send = async {
            for part in parts {
                there.write_all(part).await?;
                tokio::task::yield_now().await;
            }
            there.shutdown().await
        };
        let (sent, http2) = tokio::join!(send, is_http2(&mut stream));
        sent?;
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await?;
        Ok((http2?, read))
    }

    #[tokio::test]
    async fn http2_is_told_by_its_preface_however_it_is_cut() {
        let two = [PREFACE, b"\0\0\0\x04\0\0\0\0\0"].concat();
        for one in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSN\r\n\r\n", b"P\0"] {
            for (bytes, http2) in [(&two[..], true), (one, false)] {
                for at in 0..bytes.len() {
                    let (head, tail) = bytes.split_at(at);
                    let found = found([head, tail]).await.expect("found out");
                    assert_eq!(found, (http2, bytes.to_vec()), "cut at {at}");
                }
            }
        }
        for short in [0, 1, PREFACE.len() - 1] {
            let ended = found([&PREFACE[..short], b""]).await.expect_err("it ends too early");
            assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
