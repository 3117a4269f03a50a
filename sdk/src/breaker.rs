//! Circuit breakers: endpoints that fail are left out for a while.
//!
//! A breaker is of one rule, one service and one endpoint (or, where the rule says so, of all
//! endpoints of the service). It is closed, and counts how calls end; open, and its endpoint is
//! left out; or trying, and lets a few calls through. It is one word that threads swap: beginning
//! and ending a call takes no lock. What is kept of it outlives endpoint sets, and changes of
//! rules: of others, and of the rule's own thresholds. Another `window` or `per` begins anew.

mod bound;
mod cell;
mod registry;
mod settings;
mod status;
mod window;

use std::{fmt, sync::Arc};

use bound::Bound;
use cell::{End, Token};
pub(crate) use registry::Breakers;
pub(crate) use settings::check;
pub use status::{BreakerState, BreakerStatus};

use crate::clock::Clock;

/// A call under way to an endpoint. Say how it ended; one that is dropped counts as neither.
#[must_use = "say how the call ended"]
pub struct Attempt(Option<Watched>);

/// An attempt that breakers watch.
struct Watched {
    bound: Arc<Bound>,
    clock: Clock,
    endpoint: u32,
    /// Of the first of the rules that speak of the service, and of the others.
    first: Option<Token>,
    others: Vec<Option<Token>>,
}

impl Attempt {
    pub(crate) fn unwatched() -> Self {
        Self(None)
    }

    /// The endpoint answered, be it with a refusal that is the caller's doing.
    pub fn succeeded(mut self) {
        self.end(End::Succeeded);
    }

    /// The endpoint failed: it could not be reached, took too long, or its answer says that it
    /// is at fault.
    pub fn failed(mut self) {
        self.end(End::Failed);
    }

    fn end(&mut self, end: End) {
        if let Some(Watched { bound, clock, endpoint, first, others }) = self.0.take() {
            let tokens = std::iter::once(first).chain(others);
            bound.end(endpoint, tokens, end, &clock);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt").field("watched", &self.0.is_some()).finish()
    }
}

#[cfg(test)]
mod tests;
