//! The client: what an application holds to have its calls decided.

use std::{borrow::Cow, fmt, sync::Arc};

use tokio::sync::watch;

mod builder;
mod connect;
mod error;
mod owner;
mod persist;
mod session;
mod shared;

pub(crate) use builder::endpoint;
pub use builder::{ClientBuilder, Startup, TYPES, Tuning};
pub use error::ConnectError;

use crate::{
    decision::{Decision, Explanation, Request},
    endpoints::{EndpointSet, Params},
    status::Status,
};
use connect::Tasks;
use shared::Shared;

/// An application's connection to its rules. Cheap to clone; all clones are one
/// client, and dropping the last one ends its tasks.
///
/// Decisions take no lock and never wait: they use the rules that are in force
/// at that moment, whether or not the plane can be reached.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    tasks: Arc<Tasks>,
}

impl Client {
    /// Sets up a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A request to a service (`[group/]interface[:version]`) by this consumer.
    pub fn request<'a>(&'a self, service: impl Into<Cow<'a, str>>) -> Request<'a> {
        Request::new(service, self.consumer())
    }

    /// The parameters of this consumer.
    pub fn consumer(&self) -> &Params {
        &self.shared.consumer
    }

    /// Decides a call: which of `endpoints` may be used. A request made by
    /// [`request`](Self::request) costs least; the consumer parameters of others win
    /// over the client's. Before the first complete rules the startup policy decides,
    /// and the decision carries a fault of kind [`FaultKind::NotReady`](crate::host::FaultKind).
    pub fn route(&self, request: &Request<'_>, endpoints: &EndpointSet) -> Decision {
        self.shared.route(request, endpoints)
    }

    /// Decides as [`route`](Self::route) and says why: which rules and conditions
    /// matched, and which draw was used. For people; it costs more.
    pub fn explain(&self, request: &Request<'_>, endpoints: &EndpointSet) -> Explanation {
        self.shared.explain(request, endpoints)
    }

    /// How the client fares now.
    pub fn status(&self) -> Status {
        self.shared.status.borrow().clone()
    }

    /// Follows [`status`](Self::status). A reader that is slow sees the newest, not each one.
    /// It ends with the client.
    pub fn changes(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// Ends the tasks of this client and its clones, with what was not yet written
    /// of the snapshot. Decisions go on by the rules held.
    pub async fn shutdown(&self) {
        self.tasks.shutdown().await;
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("status", &*self.shared.status.borrow()).finish()
    }
}
