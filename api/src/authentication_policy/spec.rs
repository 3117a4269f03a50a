use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::{
    condition::shorten,
    fields::{Errors, present, show},
    kind::{FieldError, Interest, Projection, RuleSpec, Subject},
    proto::{
        dubbo::v1alpha1 as compat,
        rules::v1::{self as wire, Target, TlsMode},
    },
    selector::{Of, Selector},
};

/// How a server takes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Leaves it undecided.
    None,
    /// Plaintext only.
    Disabled,
    /// Plaintext and mutual TLS, on one port.
    Permissive,
    /// Mutual TLS only.
    Strict,
}

impl Action {
    const ALL: [Action; 4] = [Self::None, Self::Disabled, Self::Permissive, Self::Strict];

    /// As written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Disabled => "DISABLED",
            Self::Permissive => "PERMISSIVE",
            Self::Strict => "STRICT",
        }
    }

    fn mode(self) -> TlsMode {
        match self {
            Self::None => TlsMode::None,
            Self::Disabled => TlsMode::Disabled,
            Self::Permissive => TlsMode::Permissive,
            Self::Strict => TlsMode::Strict,
        }
    }

    fn read(errors: &mut Errors, map: &Map<String, Value>, path: &str) -> Self {
        const HINT: &str = "write STRICT, PERMISSIVE, DISABLED or NONE";
        let text = errors.text(map, path, "action");
        let path = format!("{path}.action");
        match text {
            Some(text) => {
                let found = Self::ALL.into_iter().find(|action| action.as_str() == text);
                if found.is_none() {
                    let message = format!("\"{}\" is no action", shorten(text));
                    errors.invalid(&path, text, message, HINT);
                }
                found.unwrap_or(Self::None)
            }
            None => {
                if present(map, "action").is_none() {
                    errors.missing(&path, HINT);
                }
                Self::None
            }
        }
    }
}

/// What holds for one port in place of the policy's own action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLevel {
    /// Where connections come in.
    pub port: u16,
    /// How they are taken.
    pub action: Action,
}

/// The spec of an AuthenticationPolicy: how servers take connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticationPolicySpec {
    /// For all ports that have none of their own.
    pub action: Action,
    /// The servers that it is for: all of these must match; none: all servers.
    pub selector: Vec<Selector>,
    /// By port, each at most once.
    pub port_level: Vec<PortLevel>,
}

impl AuthenticationPolicySpec {
    /// Parses and validates the `spec` of a manifest; all errors at once, in document order.
    pub fn parse(value: Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
        let mut errors = Errors::default();
        match Self::read(&value, &mut errors) {
            Some(spec) if errors.0.is_empty() => Ok(Arc::new(spec)),
            _ => Err(errors.0),
        }
    }

    fn read(value: &Value, errors: &mut Errors) -> Option<Self> {
        // The old definition spells it with a capital; the new one comes first in hints.
        const FIELDS: &[&str] = &["action", "selector", "portLevel", "PortLevel"];
        let map = errors.object(value, "spec", FIELDS)?;
        let action = Action::read(errors, map, "spec");
        let selector = errors
            .list(present(map, "selector"), "spec.selector")
            .iter()
            .enumerate()
            .map(|(i, item)| {
                Selector::read(errors, item, &format!("spec.selector[{i}]"), Of::Endpoint)
            })
            .collect();
        let field = match (present(map, "portLevel"), present(map, "PortLevel")) {
            (Some(_), Some(other)) => {
                let message = "portLevel stands there too".to_owned();
                errors.invalid("spec.PortLevel", &show(other), message, "write portLevel alone");
                "portLevel"
            }
            (None, Some(_)) => "PortLevel",
            _ => "portLevel",
        };
        let port_level = read_ports(errors, present(map, field), &format!("spec.{field}"));
        Some(Self { action, selector, port_level })
    }
}

fn read_ports(errors: &mut Errors, value: Option<&Value>, path: &str) -> Vec<PortLevel> {
    const HINT: &str = "write a port from 0 to 65535";
    let mut seen = BTreeSet::new();
    let mut ports = Vec::new();
    for (i, item) in errors.list(value, path).iter().enumerate() {
        let path = format!("{path}[{i}]");
        let Some(map) = errors.object(item, &path, &["port", "action"]) else { continue };
        let field = format!("{path}.port");
        let port = match present(map, "port") {
            None => {
                errors.missing(&field, HINT);
                None
            }
            Some(value) => match value.as_u64().map(u16::try_from) {
                Some(Ok(port)) => Some(port),
                _ => {
                    let message = format!("{} is no port", show(value));
                    errors.invalid(&field, &show(value), message, HINT);
                    None
                }
            },
        };
        let action = Action::read(errors, map, &path);
        let Some(port) = port else { continue };
        if !seen.insert(port) {
            let message = format!("port {port} stands there twice");
            errors.invalid(&field, &port.to_string(), message, "write each port once");
        }
        ports.push(PortLevel { port, action });
    }
    ports
}

impl RuleSpec for AuthenticationPolicySpec {
    fn target(&self) -> Option<Target> {
        None
    }

    fn enabled(&self) -> bool {
        true
    }

    fn priority(&self) -> i32 {
        0
    }

    fn encode(&self) -> Bytes {
        let ports = self.port_level.iter().map(|level| wire::PortMode {
            port: level.port.into(),
            mode: level.action.mode().into(),
        });
        let message =
            wire::AuthenticationPolicy { mode: self.action.mode().into(), ports: ports.collect() };
        Bytes::from(message.encode_to_vec())
    }

    fn to_json(&self) -> Value {
        let mut map = Map::new();
        map.insert("action".into(), self.action.as_str().into());
        if !self.selector.is_empty() {
            map.insert("selector".into(), self.selector.iter().map(Selector::to_json).collect());
        }
        if !self.port_level.is_empty() {
            let level = |l: &PortLevel| json!({ "port": l.port, "action": l.action.as_str() });
            map.insert("portLevel".into(), self.port_level.iter().map(level).collect());
        }
        Value::Object(map)
    }

    fn compat(&self) -> Option<Bytes> {
        let ports = self.port_level.iter().map(|level| compat::AuthenticationPolicyPortLevel {
            port: level.port.into(),
            action: level.action.as_str().to_owned(),
        });
        let message = compat::AuthenticationSpecToClient {
            action: self.action.as_str().to_owned(),
            port_level: ports.collect(),
        };
        Some(Bytes::from(message.encode_to_vec()))
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
