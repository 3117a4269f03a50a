//! What a client may see.
//!
//! The namespace and workload of a [`Scope`] are attested by the client's
//! certificate, and so is its pod, which leads to the pod's labels; the services
//! that it declares only narrow. Where a rule stands, its tier, follows from its
//! own namespace and from who owns its target, and is the same for everybody.

mod owners;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use rulecast_api::{
    Digest, ServiceKey, SpiffeId,
    kind::{self, Interest, Phase},
    proto::rules::v1::{Target, target},
    selector::MAX_EXTENDS,
    spiffe::Workload,
};

pub use owners::Owners;

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

/// Annotations that networks and tools write about single pods, by what they begin with. No
/// rule selects by them, and they would fill the memory.
const NOISE_OF_TOOLS: &[&str] = &[
    "cni.projectcalico.org/",
    "k8s.ovn.org/",
    "k8s.v1.cni.cncf.io/",
    "kubectl.kubernetes.io/",
    "kubernetes.io/config.",
    "ovn.kubernetes.io/",
    "sidecar.istio.io/",
    "vpc.amazonaws.com/",
];

/// The labels (or annotations) of a pod by which rules may select it: all but those that tell
/// pods of one template apart, such as `pod-template-hash` or
/// `statefulset.kubernetes.io/pod-name`. Clones share them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Arc<BTreeMap<String, String>>);

impl Labels {
    /// Of all that a pod has.
    pub fn new(all: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>) -> Self {
        let all = all.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self(Arc::new(all.filter(|(name, _)| !NOISE.contains(&name.as_str())).collect()))
    }

    /// Of all the annotations that a pod has: without what networks and tools write about single
    /// pods, and without what is longer than a rule may ask for ([`MAX_EXTENDS`]).
    pub fn of_annotations(
        all: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>,
    ) -> Self {
        let all = all.into_iter().map(|(name, value)| (name.into(), value.into()));
        let wanted = |(name, value): &(String, String)| {
            name.len().max(value.len()) <= MAX_EXTENDS
                && !NOISE_OF_TOOLS.iter().any(|noise| name.starts_with(noise))
        };
        Self(Arc::new(all.filter(wanted).collect()))
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

/// What is known of a pod by which rules may select it. Clones share it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Traits {
    /// Its labels.
    pub labels: Labels,
    /// Its annotations.
    pub annotations: Labels,
    /// Its addresses; none before it has any.
    pub addresses: Arc<[IpAddr]>,
}

impl From<Labels> for Traits {
    fn from(labels: Labels) -> Self {
        Self { labels, ..Self::default() }
    }
}

/// A client as far as it does not speak for itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// Where the client lives; attested.
    pub namespace: String,
    /// What the client is; attested.
    pub workload: Workload,
    /// Both, with the trust domain: its SPIFFE id, without `spiffe://`.
    pub principal: Arc<str>,
    /// Of the pod that is attested; none where no pod is.
    pub pod: Traits,
}

impl Subject {
    /// Of an attested identity, without a pod.
    pub fn new(identity: &SpiffeId) -> Self {
        let id = identity.to_string();
        Self {
            namespace: identity.namespace.clone(),
            workload: identity.workload.clone(),
            principal: id.strip_prefix("spiffe://").unwrap_or(&id).into(),
            pod: Traits::default(),
        }
    }

    /// As selectors of rules see it.
    pub fn selected(&self) -> kind::Subject<'_> {
        kind::Subject {
            namespace: &self.namespace,
            workload: self.workload.name(),
            identity: &self.principal,
            labels: self.pod.labels.as_map(),
            annotations: self.pod.annotations.as_map(),
            addresses: &self.pod.addresses,
        }
    }
}

