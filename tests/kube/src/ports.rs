//! Ports that stay ours.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, bail};

use crate::pki;

/// A port that is free now. Below those that the kernel hands out, so that a client's
/// connection does not take it while the server is down for a restart.
pub(crate) fn free_port() -> Result<u16> {
    for _ in 0..1000 {
        let port = 10_000 + u16::from_ne_bytes(pki::random()?) % 20_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port between 10000 and 30000 is free")
}
