//! What a pod gets, by which label it asked.

use serde_json::{Value, json};

/// ConfigMap with the roots that every namespace has.
const TRUST_BUNDLE: &str = "rulecast-trust-bundle";

/// What a pod gets that opted in by one label.
#[derive(Clone, Debug)]
pub struct Form {
    /// The label; the value `false` on a pod opts it out.
    pub label: &'static str,
    /// Files, and where they are.
    pub mounts: Vec<Mount>,
    /// Environment of every container.
    pub variables: Vec<Variable>,
}

/// A volume, and its place in every container.
#[derive(Clone, Debug)]
pub struct Mount {
    /// Name of the volume.
    pub volume: &'static str,
    /// Folder in the container.
    pub path: &'static str,
    /// A folder above `path` that is ours alone: what an author mounts there takes the place.
    pub above: Option<&'static str>,
    /// The volume without its name.
    pub source: Value,
}

/// An environment variable.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: Text,
}

/// Where a variable's value comes from.
#[derive(Clone, Debug)]
pub enum Text {
    /// It is the same for all pods.
    Fixed(String),
    /// The kubelet puts in this field of the pod, which need not be known yet.
    Field(&'static str),
    /// The application's name, see [`application`](super::injection::application).
    Application,
}

impl Form {
    /// What `Rulecast::from_env()` finds.
    pub fn rulecast(ca_address: &str, dds_address: &str, token_seconds: u32) -> Self {
        const ROOT: Option<&str> = Some("/var/run/secrets/rulecast");
        let fixed = |name, value: &str| Variable { name, value: Text::Fixed(value.into()) };
        Self {
            label: "rulecast.io/inject",
            mounts: vec![
                Mount {
                    volume: "rulecast-trust",
                    path: "/var/run/secrets/rulecast/trust",
                    above: ROOT,
                    source: trust_bundle(),
                },
                Mount {
                    volume: "rulecast-token",
                    path: "/var/run/secrets/rulecast/token",
                    above: ROOT,
                    source: token(rulecast_identity::client::KUBERNETES_AUDIENCE, token_seconds),
                },
            ],
            variables: vec![
                fixed("RULECAST_CA_ADDRESS", ca_address),
                fixed("RULECAST_DDS_ADDRESS", dds_address),
                fixed("RULECAST_TRUST_BUNDLE", "/var/run/secrets/rulecast/trust/ca.crt"),
                fixed("RULECAST_TOKEN_FILE", "/var/run/secrets/rulecast/token/token"),
                Variable { name: "RULECAST_NAMESPACE", value: Text::Field("metadata.namespace") },
                Variable { name: "RULECAST_POD_NAME", value: Text::Field("metadata.name") },
                Variable { name: "RULECAST_APP", value: Text::Application },
            ],
        }
    }

    /// What clients written for Dubbo's own authority look for.
    pub fn dubbo(ca_address: &str) -> Self {
        let fixed = |name, value: &str| Variable { name, value: Text::Fixed(value.into()) };
        Self {
            label: "dubbo-ca.inject",
            mounts: vec![
                Mount {
                    volume: "dubbo-ca-cert",
                    path: "/var/run/secrets/dubbo-ca-cert",
                    above: None,
                    source: trust_bundle(),
                },
                Mount {
                    volume: "dubbo-ca-token",
                    path: "/var/run/secrets/dubbo-ca-token",
                    above: None,
                    source: token("dubbo-ca", 1800),
                },
            ],
            variables: vec![
                fixed("DUBBO_CA_ADDRESS", ca_address),
                fixed("DUBBO_CA_CERT_PATH", "/var/run/secrets/dubbo-ca-cert/ca.crt"),
                fixed("DUBBO_OIDC_TOKEN", "/var/run/secrets/dubbo-ca-token/token"),
                fixed("DUBBO_OIDC_TOKEN_TYPE", "dubbo-ca-token"),
            ],
        }
    }
}

/// Not optional: a pod waits for it rather than start without.
fn trust_bundle() -> Value {
    json!({ "configMap": { "name": TRUST_BUNDLE } })
}

/// Without modes: the kubelet lets those read it that the pod's security context names.
fn token(audience: &str, seconds: u32) -> Value {
    json!({ "projected": { "sources": [{ "serviceAccountToken": {
        "audience": audience, "expirationSeconds": seconds, "path": "token"
    } }] } })
}
