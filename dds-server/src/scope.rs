//! What a client may see.
//!
//! The namespace and workload of a [`Scope`] are attested by the client's
//! certificate, and so is its pod, which leads to the pod's labels; the services
//! that it declares only narrow. Where a rule stands, its tier, follows from its
//! own namespace alone and is the same for everybody.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use rulecast_api::{
    Digest, ServiceKey, SpiffeId, kind,
    proto::rules::v1::{Target, target},
    spiffe::Workload,
};

/// The tier of rules in the root namespace: everybody's, applied first.
pub const TIER_ROOT: u32 = 0;
/// The tier of rules in the namespace that owns their target.
pub const TIER_OWNER: u32 = 1;
/// The tier of rules that bind their namespace's own callers, applied last.
pub const TIER_OWN: u32 = 2;

/// Labels that tell pods of one template apart. No rule selects by them: with them, each
/// pod, or each roll-out of it, would have a view of its own.
const NOISE: &[&str] = &[
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "pod-template-generation",
    "pod-template-hash",
    "rollouts-pod-template-hash",
    "statefulset.kubernetes.io/pod-name",
];

/// The labels of a pod by which rules may select it: all but those that tell pods of one
/// template apart, such as `pod-template-hash` or `statefulset.kubernetes.io/pod-name`.
/// Clones share them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Arc<BTreeMap<String, String>>);

impl Labels {
    /// Of all that a pod has.
    pub fn new(all: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>) -> Self {
        let all = all.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self(Arc::new(all.filter(|(name, _)| !NOISE.contains(&name.as_str())).collect()))
    }

    /// Whether somebody else has the same ones in memory.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// As a map.
    pub fn as_map(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

/// A client as far as it does not speak for itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// Where the client lives; attested.
    pub namespace: String,
    /// What the client is; attested.
    pub workload: Workload,
    /// Of the pod that is attested; none where no pod is.
    pub labels: Labels,
}

impl Subject {
    /// Of an attested identity, without labels.
    pub fn new(identity: &SpiffeId) -> Self {
        Self {
            namespace: identity.namespace.clone(),
            workload: identity.workload.clone(),
            labels: Labels::default(),
        }
    }

    /// As selectors of rules see it.
    pub fn selected(&self) -> kind::Subject<'_> {
        kind::Subject {
            namespace: &self.namespace,
            workload: self.workload.name(),
            labels: self.labels.as_map(),
        }
    }
}

/// What decides which rules a client sees. Clients with equal scopes share their views.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// The client.
    pub subject: Subject,
    /// The services that it calls, as it declares; `None`: it did not say, so all.
    pub services: Option<BTreeSet<ServiceKey>>,
}

impl Scope {
    /// Of an attested identity without a pod, and what it declared.
    pub fn new(identity: &SpiffeId, services: Option<BTreeSet<ServiceKey>>) -> Self {
        Self { subject: Subject::new(identity), services }
    }

    /// Names the scope: equal scopes, and only they, have equal hashes.
    pub fn hash(&self) -> Digest {
        let mut text = Vec::new();
        let mut part = |part: &str| {
            text.extend_from_slice(&(part.len() as u64).to_le_bytes());
            text.extend_from_slice(part.as_bytes());
        };
        let Subject { namespace, workload, labels } = &self.subject;
        part(namespace);
        part(match workload {
            Workload::Application(_) => "app",
            Workload::ServiceAccount(_) => "sa",
        });
        part(workload.name());
        if !labels.as_map().is_empty() {
            part("labels");
            part(&labels.as_map().len().to_string());
            for (name, value) in labels.as_map() {
                part(name);
                part(value);
            }
        }
        match &self.services {
            None => part("all"),
            Some(services) => {
                part("services");
                for service in services {
                    part(&service.to_string());
                }
            }
        }
        Digest::of(&text)
    }
}

/// Which namespace owns a service or application. Immutable.
#[derive(Clone, Debug, Default)]
pub struct Owners(HashMap<String, String>);

impl Owners {
    /// From pairs of a service key or application, and its namespace.
    pub fn new(pairs: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>) -> Self {
        Self(
            pairs
                .into_iter()
                .map(|(name, namespace)| {
                    let name = name.into();
                    // The same service can be written in several ways.
                    let name = name.parse::<ServiceKey>().map_or(name, |key| key.to_string());
                    (name, namespace.into())
                })
                .collect(),
        )
    }

    /// Who owns a target: by its whole service key, else by its interface alone.
    pub fn of(&self, target: &Target) -> Option<&str> {
        if self.0.is_empty() {
            return None;
        }
        let found = if target.scope() == target::Scope::Service {
            match target.key.parse::<ServiceKey>() {
                Ok(key) => self.0.get(&key.to_string()).or_else(|| self.0.get(&key.interface)),
                Err(_) => self.0.get(&target.key),
            }
        } else {
            self.0.get(&target.key)
        };
        found.map(String::as_str)
    }
}

/// The namespaces whose rules are everybody's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(BTreeSet<String>);

impl Root {
    /// The root namespace and other names for it.
    pub fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }

    /// Whether a namespace is the root.
    pub fn is(&self, namespace: &str) -> bool {
        self.0.contains(namespace)
    }
}

impl Default for Root {
    /// `rulecast-system`, and `dubbo-system` where rules of Dubbo's users are.
    fn default() -> Self {
        Self::new(["rulecast-system", "dubbo-system"])
    }
}

/// What a rule is seen by: derived once per version of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Where the rule stands, one of the `TIER_` constants.
    pub tier: u32,
    /// Only callers of this namespace; `None`: of any.
    pub namespace: Option<String>,
    /// Only callers of this service, where they declare any; `None`: all.
    pub service: Option<ServiceKey>,
}

