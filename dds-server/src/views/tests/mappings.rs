//! The vectors of ServiceNameMapping: what the plane makes of mappings.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use rulecast_api::{
    kind,
    proto::rules::v1::{Rule, ServiceNameMapping, Target, target},
};
use serde::Deserialize;
use serde_json::Value;

use super::*;

const VECTORS: &str = include_str!("../../../../tests/vectors/service-name-mapping.json");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    kind: String,
    #[allow(dead_code, reason = "for readers")]
    src: String,
    note: String,
    /// What is configured.
    #[serde(default)]
    owners: BTreeMap<String, String>,
    mappings: Vec<Mapping>,
    /// Rules of ConditionRoute.
    #[serde(default)]
    rules: Vec<Route>,
    #[serde(default)]
    client: Client,
    expect_error: Option<String>,
    expect_owners: Option<BTreeMap<String, Option<String>>>,
    expect_application_owners: Option<BTreeMap<String, Option<String>>>,
    expect_seen: Option<BTreeMap<String, u32>>,
    expect_union: Option<BTreeMap<String, BTreeSet<String>>>,
    expect_rules: Option<BTreeMap<String, u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mapping {
    namespace: String,
    #[serde(default = "m")]
    name: String,
    #[serde(default)]
    created: i64,
    spec: Value,
}

fn m() -> String {
    "m".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Route {
    namespace: String,
    key: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Client {
    namespace: String,
    services: Option<Vec<String>>,
}

impl Default for Client {
    fn default() -> Self {
        Self { namespace: "elsewhere".to_owned(), services: None }
    }
}

impl Case {
    /// The rules that a view of the client has.
    fn seen(&self, views: &Views, kind: Kind) -> Vec<Rule> {
        let Client { namespace, services } = &self.client;
        let services: Option<Vec<&str>> =
            services.as_ref().map(|list| list.iter().map(String::as_str).collect());
        let view = views.subscribe(&scope(namespace, services.as_deref()), kind).current();
        let items = view.expect("listed");
        items.items.iter().map(|i| Rule::decode(i.bytes.clone()).expect("a rule")).collect()
    }

    fn check(&self) {
        let note = format!("{}: {}", self.id, self.note);
        assert_eq!(self.kind, "service-name-mapping", "{note}");
        let parse = Kind::SERVICE_NAME_MAPPING.parse;
        if let Some(path) = &self.expect_error {
            let errors = parse(self.mappings[0].spec.clone()).expect_err(&note);
            assert!(errors.iter().any(|error| error.path == *path), "{note}: {errors:?}");
            return;
        }
        let mut all = Vec::new();
        for Mapping { namespace, name, created, spec } in &self.mappings {
            let spec = parse(spec.clone()).expect(&note);
            all.push(ownership::of(Kind::SERVICE_NAME_MAPPING, name, namespace, *created, spec));
        }
        all.extend(self.rules.iter().map(|rule| ownership::route(&rule.namespace, &rule.key)));
        let index = Index::new(kind::KINDS, "l".into());
        let configured = Owners::new(self.owners.clone());
        let root = Root::default();
        let views = Views::new(index.clone(), configured.clone(), root, Debounce::default());
        list(&index, &all, 1);
        views.refresh();

        let mappings = self.seen(&views, Kind::SERVICE_NAME_MAPPING);
        let tiers = |rules: &[Rule]| -> BTreeMap<String, u32> {
            rules.iter().map(|rule| (rule.key.clone(), rule.tier)).collect()
        };
        let routes = self.seen(&views, Kind::CONDITION_ROUTE);
        let mut union: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for rule in &mappings {
            let spec = ServiceNameMapping::decode(rule.spec.clone()).expect("a mapping");
            union.entry(spec.interface_name).or_default().extend(spec.application_names);
        }
        let rules = index.snapshot().kind(Kind::SERVICE_NAME_MAPPING).clone();
        let owners = configured.registered(&rules, &Root::default());
        let owner = |scope: target::Scope, key: &str| {
            owners.of(&Target { scope: scope.into(), key: key.into() }).map(str::to_owned)
        };
        for (scope, expected) in [
            (target::Scope::Service, &self.expect_owners),
            (target::Scope::Application, &self.expect_application_owners),
        ] {
            for (key, namespace) in expected.iter().flatten() {
                assert_eq!(owner(scope, key), *namespace, "{note}: {key}");
            }
        }
        if let Some(expected) = &self.expect_seen {
            assert_eq!(tiers(&mappings), *expected, "{note}");
        }
        if let Some(expected) = &self.expect_union {
            assert_eq!(union, *expected, "{note}");
        }
        if let Some(expected) = &self.expect_rules {
            assert_eq!(tiers(&routes), *expected, "{note}");
        }
    }

    /// Whether it expects anything at all.
    fn says(&self) -> bool {
        self.expect_error.is_some()
            || self.expect_owners.is_some()
            || self.expect_application_owners.is_some()
            || self.expect_seen.is_some()
            || self.expect_union.is_some()
            || self.expect_rules.is_some()
    }
}

#[test]
fn mappings_do_as_their_vectors_say() {
    let cases: Vec<Case> = serde_json::from_str(VECTORS).expect("a list of cases");
    let notes: BTreeSet<&str> = cases.iter().map(|case| case.note.as_str()).collect();
    assert_eq!(notes.len(), cases.len(), "each case has a sentence of its own");
    assert!(cases.len() >= 25, "{}", cases.len());
    for case in &cases {
        assert!(case.says(), "{} expects nothing", case.id);
        case.check();
    }
}
