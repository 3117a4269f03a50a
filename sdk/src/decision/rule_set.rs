use std::{
    borrow::Borrow,
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use rulecast_api::proto::rules::v1::{Enforcement, Rule, target::Scope};

use super::{health::Health, request::Request};
use crate::endpoints::EndpointSet;

/// The rules of one moment, in the order of their application: by tier, within it by
/// priority (larger first), then by key. Immutable, cheap to clone.
#[derive(Clone, Debug)]
pub struct RuleSet(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: u64,
    entries: Vec<Entry>,
    /// Rules without a target.
    everywhere: Vec<u32>,
    /// Ascending indices, those of `everywhere` among them; the second number counts them.
    by_service: HashMap<String, (u32, Vec<u32>)>,
    by_application: HashMap<String, Vec<u32>>,
}

/// A rule.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The same for the same key and spec, in this and in the sets built from it.
    pub(crate) id: u32,
    pub(crate) key: Arc<str>,
    pub(crate) spec: Bytes,
    pub(crate) shadow: bool,
    pub(crate) health: Arc<Health>,
}

/// The rules that speak of a call.
pub(crate) enum Matching<'a> {
    /// The list of a group, whose number lies below [`RuleSet::groups`].
    Group(usize, &'a [u32]),
    List(Vec<u32>),
}

impl Default for RuleSet {
    fn default() -> Self {
        Self::new::<Rule>(None, [])
    }
}

impl RuleSet {
    /// From the rules of a type as delivered. Rules whose content is the same as in `previous`
    /// are recognised, so that threads take over only the difference.
    pub fn new<R: Borrow<Rule>>(
        previous: Option<&RuleSet>,
        rules: impl IntoIterator<Item = R>,
    ) -> Self {
        static NEXT_RULE: AtomicU32 = AtomicU32::new(1);
        static NEXT_SET: AtomicU64 = AtomicU64::new(1);
        let known: HashMap<(&str, &[u8]), &Entry> = previous
            .iter()
            .flat_map(|set| &set.0.entries)
            .map(|entry| ((&*entry.key, &*entry.spec), entry))
            .collect();
        let mut sorted: Vec<R> = rules.into_iter().collect();
        sorted.sort_by(|a, b| {
            let (a, b) = (a.borrow(), b.borrow());
            (a.tier, -i64::from(a.priority), &a.key).cmp(&(b.tier, -i64::from(b.priority), &b.key))
        });
        let mut entries = Vec::with_capacity(sorted.len());
        let mut everywhere = Vec::new();
        let mut services: HashMap<String, Vec<u32>> = HashMap::new();
        let mut by_application: HashMap<String, Vec<u32>> = HashMap::new();
        for rule in &sorted {
            let rule = rule.borrow();
            let index = entries.len() as u32;
            let shadow = rule.enforcement() == Enforcement::Shadow;
            let entry = match known.get(&(rule.key.as_str(), &*rule.spec)) {
                Some(same) => Entry {
                    id: same.id,
                    key: same.key.clone(),
                    spec: same.spec.clone(),
                    shadow,
                    health: same.health.clone(),
                },
                None => Entry {
                    id: NEXT_RULE.fetch_add(1, Ordering::Relaxed),
                    key: rule.key.as_str().into(),
                    spec: Bytes::from(rule.spec.to_vec()),
                    shadow,
                    health: Arc::default(),
                },
            };
            match &rule.target {
                None => everywhere.push(index),
                Some(target) => match target.scope() {
                    Scope::Service => services.entry(target.key.clone()).or_default().push(index),
                    Scope::Application => {
                        by_application.entry(target.key.clone()).or_default().push(index);
                    }
                    // Of a newer plane: it cannot be known what it speaks of.
                    Scope::Unspecified => {}
                },
            }
            entries.push(entry);
        }
        let by_service = services
            .into_iter()
            .enumerate()
            .map(|(group, (service, list))| {
                (service, (group as u32 + 1, merge([&list[..], &everywhere])))
            })
            .collect();
        let id = NEXT_SET.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Inner { id, entries, everywhere, by_service, by_application }))
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.0.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.entries.is_empty()
    }

    /// The keys of its rules, in the order of application.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.entries.iter().map(|entry| &*entry.key)
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.0.entries
    }

    pub(crate) fn entry(&self, index: u32) -> Option<&Entry> {
        self.0.entries.get(index as usize)
    }

    /// How many groups [`Matching::Group`] may name.
    pub(crate) fn groups(&self) -> usize {
        self.0.by_service.len() + 1
    }

    /// The rules that speak of a call: without a target, of its service, of its caller's
    /// application, and of an application that serves one of its endpoints.
    pub(crate) fn matching(&self, request: &Request<'_>, endpoints: &EndpointSet) -> Matching<'_> {
        let inner = &*self.0;
        let (group, list) = match inner.by_service.get(&*request.service) {
            Some((group, list)) => (*group as usize, list.as_slice()),
            None => (0, inner.everywhere.as_slice()),
        };
        if inner.by_application.is_empty() {
            return Matching::Group(group, list);
        }
        let callers = request.consumer.get("application").into_iter();
        let applications: Vec<&[u32]> = callers
            .chain(endpoints.applications().iter().map(String::as_str))
            .filter_map(|name| inner.by_application.get(name).map(Vec::as_slice))
            .collect();
        if applications.is_empty() {
            return Matching::Group(group, list);
        }
        Matching::List(merge(applications.into_iter().chain([list])))
    }
}

fn merge<'a>(lists: impl IntoIterator<Item = &'a [u32]>) -> Vec<u32> {
    let set: BTreeSet<u32> = lists.into_iter().flatten().copied().collect();
    set.into_iter().collect()
}
