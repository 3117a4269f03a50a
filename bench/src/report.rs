//! What a benchmark found: rows, shown as they come, and goals.

use serde_json::json;

/// See the module.
pub(crate) struct Report {
    bench: &'static str,
    rows: Vec<(String, f64, &'static str)>,
    goals: Vec<Goal>,
}

struct Goal {
    goal: String,
    value: f64,
    limit: f64,
    met: bool,
}

impl Report {
    pub(crate) fn new(bench: &'static str) -> Self {
        Self { bench, rows: Vec::new(), goals: Vec::new() }
    }

    /// A heading of the table.
    pub(crate) fn part(&self, title: &str) {
        println!("\n{title}");
    }

    /// A figure.
    pub(crate) fn row(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        let what = what.into();
        println!("  {what:<62} {:>10} {unit}", figure(value));
        self.rows.push((what, value, unit));
    }

    /// A figure that must not be larger.
    pub(crate) fn at_most(&mut self, goal: impl Into<String>, value: f64, limit: f64) {
        self.goals.push(Goal { goal: goal.into(), value, limit, met: value <= limit });
    }

    /// A figure that must not be smaller.
    pub(crate) fn at_least(&mut self, goal: impl Into<String>, value: f64, limit: f64) {
        self.goals.push(Goal { goal: goal.into(), value, limit, met: value >= limit });
    }

    /// Shows the goals; and all in one line for machines, if asked.
    pub(crate) fn close(self, json: bool) {
        println!("\ngoals");
        for Goal { goal, value, limit, met } in &self.goals {
            let met = if *met { "met" } else { "MISSED" };
            println!("  {goal:<62} {:>10} of {:>6}  {met}", figure(*value), figure(*limit));
        }
        if json {
            let rows = self.rows.iter().map(
                |(what, value, unit)| json!({"what": what, "value": rounded(*value), "unit": unit}),
            );
            let goals = self.goals.iter().map(|Goal { goal, value, limit, met }| {
                json!({"goal": goal, "value": rounded(*value), "limit": limit, "met": met})
            });
            let (rows, goals): (Vec<_>, Vec<_>) = (rows.collect(), goals.collect());
            println!("{}", json!({"bench": self.bench, "rows": rows, "goals": goals}));
        }
    }
}

fn figure(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
