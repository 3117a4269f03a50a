//! How the webhook runs, and what it tells pods.

use std::{net::SocketAddr, time::Duration};

use rulecast_api::Code;
use rulecast_identity::SYSTEM_NAMESPACE;

use crate::CaError;

/// Name of the MutatingWebhookConfiguration of the installation.
pub const CONFIGURATION: &str = "rulecast-pod-trust";
/// Namespaces whose pods are never changed, whatever their labels say. Trust bundles are
/// not published there either.
pub const KUBERNETES_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// How the webhook runs, and what it tells pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfig {
    /// Address to listen on (HTTPS).
    pub listen: SocketAddr,
    /// DNS names and IP addresses of its certificate: how the API server calls it.
    pub hosts: Vec<String>,
    /// Name of the MutatingWebhookConfiguration whose `caBundle` is kept.
    pub configuration: String,
    /// The authority's address as pods are told, `host:port`.
    pub ca_address: String,
    /// The plane's address as pods are told, `host:port`.
    pub dds_address: String,
    /// Whether pods with the label `dubbo-ca.inject` get what Dubbo's clients look for.
    pub compat_dubbo: bool,
    /// Life of a pod's token, in seconds; 600 to 86,400. The kubelet renews it at 80%.
    pub token_seconds: u32,
    /// The namespace of this installation: its pods are never changed.
    pub namespace: String,
    /// How long open calls may go on after shutdown.
    pub drain: Duration,
}

impl WebhookConfig {
    /// What the bundled manifests go by, in an installation in `namespace`.
    pub fn in_namespace(namespace: &str) -> Self {
        Self {
            listen: (std::net::Ipv6Addr::UNSPECIFIED, 9443).into(),
            hosts: vec![format!("rulecast-ca.{namespace}.svc")],
            configuration: CONFIGURATION.into(),
            ca_address: format!("rulecast-ca.{namespace}.svc:7443"),
            dds_address: format!("rulecast-dds.{namespace}.svc:7444"),
            compat_dubbo: false,
            token_seconds: 3600,
            namespace: namespace.into(),
            drain: Duration::from_secs(5),
        }
    }

    /// [`Code::ConfigInvalid`] when something is missing or out of range.
    pub fn validate(&self) -> Result<(), CaError> {
        let wrong = |message: String| Err(CaError::new(Code::ConfigInvalid, message));
        if self.hosts.is_empty() || self.hosts.iter().any(String::is_empty) {
            return wrong("the webhook's certificate needs a DNS name or an IP address".into());
        }
        if self.configuration.is_empty() {
            return wrong("the webhook needs the name of its configuration".into());
        }
        for (what, address) in [("authority", &self.ca_address), ("plane", &self.dds_address)] {
            let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
                return wrong(format!(
                    "pods cannot be told \"{address}\" as the {what}'s address; it would be \
                     host:port"
                ));
            }
        }
        // The API server refuses less, and holds its tokens to a day here.
        if !(600..=86_400).contains(&self.token_seconds) {
            return wrong(format!(
                "a token of {} s is not to be had; use 600 to 86400 seconds",
                self.token_seconds
            ));
        }
        Ok(())
    }

    /// Whether pods of `namespace` are never changed.
    pub fn spares(&self, namespace: &str) -> bool {
        KUBERNETES_NAMESPACES.contains(&namespace)
            || namespace == SYSTEM_NAMESPACE
            || namespace == self.namespace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_others_are_checked() {
        let good = WebhookConfig::in_namespace("rulecast-system");
        good.validate().expect("the defaults");
        let bad: [fn(&mut WebhookConfig); 7] = [
            |c| c.hosts.clear(),
            |c| c.configuration.clear(),
            |c| c.ca_address = "rulecast-ca".into(),
            |c| c.dds_address = ":7444".into(),
            |c| c.dds_address = "plane:https".into(),
            |c| c.token_seconds = 599,
            |c| c.token_seconds = 86_401,
        ];
        for (n, spoil) in bad.into_iter().enumerate() {
            let mut config = good.clone();
            spoil(&mut config);
            let error = config.validate().expect_err(&format!("case {n}"));
            assert_eq!(error.code(), Code::ConfigInvalid);
        }
    }

    #[test]
    fn system_namespaces_are_spared() {
        let config = WebhookConfig::in_namespace("trust");
        for namespace in ["kube-system", "kube-public", "kube-node-lease", "rulecast-system"] {
            assert!(config.spares(namespace), "{namespace}");
        }
        assert!(config.spares("trust"));
        assert!(!config.spares("default"));
        assert!(!config.spares("kube-system-2"));
    }
}
