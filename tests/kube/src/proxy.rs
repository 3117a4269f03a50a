//! A TCP proxy that spoils connections.

use std::{
    io,
    net::{self, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, bail};
use rustix::net::{Shutdown, listen, shutdown};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::ports::free_port;

/// Pieces that are under way in one direction, at most 16 KiB each.
const UNDER_WAY: usize = 64;

const BACKLOG: i32 = 128;

/// Passes connections on to one address, on a port of its own on loopback. Dropped, it
/// closes all of them.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    listener: net::TcpListener,
    state: watch::Sender<State>,
    connections: Arc<Connections>,
    _until_dropped: DropGuard,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    refuses: bool,
    stalls: bool,
    delay: Duration,
}

#[derive(Debug)]
struct Connections {
    accepted: AtomicUsize,
    open: AtomicUsize,
    /// Closes those that are open; a new one takes its place.
    closing: Mutex<CancellationToken>,
}

impl Proxy {
    /// Begins to listen. Its tasks run where this is called.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        let listener = bind()?;
        let all = CancellationToken::new();
        let connections = Arc::new(Connections {
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            closing: Mutex::new(all.child_token()),
        });
        let (state, _) = watch::channel(State::default());
        let accepting =
            accept(listener.try_clone()?, target, state.subscribe(), connections.clone());
        tokio::spawn(all.clone().run_until_cancelled_owned(accepting));
        let addr = listener.local_addr()?;
        Ok(Self { addr, listener, state, connections, _until_dropped: all.drop_guard() })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many connections it has taken so far.
    pub fn accepted(&self) -> usize {
        self.connections.accepted.load(Ordering::SeqCst)
    }

    /// How many connections are open now.
    pub fn open(&self) -> usize {
        self.connections.open.load(Ordering::SeqCst)
    }

    /// Closes all connections, both sides. New ones are taken.
    pub fn cut(&self) {
        let mut closing = self.connections.closing();
        let next = CancellationToken::new();
        std::mem::replace(&mut *closing, next).cancel();
    }

    /// While it stalls, connections stay open, also new ones, and no byte passes, nor the
    /// end of a connection: what a network does that loses everything. Nothing is lost here:
    /// afterwards all of it passes.
    pub fn stall(&self, stalls: bool) {
        self.state.send_modify(|state| state.stalls = stalls);
    }

    /// How much later every byte arrives, each way. A byte under way keeps its time.
    pub fn delay(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }

    /// While it refuses, nothing listens on the port. Connections that are open stay.
    pub fn refuse(&self, refuses: bool) {
        let before = self.state.borrow().refuses;
        if refuses == before {
            return;
        }
        // The state first when it begins, last when it ends: the task that accepts sees an
        // error of the socket only when it knows why.
        let set = |refuses| self.state.send_modify(|state| state.refuses = refuses);
        if refuses {
            set(true);
            shutdown(&self.listener, Shutdown::Both).expect("a listening socket can stop");
        } else {
            listen(&self.listener, BACKLOG).expect("a bound socket can listen again");
            set(false);
        }
    }
}

impl Connections {
    fn closing(&self) -> std::sync::MutexGuard<'_, CancellationToken> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.connections.closing().cancel();
    }
}

/// On a port that stays this proxy's while it refuses.
fn bind() -> Result<net::TcpListener> {
    for _ in 0..100 {
        match net::TcpListener::bind((Ipv4Addr::LOCALHOST, free_port()?)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => {
                let listener = bound?;
                listener.set_nonblocking(true)?;
                return Ok(listener);
            }
        }
    }
    bail!("every free port was taken at once")
}

async fn accept(
    socket: net::TcpListener,
    target: SocketAddr,
    state: watch::Receiver<State>,
    connections: Arc<Connections>,
) -> io::Result<()> {
    let mut now = state.clone();
    let mut listener = TcpListener::from_std(socket.try_clone()?)?;
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Shut down, or out of files; the pause keeps the second from spinning.
            tokio::time::sleep(Duration::from_millis(10)).await;
            holds(&mut now, |state| !state.refuses).await?;
            // For tokio, what was shut down once stays so.
            listener = TcpListener::from_std(socket.try_clone()?)?;
            continue;
        };
        connections.accepted.fetch_add(1, Ordering::SeqCst);
        let closed = connections.closing().clone();
        let open = Open::new(connections.clone());
        let state = state.clone();
        tokio::spawn(async move {
            // Whatever the reason for its end, both sides see it.
            let _ = closed.run_until_cancelled(pass(client, target, state)).await;
            drop(open);
        });
    }
}

/// Counts a connection while it is open.
struct Open(Arc<Connections>);

impl Open {
    fn new(connections: Arc<Connections>) -> Self {
        connections.open.fetch_add(1, Ordering::SeqCst);
        Self(connections)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn pass(
    client: TcpStream,
    target: SocketAddr,
    state: watch::Receiver<State>,
) -> io::Result<()> {
    let server = TcpStream::connect(target).await?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    tokio::try_join!(
        one_way(client_read, server_write, state.clone()),
        one_way(server_read, client_write, state),
    )?;
    Ok(())
}

/// Passes one direction on until it ends.
async fn one_way(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: watch::Receiver<State>,
) -> io::Result<()> {
    let (send, mut receive) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let mut reading_state = state.clone();
    let read = async move {
        loop {
            holds(&mut reading_state, |state| !state.stalls).await?;
            let mut piece = Vec::with_capacity(16 * 1024);
            if from.read_buf(&mut piece).await? == 0 {
                return Ok(());
            }
            let due = Instant::now() + reading_state.borrow().delay;
            if send.send((due, piece)).await.is_err() {
                return Ok(());
            }
        }
    };
    let mut writing_state = state;
    let write = async move {
        while let Some((due, piece)) = receive.recv().await {
            sleep_until(due).await;
            holds(&mut writing_state, |state| !state.stalls).await?;
            to.write_all(&piece).await?;
        }
        holds(&mut writing_state, |state| !state.stalls).await?;
        to.shutdown().await
    };
    tokio::try_join!(read, write)?;
    Ok(())
}

/// Waits until it holds; fails when the proxy is gone.
async fn holds(
    state: &mut watch::Receiver<State>,
    what: impl FnMut(&State) -> bool,
) -> io::Result<()> {
    let waited = state.wait_for(what).await.map(drop);
    waited.map_err(|_| io::ErrorKind::ConnectionAborted.into())
}

#[cfg(test)]
#[path = "proxy/tests.rs"]
mod tests;
