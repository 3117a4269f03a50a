//! Middleware for servers: tower layers that ask whether a call may be taken.
//!
//! [`AuthorizeLayer`] refuses what AuthorizationPolicies do not allow, [`RateLimitLayer`] what
//! RateLimits have no room for. Both go in front of any tower HTTP service: tonic, axum, hyper.
//! A call that goes on is handed over as it came; nothing of it is copied or boxed.
//!
//! ```
//! use rulecast_sdk::{Client, layer::{Authorize, AuthorizeLayer, RateLimit, RateLimitLayer}};
//! use tower_layer::Layer as _;
//!
//! fn govern<S>(client: &Client, service: S) -> Authorize<RateLimit<S>> {
//!     // The outermost first: who may not call takes nothing from anybody's limit.
//!     AuthorizeLayer::grpc(client).layer(RateLimitLayer::grpc(client).layer(service))
//! }
//! ```
//!
//! # What rules see of a call
//! | attribute | where it comes from |
//! |---|---|
//! | `method` | [`grpc`](AuthorizeLayer::grpc): the RPC's name, the last part of the path; [`http`](AuthorizeLayer::http): `GET`, `POST` … |
//! | `path` | the path as it was sent, without the query; nothing in it is decoded |
//! | `request.headers[name]` | the headers; of several with one name the first |
//! | `source.principal`, `source.namespace`, `source.application` | the certificate of the [`Peer`](crate::tls::Peer) in the request's extensions; never a header |
//! | `source.ip` | the address of that peer; without one, what tonic's own server says of the connection |
//! | `destination.port` | [`Options::port`]; without one, as `source.ip` |
//! | `destination.application` | the client's own |
//! | `request.id` | the header that [`Options::request_id`] names |
//! | `extension[name]` | [`Attributes`] in the request's extensions |
//!
//! [`tls::serve`](crate::tls::serve) puts a `Peer` into each request. A server of another make may
//! insert one before these layers.
//!
//! Which of the two readings of a call is right is known to whoever writes the server, and is not
//! guessed: a caller could choose a guess by its `content-type`, and with it what `method` means.
//! A server that takes both wraps each part in its own.
//!
//! # What is said of a refusal
//! A gRPC caller gets PERMISSION_DENIED or RESOURCE_EXHAUSTED, an HTTP caller 403 or 429, with a
//! `retry-after` in seconds where waiting helps. Callers that [`Options::disclose`] names learn
//! which rule it was. The log always does (target `rulecast`): at most ten lines in ten seconds
//! for each rule, and how many more there were.

mod attributes;
mod authorize;
mod body;
mod call;
mod future;
mod guard;
mod limit;
mod log;
mod refusal;

pub use attributes::Attributes;
pub use authorize::{Authorize, AuthorizeLayer};
pub use body::GuardedBody;
pub use future::GuardedFuture;
pub use guard::{Disclose, Options};
pub use limit::{RateLimit, RateLimitLayer};
