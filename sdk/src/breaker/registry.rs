//! All breakers of a client.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;

use super::{
    Attempt, BreakerStatus,
    bound::{Bound, Group, millis},
    settings::Settings,
};
use crate::{
    clock::Clock,
    decision::{Address, Decision, Explanation, KindRules, RuleSet, slot},
    endpoints::{EndpointSet, WeakSet},
};

/// Groups beyond which those that are of no set in use are let go.
const MAX_GROUPS: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(crate) struct Breakers {
    clock: Clock,
    /// What was asked for before.
    known: ArcSwap<Known>,
    groups: Mutex<Groups>,
}

/// By rule and service.
#[derive(Debug, Default)]
struct Groups {
    by_rule: HashMap<Arc<str>, HashMap<Box<str>, Arc<Group>>>,
    /// The rules by which they were last looked through.
    rules: u64,
}

/// By endpoint set, those of the services that were called with it.
#[derive(Debug, Default)]
struct Known {
    rules: u64,
    sets: HashMap<u32, (WeakSet, ByService)>,
}

type ByService = Vec<(Box<str>, Arc<Bound>)>;

impl Known {
    fn get(&self, rules: u64, service: &str, endpoints: &EndpointSet) -> Option<&Arc<Bound>> {
        let (_, list) = self.sets.get(&endpoints.id()).filter(|_| self.rules == rules)?;
        list.iter().find(|(name, _)| **name == *service).map(|(_, bound)| bound)
    }
}

impl Breakers {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, known: ArcSwap::default(), groups: Mutex::default() }
    }

    /// Leaves out what breakers say, after all other rules.
    pub(crate) fn narrow(
        &self,
        rules: &RuleSet,
        service: &str,
        endpoints: &EndpointSet,
        decision: &mut Decision,
    ) {
        let kind = rules.kind(slot::CIRCUIT_BREAKER);
        self.bound(kind, service, endpoints, |bound| bound.narrow(decision, &self.clock));
    }

    /// Does so in a decision that was explained, and adds its reasons.
    pub(crate) fn explain(
        &self,
        rules: &RuleSet,
        service: &str,
        endpoints: &EndpointSet,
        explanation: &mut Explanation,
    ) {
        let Explanation { decision, text } = explanation;
        let before = decision.rules.len();
        let kind = rules.kind(slot::CIRCUIT_BREAKER);
        self.bound(kind, service, endpoints, |bound| {
            bound.narrow(decision, &self.clock);
            let kept = text.lines().filter(|line| {
                !line.starts_with("remaining: ") && (before > 0 || !line.starts_with("no rule "))
            });
            let mut lines: String = kept.flat_map(|line| [line, "\n"]).collect();
            bound.describe(&decision.rules[before..], &mut lines, millis(&self.clock));
            lines.push_str(&format!("remaining: {:?}\n", decision.endpoints));
            *text = lines;
        });
    }

    /// Begins a call; `None`: a breaker lets none through.
    pub(crate) fn attempt(
        &self,
        rules: &RuleSet,
        service: &str,
        endpoints: &EndpointSet,
        endpoint: u32,
    ) -> Option<Attempt> {
        let kind = rules.kind(slot::CIRCUIT_BREAKER);
        let begin = |bound: &Arc<Bound>| bound.begin(endpoint, &self.clock);
        match self.bound(kind, service, endpoints, begin) {
            Some(attempt) => attempt,
            None => Some(Attempt::unwatched()),
        }
    }

    /// Where each breaker stands, by rule, service and endpoint.
    pub(crate) fn status(&self, rules: &RuleSet) -> Vec<BreakerStatus> {
        let now = millis(&self.clock);
        let mut all = Vec::new();
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in rules.kind(slot::CIRCUIT_BREAKER).entries() {
            let Ok(settings) = Settings::read(&entry.spec) else { continue };
            for group in groups.by_rule.get(&entry.key).into_iter().flat_map(HashMap::values) {
                let cells = group.cells.lock().unwrap_or_else(PoisonError::into_inner);
                let of =
                    |breaker: &_| BreakerStatus::new(group, breaker, &settings, entry.shadow, now);
                all.extend(cells.values().map(|breaker| of(breaker)));
            }
        }
        all.sort_unstable_by(|a, b| {
            (&a.rule, &a.service, &a.endpoint).cmp(&(&b.rule, &b.service, &b.endpoint))
        });
        all
    }

    /// Gives `with` the breakers of a service's calls; `None`: no rule speaks of them. Takes a
    /// lock the first time only, and allocates only then.
    fn bound<T>(
        &self,
        kind: &KindRules,
        service: &str,
        endpoints: &EndpointSet,
        with: impl FnOnce(&Arc<Bound>) -> T,
    ) -> Option<T> {
        if kind.entries().is_empty() {
            return None;
        }
        if let Some(bound) = self.known.load().get(kind.id(), service, endpoints) {
            return Some(with(bound));
        }
        let of = Address { service, application: None, served_by: endpoints.applications() };
        let mut room = Vec::new();
        let speaking = kind.matching(of, &mut room);
        if speaking.list.is_empty() {
            return None;
        }
        let bound = Arc::new(self.bind(kind, speaking.list, service, endpoints));
        self.known.rcu(|known| {
            let mut sets = match known.rules == kind.id() {
                true => known.sets.clone(),
                false => HashMap::new(),
            };
            sets.retain(|_, (set, _)| !set.is_gone());
            let (_, list) = sets
                .entry(endpoints.id())
                .or_insert_with(|| (endpoints.downgrade(), Vec::with_capacity(1)));
            if list.iter().all(|(name, _)| **name != *service) {
                list.push((service.into(), bound.clone()));
            }
            Known { rules: kind.id(), sets }
        });
        Some(with(&bound))
    }

    fn bind(
        &self,
        kind: &KindRules,
        speaking: &[u32],
        service: &str,
        endpoints: &EndpointSet,
    ) -> Bound {
        let mut bound = Bound::default();
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.follow(kind);
        for &index in speaking {
            let Some(entry) = kind.entry(index) else { continue };
            // It was read when it came.
            let Ok(settings) = Settings::read(&entry.spec) else { continue };
            let group = groups.get(&entry.key, service, &settings);
            let speaks = |endpoint: usize| {
                let application =
                    endpoints.endpoints().get(endpoint).and_then(|e| e.params().get("application"));
                kind.speaks(index, service, application)
            };
            bound.push(entry, settings, group, endpoints, speaks);
        }
        bound
    }
}

impl Groups {
    /// Lets go what is of rules that are no more.
    fn follow(&mut self, kind: &KindRules) {
        if self.rules != kind.id() {
            self.rules = kind.id();
            let keys: HashSet<&str> = kind.entries().iter().map(|entry| &*entry.key).collect();
            self.by_rule.retain(|key, _| keys.contains(&**key));
        }
    }

    fn get(&mut self, rule: &Arc<str>, service: &str, settings: &Settings) -> Arc<Group> {
        let groups = self.by_rule.entry(rule.clone()).or_default();
        if groups.len() >= MAX_GROUPS {
            groups.retain(|_, group| Arc::strong_count(group) > 1);
        }
        let same = |group: &&Arc<Group>| {
            group.per_service == settings.per_service && group.window == settings.window
        };
        if let Some(group) = groups.get(service).filter(same) {
            return group.clone();
        }
        let group = Arc::new(Group::new(rule.clone(), service, settings));
        groups.insert(service.into(), group.clone());
        group
    }
}
