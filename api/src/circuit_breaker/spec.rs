use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::{
    fields::{Errors, Scope, present, show},
    kind::{FieldError, RuleSpec},
    proto::rules::v1::{self as wire, Target},
};

/// Most calls that a threshold may name.
pub(super) const MAX_CALLS: u32 = 100_000;
/// Most trial calls.
pub(super) const MAX_TRIALS: u32 = 1000;

const WINDOW: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
const OPEN: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(86_400);

/// What has a breaker of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Per {
    /// Each endpoint of each service.
    #[default]
    Endpoint,
    /// Each service.
    Service,
}

impl Per {
    /// As written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::Service => "service",
        }
    }
}

/// The spec of a CircuitBreaker: when endpoints are left out after failures.
#[derive(Clone, Debug, PartialEq)]
pub struct CircuitBreakerSpec {
    /// False: acts as no rule.
    pub enabled: bool,
    /// What `key` names.
    pub scope: Scope,
    /// A service key or an application's name.
    pub key: String,
    /// Larger first.
    pub priority: i32,
    /// The span that is looked at: 1 s to 1 h, in whole milliseconds.
    pub window: Duration,
    /// Calls in the window below which nothing opens by ratio; 1 to 100,000.
    pub minimum_calls: u32,
    /// Percent of failed calls at which it opens, 0 to 100; 0: not by ratio.
    pub error_percent: f64,
    /// Errors one after the other at which it opens, up to 100,000; 0: not by these.
    pub consecutive_errors: u32,
    /// How long it stays open: 100 ms to a day, in whole milliseconds.
    pub open_for: Duration,
    /// Calls that are let through to try; 1 to 1000.
    pub trial_calls: u32,
    /// What has a breaker of its own.
    pub per: Per,
    /// Percent of a call's endpoints that may be left out, 0 to 100.
    pub max_ejected_percent: u32,
}

impl CircuitBreakerSpec {
    /// Parses and validates the `spec` of a manifest; all errors at once, in document order.
    pub fn parse(value: Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
        let mut errors = Errors::default();
        match Self::read(&value, &mut errors) {
            Some(spec) if errors.0.is_empty() => Ok(Arc::new(spec)),
            _ => Err(errors.0),
        }
    }

    fn read(value: &Value, errors: &mut Errors) -> Option<Self> {
        const FIELDS: &[&str] = &[
            "enabled",
            "scope",
            "key",
            "priority",
            "window",
            "minimumCalls",
            "errorPercent",
            "consecutiveErrors",
            "openFor",
            "trialCalls",
            "per",
            "maxEjectedPercent",
        ];
        let map = errors.object(value, "spec", FIELDS)?;
        let scope = errors.scope(map, false);
        let key = errors.key(map, scope, false);
        let enabled = errors.flag(map, "spec", "enabled").unwrap_or(true);
        let priority = errors.priority(map);
        let window = errors.duration(map, "spec", "window", WINDOW);
        let minimum_calls = errors.count(map, "spec", "minimumCalls", 1..=MAX_CALLS);
        let error_percent = percent(map, errors);
        let consecutive_errors = errors.count(map, "spec", "consecutiveErrors", 0..=MAX_CALLS);
        let given = |field| present(map, field).is_some();
        if !given("errorPercent") && !given("consecutiveErrors") {
            let hint = "write errorPercent: 50, or consecutiveErrors: 5; else it never opens";
            errors.missing("spec.errorPercent", hint);
        } else if error_percent.unwrap_or_default() == 0.0
            && consecutive_errors.unwrap_or_default() == 0
            && errors.0.is_empty()
        {
            let field = if given("errorPercent") { "errorPercent" } else { "consecutiveErrors" };
            let message = "is 0, so that it never opens".to_owned();
            let hint = "write errorPercent: 50, or consecutiveErrors: 5; enabled: false rests it";
            errors.invalid(&format!("spec.{field}"), "0", message, hint);
        }
        let open_for = errors.duration(map, "spec", "openFor", OPEN);
        let trial_calls = errors.count(map, "spec", "trialCalls", 1..=MAX_TRIALS);
        let per = match errors.text(map, "spec", "per") {
            None | Some("endpoint") => Per::Endpoint,
            Some("service") => Per::Service,
            Some(other) => {
                let message = "has no breaker of its own".to_owned();
                errors.invalid("spec.per", other, message, "write endpoint or service");
                Per::Endpoint
            }
        };
        let max_ejected_percent = errors.count(map, "spec", "maxEjectedPercent", 0..=100);
        Some(Self {
            enabled,
            scope: scope?,
            key,
            priority,
            window: window.unwrap_or(Duration::from_secs(10)),
            minimum_calls: minimum_calls.unwrap_or(20),
            error_percent: error_percent.unwrap_or_default(),
            consecutive_errors: consecutive_errors.unwrap_or_default(),
            open_for: open_for.unwrap_or(Duration::from_secs(30)),
            trial_calls: trial_calls.unwrap_or(1),
            per,
            max_ejected_percent: max_ejected_percent.unwrap_or(50),
        })
    }

