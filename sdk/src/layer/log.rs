use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Lines for each rule in each [`PERIOD`].
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);
/// Rules that are counted; with more it begins anew.
const RULES: usize = 1024;

/// Keeps a flood of refusals from being a flood of lines.
#[derive(Debug, Default)]
pub(super) struct Log {
    rules: Mutex<HashMap<Box<str>, Lines>>,
}

#[derive(Debug)]
struct Lines {
    since: Instant,
    written: u32,
    omitted: u64,
}

impl Log {
    /// Whether there is room for a line on a rule, and how many were omitted since the last one.
    pub(super) fn room(&self, rule: &str, now: Instant) -> Option<u64> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = match rules.get_mut(rule) {
            Some(lines) => lines,
            None => {
                if rules.len() >= RULES {
                    rules.clear();
                }
                let new = Lines { since: now, written: 0, omitted: 0 };
                rules.entry(rule.into()).or_insert(new)
            }
        };
        if now.saturating_duration_since(lines.since) >= PERIOD {
            (lines.since, lines.written) = (now, 0);
        }
        if lines.written >= LINES {
            lines.omitted += 1;
            return None;
        }
        lines.written += 1;
        Some(std::mem::take(&mut lines.omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_on_one_rule_is_a_few_lines_and_hides_no_other() {
        let (log, start) = (Log::default(), Instant::now());
        let written = (0..1000).filter_map(|_| log.room("a", start)).collect::<Vec<_>>();
        assert_eq!(written, [0; LINES as usize]);
        assert_eq!(log.room("b", start), Some(0));
        let later = start + PERIOD;
        assert_eq!(log.room("a", later), Some(1000 - u64::from(LINES)));
        assert_eq!(log.room("a", later), Some(0));
    }

    #[test]
    fn the_rules_that_are_counted_are_bounded() {
        let (log, now) = (Log::default(), Instant::now());
        for rule in 0..10 * RULES {
            assert_eq!(log.room(&rule.to_string(), now), Some(0));
        }
        assert!(log.rules.lock().expect("no panic").len() <= RULES);
    }
}
