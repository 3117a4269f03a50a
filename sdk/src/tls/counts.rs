//! What became of connections.

use std::sync::atomic::{AtomicU64, Ordering};

use rulecast_identity::serve::Event;

/// What became of connections at the ports of this process, since the client began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionCounts {
    /// Taken, over mutual TLS.
    pub tls: u64,
    /// Taken, in the clear.
    pub plaintext: u64,
    /// Refused: in the clear where only mutual TLS is taken.
    pub plaintext_refused: u64,
    /// Refused: TLS where only plaintext is taken.
    pub tls_refused: u64,
    /// Failed handshakes: a peer that was not let in, or no certificate of our own yet.
    pub handshakes_failed: u64,
    /// Ended before they said anything, or did not say it in time.
    pub silent: u64,
    /// Taken, and drained when the rules took connections of their kind no more.
    pub drained: u64,
}

/// The counters themselves.
#[derive(Debug, Default)]
pub(crate) struct Counts([AtomicU64; 7]);

impl Counts {
    pub(crate) fn count(&self, event: Event) {
        self.0[index(event)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> ConnectionCounts {
        let of = |event| self.0[index(event)].load(Ordering::Relaxed);
        ConnectionCounts {
            tls: of(Event::Tls),
            plaintext: of(Event::Plaintext),
            plaintext_refused: of(Event::PlaintextRefused),
            tls_refused: of(Event::TlsRefused),
            handshakes_failed: of(Event::HandshakeFailed),
            silent: of(Event::Silent),
            drained: of(Event::Drained),
        }
    }
}

fn index(event: Event) -> usize {
    match event {
        Event::Tls => 0,
        Event::Plaintext => 1,
        Event::PlaintextRefused => 2,
        Event::TlsRefused => 3,
        Event::HandshakeFailed => 4,
        Event::Silent => 5,
        Event::Drained => 6,
    }
}
