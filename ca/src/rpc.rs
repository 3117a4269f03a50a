//! Every call that the authority answers: who may make it, and how often.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use rulecast_api::Code;

use crate::{CaError, csr::MAX_CSR};

/// Largest request message in bytes: a signing request and some room.
pub const MAX_REQUEST: usize = MAX_CSR + 1024;
/// Addresses whose calls are counted at a time.
const MAX_ADDRESSES: usize = 10_000;

/// Who may make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authorization {
    /// Who shows a join token or a pod's service-account token, whichever this
    /// authority takes, or a client certificate of this authority.
    Workload,
    /// Anybody who reaches the port.
    Anybody,
}

/// What holds for one call.
#[derive(Clone, Copy, Debug)]
pub struct Rpc {
    /// `/<package>.<service>/<method>`
    pub path: &'static str,
    /// Who may.
    pub authorization: Authorization,
    /// How often one address may at once.
    pub burst: u32,
    /// How many more per second.
    pub per_second: u32,
}

/// All of them; any other call is refused as unimplemented.
pub const RPCS: &[Rpc] = &[
    Rpc {
        path: "/rulecast.identity.v1.IdentityService/IssueCertificate",
        authorization: Authorization::Workload,
        burst: 200,
        per_second: 20,
    },
    Rpc {
        path: "/rulecast.identity.v1.IdentityService/GetTrustBundle",
        authorization: Authorization::Anybody,
        burst: 200,
        per_second: 50,
    },
    Rpc {
        path: "/dubbo.apache.org.v1alpha1.AuthorityService/CreateIdentity",
        authorization: Authorization::Workload,
        burst: 200,
        per_second: 20,
    },
    public("/grpc.health.v1.Health/Check"),
    public("/grpc.health.v1.Health/Watch"),
    public("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
];

const fn public(path: &'static str) -> Rpc {
    Rpc { path, authorization: Authorization::Anybody, burst: 50, per_second: 10 }
}

/// The rules of a call.
pub fn find(path: &str) -> Option<&'static Rpc> {
    RPCS.iter().find(|rpc| rpc.path == path)
}

/// Counts calls by address: a bucket per address and call that fills over time.
#[derive(Debug, Default)]
pub struct Limiter {
    buckets: Mutex<HashMap<(IpAddr, &'static str), Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn left_at(&self, rpc: &Rpc, now: Instant) -> f64 {
        let more = now.saturating_duration_since(self.at).as_secs_f64() * f64::from(rpc.per_second);
        (self.left + more).min(f64::from(rpc.burst))
    }
}

impl Limiter {
    /// Counts one call; refuses it with [`Code::RateLimited`] when there were too many.
    pub fn take(&self, from: SocketAddr, rpc: &'static Rpc, now: Instant) -> Result<(), CaError> {
        // Each change of the map is one call, so it is whole after any panic.
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (from.ip().to_canonical(), rpc.path);
        if buckets.len() >= MAX_ADDRESSES && !buckets.contains_key(&key) {
            buckets.retain(|(_, path), bucket| {
                find(path).is_some_and(|rpc| bucket.left_at(rpc, now) < f64::from(rpc.burst))
            });
        }
        if buckets.len() >= MAX_ADDRESSES && !buckets.contains_key(&key) {
            return Err(limited("too many addresses call at once"));
        }
        let full = Bucket { left: f64::from(rpc.burst), at: now };
        let bucket = buckets.entry(key).or_insert(full);
        let left = bucket.left_at(rpc, now);
        if left < 1.0 {
            return Err(limited("this address calls too often"));
        }
        *bucket = Bucket { left: left - 1.0, at: now };
        Ok(())
    }
}

fn limited(why: &str) -> CaError {
    CaError::new(Code::RateLimited, format!("{why}; wait some seconds and try again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use std::time::Duration;

    #[test]
    fn every_rpc_of_the_contract_has_its_rules() {
        let set = prost_types::FileDescriptorSet::decode(rulecast_api::proto::DESCRIPTORS)
            .expect("descriptors");
        let packages = ["rulecast.identity.v1", "dubbo.apache.org.v1alpha1"];
        let mut wanted: Vec<String> = Vec::new();
        for file in set.file.iter().filter(|f| packages.contains(&f.package())) {
            for service in &file.service {
                let of = |method: &prost_types::MethodDescriptorProto| {
                    format!("/{}.{}/{}", file.package(), service.name(), method.name())
                };
                wanted.extend(service.method.iter().map(of));
            }
        }
        assert!(!wanted.is_empty());
        for path in &wanted {
            assert!(find(path).is_some(), "{path} has no rules in RPCS");
        }
        let ours = RPCS.iter().filter(|r| !r.path.starts_with("/grpc.")).count();
        assert_eq!(ours, wanted.len(), "RPCS has rules for calls that do not exist");
    }

    #[test]
    fn a_bucket_empties_and_fills() {
        let (limiter, rpc, now) = (Limiter::default(), &RPCS[0], Instant::now());
        let from: SocketAddr = "192.0.2.1:1".parse().expect("address");
        for _ in 0..rpc.burst {
            limiter.take(from, rpc, now).expect("within the burst");
        }
        let other_port = "192.0.2.1:2".parse().expect("address");
        assert_eq!(
            limiter.take(other_port, rpc, now).expect_err("too many").code(),
            Code::RateLimited
        );
        limiter.take("192.0.2.2:1".parse().expect("address"), rpc, now).expect("another address");
        limiter.take(from, rpc, now + Duration::from_secs(1)).expect("filled again");
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let (limiter, rpc, now) = (Limiter::default(), &RPCS[0], Instant::now());
        let from = |n: usize| SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 1));
        for n in 0..MAX_ADDRESSES {
            limiter.take(from(n), rpc, now).expect("counted");
        }
        limiter.take(from(MAX_ADDRESSES), rpc, now).expect_err("too many addresses");
        limiter.take(from(MAX_ADDRESSES), rpc, now + Duration::from_secs(1)).expect("room again");
    }
}
