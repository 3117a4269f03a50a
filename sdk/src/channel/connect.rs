//! The connection to an endpoint.

use http::Uri;
use rulecast_identity::{Connector, IdentityError, tls};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use super::{governor::Inner, place::Place};
use crate::tls::Wire;

/// The channel to a place; made when it is first needed, and connected with its first call.
pub(super) fn channel(governor: &Inner, place: &Place) -> Result<Channel, Status> {
    if let Some(channel) = place.channel.get() {
        return Ok(channel.clone());
    }
    let made = make(governor, &place.address)?;
    Ok(place.channel.get_or_init(|| made).clone())
}

fn make(governor: &Inner, address: &str) -> Result<Channel, Status> {
    let options = &governor.connect;
    let unusable = |error: IdentityError| Status::internal(error.to_string());
    let (scheme, connector) = match &governor.wire {
        Wire::Plaintext => ("http", Connector::plaintext(options)),
        Wire::Tls(expected) => {
            let tls = tls::client_config(&governor.client, expected.clone()).map_err(unusable)?;
            ("https", Connector::tls(tls, options))
        }
    };
    let uri: Uri = format!("{scheme}://{address}").parse().map_err(|_| {
        Status::internal(format!("\"{address}\" is no address; it would be host:port"))
    })?;
    Ok(Endpoint::from(uri)
        .connect_timeout(options.connect_timeout)
        .http2_keep_alive_interval(options.keep_alive_interval)
        .keep_alive_timeout(options.keep_alive_timeout)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(connector))
}
