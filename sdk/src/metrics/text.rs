//! Metrics as scrapers read them: OpenMetrics.

use std::fmt::{self, Write as _};

use super::{Latency, Metrics, RuleMetrics};
use crate::tls::ConnectionCounts;

/// The content type of [`Metrics::openmetrics`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const DECISIONS: &str = "rulecast_decisions";
const DECISION_SECONDS: &str = "rulecast_decision_seconds";
const CONNECTIONS: &str = "rulecast_connections";
const RULE_DECISIONS: &str = "rulecast_rule_decisions";
const RULE_SECONDS: &str = "rulecast_rule_decision_seconds";

impl Metrics {
    /// As text for a scraper, complete with its end; [`CONTENT_TYPE`] is what it is.
    pub fn openmetrics(&self) -> String {
        self.families() + "# EOF\n"
    }

    /// The same without the end, to be joined with an application's own metrics.
    pub fn families(&self) -> String {
        let mut text = String::new();
        // A String takes everything.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        head(text, DECISIONS, "counter", "Decisions, by what came of them")?;
        for counted in self.decisions.iter().filter(|counted| counted.count > 0) {
            let labels = labels_of_outcome(counted.what.decision(), counted.what.as_str());
            writeln!(text, "{DECISIONS}_total{{{labels}}} {}", counted.count)?;
        }
        head(text, DECISION_SECONDS, "histogram", "Time of the decisions that were measured")?;
        for counted in &self.decisions {
            let labels = labels_of_outcome(counted.what.decision(), counted.what.as_str());
            histogram(text, DECISION_SECONDS, &labels, &counted.latency)?;
        }
        head(text, RULE_DECISIONS, "counter", "What rules made of calls, by rule and verdict")?;
        for rule in &self.rules {
            for given in &rule.verdicts {
                let labels = labels_of_rule(rule, given.what.as_str());
                writeln!(text, "{RULE_DECISIONS}_total{{{labels}}} {}", given.count)?;
            }
        }
        let help = "Time of the decisions that were measured, by rule and verdict";
        head(text, RULE_SECONDS, "histogram", help)?;
        for rule in &self.rules {
            for given in &rule.verdicts {
                let labels = labels_of_rule(rule, given.what.as_str());
                histogram(text, RULE_SECONDS, &labels, &given.latency)?;
            }
        }
        head(text, CONNECTIONS, "counter", "Connections, by what became of them")?;
        let ConnectionCounts {
            tls,
            plaintext,
            plaintext_refused,
            tls_refused,
            handshakes_failed,
            silent,
            drained,
        } = self.connections;
        for (outcome, count) in [
            ("tls", tls),
            ("plaintext", plaintext),
            ("plaintext_refused", plaintext_refused),
            ("tls_refused", tls_refused),
            ("handshake_failed", handshakes_failed),
            ("silent", silent),
            ("drained", drained),
        ] {
            if count > 0 {
                writeln!(text, "{CONNECTIONS}_total{{outcome=\"{outcome}\"}} {count}")?;
            }
        }
        Ok(())
    }
}

fn head(text: &mut String, name: &str, what: &str, help: &str) -> fmt::Result {
    writeln!(text, "# TYPE {name} {what}")?;
    if what == "histogram" {
        writeln!(text, "# UNIT {name} seconds")?;
    }
    writeln!(text, "# HELP {name} {help}")
}

fn labels_of_outcome(decision: &str, outcome: &str) -> String {
    format!("decision=\"{decision}\",outcome=\"{outcome}\"")
}

fn labels_of_rule(rule: &RuleMetrics, verdict: &str) -> String {
    let kind = rule.kind.rsplit('/').next().unwrap_or_default();
    format!("kind=\"{kind}\",rule=\"{}\",verdict=\"{verdict}\"", Escaped(&rule.key))
}

fn histogram(text: &mut String, name: &str, labels: &str, latency: &Latency) -> fmt::Result {
    if latency.count() == 0 {
        return Ok(());
    }
    for (end, below) in latency.buckets() {
        match end {
            Some(end) => {
                writeln!(text, "{name}_bucket{{{labels},le=\"{}\"}} {below}", end.as_secs_f64())?;
            }
            None => writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {below}")?,
        }
    }
    writeln!(text, "{name}_count{{{labels}}} {}", latency.count())?;
    writeln!(text, "{name}_sum{{{labels}}} {}", latency.sum().as_secs_f64())
}

/// A label's value: what comes from outside does not end it.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::super::{Counted, Outcome, Recorder, RuleStats, Verdict, latency::Histogram};
    use super::*;

    #[test]
    fn writes_what_scrapers_read() {
        let (recorder, stats) = (Recorder::default(), Arc::new(RuleStats::default()));
        let counter = stats.counter();
        recorder.counted(
            || super::super::count(&counter, &stats, Verdict::Denied),
            |()| Outcome::Denied,
        );
        let key = Arc::from("a\"b\\c\n/ns");
        let rule = RuleMetrics::of("g/v/AuthorizationPolicy", &key, false, &stats, None);
        let mut metrics =
            Metrics::new(&recorder, rule.into_iter().collect(), ConnectionCounts::default());
        metrics.connections.plaintext_refused = 3;
        let histogram = Histogram::default();
        histogram.record(Duration::from_nanos(300));
        metrics.decisions[2].latency = histogram.read();
        metrics.rules[0].verdicts[0].latency = Latency::default();
        assert!(matches!(&metrics.decisions[2], Counted { what: Outcome::Denied, count: 1, .. }));
        let text = metrics.openmetrics();
        for line in [
            "# TYPE rulecast_decisions counter",
            "rulecast_decisions_total{decision=\"authorize\",outcome=\"denied\"} 1",
            "# UNIT rulecast_decision_seconds seconds",
            "rulecast_connections_total{outcome=\"plaintext_refused\"} 3",
            "rulecast_decision_seconds_bucket{decision=\"authorize\",outcome=\"denied\",le=\"0.000000256\"} 0",
            "rulecast_decision_seconds_bucket{decision=\"authorize\",outcome=\"denied\",le=\"0.000000512\"} 1",
            "rulecast_decision_seconds_bucket{decision=\"authorize\",outcome=\"denied\",le=\"+Inf\"} 1",
            "rulecast_decision_seconds_count{decision=\"authorize\",outcome=\"denied\"} 1",
            "rulecast_decision_seconds_sum{decision=\"authorize\",outcome=\"denied\"} 0.0000003",
            "rulecast_rule_decisions_total{kind=\"AuthorizationPolicy\",rule=\"a\\\"b\\\\c\\n/ns\",verdict=\"denied\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        assert!(!text.contains("rulecast_rule_decision_seconds_"));
    }
}
