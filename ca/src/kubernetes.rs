//! The authority in a cluster.

pub(crate) mod app;
pub mod attestor;
pub mod bundles;
pub mod keys;
mod serving;
pub mod webhook;

use std::{error::Error as _, fmt::Write as _, time::Duration};

use rulecast_api::{
    Code,
    spiffe::{valid_segment, valid_trust_domain},
};
use rulecast_cluster::ClusterConfig;
use webhook::WebhookConfig;

pub use bundles::BundlesConfig;

use crate::CaError;

/// Owner of the fields that the authority writes.
pub const FIELD_MANAGER: &str = "rulecast-ca";
/// Name of the Lease by which replicas find their leader.
pub const LEASE: &str = "rulecast-ca";
/// Label of every object that Rulecast's services make.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "rulecast");

/// An authority in a cluster.
#[derive(Clone, Debug)]
pub struct KubernetesCa {
    /// The API server, and as whom.
    pub cluster: ClusterConfig,
    /// Namespace that the authority runs in: of its Secret and its Lease.
    pub namespace: String,
    /// Name of the Secret that holds it. Its data has the names of the files of an
    /// authority's folder, so that one can become the other.
    pub secret: String,
    /// Of the authority that is made when there is no Secret; one that is there must
    /// be of the same trust domain.
    pub trust_domain: String,
    /// Names this replica among the candidates for leader (Lease `rulecast-ca`); no
    /// other may have it. The pod's name, most often.
    pub identity: String,
    /// The trust bundle in every namespace; `None`: somebody else sees to it.
    pub bundles: Option<BundlesConfig>,
    /// The pod webhook; `None`: pods mount trust by themselves.
    pub webhook: Option<WebhookConfig>,
}

impl KubernetesCa {
    /// Default of [`namespace`](Self::namespace).
    pub const NAMESPACE: &str = rulecast_identity::SYSTEM_NAMESPACE;
    /// Default of [`secret`](Self::secret).
    pub const SECRET: &str = "rulecast-ca";

    /// With everything at its default, and no webhook.
    pub fn new(trust_domain: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            cluster: ClusterConfig::default(),
            namespace: Self::NAMESPACE.into(),
            secret: Self::SECRET.into(),
            trust_domain: trust_domain.into(),
            identity: identity.into(),
            bundles: Some(BundlesConfig::default()),
            webhook: None,
        }
    }

    /// [`Code::ConfigInvalid`] when something is missing or out of range.
    pub fn validate(&self) -> Result<(), CaError> {
        let names = [
            ("namespace", &self.namespace),
            ("name of the Secret", &self.secret),
            ("name of this replica", &self.identity),
        ];
        for (what, name) in names {
            if !valid_segment(name) {
                return Err(CaError::new(
                    Code::ConfigInvalid,
                    format!("the {what} \"{name}\" must be 1 to 253 of a-zA-Z0-9._-"),
                ));
            }
        }
        if !valid_trust_domain(&self.trust_domain) {
            return Err(CaError::new(
                Code::ConfigInvalid,
                format!("\"{}\" is no trust domain; use 1 to 255 of a-z0-9._-", self.trust_domain),
            ));
        }
        self.webhook.as_ref().map_or(Ok(()), WebhookConfig::validate)
    }
}

/// Why a call to the API server gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Slow(Duration),
    /// What the client or the API server says.
    #[error(transparent)]
    Api(#[from] kube::Error),
}

impl CallError {
    /// Whether the API server answered with this reason (or only with its code).
    pub(crate) fn is(&self, code: u16, reason: &str) -> bool {
        match self {
            Self::Api(kube::Error::Api(status)) if !status.reason.is_empty() => {
                status.reason == reason
            }
            Self::Api(kube::Error::Api(status)) => status.code == code,
            _ => false,
        }
    }

    /// For people, on one line.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Api(kube::Error::Api(status)) => {
                let reason = [status.reason.as_str(), "no reason"];
                let reason = reason.into_iter().find(|r| !r.is_empty()).unwrap_or_default();
                format!("{} ({} {reason})", status.message, status.code)
            }
            _ => {
                let mut text = self.to_string();
                let mut next = self.source();
                while let Some(error) = next {
                    let more = error.to_string();
                    if !text.contains(&more) {
                        let _ = write!(text, ": {more}");
                    }
                    next = error.source();
                }
                text
            }
        }
    }
}

/// A call to the API server within `limit`.
pub(crate) async fn in_time<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(CallError::Slow(limit)),
    }
}

/// That the API server does not let us do something, which may pass.
pub(crate) fn api_error(what: &str, error: &CallError) -> CaError {
    CaError::new(Code::AuthorityUnreachable, format!("{what}: {}", error.text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_checked() {
        let good = KubernetesCa::new("td.test", "rulecast-ca-0");
        good.validate().expect("the defaults");
        let spoils: [fn(&mut KubernetesCa); 5] = [
            |c| c.namespace.clear(),
            |c| c.secret = "a/b".into(),
            |c| c.identity.clear(),
            |c| c.trust_domain = "No Domain".into(),
            |c| {
                let mut webhook = WebhookConfig::in_namespace("rulecast-system");
                webhook.hosts.clear();
                c.webhook = Some(webhook);
            },
        ];
        for (n, spoil) in spoils.into_iter().enumerate() {
            let mut config = good.clone();
            spoil(&mut config);
            let error = config.validate().expect_err(&format!("case {n}"));
            assert_eq!(error.code(), Code::ConfigInvalid);
        }
    }

    #[test]
    fn answers_are_told_apart_and_printed_on_a_line() {
        let status = |code, reason: &str| {
            let status = kube::core::Status::failure("a message", reason).with_code(code);
            CallError::Api(kube::Error::Api(status.boxed()))
        };
        assert!(status(409, "AlreadyExists").is(409, "AlreadyExists"));
        assert!(!status(409, "Conflict").is(409, "AlreadyExists"));
        assert!(status(409, "").is(409, "Conflict"));
        assert_eq!(status(403, "Forbidden").text(), "a message (403 Forbidden)");
        let slow = CallError::Slow(Duration::from_secs(5));
        assert!(!slow.is(0, ""));
        assert_eq!(slow.text(), "no answer within 5s");
        assert_eq!(api_error("x", &slow).code(), Code::AuthorityUnreachable);
    }
}
