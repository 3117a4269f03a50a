//! HTTP to the API server: one configuration, one pool of connections.

use std::time::Duration;

use http::{HeaderValue, Request, Response, header::USER_AGENT};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ConfigExt as _, retry::RetryPolicy};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use tower::{BoxError, ServiceBuilder, retry::RetryLayer, util::BoxCloneSyncService};

use crate::ClusterError;

/// To open a TCP connection.
const CONNECT: Duration = Duration::from_secs(5);
/// To open a connection with everything that belongs to it: name, TCP, TLS.
const CONNECT_ALL: Duration = Duration::from_secs(10);
/// Between two PINGs over HTTP/2, and for the answer to one: together the time in which a dead
/// connection is noticed.
const PING: Duration = Duration::from_secs(10);
/// For bytes that do not leave.
const WRITE: Duration = Duration::from_secs(20);
/// Without a byte from the server. Over HTTP/2 the answers to PINGs come long before; over
/// HTTP/1.1 it is all that can be done, and must be more than the minute between bookmarks.
const READ: Duration = Duration::from_secs(90);
/// Unanswered probes of TCP.
const PROBES: u32 = 3;

/// Requests in, responses out; clones share the connections.
pub(super) type Stack =
    BoxCloneSyncService<Request<Body>, Response<hyper::body::Incoming>, BoxError>;

/// Makes the stack of one configuration. May run a credential plugin, which blocks.
pub(super) fn build(config: &kube::Config) -> Result<Stack, ClusterError> {
    let unusable = |reason: String| ClusterError::Config {
        what: format!("API server {}", config.cluster_url),
        reason,
    };
    // kube takes the process's default provider, and panics where several are linked and none
    // was chosen. Losing the race to somebody else's choice is fine.
    if CryptoProvider::get_default().is_none() {
        let _ = aws_lc_rs::default_provider().install_default();
    }
    let tls = config.rustls_client_config().map_err(|e| unusable(e.to_string()))?;

    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(PING));
    tcp.set_keepalive_interval(Some(PING / PROBES));
    tcp.set_keepalive_retries(Some(PROBES));
    tcp.set_tcp_user_timeout(Some(WRITE));

    let mut https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into().map_err(|_| {
            unusable(format!("tls-server-name {name:?} is neither a DNS name nor an address"))
        })?;
        https = https.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let https = https.enable_all_versions().wrap_connector(tcp);

    let mut connector = TimeoutConnector::new(https);
    connector.set_connect_timeout(Some(CONNECT_ALL));
    connector.set_read_timeout(Some(READ));
    connector.set_write_timeout(Some(WRITE));
    connector.set_reset_reader_on_write(true);

    let client: Client<_, Body> = Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PING)
        .http2_keep_alive_while_idle(true)
        .build(connector);

    let mut config = config.clone();
    config.headers.push((
        USER_AGENT,
        HeaderValue::from_static(concat!("rulecast/", env!("CARGO_PKG_VERSION"))),
    ));
    let auth = config.auth_layer().map_err(|e| unusable(e.to_string()))?;
    let headers = config.extra_headers_layer().map_err(|e| unusable(e.to_string()))?;
    let retry = RetryPolicy::new(Duration::from_millis(100), Duration::from_secs(2), 3, true)
        .map_err(|e| unusable(e.to_string()))?;
    let stack = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(RetryLayer::new(retry))
        .option_layer(auth)
        .layer(headers)
        .map_err(BoxError::from)
        .service(client);
    Ok(BoxCloneSyncService::new(stack))
}
