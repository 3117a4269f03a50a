//! The Rulecast SDK: identity, rules kept current, decisions in sandboxed WebAssembly.
//!
//! ```no_run
//! use rulecast_sdk::{Client, Endpoint, EndpointSet};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder()
//!     .plane("localhost:7444")
//!     .ca("localhost:7443")
//!     .join_token_file("/run/secrets/rulecast-token")
//!     .application("shop-frontend")
//!     .parameter("region", "hangzhou")
//!     .service("com.example.OrderService")
//!     .state_dir("/var/lib/shop-frontend/rulecast")
//!     .connect()
//!     .await?;
//! let endpoints = EndpointSet::new([
//!     Endpoint::new("10.0.0.1", 20880).with("region", "hangzhou"),
//!     Endpoint::new("10.0.0.2", 20880).with("region", "beijing"),
//! ])?;
//! let request = client.request("com.example.OrderService").method("getOrder");
//! let decision = client.route(&request, &endpoints);
//! println!("{:?} may be called", decision.endpoints);
//! # Ok(())
//! # }
//! ```
//!
//! In Kubernetes the surroundings say where everything is: [`Rulecast::from_env`].

pub mod breaker;
pub mod channel;
pub mod client;
mod clock;
pub mod decision;
pub mod disk;
pub mod endpoints;
pub mod env;
pub mod host;
pub mod layer;
pub mod metrics;
pub mod observe;
pub mod snapshot;
pub mod status;
pub mod tls;
mod trace;
#[cfg(feature = "vectors")]
pub mod vector;

pub use breaker::{Attempt, BreakerState, BreakerStatus};
pub use client::{Client, ClientBuilder, ConnectError, Startup, Tuning};
pub use decision::{
    Admission, Authorization, Decision, EffectiveParameters, Explanation, Headers, Inbound,
    Policies, Reason, Request, TlsMode,
};
pub use endpoints::{Endpoint, EndpointSet, Params};
pub use env::Rulecast;
pub use status::Status;
