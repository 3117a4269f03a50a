//! A connection's bytes, over TLS or in the clear, on either side.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::TlsStream;

use crate::IdentityError;

/// A TCP connection, with TLS or without. Bytes that were read to find out what comes are
/// given again.
#[derive(Debug)]
pub struct Stream {
    first: Vec<u8>,
    wire: Wire,
}

#[derive(Debug)]
enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl From<TcpStream> for Stream {
    fn from(tcp: TcpStream) -> Self {
        Self { first: Vec::new(), wire: Wire::Plain(tcp) }
    }
}

impl From<TlsStream<TcpStream>> for Stream {
    fn from(tls: TlsStream<TcpStream>) -> Self {
        Self { first: Vec::new(), wire: Wire::Tls(Box::new(tls)) }
    }
}

impl Stream {
    /// Whether it is encrypted.
    pub fn is_tls(&self) -> bool {
        matches!(self.wire, Wire::Tls(_))
    }

    /// What both sides agreed to speak (ALPN), if they did.
    pub fn protocol(&self) -> Option<&[u8]> {
        match &self.wire {
            Wire::Plain(_) => None,
            Wire::Tls(tls) => tls.get_ref().1.alpn_protocol(),
        }
    }

    /// Gives `bytes` to the next reader, before all others.
    pub(crate) fn unread(&mut self, mut bytes: Vec<u8>) {
        bytes.append(&mut self.first);
        self.first = bytes;
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        if self.protocol() == Some(b"h2") { connected.negotiated_h2() } else { connected }
    }
}

/// On the side that connects: puts our error in the place of TLS's where it says something of
/// identities.
pub(crate) fn explain(error: io::Error) -> io::Error {
    match IdentityError::find(&error) {
        Some(found) => io::Error::new(error.kind(), found),
        None => error,
    }
}

impl AsyncRead for Stream {
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
        match &mut self.wire {
            Wire::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Wire::Tls(tls) => match &mut **tls {
                TlsStream::Server(tls) => Pin::new(tls).poll_read(cx, buf),
                TlsStream::Client(tls) => {
                    Poll::Ready(ready!(Pin::new(tls).poll_read(cx, buf)).map_err(explain))
                }
            },
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.wire {
            Wire::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Wire::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.wire {
            Wire::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Wire::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.wire {
            Wire::Plain(tcp) => tcp.is_write_vectored(),
            Wire::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Wire::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Wire::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
