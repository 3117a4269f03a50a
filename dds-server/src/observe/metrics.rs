//! What the streams count.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use rulecast_api::{Code, Kind};

use crate::stream::Counters;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

/// Metrics of all streams of a plane. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    streams: Gauge,
    closed: Family<CodeLabel, Counter>,
    responses: Counter,
    chunks: Counter,
    acks: Counter,
    nacks: Counter,
    stale_nonces: Counter,
    convergence: Family<KindLabel, Histogram, fn() -> Histogram>,
}

/// From 1 ms to about 16 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

impl Metrics {
    /// Adds them to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            streams: Gauge::default(),
            closed: Family::default(),
            responses: Counter::default(),
            chunks: Counter::default(),
            acks: Counter::default(),
            nacks: Counter::default(),
            stale_nonces: Counter::default(),
            convergence: Family::new_with_constructor(seconds),
        };
        registry.register("streams", "Open streams", metrics.streams.clone());
        registry.register(
            "streams_ended",
            "Streams that the plane ended, by code",
            metrics.closed.clone(),
        );
        registry.register("responses", "Responses begun", metrics.responses.clone());
        registry.register("response_chunks", "Messages sent", metrics.chunks.clone());
        registry.register("acks", "Responses applied whole", metrics.acks.clone());
        registry.register("nacks", "Responses not applied whole", metrics.nacks.clone());
        registry.register(
            "stale_nonces",
            "Answers to nothing that waited for one",
            metrics.stale_nonces.clone(),
        );
        registry.register(
            "convergence_seconds",
            "From a view's coming to a client's answer",
            metrics.convergence.clone(),
        );
        metrics
    }

    pub(super) fn opened(&self) -> Open {
        self.streams.inc();
        Open(self.clone())
    }

    pub(super) fn ended(&self, code: Code) {
        self.closed.get_or_create(&CodeLabel { code: code.as_str() }).inc();
    }

    pub(super) fn converged(&self, kind: Kind, took: Duration) {
        self.convergence.get_or_create(&KindLabel { kind: kind.name }).observe(took.as_secs_f64());
    }

    pub(super) fn advance(&self, before: Counters, now: Counters) {
        self.responses.inc_by(now.responses - before.responses);
        self.chunks.inc_by(now.chunks - before.chunks);
        self.acks.inc_by(now.acks - before.acks);
        self.nacks.inc_by(now.nacks - before.nacks);
        self.stale_nonces.inc_by(now.stale_nonces - before.stale_nonces);
    }
}

/// Counts a stream as open.
#[derive(Debug)]
pub(super) struct Open(Metrics);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.streams.dec();
    }
}
