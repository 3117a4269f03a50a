//! From a message to what is evaluated, and one evaluation.

use prost::Message as _;
use rulecast_api::{
    Code, Digest,
    matcher::Values,
    proto::rules::v1::{self as wire, ValueMatch},
};
use rulecast_policy::{Attributes, CommitError, request::Request, trace::Trace};

/// Longer values stand in a key by their digest, so that long ones do not fill the answer.
const LONG: usize = 512;
/// Most characters of a value in an explanation.
const SHOWN: usize = 64;

/// A limit, ready to be evaluated.
#[derive(Debug)]
pub(crate) struct Limit {
    /// All must hold.
    when: Vec<Test>,
    /// Whose values make the key.
    keys: Vec<Attribute>,
}

/// An attribute: its name, for explanations, and its slot.
#[derive(Debug)]
struct Attribute {
    name: String,
    slot: u16,
}

/// What one attribute must be like.
#[derive(Debug)]
struct Test {
    attribute: Attribute,
    /// One of these must be met; `None`: any value, or none.
    one_of: Option<Values>,
    none_of: Values,
}

fn refuse(field: impl Into<String>, message: impl ToString) -> CommitError {
    CommitError::new(Code::RuleRefused.as_str(), field, message.to_string())
}

impl Limit {
    pub(crate) fn compile(spec: &[u8], attributes: &mut Attributes) -> Result<Self, CommitError> {
        let message = wire::RateLimit::decode(spec)
            .map_err(|e| refuse("spec", format!("is no RateLimit message: {e}")))?;
        for (field, value) in [
            ("requests", message.requests.into()),
            ("per", message.period_ms),
            ("burst", message.burst.into()),
        ] {
            if value == 0 {
                return Err(refuse(field, "is of a newer version, or missing"));
            }
        }
        let mut attribute = |name: String| {
            let slot = attributes.slot(&name);
            Attribute { name, slot }
        };
        let mut when = Vec::with_capacity(message.when.len());
        for (i, condition) in message.when.into_iter().enumerate() {
            let path = format!("match[{i}]");
            let one_of = match condition.values.is_empty() {
                true => None,
                false => Some(values(condition.values, &format!("{path}.values"))?),
            };
            let none_of = values(condition.not_values, &format!("{path}.notValues"))?;
            when.push(Test { attribute: attribute(condition.key), one_of, none_of });
        }
        Ok(Self { when, keys: message.keys.into_iter().map(attribute).collect() })
    }

    /// Whether a call is counted.
    pub(crate) fn counts(&self, request: &Request<'_>, trace: &mut impl Trace) -> bool {
        let failed = self.when.iter().find(|test| !test.holds(request));
        trace.say(|| match failed {
            None => "the call counts".to_owned(),
            Some(test) => format!("the call does not count: {}", test.why_not(request)),
        });
        failed.is_none()
    }

    /// Writes the key of a call's bucket: different values make different keys, and one that is
    /// absent is another than one that is empty.
    pub(crate) fn key(&self, request: &Request<'_>, key: &mut Vec<u8>, trace: &mut impl Trace) {
        for attribute in &self.keys {
            match request.attribute(attribute.slot) {
                Some(value) if value.len() > LONG => {
                    key.extend_from_slice(&u32::MAX.to_le_bytes());
                    key.extend_from_slice(Digest::of(value).as_bytes());
                }
                Some(value) => {
                    key.extend_from_slice(&(value.len() as u32 + 1).to_le_bytes());
                    key.extend_from_slice(value);
                }
                None => key.extend_from_slice(&0u32.to_le_bytes()),
            }
        }
        trace.say(|| match &*self.keys {
            [] => "all calls share one bucket".to_owned(),
            keys => {
                let shown: Vec<String> = keys.iter().map(|key| key.shown(request)).collect();
                format!("its bucket is that of {}", shown.join(", "))
            }
        });
    }
}

impl Attribute {
    fn shown(&self, request: &Request<'_>) -> String {
        match request.attribute(self.slot) {
            Some(value) => {
                let text: String = String::from_utf8_lossy(value).chars().take(SHOWN).collect();
                format!("{} {text:?}", self.name)
            }
            None => format!("{} absent", self.name),
        }
    }
}

impl Test {
    fn holds(&self, request: &Request<'_>) -> bool {
        let value = request.attribute(self.attribute.slot);
        let met = |values: &Values| value.is_some_and(|value| values.meet(value));
        self.one_of.as_ref().is_none_or(met) && !met(&self.none_of)
    }

    fn why_not(&self, request: &Request<'_>) -> String {
        let value = request.attribute(self.attribute.slot);
        let shown = self.attribute.shown(request);
        match &self.one_of {
            Some(values) if !value.is_some_and(|value| values.meet(value)) => {
                format!("{shown}, wanted {}", values.shown())
            }
            _ => format!("{shown}, excluded are {}", self.none_of.shown()),
        }
    }
}

fn values(values: Vec<ValueMatch>, path: &str) -> Result<Values, CommitError> {
    Values::from_wire(values).map_err(|(i, error)| refuse(format!("{path}[{i}]"), error))
}
