//! The same authorization problem for all engines.

use std::hint::black_box;

use anyhow::Result;

use super::{
    authorizing::{KIND, both, decide},
    peers::peers,
    problem::Problem,
    rules::module,
};
use crate::{
    report::Report,
    rounds::{Rounds, Way, way},
};

/// How many times as long regorus must take at least.
const REGORUS: f64 = 10.0;
/// Which of the ways is ours, as in production.
const OURS: usize = 2;

pub(crate) fn run(report: &mut Report, rounds: Rounds) -> Result<()> {
    let problem = Problem::new(100);
    let ours = both(&module(KIND)?, &problem.policies())?;
    let wanted: Vec<bool> = problem.calls.iter().map(|call| problem.allows(call)).collect();
    let mut peers = peers(&problem)?;
    for (at, &wanted) in wanted.iter().enumerate() {
        for held in &ours {
            let given = decide(held, &problem.calls[at]);
            anyhow::ensure!(given == wanted, "call {at} must be {wanted}");
        }
        for peer in &mut peers {
            anyhow::ensure!(peer.allows(at)? == wanted, "{}: call {at}: {wanted}", peer.name());
        }
    }
    let allowed = wanted.iter().filter(|wanted| **wanted).count();
    report.part(&format!(
        "100 rules over 10 attributes; all engines agree on {} calls, {allowed} of them allowed",
        wanted.len()
    ));
    let calls = || (0..problem.calls.len()).cycle();
    let mut names = vec!["by hand, rule by rule", "native", "sandboxed"];
    let mut by_hand = calls();
    let mut ways: Vec<Way<'_>> = vec![way(|| {
        let call = &problem.calls[by_hand.next().unwrap_or_default()];
        black_box(problem.allows(black_box(call)));
    })];
    for held in &ours {
        let (mut calls, problem) = (calls(), &problem);
        ways.push(way(move || {
            let call = &problem.calls[calls.next().unwrap_or_default()];
            black_box(decide(held, black_box(call)));
        }));
    }
    for peer in &mut peers {
        names.push(peer.name());
        let mut calls = calls();
        ways.push(way(move || {
            black_box(peer.allows(calls.next().unwrap_or_default()).ok());
        }));
    }
    let times = rounds.measure(&mut ways);
    for (at, name) in names.iter().enumerate() {
        report.row(*name, times.median(at), "ns");
    }
    for (at, name) in names.iter().enumerate().skip(OURS + 1) {
        let least = if name.starts_with("regorus") { REGORUS } else { 1.0 };
        report.at_least(format!("{name}, over sandboxed, times"), times.ratio(at, OURS), least);
    }
    Ok(())
}