/// What decides which rules a client sees. Clients with equal scopes share their views.
///
/// Each pod has an address of its own, and often annotations. So a view's scope has of these
/// only what a rule in force, of the view's kind, looks at ([`Scope::narrowed`]): without such
/// rules all pods of a template share their views, and while there is one, each pod has views of
/// that kind of its own.
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

    /// With no more of the pod's annotations and addresses than rules make use of.
    pub fn narrowed(&self, interest: &Interest) -> Self {
        let mut scope = self.clone();
        let pod = &mut scope.subject.pod;
        if !interest.addresses {
            pod.addresses = Arc::default();
        }
        let annotations = pod.annotations.as_map();
        if annotations.keys().any(|name| !interest.annotations.contains(name)) {
            let kept = annotations.iter().filter(|(name, _)| interest.annotations.contains(*name));
            let kept = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
            pod.annotations = Labels(Arc::new(kept));
        }
        scope
    }

    /// Names the scope: equal scopes, and only they, have equal hashes.
    pub fn hash(&self) -> Digest {
        let mut text = Vec::new();
        let mut part = |part: &str| {
            text.extend_from_slice(&(part.len() as u64).to_le_bytes());
            text.extend_from_slice(part.as_bytes());
        };
        let Subject { namespace, principal, pod, workload: _ } = &self.subject;
        part(namespace);
        part(principal);
        for (what, map) in [("labels", &pod.labels), ("annotations", &pod.annotations)] {
            if !map.as_map().is_empty() {
                part(what);
                part(&map.as_map().len().to_string());
                for (name, value) in map.as_map() {
                    part(name);
                    part(value);
                }
            }
        }
        if !pod.addresses.is_empty() {
            part("addresses");
            part(&pod.addresses.len().to_string());
            for address in &*pod.addresses {
                part(&address.to_string());
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
    /// Only clients of this namespace; `None`: of any.
    pub namespace: Option<String>,
    /// Only callers of this service, where they declare any; `None`: all.
    pub service: Option<ServiceKey>,
    /// Of any group and version of that service's interface.
    pub interface: bool,
}

impl Reach {
    /// Of a rule of a kind with this phase, in `namespace`, that speaks of `target`.
    ///
    /// A rule about servers ([`Phase::Authenticate`], [`Phase::Authorize`], [`Phase::Limit`])
    /// outside of the root is for servers of its own namespace, whatever it says itself. Nobody owns
    /// what such rules speak of, so there is no tier between the two. For a connection the first
    /// rule decides, so there clients go through the tiers backwards: the own namespace before the
    /// root, and then the older rule (`Rule.created`) before the younger.
    pub fn new(
        root: &Root,
        owners: &Owners,
        phase: Phase,
        namespace: &str,
        target: Option<&Target>,
    ) -> Self {
        let servers = matches!(phase, Phase::Authenticate | Phase::Authorize | Phase::Limit);
        let tier = if root.is(namespace) {
            TIER_ROOT
        } else if !servers && target.and_then(|t| owners.of(t)) == Some(namespace) {
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
            interface: phase == Phase::Data,
        }
    }

    /// Whether clients of a scope see the rule, unless its own selector leaves them out.
    pub fn includes(&self, scope: &Scope) -> bool {
        self.namespace.as_ref().is_none_or(|n| *n == scope.subject.namespace)
            && match (&self.service, &scope.services) {
                (Some(service), Some(declared)) if self.interface => {
                    declared.iter().any(|d| d.interface == service.interface)
                }
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
            let root = Root::default();
            let reach = Reach::new(&root, &owners, Phase::Route, namespace, target.as_ref());
            assert_eq!(reach.tier, *tier, "{case:?}");
            assert_eq!(reach.includes(&scope(client, *services)), *seen, "{case:?}");
        }
    }

    #[test]
    fn hashes_tell_scopes_apart() {
        let named = |id: &str| Scope::new(&id.parse().expect("identity"), None);
        let with = |change: &dyn Fn(&mut Traits)| {
            let mut scope = scope("a", None);
            change(&mut scope.subject.pod);
            scope
        };
        let labels = |pairs: &[(&str, &str)]| Labels::new(pairs.iter().copied());
        let addresses = |text: &str| text.split(' ').map(|a| a.parse().expect("one")).collect();
        let all = [
            scope("a", None),
            scope("b", None),
            scope("a", Some(&[])),
            scope("a", Some(&["com.A"])),
            scope("a", Some(&["com.A", "com.B"])),
            named("spiffe://td/ns/a/sa/app"),
            named("spiffe://td/ns/a/app/other"),
            named("spiffe://other/ns/a/app/app"),
            with(&|pod| pod.labels = labels(&[("x", "y")])),
            with(&|pod| pod.annotations = labels(&[("x", "y")])),
            with(&|pod| pod.labels = labels(&[("x", "z")])),
            with(&|pod| pod.labels = labels(&[("x", "y"), ("z", "")])),
            with(&|pod| pod.addresses = addresses("10.0.0.1")),
            with(&|pod| pod.addresses = addresses("10.0.0.1 10.0.0.2")),
            // What stands in a label is no service.
            with(&|pod| pod.labels = labels(&[("services", "x")])),
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
            let subject = Subject { pod: labels.into(), ..scope("a", None).subject };
            Scope { subject, services: None }
        };
        assert_eq!(pod("1", "web-0").hash(), pod("2", "web-1").hash());
        let subject = pod("1", "web-0").subject;
        let seen = subject.selected();
        assert_eq!((seen.namespace, seen.workload), ("a", "app"));
        assert_eq!(seen.labels.keys().collect::<Vec<_>>(), ["app", "version"]);
    }
}
