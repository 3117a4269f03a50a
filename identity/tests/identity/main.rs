//! Identities over real connections.

mod manager;
mod support;
mod tls;
