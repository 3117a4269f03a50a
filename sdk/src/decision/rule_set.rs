use std::{
    borrow::Borrow,
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use rulecast_api::{
    kind::Phase,
    proto::rules::v1::{Enforcement, Rule, target::Scope},
};

use super::{
    health::Health,
    kinds::{POLICIES, PolicyKind, slot, slot_of},
    limit::{Buckets, Meter, Quota},
};
use crate::metrics::RuleStats;

/// The id of the rule that speaks where no other does; those of others begin at 1.
const IMPLICIT: u32 = 0;

/// The rules of one moment, those of each kind in the order of their application: by tier,
/// within it by priority (larger first), then by key. Of AuthenticationPolicy the nearest tier
/// comes first, within it the oldest, then by key; of DynamicConfig what is for applications
/// comes before what is for services. Immutable, cheap to clone.
#[derive(Clone, Debug)]
pub struct RuleSet(Arc<[Arc<KindRules>]>);

/// The rules of one kind.
#[derive(Debug)]
pub(crate) struct KindRules {
    id: u64,
    entries: Vec<Entry>,
    /// Rules without a target.
    everywhere: Vec<u32>,
    /// Ascending indices, those of `everywhere` among them; the second number counts them.
    by_service: HashMap<String, (u32, Vec<u32>)>,
    by_application: HashMap<String, Vec<u32>>,
    /// The rule that speaks where no other does, with nothing in its spec and nobody's; its
    /// entry is the last.
    implicit: Option<[u32; 1]>,
}

/// A rule.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The same for the same key, spec and enforcement, in this and in the sets built from it.
    pub(crate) id: u32,
    pub(crate) key: Arc<str>,
    pub(crate) spec: Bytes,
    pub(crate) shadow: bool,
    pub(crate) health: Arc<Health>,
    /// Of a rate limit: what it is counted by.
    pub(crate) meter: Option<Meter>,
    pub(crate) stats: Arc<RuleStats>,
}

/// What of a call decides which rules speak of it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Address<'a> {
    pub(crate) service: &'a str,
    /// The caller's.
    pub(crate) application: Option<&'a str>,
    /// Those that serve its endpoints.
    pub(crate) served_by: &'a [String],
}

/// The rules that speak of a call.
#[derive(Clone, Copy)]
pub(crate) struct Matching<'a> {
    /// The list is the whole list of this group, whose number lies below
    /// [`KindRules::groups`].
    pub(crate) group: Option<usize>,
    /// Ascending indices.
    pub(crate) list: &'a [u32],
    /// It is the rule that speaks where no other does.
    pub(crate) implicit: bool,
}

impl Default for RuleSet {
    fn default() -> Self {
        static EMPTY: LazyLock<RuleSet> = LazyLock::new(|| {
            let kinds = 0..POLICIES.len();
            RuleSet(kinds.map(|slot| Arc::new(KindRules::new::<Rule>(slot, None, []))).collect())
        });
        EMPTY.clone()
    }
}

impl RuleSet {
    /// From the rules of ConditionRoute as delivered, and no others. Rules whose content is
    /// the same as in `previous` are recognised, so that threads take over only the difference.
    pub fn new<R: Borrow<Rule>>(
        previous: Option<&RuleSet>,
        rules: impl IntoIterator<Item = R>,
    ) -> Self {
        let previous = previous.map(|set| &*set.0[slot::CONDITION_ROUTE]);
        let kind = KindRules::new(slot::CONDITION_ROUTE, previous, rules);
        Self::default().replaced(slot::CONDITION_ROUTE, kind)
    }

    /// These with others of one type, as delivered. A type that has no policy here
    /// ([`POLICIES`]) changes nothing. Rules whose content stays are recognised.
    #[must_use]
    pub fn with<R: Borrow<Rule>>(
        &self,
        type_name: &str,
        rules: impl IntoIterator<Item = R>,
    ) -> Self {
        let Some(slot) = slot_of(type_name) else { return self.clone() };
        self.replaced(slot, KindRules::new(slot, Some(&self.0[slot]), rules))
    }