    /// The message that the client gets.
    pub fn to_wire(&self) -> wire::CircuitBreaker {
        wire::CircuitBreaker {
            window_ms: self.window.as_millis() as u64,
            minimum_calls: self.minimum_calls,
            error_percent: self.error_percent,
            consecutive_errors: self.consecutive_errors,
            open_ms: self.open_for.as_millis() as u64,
            trial_calls: self.trial_calls,
            per_service: self.per == Per::Service,
            max_ejected_percent: self.max_ejected_percent,
        }
    }
}

fn percent(map: &Map<String, Value>, errors: &mut Errors) -> Option<f64> {
    let value = present(map, "errorPercent")?;
    let percent = value.as_f64().filter(|percent| (0.0..=100.0).contains(percent));
    if percent.is_none() {
        let message = format!("{} is no percentage", show(value));
        let hint = "write a number from 0 to 100";
        errors.invalid("spec.errorPercent", &show(value), message, hint);
    }
    percent
}

impl RuleSpec for CircuitBreakerSpec {
    fn target(&self) -> Option<Target> {
        Some(self.scope.target(self.key.clone()))
    }

    fn enabled(&self) -> bool {
        self.enabled
    }

    fn priority(&self) -> i32 {
        self.priority
    }

    fn encode(&self) -> Bytes {
        Bytes::from(self.to_wire().encode_to_vec())
    }

