//! TLS between services: both sides are known by their SPIFFE names, and certificates follow
//! the client's identity.

pub use rulecast_identity::{Expected, Peer, PeerIdentity};
