//! What Rulecast's services need of a Kubernetes API server: a client that follows rotated
//! credentials and notices a dead connection, and leader election.

pub mod client;
pub mod election;
pub mod error;

pub use client::{ClusterConfig, connect};
pub use election::{ElectionConfig, Leadership, Term, campaign};
pub use error::ClusterError;