impl Reach {
    /// Of a routing rule in `namespace` that speaks of `target`.
    pub fn new(root: &Root, owners: &Owners, namespace: &str, target: Option<&Target>) -> Self {
        let tier = if root.is(namespace) {
            TIER_ROOT
        } else if target.and_then(|t| owners.of(t)) == Some(namespace) {
            TIER_OWNER
        } else {
            TIER_OWN
        };
        Self {
            tier,
            namespace: (tier == TIER_OWN).then(|| namespace.to_owned()),
            service: target
                .filter(|t| t.scope() == target::Scope::Service)
                // What is no service key cannot be declared, so it must not hide the rule.
                .and_then(|t| t.key.parse().ok()),
        }
    }

    /// Whether clients of a scope see the rule, unless its own selector leaves them out.
    pub fn includes(&self, scope: &Scope) -> bool {
        self.namespace.as_ref().is_none_or(|n| *n == scope.subject.namespace)
            && match (&self.service, &scope.services) {
                (Some(service), Some(declared)) => declared.contains(service),
                _ => true,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(namespace: &str, services: Option<&[&str]>) -> Scope {
        let id = SpiffeId::application("td", namespace, "app").expect("identity");
        let parse = |s: &&str| s.parse().expect("service key");
        Scope::new(&id, services.map(|s| s.iter().map(parse).collect()))
    }

    fn target(scope: target::Scope, key: &str) -> Option<Target> {
        Some(Target { scope: scope as i32, key: key.into() })
    }

    #[test]
    fn the_matrix_of_scopes() {
        use target::Scope::{Application, Service};
        let owners = Owners::new([("com.Order", "shop"), ("billing", "money")]);
        let order = target(Service, "com.Order:1.0");
        let foo = target(Service, "com.Foo");
        let billing = target(Application, "billing");
        // Rule's namespace, target, client's namespace, declared, tier, seen.
        type Case<'a> = (&'a str, &'a Option<Target>, &'a str, Option<&'a [&'a str]>, u32, bool);
        let cases: &[Case<'_>] = &[
            ("rulecast-system", &order, "any", None, 0, true),
            ("dubbo-system", &order, "any", Some(&["com.Order:1.0"]), 0, true),
            ("rulecast-system", &order, "any", Some(&["com.Other"]), 0, false),
            ("rulecast-system", &order, "any", Some(&[]), 0, false),
            ("rulecast-system", &billing, "any", Some(&[]), 0, true),
            ("rulecast-system", &None, "any", Some(&[]), 0, true),
            ("shop", &order, "any", None, 1, true),
            ("shop", &order, "any", Some(&["com.Order:1.0"]), 1, true),
            ("shop", &order, "any", Some(&["com.Order"]), 1, false),
            ("shop", &foo, "any", None, 2, false),
            ("shop", &foo, "shop", None, 2, true),
            ("shop", &foo, "shop", Some(&["com.Foo"]), 2, true),
            ("money", &order, "shop", None, 2, false),
            ("money", &order, "money", None, 2, true),
            ("money", &billing, "any", None, 1, true),
            ("shop", &billing, "any", None, 2, false),
            ("shop", &None, "any", None, 2, false),
            ("shop", &None, "shop", None, 2, true),
        ];
        for case @ (namespace, target, client, services, tier, seen) in cases {
            let reach = Reach::new(&Root::default(), &owners, namespace, target.as_ref());
            assert_eq!(reach.tier, *tier, "{case:?}");
            assert_eq!(reach.includes(&scope(client, *services)), *seen, "{case:?}");
        }
    }

    #[test]
    fn hashes_tell_scopes_apart() {
        let subject = |namespace| scope(namespace, None).subject;
        let with = |subject| Scope { subject, services: None };
        let all = [
            scope("a", None),
            scope("b", None),
            scope("a", Some(&[])),
            scope("a", Some(&["com.A"])),
            scope("a", Some(&["com.A", "com.B"])),
            with(Subject { workload: Workload::ServiceAccount("app".into()), ..subject("a") }),
            with(Subject { workload: Workload::Application("other".into()), ..subject("a") }),
            with(Subject { labels: Labels::new([("x", "y")]), ..subject("a") }),
            with(Subject { labels: Labels::new([("x", "z")]), ..subject("a") }),
            with(Subject { labels: Labels::new([("x", "y"), ("z", "")]), ..subject("a") }),
            // What stands in a label is no service.
            with(Subject { labels: Labels::new([("services", "x")]), ..subject("a") }),
        ];
        let hashes: BTreeSet<_> = all.iter().map(Scope::hash).collect();
        assert_eq!(hashes.len(), all.len());
        assert_eq!(scope("a", Some(&["x", "y"])).hash(), scope("a", Some(&["y", "x"])).hash());
    }

    #[test]
    fn pods_of_one_template_share_a_scope() {
        let pod = |hash: &str, index: &str| {
            let labels = Labels::new([
                ("app", "web"),
                ("version", "2"),
                ("pod-template-hash", hash),
                ("statefulset.kubernetes.io/pod-name", index),
            ]);
            Scope { subject: Subject { labels, ..scope("a", None).subject }, services: None }
        };
        assert_eq!(pod("1", "web-0").hash(), pod("2", "web-1").hash());
        let subject = pod("1", "web-0").subject;
        let seen = subject.selected();
        assert_eq!((seen.namespace, seen.workload), ("a", "app"));
        assert_eq!(seen.labels.keys().collect::<Vec<_>>(), ["app", "version"]);
    }
}
