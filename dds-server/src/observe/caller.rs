//! Who opens a stream.

use std::{net::SocketAddr, time::SystemTime};

use rulecast_api::{Code, SpiffeId};
use rulecast_identity::{Peer, PeerIdentity};
use tonic::{Extensions, Status};

use crate::pods::PodId;

/// A client as its verified certificate attests it.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Its name.
    pub identity: SpiffeId,
    /// The pod that it runs in, where one was attested.
    pub pod: Option<PodId>,
    /// When its certificate ends.
    pub not_after: SystemTime,
    /// Where it connects from, if that is known.
    pub address: Option<SocketAddr>,
}

impl Caller {
    /// Of a certificate that has been verified.
    pub fn new(peer: &PeerIdentity, address: Option<SocketAddr>) -> Self {
        let pod = peer.facts.as_ref().and_then(|facts| facts.pod.as_ref()).map(|pod| PodId {
            namespace: peer.spiffe.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.as_str().into(),
        });
        Self { identity: peer.spiffe.clone(), pod, not_after: peer.not_after, address }
    }

    /// Who makes a call, by its connection; refused without a certificate.
    pub fn of(extensions: &Extensions) -> Result<Self, Status> {
        let peer = extensions.get::<Peer>();
        let Some(identity) = peer.and_then(|peer| peer.identity.as_ref()) else {
            return Err(Status::unauthenticated(format!(
                "{}: the plane serves clients with a certificate; get one from the authority",
                Code::CredentialMissing
            )));
        };
        Ok(Self::new(identity, peer.map(|peer| peer.address)))
    }
}
