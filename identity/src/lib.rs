//! Workload identity: SPIFFE names, keys, certificates, renewal and the TLS
//! configurations made of them.
//!
//! An application has an [`IdentityHandle`]: its current [`Svid`] (certificate
//! chain, key and trust bundle), replaced while it runs by the worker of an
//! [`IdentityManager`]. [`tls`] makes configurations over a handle that follow
//! it without being rebuilt; [`serve`] and [`mod@connect`] carry gRPC over them.

pub mod bundle;
pub mod client;
pub mod connect;
pub mod credential;
pub mod error;
pub mod facts;
pub mod files;
pub mod keys;
pub mod manager;
pub mod peer;
pub mod serve;
pub mod state;
pub mod stream;
pub mod svid;
pub mod tls;
pub mod token;

pub use bundle::TrustBundle;
pub use client::IdentityClient;
pub use connect::{ConnectOptions, Connector, channel, connect};
pub use credential::{Credential, KubernetesCredential, TokenSource};
pub use error::IdentityError;
pub use facts::{AttestedFacts, PodFacts};
pub use keys::PrivateKey;
pub use manager::{IdentityConfig, IdentityManager, IdentityStatus};
pub use peer::PeerIdentity;
pub use serve::{Peer, ServeOptions, serve_tls};
pub use stream::Stream;
pub use svid::{IdentityHandle, IdentitySource, IdentityUpdater, Svid};
pub use tls::{ClientAuth, Expected};
pub use token::JoinToken;

/// Namespace of Rulecast's own services.
pub const SYSTEM_NAMESPACE: &str = "rulecast-system";
/// Application name of the certificate authority in [`SYSTEM_NAMESPACE`].
pub const CA_APPLICATION: &str = "rulecast-ca";
/// Application name of the DDS server in [`SYSTEM_NAMESPACE`].
pub const DDS_APPLICATION: &str = "rulecast-dds";
