//! What the demo shows: calls by edge, who holds which rules.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    time::{Duration, Instant},
};

use rulecast_shop::report::{Edge, Report};

use super::load::GATEWAY;
use crate::table;

/// Rates and shares are of this time.
const WINDOW: Duration = Duration::from_secs(5);

/// Caller and service, as people see them.
type Edges = BTreeMap<(String, String), Edge>;

/// The newest reports, and older ones to compare them with.
#[derive(Default)]
pub(super) struct Board {
    samples: VecDeque<(Instant, Edges)>,
    held: BTreeMap<String, Vec<String>>,
}

impl Board {
    /// Takes the reports of all processes, and what the customers saw.
    pub(super) fn add(
        &mut self,
        now: Instant,
        reports: &[(&str, Option<Report>)],
        customers: &BTreeMap<String, Edge>,
    ) {
        let mut edges = Edges::new();
        for (_, report) in reports {
            let Some(report) = report else { continue };
            for (service, edge) in &report.calls {
                let to = service.rsplit('.').next().unwrap_or(service).to_lowercase();
                edges.entry((caller(report).to_owned(), to)).or_default().add(edge);
            }
        }
        if let Some(edge) = customers.get(GATEWAY) {
            edges.insert(("customers".to_owned(), GATEWAY.to_owned()), edge.clone());
        }
        self.samples.push_back((now, edges));
        while self.samples.len() > 2
            && self.samples.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW)
        {
            self.samples.pop_front();
        }
        self.held.clear();
        for (name, report) in reports {
            self.held.entry(held(report.as_ref())).or_default().push((*name).to_owned());
        }
    }

    /// What each process holds; those that hold the same on one line.
    pub(super) fn held(&self) -> String {
        let mut out = String::new();
        for (what, who) in &self.held {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "  {}: {what}", who.join(", "));
        }
        out
    }

    /// Calls by edge.
    pub(super) fn calls(&self) -> String {
        let (Some((since, before)), Some((now, edges))) =
            (self.samples.front(), self.samples.back())
        else {
            return String::new();
        };
        if edges.is_empty() {
            return String::new();
        }
        let seconds = now.duration_since(*since).as_secs_f64().max(0.001);
        let none = Edge::default();
        let rows: Vec<Vec<String>> = edges
            .iter()
            .map(|(name, edge)| row(name, &edge.since(before.get(name).unwrap_or(&none)), seconds))
            .collect();
        table::render(&["CALLS", "PER S", "OK", "P50", "P99", "ANSWERED BY", "NOT ANSWERED"], &rows)
    }
}

fn caller(report: &Report) -> &str {
    report.application.strip_prefix("shop-").unwrap_or(&report.application)
}

fn row((from, to): &(String, String), edge: &Edge, seconds: f64) -> Vec<String> {
    let total = edge.total();
    let share = |count: u64| match total {
        0 => "-".to_owned(),
        _ => format!("{:.1} %", count as f64 * 100.0 / total as f64),
    };
    let time = |quantile: f64| {
        let took = edge.latency.quantile(quantile);
        took.map_or("-".to_owned(), |took| format!("{:.1} ms", took.as_secs_f64() * 1000.0))
    };
    // Servers of one version and region are one.
    let mut groups: BTreeMap<String, u64> = BTreeMap::new();
    for (server, count) in edge.answers.iter().filter(|(server, _)| !server.is_empty()) {
        let group: Vec<&str> = server.split(' ').take(2).collect();
        *groups.entry(group.join(" ")).or_default() += count;
    }
    let answered: u64 = edge.answers.values().sum();
    let by = groups.iter().map(|(group, count)| {
        format!("{group} {:.1} %", *count as f64 * 100.0 / answered.max(1) as f64)
    });
    let not = edge.denied.iter().chain(&edge.failed);
    let not = not.map(|(why, count)| format!("{why} {:.1}/s", *count as f64 / seconds));
    vec![
        format!("{from} → {to}"),
        format!("{:.1}", total as f64 / seconds),
        share(answered),
        time(0.5),
        time(0.99),
        by.collect::<Vec<_>>().join("  "),
        not.collect::<Vec<_>>().join("; "),
    ]
}

fn held(report: Option<&Report>) -> String {
    let Some(report) = report else { return "does not answer".to_owned() };
    // Kinds that changed last together are told together.
    let mut kinds: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    let mut rejected = Vec::new();
    for held in &report.rules {
        kinds.entry(held.revision).or_default().push(format!("{} {}", held.rules, held.kind));
        rejected.extend(held.rejected.iter().map(|rule| format!("REJECTED {rule}")));
    }
    let mut out: Vec<String> = kinds
        .into_iter()
        .map(|(revision, kinds)| format!("revision {revision}: {}", kinds.join(", ")))
        .chain(rejected)
        .collect();
    if out.is_empty() {
        out.push("no rules".to_owned());
    }
    if !report.connected {
        out.push("plane not reachable".to_owned());
    }
    out.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rulecast_shop::report::Outcome;

    #[test]
    fn shares_are_of_what_came_since() {
        let report = |v1: u64, v2: u64, denied: u64| {
            let mut edge = Edge::default();
            for (outcome, count) in [
                (Outcome::Answered("v1 hangzhou 127.0.0.1:1".into()), v1),
                (Outcome::Answered("v2 hangzhou 127.0.0.1:2".into()), v2),
                (Outcome::Denied("limit/shop limits it".into()), denied),
            ] {
                for _ in 0..count {
                    edge.count(outcome.clone(), Duration::from_millis(2));
                }
            }
            let calls = BTreeMap::from([("shop.v1.Orders".to_owned(), edge)]);
            Report {
                application: "shop-gateway".into(),
                connected: true,
                calls,
                ..Report::default()
            }
        };
        let (mut board, start) = (Board::default(), Instant::now());
        board.add(start, &[("gateway", Some(report(10, 0, 0)))], &BTreeMap::new());
        let next = start + Duration::from_secs(2);
        board.add(next, &[("gateway", Some(report(19, 1, 10)))], &BTreeMap::new());
        let calls = board.calls();
        for part in [
            "gateway → orders",
            "10.0 ",
            "50.0 %",
            "1.9 ms",
            "v1 hangzhou 90.0 %  v2 hangzhou 10.0 %",
            "limit/shop limits it 5.0/s",
        ] {
            assert!(calls.contains(part), "{part} in {calls}");
        }
        assert_eq!(board.held(), "  gateway: no rules\n");
    }
}
