//! Mounts trust into pods that ask for it.
//!
//! The API server calls this admission webhook for pods that opted in, by themselves or
//! by their namespace, and for no other. The answer is a patch: the trust bundle, a
//! service-account token and where to connect, in every container. [`serve`] is the
//! server, which every replica runs; [`keep_ca_bundle`] tells the API server what the
//! server's certificate is verified against, and is the leader's.
//!
//! Our own pods run in a namespace that is never asked about, so a cluster whose webhook
//! is down can always start it again.

pub mod ca_bundle;
pub mod certificate;
pub mod config;
pub mod form;
pub mod injection;
pub mod review;
pub mod server;

pub use ca_bundle::keep_ca_bundle;
pub use certificate::ServingCertificate;
pub use config::WebhookConfig;
pub use server::{serve, serve_on};
