//! What the authority counts.

use std::time::SystemTime;

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use rulecast_api::Code;

type Labels = [(&'static str, &'static str); 1];

/// Counters of the authority. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    issued: Family<Labels, Counter>,
    refused: Family<Labels, Counter>,
    own_not_after: Gauge,
    issuer_not_after: Gauge,
}

impl Metrics {
    /// New ones, in `registry`.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self { issued, refused, own_not_after, issuer_not_after } = metrics.clone();
        registry.register(
            "rulecast_ca_issued",
            "Certificates issued, by the caller's credential",
            issued,
        );
        registry.register(
            "rulecast_ca_refused",
            "Calls and handshakes refused, by code of the error",
            refused,
        );
        registry.register(
            "rulecast_ca_own_not_after_seconds",
            "End of the authority's own server certificate, Unix seconds",
            own_not_after,
        );
        registry.register(
            "rulecast_ca_issuer_not_after_seconds",
            "End of the intermediate that signs, Unix seconds",
            issuer_not_after,
        );
        metrics
    }

    pub(crate) fn issued(&self, credential: &'static str) {
        self.issued.get_or_create(&[("credential", credential)]).inc();
    }

    pub(crate) fn refused(&self, code: Code) {
        self.refused.get_or_create(&[("code", code.as_str())]).inc();
    }

    pub(crate) fn valid_until(&self, own: SystemTime, issuer: SystemTime) {
        let unix = |time: SystemTime| {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        };
        self.own_not_after.set(unix(own));
        self.issuer_not_after.set(unix(issuer));
    }
}
