//! The connection to an endpoint.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use http::Uri;
use rulecast_identity::{Connector, IdentityError, tls};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};
use tower_service::Service;

use super::{governor::Inner, grpc::Chain, place::Place};
use crate::tls::Wire;

/// The channel to a place; made when it is first needed, and connected with its first call.
pub(super) fn channel(governor: &Inner, place: &Arc<Place>) -> Result<Channel, Status> {
    if let Some(channel) = place.channel.get() {
        return Ok(channel.clone());
    }
    let made = make(governor, place)?;
    Ok(place.channel.get_or_init(|| made).clone())
}

fn make(governor: &Inner, place: &Arc<Place>) -> Result<Channel, Status> {
    let address = &place.address;
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
        .http2_keep_alive_interval(options.keep_alive_interval)
        .keep_alive_timeout(options.keep_alive_timeout)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(Reaching { connector, place: Arc::downgrade(place) }))
}

/// Opens connections, and tells the place how that went. While it rests there is no attempt:
/// calls that waited for the one that failed would each wait for another.
struct Reaching {
    connector: Connector,
    place: Weak<Place>,
}

type Connection = <Connector as Service<Uri>>::Response;

impl Service<Uri> for Reaching {
    type Response = Connection;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Connection>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let place = self.place.upgrade();
        if let Some(place) = &place
            && place.rests()
        {
            let why = place.why();
            let error = io::Error::other(format!("{why} (not tried again so soon)"));
            return Box::pin(std::future::ready(Err(error)));
        }
        let opening = self.connector.call(uri);
        Box::pin(async move {
            let opened = opening.await;
            if let Some(place) = place {
                match &opened {
                    Ok(_) => place.reached(),
                    Err(error) => place.unreachable(Chain(error).to_string()),
                }
            }
            opened
        })
    }
}
