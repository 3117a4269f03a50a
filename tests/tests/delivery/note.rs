//! The kinds that the planes of these tests serve: a built-in one, and one of the
//! tests' own, whose rules may be large.

use std::sync::Arc;

use rulecast_api::{
    Code, Kind, Kinds,
    kind::{FieldError, KindInfo, Phase, RuleSpec},
    proto::rules::v1::{Target, target::Scope},
};
use serde_json::{Value, json};

static NOTE: KindInfo = KindInfo {
    api_version: "rulecast.test/v1",
    name: "Note",
    plural: "notes",
    short_names: &[],
    type_name: "rulecast.test/v1/Note",
    phase: Phase::Route,
    parse,
    crd: None,
};

/// A text for the callers of a service.
pub(crate) const NOTES: Kind = Kind(&NOTE);
pub(crate) const ROUTES: Kind = Kind::CONDITION_ROUTE;
pub(crate) const CALLERS: Kind = Kind::AUTHORIZATION_POLICY;
pub(crate) const CONNECTIONS: Kind = Kind::AUTHENTICATION_POLICY;
pub(crate) static KINDS: Kinds = &[ROUTES, NOTES, CALLERS, CONNECTIONS];

#[derive(Debug)]
struct Note {
    service: String,
    text: String,
}

fn parse(spec: Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
    let field = |name: &str| {
        spec.get(name).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| {
            vec![FieldError {
                code: Code::FieldMissing,
                path: format!("spec.{name}"),
                offset: None,
                value: None,
                message: "there is no text".into(),
                hint: "write one".into(),
            }]
        })
    };
    Ok(Arc::new(Note { service: field("service")?, text: field("text")? }))
}

impl RuleSpec for Note {
    fn target(&self) -> Option<Target> {
        Some(Target { scope: Scope::Service.into(), key: self.service.clone() })
    }

    fn enabled(&self) -> bool {
        true
    }

    fn priority(&self) -> i32 {
        0
    }

    fn encode(&self) -> prost::bytes::Bytes {
        self.text.clone().into()
    }

    fn to_json(&self) -> Value {
        json!({ "service": self.service, "text": self.text })
    }
}

/// A manifest of a note.
pub(crate) fn note(namespace: &str, name: &str, service: &str, text: &str) -> Value {
    manifest(NOTES, namespace, name, json!({ "service": service, "text": text }))
}

/// A manifest of a route with one condition.
pub(crate) fn route(namespace: &str, name: &str, service: &str, condition: &str) -> Value {
    let spec = json!({
        "configVersion": "v3.0", "scope": "service", "key": service, "enabled": true,
        "force": false, "runtime": true, "conditions": [condition],
    });
    manifest(ROUTES, namespace, name, spec)
}

pub(crate) fn manifest(kind: Kind, namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": kind.api_version, "kind": kind.name,
        "metadata": { "name": name, "namespace": namespace }, "spec": spec,
    })
}
