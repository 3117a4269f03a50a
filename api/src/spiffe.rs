//! SPIFFE identities: `spiffe://<trust domain>/ns/<namespace>/app/<application>`
//! and `…/sa/<service account>`.

use std::{fmt, str::FromStr};

/// A workload's name. Only the two shapes that Rulecast issues are read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpiffeId {
    /// Lower-case DNS-like name, at most 255 bytes.
    pub trust_domain: String,
    /// Where the workload lives; attested.
    pub namespace: String,
    /// What it is.
    pub workload: Workload,
}

/// The last part of an identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Workload {
    /// `app/<name>`: of a join token, outside Kubernetes.
    Application(String),
    /// `sa/<name>`: a Kubernetes service account.
    ServiceAccount(String),
}

impl Workload {
    /// The application's or service account's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Application(name) | Self::ServiceAccount(name) => name,
        }
    }
}

/// Why a text is no identity of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{value}\" is not an identity that Rulecast issues: {reason}; \
     it would be spiffe://<trust domain>/ns/<namespace>/app/<application>"
)]
pub struct SpiffeError {
    /// The text.
    pub value: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// Longest SPIFFE ID that the SPIFFE standard lets implementations refuse above.
const MAX_LEN: usize = 2048;

/// Whether `name` may stand as a segment of an identity: 1 to 253 of `a-zA-Z0-9._-`, not `.` or `..`.
pub fn valid_segment(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 253
        && name != "."
        && name != ".."
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Whether `name` is a trust domain: 1 to 255 of `a-z0-9._-`.
pub fn valid_trust_domain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && name.bytes().all(|b| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-')
        })
}

impl SpiffeId {
    /// Of an application outside Kubernetes; refuses names that cannot stand in a SPIFFE ID.
    pub fn application(
        trust_domain: &str,
        namespace: &str,
        application: &str,
    ) -> Result<Self, SpiffeError> {
        format!("spiffe://{trust_domain}/ns/{namespace}/app/{application}").parse()
    }
}

impl FromStr for SpiffeId {
    type Err = SpiffeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |reason| SpiffeError { value: text.chars().take(300).collect(), reason };
        if text.len() > MAX_LEN {
            return Err(bad("it is longer than 2048 bytes"));
        }
        let rest = text.strip_prefix("spiffe://").ok_or_else(|| bad("no spiffe:// before it"))?;
        let mut parts = rest.split('/');
        let trust_domain = parts.next().unwrap_or_default();
        if !valid_trust_domain(trust_domain) {
            return Err(bad("the trust domain has characters outside a-z0-9._-"));
        }
        let (ns, namespace) = (parts.next(), parts.next().unwrap_or_default());
        let (what, name) = (parts.next(), parts.next().unwrap_or_default());
        if ns != Some("ns") || parts.next().is_some() {
            return Err(bad("the path has another shape"));
        }
        if !valid_segment(namespace) || !valid_segment(name) {
            return Err(bad("a name in the path has characters outside a-zA-Z0-9._-"));
        }
        let workload = match what {
            Some("app") => Workload::Application(name.to_owned()),
            Some("sa") => Workload::ServiceAccount(name.to_owned()),
            _ => return Err(bad("the path has another shape")),
        };
        Ok(Self { trust_domain: trust_domain.into(), namespace: namespace.into(), workload })
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, name) = match &self.workload {
            Workload::Application(name) => ("app", name),
            Workload::ServiceAccount(name) => ("sa", name),
        };
        write!(f, "spiffe://{}/ns/{}/{what}/{name}", self.trust_domain, self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn round_trips_and_refuses() {
        for text in ["spiffe://a.b/ns/default/app/shop", "spiffe://td/ns/x/sa/y_1"] {
            assert_eq!(text.parse::<SpiffeId>().expect(text).to_string(), text);
        }
        for text in [
            "",
            "https://a/ns/b/app/c",
            "spiffe://A/ns/b/app/c",
            "spiffe://a/ns/b/app/c/d",
            "spiffe://a/ns/b/app/",
            "spiffe://a/ns/../app/c",
            "spiffe://a/ns/b/app/c%20",
            "spiffe://a:1/ns/b/app/c",
            "spiffe:///ns/b/app/c",
        ] {
            assert!(text.parse::<SpiffeId>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_prints_what_it_read(text in "(spiffe://)?[a-z/.:%]{0,40}") {
            if let Ok(id) = text.parse::<SpiffeId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
