//! Identities over real connections.

mod kubernetes;
mod manager;
mod support;
mod tls;
