//! Leader election by a Lease.

mod campaign;
mod candidate;
mod leadership;
mod lease;

use std::time::Duration;

pub use self::{
    campaign::campaign,
    leadership::{Leadership, Term},
};

/// How a leader is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// Namespace of the Lease. It must exist.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Names this candidate; no other process may have it at the same time.
    pub identity: String,
    /// How long others wait after the holder's last renewal. Whole seconds, from 1 s to 1 hour.
    pub duration: Duration,
    /// How long after its last renewal the holder still acts; less than `duration`, by at least
    /// what clocks may run apart in that time and what a write of the leader may take. An API
    /// call gets half of it.
    pub deadline: Duration,
    /// Between attempts, and between renewals; up to a fifth is added, by chance.
    pub retry: Duration,
}

impl ElectionConfig {
    /// With the times that Kubernetes' own components use: 15 s, 10 s, 2 s.
    pub fn new(
        namespace: impl Into<String>,
        name: impl Into<String>,
        identity: impl Into<String>,
    ) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            duration: Duration::from_secs(15),
            deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}
