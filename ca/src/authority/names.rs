//! DNS names and addresses of the two servers, for clients that know no SPIFFE.
//!
//! They go by the identity alone, and only the two services of Rulecast have any: no caller
//! can ask for one.

use std::net::IpAddr;

use rcgen::SanType;
use rulecast_api::{Code, SpiffeId};
use rulecast_identity::{CA_APPLICATION, DDS_APPLICATION, SYSTEM_NAMESPACE};
use rustls_pki_types::DnsName;

use crate::CaError;

/// What the servers' certificates say besides their SPIFFE names. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerNames {
    authority: Vec<SanType>,
    plane: Vec<SanType>,
}

impl ServerNames {
    /// DNS names or IP addresses of the authority and of the plane;
    /// [`Code::ConfigInvalid`] when one is neither.
    pub fn new(authority: &[String], plane: &[String]) -> Result<Self, CaError> {
        let all = |hosts: &[String]| -> Result<Vec<_>, CaError> {
            hosts.iter().map(|host| host_name(host)).collect()
        };
        Ok(Self { authority: all(authority)?, plane: all(plane)? })
    }

    /// Those of an identity.
    pub(super) fn of(&self, spiffe: &SpiffeId) -> &[SanType] {
        match (spiffe.namespace.as_str(), spiffe.workload.name()) {
            (SYSTEM_NAMESPACE, CA_APPLICATION) => &self.authority,
            (SYSTEM_NAMESPACE, DDS_APPLICATION) => &self.plane,
            _ => &[],
        }
    }
}

/// A DNS name or an IP address as a certificate says it.
pub(super) fn host_name(host: &str) -> Result<SanType, CaError> {
    let bad = |why: &dyn std::fmt::Display| {
        CaError::new(Code::ConfigInvalid, format!("\"{host}\" is no host name: {why}"))
    };
    match host.parse::<IpAddr>() {
        Ok(ip) => Ok(SanType::IpAddress(ip)),
        Err(_) => {
            DnsName::try_from(host).map_err(|e| bad(&e))?;
            let name = host.try_into().map_err(|e: rcgen::Error| bad(&e))?;
            Ok(SanType::DnsName(name))
        }
    }
}