    fn to_json(&self) -> Value {
        let span = |span: Duration| humantime::format_duration(span).to_string();
        // A whole number as people write it.
        let percent = match self.error_percent.fract() == 0.0 {
            true => json!(self.error_percent as u64),
            false => json!(self.error_percent),
        };
        json!({
            "enabled": self.enabled,
            "scope": self.scope.as_str(),
            "key": self.key,
            "priority": self.priority,
            "window": span(self.window),
            "minimumCalls": self.minimum_calls,
            "errorPercent": percent,
            "consecutiveErrors": self.consecutive_errors,
            "openFor": span(self.open_for),
            "trialCalls": self.trial_calls,
            "per": self.per.as_str(),
            "maxEjectedPercent": self.max_ejected_percent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;

    fn errors(value: Value) -> Vec<(Code, String)> {
        let errors = CircuitBreakerSpec::parse(value).expect_err("refused");
        errors.into_iter().map(|e| (e.code, e.path)).collect()
    }

    /// A spec that is accepted, with these fields over it; null takes one away.
    fn spec(more: Value) -> Value {
        let mut spec = json!({ "scope": "service", "key": "com.Foo", "errorPercent": 50 });
        for (field, value) in more.as_object().expect("an object") {
            spec[field] = value.clone();
        }
        spec
    }

    #[test]
    fn round_trips() {
        for more in [
            json!({}),
            json!({ "errorPercent": null, "consecutiveErrors": 5, "scope": "application" }),
            json!({ "errorPercent": 0.5, "minimumCalls": 100_000, "trialCalls": 1000,
                    "window": "1h", "openFor": "1day", "per": "service", "priority": -3 }),
            json!({ "errorPercent": 0, "consecutiveErrors": 1, "maxEjectedPercent": 0,
                    "window": "1m 500ms", "openFor": "100ms", "enabled": false }),
        ] {
            let spec = CircuitBreakerSpec::parse(spec(more)).expect("valid");
            let again = CircuitBreakerSpec::parse(spec.to_json()).expect("valid");
            assert_eq!(spec.to_json(), again.to_json());
            assert_eq!(spec.encode(), again.encode());
            assert_eq!(spec.target(), again.target());
            assert_eq!(spec.priority(), again.priority());
        }
    }

    #[test]
    fn the_defaults_are_as_documented() {
        let mut errors = Errors::default();
        let read = CircuitBreakerSpec::read(&spec(json!({})), &mut errors).expect("valid");
        let wire = wire::CircuitBreaker {
            window_ms: 10_000,
            minimum_calls: 20,
            error_percent: 50.0,
            consecutive_errors: 0,
            open_ms: 30_000,
            trial_calls: 1,
            per_service: false,
            max_ejected_percent: 50,
        };
        assert_eq!(read.to_wire(), wire);
        assert!(read.enabled && read.priority == 0);
    }

    #[test]
    fn collects_all_errors() {
        let invalid = |path: &str| (Code::FieldInvalid, path.to_owned());
        let missing = |path: &str| (Code::FieldMissing, path.to_owned());
        let found = errors(json!({
            "scope": "shop", "enabled": "no", "priority": 0.5, "window": "soon",
            "minimumCalls": 0, "errorPercent": 101, "consecutiveErrors": -1, "openFor": 30,
            "trialCalls": "1", "per": "call", "maxEjectedPercent": 101, "windows": 1,
        }));
        let unknown = (Code::FieldUnknown, "spec.windows".to_owned());
        let fields = [
            "enabled",
            "priority",
            "window",
            "minimumCalls",
            "errorPercent",
            "consecutiveErrors",
            "openFor",
            "trialCalls",
            "per",
            "maxEjectedPercent",
        ];
        let fields = fields.map(|field| invalid(&format!("spec.{field}")));
        let first = [unknown, invalid("spec.scope"), missing("spec.key")];
        assert_eq!(found, [&first[..], &fields].concat());
        assert_eq!(errors(json!({})), ["spec.scope", "spec.key", "spec.errorPercent"].map(missing));
    }

    #[test]
    fn what_never_opens_is_refused() {
        for (more, path) in [
            (json!({ "errorPercent": null }), Code::FieldMissing),
            (json!({ "errorPercent": 0 }), Code::FieldInvalid),
            (json!({ "errorPercent": 0, "consecutiveErrors": 0 }), Code::FieldInvalid),
        ] {
            assert_eq!(errors(spec(more)), [(path, "spec.errorPercent".to_owned())]);
        }
        let more = json!({ "errorPercent": null, "consecutiveErrors": 0 });
        let path = "spec.consecutiveErrors".to_owned();
        assert_eq!(errors(spec(more)), [(Code::FieldInvalid, path)]);
    }

    #[test]
    fn time_spans_have_bounds() {
        for (field, value) in [
            ("window", "999ms"),
            ("window", "61m"),
            ("window", "1s 100us"),
            ("openFor", "99ms"),
            ("openFor", "25h"),
            ("openFor", ""),
        ] {
            let found = errors(spec(json!({ field: value })));
            assert_eq!(found, [(Code::FieldInvalid, format!("spec.{field}"))], "{value}");
        }
    }
}
