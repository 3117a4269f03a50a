//! The client: what an application holds to have its calls decided.

use std::{fmt, sync::Arc};

use tokio::sync::watch;

mod apply;
mod builder;
mod connect;
mod error;
mod persist;
mod session;
mod shared;

pub use builder::{ClientBuilder, Startup, TYPES, Tuning};
pub use error::ConnectError;

use crate::{
    decision::{Decision, EndpointSet, Request},
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

    /// Decides a call: which of `endpoints` may be used. The request's own
    /// consumer parameters win over the client's.
    pub fn route(&self, request: &Request, endpoints: &EndpointSet) -> Decision {
        self.shared.route(request, endpoints)
    }

    /// Decides as [`route`](Self::route) and says why: which rules and conditions
    /// matched, and which draw was used. For people; it costs more.
    pub fn explain(&self, request: &Request, endpoints: &EndpointSet) -> Decision {
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
