//! Calls that are routed, balanced, tried again and watched as rules say.
//!
//! A [`Governor`] chooses an endpoint for each call of one service: by the routing rules, then
//! the circuit breakers, then the [`Balance`]. [`GovernedChannel`] does it for tonic clients, and
//! `GovernedHttp` (with the feature `reqwest`) for HTTP.
//!
//! ```no_run
//! use rulecast_sdk::{Client, Endpoint, EndpointSet, channel::{Balance, GovernedChannel}};
//!
//! # async fn run(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let endpoints = EndpointSet::new([
//!     Endpoint::new("10.0.0.1", 8443).with("region", "hangzhou"),
//!     Endpoint::new("10.0.0.2", 8443).with("region", "beijing").with("weight", "300"),
//! ])?;
//! let channel = GovernedChannel::builder(&client, "com.example.OrderService")
//!     .endpoints(endpoints)
//!     .balance(Balance::LeastRequest)
//!     .channel();
//! // let orders = OrderServiceClient::new(channel.clone());
//! # Ok(())
//! # }
//! ```
//!
//! # What rules see of a call
//! `method` is the last part of the path. `attachments[x]` is what the application says of the
//! call by [`Attributes`](crate::layer::Attributes) in the request's extensions, else the
//! metadata (header) `x`.
//!
//! # Parameters
//! What a DynamicConfig gives counts first, then what the endpoint itself has, then what the
//! application set in the builder.
//!
//! | parameter | meaning | default |
//! |---|---|---|
//! | `weight` | the endpoint's share of calls; 0: none, unless all have 0 | 100 |
//! | `timeout` | milliseconds that each try may take until its answer begins; 0: no limit | none |
//! | `retries` | tries after the first, at most 10 | 2 |
//!
//! A caller's own deadline (`grpc-timeout`) bounds all tries together. Servers of gRPC are told
//! what is left.
//!
//! # When a call is tried again
//! When its connection could not be opened or broke off, and when the server answers
//! UNAVAILABLE at once: at another endpoint if there is one, as long as no other answer has
//! begun and not more than 64 KiB of the request were sent. Retries are a fifth of a service's
//! calls at most, so that they do not multiply an outage, and ten in reserve. A server forbids
//! or delays them by `grpc-retry-pushback-ms`. Of HTTP calls, any is tried again when no
//! connection could be opened, and those with a method that may be repeated (GET, PUT, DELETE
//! …) when it broke off or the answer is 503.
//!
//! # What a circuit breaker learns
//! An endpoint fails a call by a connection that fails, by taking too long, and by the codes
//! UNAVAILABLE, INTERNAL, UNKNOWN, DATA_LOSS and DEADLINE_EXCEEDED, of HTTP 500 and above. It
//! has succeeded as soon as its first message has come, of HTTP its headers. A call that the
//! caller gives up counts as neither.

mod balance;
mod budget;
mod choice;
mod connect;
mod governor;
mod grpc;
mod place;
mod plan;
mod replay;
mod said;
mod send;
#[cfg(feature = "reqwest")]
mod web;

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use tonic::{Status, body::Body};
use tower_service::Service;

pub use balance::Balance;
pub use choice::{Choice, NoEndpoint, Tries};
pub use governor::{Governor, GovernorBuilder};
#[cfg(feature = "reqwest")]
pub use web::{GovernedHttp, HttpError};

use crate::client::Client;

/// A channel to all endpoints of a service, for tonic clients in place of a
/// [`Channel`](tonic::transport::Channel). Cheap to clone; clones share connections, which open
/// with the first call to an endpoint. Always ready: a call chooses its endpoint when it is
/// made. To be used in a tokio runtime.
///
/// Connections are opened by mutual TLS with this client's identity, unless the builder says
/// otherwise; until there is a certificate, calls are UNAVAILABLE.
///
/// Without an endpoint a call is UNAVAILABLE, with the rules that left none in its message.
#[derive(Clone, Debug)]
pub struct GovernedChannel {
    governor: Governor,
}

impl GovernedChannel {
    /// Sets one up for calls of a service, `[group/]interface[:version]`.
    pub fn builder(client: &Client, service: &str) -> GovernorBuilder {
        Governor::builder(client, service)
    }

    pub(crate) fn new(governor: Governor) -> Self {
        Self { governor }
    }

    /// What chooses the endpoints.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send>>;

impl Service<Request<Body>> for GovernedChannel {
    type Response = Response<Body>;
    type Error = Status;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        Box::pin(send::call(self.governor.clone(), request))
    }
}
