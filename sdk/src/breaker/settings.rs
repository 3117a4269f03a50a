//! What a rule says, as its breakers go by it.

use prost::Message;
use rulecast_api::{
    Code,
    proto::rules::v1::{CircuitBreaker, Rule},
};

use crate::decision::{Rejection, check_frame};

/// The settings of a rule, for all its breakers. Times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) window: u64,
    pub(super) minimum_calls: u32,
    /// 0: not by ratio.
    pub(super) error_percent: f64,
    /// 0: not by these.
    pub(super) consecutive_errors: u32,
    pub(super) open: u32,
    pub(super) trial_calls: u32,
    pub(super) per_service: bool,
    pub(super) max_ejected_percent: u32,
}

/// Most trial calls: as many as a breaker's state can count.
pub(super) const MAX_TRIALS: u32 = 1000;
/// Longest that a breaker stays open: a day.
const MAX_OPEN: u64 = 24 * 60 * 60 * 1000;
/// Longest window: an hour.
const MAX_WINDOW: u64 = 60 * 60 * 1000;

impl Settings {
    /// Of a rule as delivered.
    pub(super) fn read(spec: &[u8]) -> Result<Self, Rejection> {
        let invalid = |field: &str, message: String| Rejection {
            code: Code::ItemInvalid.to_string(),
            field: format!("spec{field}"),
            message,
        };
        let spec = CircuitBreaker::decode(spec)
            .map_err(|e| invalid("", format!("is no CircuitBreaker: {e}")))?;
        if !(1000..=MAX_WINDOW).contains(&spec.window_ms) {
            let message = format!("{} ms is no window; a second to an hour is", spec.window_ms);
            return Err(invalid(".window_ms", message));
        }
        let open = match u32::try_from(spec.open_ms) {
            Ok(open) if (1..=MAX_OPEN).contains(&spec.open_ms) => open,
            _ => {
                let message = format!("{} ms; 1 ms to a day can be kept", spec.open_ms);
                return Err(invalid(".open_ms", message));
            }
        };
        if !(1..=MAX_TRIALS).contains(&spec.trial_calls) {
            let message = format!("{}; 1 to {MAX_TRIALS} can be tried", spec.trial_calls);
            return Err(invalid(".trial_calls", message));
        }
        if !(0.0..=100.0).contains(&spec.error_percent) {
            let message = format!("{} is no percentage", spec.error_percent);
            return Err(invalid(".error_percent", message));
        }
        if spec.max_ejected_percent > 100 {
            let message = format!("{} is no percentage", spec.max_ejected_percent);
            return Err(invalid(".max_ejected_percent", message));
        }
        Ok(Self {
            window: spec.window_ms,
            minimum_calls: spec.minimum_calls.max(1),
            error_percent: spec.error_percent,
            consecutive_errors: spec.consecutive_errors,
            open,
            trial_calls: spec.trial_calls,
            per_service: spec.per_service,
            max_ejected_percent: spec.max_ejected_percent,
        })
    }

    /// How many of a call's endpoints may be left out.
    pub(super) fn most_out(&self, endpoints: usize) -> usize {
        if self.per_service {
            return endpoints;
        }
        let share = endpoints * self.max_ejected_percent as usize / 100;
        let least = usize::from(self.max_ejected_percent > 0);
        share.max(least).min(endpoints.saturating_sub(1))
    }
}

/// Whether a rule can be obeyed.
pub(crate) fn check(rule: &Rule) -> Result<(), Rejection> {
    check_frame(rule)?;
    Settings::read(&rule.spec).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> CircuitBreaker {
        CircuitBreaker {
            window_ms: 10_000,
            open_ms: 30_000,
            trial_calls: 1,
            ..CircuitBreaker::default()
        }
    }

    fn refused(change: impl FnOnce(&mut CircuitBreaker)) -> String {
        let mut message = message();
        change(&mut message);
        Settings::read(&message.encode_to_vec()).expect_err("refused").field
    }

    #[test]
    fn what_cannot_be_obeyed_is_refused() {
        Settings::read(&message().encode_to_vec()).expect("can be obeyed");
        assert_eq!(refused(|m| m.window_ms = 0), "spec.window_ms");
        assert_eq!(refused(|m| m.window_ms = u64::MAX), "spec.window_ms");
        assert_eq!(refused(|m| m.open_ms = 0), "spec.open_ms");
        assert_eq!(refused(|m| m.open_ms = MAX_OPEN + 1), "spec.open_ms");
        assert_eq!(refused(|m| m.trial_calls = 0), "spec.trial_calls");
        assert_eq!(refused(|m| m.trial_calls = 1001), "spec.trial_calls");
        assert_eq!(refused(|m| m.error_percent = f64::NAN), "spec.error_percent");
        assert_eq!(refused(|m| m.max_ejected_percent = 101), "spec.max_ejected_percent");
        assert_eq!(Settings::read(&[255]).expect_err("refused").field, "spec");
    }

    #[test]
    fn one_endpoint_always_remains() {
        let most = |percent, endpoints| {
            let mut message = message();
            message.max_ejected_percent = percent;
            Settings::read(&message.encode_to_vec()).expect("read").most_out(endpoints)
        };
        for (percent, endpoints, out) in [
            (50, 0, 0),
            (50, 1, 0),
            (50, 2, 1),
            (50, 3, 1),
            (50, 10, 5),
            (10, 5, 1),
            (0, 5, 0),
            (100, 5, 4),
            (100, 1, 0),
        ] {
            assert_eq!(most(percent, endpoints), out, "{percent} % of {endpoints}");
        }
    }
}
