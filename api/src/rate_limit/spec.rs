use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Map, Value};

use crate::{
    attribute::{self, Condition},
    fields::{Errors, present, show},
    kind::{FieldError, Interest, Projection, RuleSpec, Subject},
    proto::rules::v1::{self as wire, Target},
    selector::{Of, Selector},
};

/// Most attributes that make a key.
pub const MAX_KEYS: usize = 16;

/// How short and how long the period may be.
const PERIOD: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(86_400);

/// The spec of a RateLimit: how many calls a server takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitSpec {
    /// False: acts as no rule.
    pub enabled: bool,
    /// The servers that it is for: all of these must match; none: all servers.
    pub selector: Vec<Selector>,
    /// Calls that are counted: all of these must hold; none: all calls.
    pub when: Vec<Condition>,
    /// [Names](attribute::name) of attributes; calls whose values are the same share a bucket.
    /// None: all calls share one. At most [`MAX_KEYS`].
    pub keys: Vec<String>,
    /// So many calls per period, evenly; at least 1.
    pub requests: u32,
    /// The period, 1 ms to a day, in whole milliseconds.
    pub per: Duration,
    /// So many calls at once, after a pause; at least 1.
    pub burst: u32,
}

impl RateLimitSpec {
    /// Parses and validates the `spec` of a manifest; all errors at once, in document order.
    pub fn parse(value: Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
        let mut errors = Errors::default();
        match Self::read(&value, &mut errors) {
            Some(spec) if errors.0.is_empty() => Ok(Arc::new(spec)),
            _ => Err(errors.0),
        }
    }

    fn read(value: &Value, errors: &mut Errors) -> Option<Self> {
        const FIELDS: &[&str] =
            &["enabled", "selector", "match", "keys", "requests", "per", "burst"];
        let map = errors.object(value, "spec", FIELDS)?;
        let enabled = errors.flag(map, "spec", "enabled").unwrap_or(true);
        let selector = errors
            .list(present(map, "selector"), "spec.selector")
            .iter()
            .enumerate()
            .map(|(i, item)| {
                Selector::read(errors, item, &format!("spec.selector[{i}]"), Of::Endpoint)
            })
            .collect();
        let when = Condition::read_all(errors, map, "spec", "match");
        let keys = read_keys(errors, present(map, "keys"));
        if present(map, "requests").is_none() {
            errors.missing("spec.requests", "write how many calls a server takes per period");
        }
        let requests = errors.count(map, "spec", "requests", 1..=u32::MAX).unwrap_or(1);
        let per = errors.duration(map, "spec", "per", PERIOD).unwrap_or(Duration::from_secs(1));
        let burst = errors.count(map, "spec", "burst", 1..=u32::MAX).unwrap_or(requests);
        Some(Self { enabled, selector, when, keys, requests, per, burst })
    }
}

fn read_keys(errors: &mut Errors, value: Option<&Value>) -> Vec<String> {
    const PATH: &str = "spec.keys";
    let items = errors.list(value, PATH);
    if items.len() > MAX_KEYS {
        let message = format!("{} attributes are too many", items.len());
        let hint = format!("write at most {MAX_KEYS}");
        errors.invalid(PATH, &items.len().to_string(), message, &hint);
        return Vec::new();
    }
    let mut keys: Vec<String> = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let path = format!("{PATH}[{i}]");
        let Some(text) = item.as_str() else {
            let message = format!("{} is no text", show(item));
            let hint = "name an attribute, such as source.principal or request.headers[x]";
            errors.invalid(&path, &show(item), message, hint);
            continue;
        };
        match attribute::name(text) {
            Ok(name) if name == "request.id" => {
                let message = "every call has another, and so a bucket of its own".to_owned();
                let hint = "name what calls of one caller share, such as source.principal";
                errors.invalid(&path, text, message, hint);
            }
            Ok(name) if keys.contains(&name) => {
                let message = format!("{name} stands there twice");
                errors.invalid(&path, text, message, "write each attribute once");
            }
            Ok(name) => keys.push(name),
            Err(error) => errors.invalid(&path, text, error.message, &error.hint),
        }
    }
    keys
}

impl RuleSpec for RateLimitSpec {
    fn target(&self) -> Option<Target> {
        None
    }

    fn enabled(&self) -> bool {
        self.enabled
    }

    fn priority(&self) -> i32 {
        0
    }

    /// Without the selector, which is the plane's to look at.
    fn encode(&self) -> Bytes {
        let message = wire::RateLimit {
            keys: self.keys.clone(),
            requests: self.requests,
            period_ms: self.per.as_millis() as u64,
            burst: self.burst,
            when: self.when.iter().map(Condition::to_wire).collect(),
        };
        Bytes::from(message.encode_to_vec())
    }

    fn to_json(&self) -> Value {
        let mut map = Map::new();
        map.insert("enabled".into(), self.enabled.into());
        if !self.selector.is_empty() {
            map.insert("selector".into(), self.selector.iter().map(Selector::to_json).collect());
        }
        if !self.when.is_empty() {
            map.insert("match".into(), self.when.iter().map(Condition::to_json).collect());
        }
        if !self.keys.is_empty() {
            map.insert("keys".into(), self.keys.clone().into());
        }
        map.insert("requests".into(), self.requests.into());
        map.insert("per".into(), humantime::format_duration(self.per).to_string().into());
        map.insert("burst".into(), self.burst.into());
        Value::Object(map)
    }

    fn project(&self, subject: &Subject<'_>, within: Option<&str>) -> Projection {
        let own = within.is_none_or(|namespace| namespace == subject.namespace);
        match own && self.selector.iter().all(|selector| selector.matches(subject)) {
            true => Projection::Whole,
            false => Projection::Nothing,
        }
    }

    fn interest(&self) -> Interest {
        Interest::of(&self.selector)
    }
}

#[cfg(test)]
mod tests;
