//! Whether a server takes a call now: with buckets that all threads share.

use std::hint::black_box;

use anyhow::Result;
use rulecast_sdk::{Client, Inbound};
use serde_json::{Value, json};

use super::threads::scaling;
use crate::{
    report::Report,
    rounds::{Rounds, way},
};

/// Of the many.
const CALLERS: usize = 10_000;

/// A bucket for each caller, of more calls than are made.
pub(crate) fn rule() -> Value {
    json!({"requests": u32::MAX, "per": "1s", "keys": ["source.principal"]})
}

pub(crate) fn run(report: &mut Report, rounds: Rounds, client: &Client) -> Result<()> {
    let callers: Vec<String> =
        (0..CALLERS).map(|n| format!("cluster.local/ns/shop/app/caller{n}")).collect();
    let admit = |caller: &str| {
        client.admit(black_box(&Inbound::new().method("GET").principal(caller))).is_admitted()
    };
    for caller in &callers {
        anyhow::ensure!(admit(caller), "{caller} must be admitted");
    }
    report.part("a server with 1 limit, a bucket for each caller");
    let mut turns = callers.iter().cycle();
    let mut ways = [
        way(|| {
            black_box(admit(&callers[0]));
        }),
        way(|| {
            black_box(turns.next().map(|caller| admit(caller)));
        }),
    ];
    let times = rounds.measure(&mut ways);
    report.row("Client::admit, 1 caller", times.median(0), "ns");
    report.row("Client::admit, 10,000 callers in turn", times.median(1), "ns");
    let scale = scaling(rounds.rounds / 3, || {
        black_box(admit(&callers[0]));
    });
    report.row("two threads at 1 bucket, over what a spin loop scales", scale, "times");
    Ok(())
}
