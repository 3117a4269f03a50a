//! Circuit breakers: endpoints that fail are left out for a while.

/// A call under way to an endpoint. Say how it ended; one that is dropped counts as neither.
#[derive(Debug)]
#[must_use = "say how the call ended"]
pub struct Attempt(());

impl Attempt {
    pub(crate) fn unwatched() -> Self {
        Self(())
    }

    /// The endpoint answered, be it with a refusal that is the caller's doing.
    pub fn succeeded(self) {}

    /// The endpoint failed: it could not be reached, took too long, or its answer says that it
    /// is at fault.
    pub fn failed(self) {}
}
