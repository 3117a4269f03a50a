//! What a test of connections has: a plane, clients of it, servers and callers.

use std::{
    fmt,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rulecast_api::{Code, Kind};
use rulecast_identity::{
    ConnectOptions, Connector, IdentityError, IdentityHandle, PrivateKey, Svid, TrustBundle,
};
use rulecast_sdk::{
    Client, Startup, TlsMode,
    tls::{self, Expected, Incoming, Peer, ServeOptions, Stream, Wire},
};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{Mutex, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use crate::site::{Authority, HOUR, Plane, Site, soon};

/// An authority, a plane, and rules.
pub(crate) struct World {
    pub(crate) site: Site,
    plane: Plane,
}
