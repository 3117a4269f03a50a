//! Which connections a listener takes.

/// Which connections a listener takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Takes {
    /// Those in the clear.
    Plaintext,
    /// Both, told apart by their first byte.
    Both,
    /// Those over TLS.
    Tls,
}

impl Takes {
    /// Whether a connection is taken, over TLS or in the clear.
    pub fn includes(self, tls: bool) -> bool {
        match self {
            Self::Plaintext => !tls,
            Self::Both => true,
            Self::Tls => tls,
        }
    }
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// It was taken, over TLS.
    Tls,
    /// It was taken, in the clear.
    Plaintext,
    /// It was in the clear where only TLS is taken.
    PlaintextRefused,
    /// It began with TLS where only plaintext is taken.
    TlsRefused,
    /// The handshake failed, its peer was not let in, or there is no certificate yet.
    HandshakeFailed,
    /// It ended, or said nothing in time.
    Silent,
    /// It was open when connections of its kind were taken no more, and was drained.
    Drained,
}

/// Says which connections are taken, now and from now on.
pub trait Gate: Clone + Send + Sync + 'static {
    /// Asked for every new connection.
    fn takes(&self) -> Takes;

    /// Waits until open connections, over TLS or in the clear, are taken no more.
    fn closes(&self, tls: bool) -> impl Future<Output = ()> + Send;

    /// Whether there is a certificate to shake hands with.
    fn has_certificate(&self) -> bool {
        true
    }

    /// Told of every connection.
    fn count(&self, event: Event) {
        let _ = event;
    }
}

/// Always the same.
impl Gate for Takes {
    fn takes(&self) -> Takes {
        *self
    }

    async fn closes(&self, _: bool) {
        std::future::pending().await
    }
}
