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
    pods: Family<Labels, Counter>,
    own_not_after: Gauge,
    issuer_not_after: Gauge,
    unchecked: Counter,
    in_place: Gauge,
    bundles_failing: Gauge,
}

impl Metrics {
    /// New ones, in `registry`.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self {
            issued,
            refused,
            pods,
            own_not_after,
            issuer_not_after,
            unchecked,
            in_place,
            bundles_failing,
        } = metrics.clone();
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
            "rulecast_ca_pods",
            "Calls of the pod webhook, by verdict: injected, unchanged, refused, unread",
            pods,
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
        registry.register(
            "rulecast_ca_unchecked_renewals",
            "Certificates renewed while the API server could not be asked for the pod",
            unchecked,
        );
        registry.register(
            "rulecast_ca_in_place",
            "Whether the last look found an authority that a restart could open",
            in_place,
        );
        registry.register(
            "rulecast_ca_trust_bundles_failing",
            "Namespaces whose trust bundle cannot be written; told by the leader",
            bundles_failing,
        );
        metrics
    }

    pub(crate) fn issued(&self, credential: &'static str) {
        self.issued.get_or_create(&[("credential", credential)]).inc();
    }

    #[cfg(feature = "kubernetes")]
    pub(crate) fn pod(&self, verdict: &'static str) {
        self.pods.get_or_create(&[("verdict", verdict)]).inc();
    }

    pub(crate) fn refused(&self, code: Code) {
        self.refused.get_or_create(&[("code", code.as_str())]).inc();
    }

    #[cfg(feature = "kubernetes")]
    pub(crate) fn unchecked(&self) {
        self.unchecked.inc();
    }

    pub(crate) fn in_place(&self, is: bool) {
        self.in_place.set(is.into());
    }

    #[cfg(feature = "kubernetes")]
    pub(crate) fn bundles_failing(&self, namespaces: usize) {
        self.bundles_failing.set(i64::try_from(namespaces).unwrap_or(i64::MAX));
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