    fn replaced(&self, slot: usize, kind: KindRules) -> Self {
        let mut kinds = self.0.to_vec();
        kinds[slot] = Arc::new(kind);
        Self(kinds.into())
    }

    /// All rules, kind by kind, each in the order of application.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'static PolicyKind, &Entry)> {
        let kinds = POLICIES.iter().zip(&*self.0);
        kinds.flat_map(|(kind, rules)| rules.written().iter().map(move |entry| (kind, entry)))
    }

    pub(crate) fn kind(&self, slot: usize) -> &KindRules {
        &self.0[slot]
    }

    /// How many rules there are, of all kinds.
    pub fn len(&self) -> usize {
        self.0.iter().map(|kind| kind.written().len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys of its rules, kind by kind, each in the order of application.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|kind| kind.written().iter().map(|entry| &*entry.key))
    }
}

impl KindRules {
    fn new<R: Borrow<Rule>>(
        slot: usize,
        previous: Option<&KindRules>,
        rules: impl IntoIterator<Item = R>,
    ) -> Self {
        static NEXT_RULE: AtomicU32 = AtomicU32::new(1);
        static NEXT_SET: AtomicU64 = AtomicU64::new(1);
        let known: HashMap<(&str, &[u8]), &Entry> = previous
            .iter()
            .flat_map(|kind| kind.written())
            .map(|entry| ((&*entry.key, &*entry.spec), entry))
            .collect();
        let mut sorted: Vec<R> = rules.into_iter().collect();
        let phase = POLICIES[slot].phase;
        // What was counted stays, also when the rule changes.
        let buckets: HashMap<(&str, bool), &Arc<Buckets>> = previous
            .iter()
            .flat_map(|kind| kind.written())
            .filter_map(|entry| Some(((&*entry.key, entry.shadow), &entry.meter.as_ref()?.buckets)))
            .collect();
        let meter = |rule: &Rule, shadow| {
            let quota = Quota::decode(&rule.spec).filter(|_| phase == Phase::Limit)?;
            let known = buckets.get(&(rule.key.as_str(), shadow)).copied();
            Some(Meter { quota, buckets: known.cloned().unwrap_or_default() })
        };
        sorted.sort_by(|a, b| {
            let (a, b) = (a.borrow(), b.borrow());
            let usual = |rule: &Rule| (rule.tier, -i64::from(rule.priority));
            let order = match phase {
                Phase::Authenticate => (b.tier, age(a)).cmp(&(a.tier, age(b))),
                Phase::Mutate => (scope(a), usual(a)).cmp(&(scope(b), usual(b))),
                _ => usual(a).cmp(&usual(b)),
            };
            order.then_with(|| a.key.cmp(&b.key))
        });
        let mut entries = Vec::with_capacity(sorted.len());
        let mut everywhere = Vec::new();
        let mut services: HashMap<String, Vec<u32>> = HashMap::new();
        let mut by_application: HashMap<String, Vec<u32>> = HashMap::new();
        for rule in &sorted {
            let rule = rule.borrow();
            let index = entries.len() as u32;
            let shadow = rule.enforcement() == Enforcement::Shadow;
            let meter = meter(rule, shadow);
            let same = known.get(&(rule.key.as_str(), &*rule.spec));
            // What a rule would do and what it does is not counted together.
            let entry = match same.filter(|same| same.shadow == shadow) {
                Some(same) => Entry {
                    id: same.id,
                    key: same.key.clone(),
                    spec: same.spec.clone(),
                    shadow,
                    health: same.health.clone(),
                    meter,
                    stats: same.stats.clone(),
                },
                None => Entry {
                    id: NEXT_RULE.fetch_add(1, Ordering::Relaxed),
                    key: rule.key.as_str().into(),
                    spec: Bytes::from(rule.spec.to_vec()),
                    shadow,
                    health: Arc::default(),
                    meter,
                    stats: Arc::default(),
                },
            };
            // Of a server's rules the plane has said which are for it: none may be left out.
            let target = match phase {
                Phase::Authenticate | Phase::Authorize | Phase::Limit => None,
                _ => rule.target.as_ref(),
            };
            match target {
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
        let implicit = (slot == slot::TAG_ROUTE).then(|| {
            let (key, spec) = (Arc::from(""), Bytes::new());
            let (health, stats) = Default::default();
            let (shadow, meter) = (false, None);
            entries.push(Entry { id: IMPLICIT, key, spec, shadow, health, meter, stats });
            [entries.len() as u32 - 1]
        });
        let id = NEXT_SET.fetch_add(1, Ordering::Relaxed);
        Self { id, entries, everywhere, by_service, by_application, implicit }
    }

    /// All but the implicit one.
    fn written(&self) -> &[Entry] {
        &self.entries[..self.entries.len() - usize::from(self.implicit.is_some())]
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) fn entry(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)
    }

    /// Whether a rule speaks of calls of a service to endpoints of an application.
    pub(crate) fn speaks(&self, index: u32, service: &str, application: Option<&str>) -> bool {
        let lists = [
            Some(&self.everywhere),
            self.by_service.get(service).map(|(_, list)| list),
            application.and_then(|application| self.by_application.get(application)),
        ];
        lists.into_iter().flatten().any(|list| list.binary_search(&index).is_ok())
    }

    /// How many groups [`Matching::group`] may name.
    pub(crate) fn groups(&self) -> usize {
        self.by_service.len() + 2
    }

    /// The rules that speak of a call: without a target, of its service, of its caller's
    /// application, and of an application that serves one of its endpoints. `room` is for
    /// their list, where one must be made.
    #[inline]
    pub(crate) fn matching<'k>(&'k self, of: Address<'_>, room: &'k mut Vec<u32>) -> Matching<'k> {
        let (group, list) = match self.by_service.get(of.service) {
            Some((group, list)) => (*group as usize, list.as_slice()),
            None => (0, self.everywhere.as_slice()),
        };
        room.clear();
        if !self.by_application.is_empty() {
            let served_by = of.served_by.iter().map(String::as_str);
            for name in of.application.into_iter().chain(served_by) {
                room.extend(self.by_application.get(name).into_iter().flatten());
            }
            if !room.is_empty() {
                room.extend_from_slice(list);
                room.sort_unstable();
                room.dedup();
            }
        }
        let made = !room.is_empty();
        if let Some(implicit) = &self.implicit {
            let speak = if made { room.as_slice() } else { list };
            if speak.is_empty() {
                let group = Some(self.groups() - 1);
                return Matching { group, list: implicit, implicit: true };
            }
            // Where none is enforced, no rule is.
            if speak.iter().all(|&index| self.entry(index).is_some_and(|entry| entry.shadow)) {
                if !made {
                    room.extend_from_slice(list);
                }
                room.extend(implicit);
                return Matching { group: None, list: room, implicit: false };
            }
        }
        match made {
            true => Matching { group: None, list: room, implicit: false },
            false => Matching { group: Some(group), list, implicit: false },
        }
    }
}

/// Smaller for the older; largest where it is not known.
fn age(rule: &Rule) -> i64 {
    if rule.created == 0 { i64::MAX } else { rule.created }
}

/// Larger for what speaks of less.
fn scope(rule: &Rule) -> u8 {
    match rule.target.as_ref().map(|target| target.scope()) {
        None => 0,
        Some(Scope::Service) => 2,
        Some(_) => 1,
    }
}

fn merge<'a>(lists: impl IntoIterator<Item = &'a [u32]>) -> Vec<u32> {
    let set: BTreeSet<u32> = lists.into_iter().flatten().copied().collect();
    set.into_iter().collect()
}
