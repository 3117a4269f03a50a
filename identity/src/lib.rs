//! Workload identity: SPIFFE names, keys, certificates, renewal and the TLS configurations made of them.

pub mod bundle;
pub mod error;
pub mod facts;
pub mod files;
pub mod keys;
pub mod peer;
pub mod svid;
pub mod token;

pub use bundle::TrustBundle;
pub use error::IdentityError;
pub use facts::AttestedFacts;
pub use keys::PrivateKey;
pub use peer::PeerIdentity;
pub use svid::{IdentityHandle, IdentityUpdater, Svid};
pub use token::JoinToken;
