//! One evaluation.

use std::collections::BTreeMap;

use rulecast_api::{ip, matcher::StringMatch};
use rulecast_policy::{
    bits,
    endpoints::Table,
    outcome::{Did, OutcomeWriter, RuleOutcome},
    request::{Request, SHADOW},
};

use crate::{
    DynamicConfig,
    compile::{Entry, Rule},
};

/// What an entry is for.
enum Reach {
    Nothing,
    Everything,
    Some(Vec<u64>),
}

/// Endpoints with what entries look at.
struct Endpoints<'t> {
    table: Option<&'t Table>,
    len: usize,
    /// `host` and `host:port`, empty where unknown.
    addresses: Vec<(&'t str, String)>,
}

impl DynamicConfig {
    /// `say` hears what rules do.
    pub(crate) fn give(
        &self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
        say: impl Fn(&mut OutcomeWriter<'_>, u16, &dyn Fn() -> String),
    ) {
        let endpoints = Endpoints::new(self.sets.get(&request.set));
        // Which endpoints have a value of their own, by parameter.
        let mut own: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (index, reference) in request.rules().enumerate() {
            at_work(reference.id);
            let Some(rule) = self.rules.get(&reference.id) else { continue };
            let (shadow, at) = (reference.flags & SHADOW != 0, index as u16);
            let mut did = Did::Skipped;
            let mut remaining = vec![0; bits::words(endpoints.len)];
            for (i, entry) in rule.entries.iter().enumerate() {
                let reach = entry.reach(rule, request, &endpoints);
                let told = match &reach {
                    Reach::Nothing => continue,
                    Reach::Everything => bits::all(endpoints.len),
                    Reach::Some(set) => set.clone(),
                };
                did = Did::Applied;
                bits::unite(&mut remaining, &told);
                say(outcome, at, &|| {
                    let names: Vec<&str> =
                        entry.parameters.iter().map(|(name, _)| name.as_str()).collect();
                    let count = bits::count(&told);
                    format!("configs[{i}] gives {} to {count} endpoints", names.join(", "))
                });
                if shadow {
                    continue;
                }
                for (name, value) in &entry.parameters {
                    let single = match &reach {
                        Reach::Everything => {
                            outcome.parameter(at, None, name, value);
                            own.get(name.as_str()).cloned().unwrap_or_default()
                        }
                        _ => {
                            let mine = own
                                .entry(name)
                                .or_insert_with(|| vec![0; bits::words(endpoints.len)]);
                            bits::unite(mine, &told);
                            told.clone()
                        }
                    };
                    for endpoint in bits::indices(&single) {
                        outcome.parameter(at, Some(endpoint as u32), name, value);
                    }
                }
            }
            let remaining = bits::count(&remaining) as u32;
            outcome.rule(index, RuleOutcome { did, remaining });
        }
    }
}

impl Entry {
    fn reach(&self, rule: &Rule, request: &Request<'_>, endpoints: &Endpoints<'_>) -> Reach {
        if !any(&self.services, request.attribute(rule.slots.service)) {
            return Reach::Nothing;
        }
        let consumer = self.consumer && self.is_for_consumer(rule, request);
        if consumer && self.provider_addresses.is_empty() {
            return Reach::Everything;
        }
        let mut set = bits::all(endpoints.len);
        if !consumer {
            if !self.provider {
                return Reach::Nothing;
            }
            self.keep_providers(endpoints, &mut set);
        }
        endpoints.keep(&mut set, |i| {
            let (host, address) = &endpoints.addresses[i];
            listed(&self.provider_addresses, host, address)
        });
        match bits::count(&set) {
            0 => Reach::Nothing,
            count if count == endpoints.len => Reach::Everything,
            _ => Reach::Some(set),
        }
    }

    fn is_for_consumer(&self, rule: &Rule, request: &Request<'_>) -> bool {
        let host = request.text(rule.slots.host).unwrap_or_default();
        self.address.as_ref().is_none_or(|address| address.matches(host))
            && listed(&self.addresses, host, host)
            && any(&self.applications, request.attribute(rule.slots.application))
            && self.params.iter().all(|(param, slot)| param.matches(request.attribute(*slot)))
    }

    /// Leaves the endpoints in `set` that it is for.
    fn keep_providers(&self, endpoints: &Endpoints<'_>, set: &mut [u64]) {
        endpoints.keep(set, |i| {
            let (host, address) = &endpoints.addresses[i];
            let matcher = self.address.as_ref();
            matcher.is_none_or(|matcher| matcher.matches(address) || matcher.matches(host))
                && listed(&self.addresses, host, address)
        });
        if !self.applications.is_empty() {
            let applications = endpoints.column("application");
            endpoints.keep(set, |i| any(&self.applications, applications[i]));
        }
        for (param, _) in &self.params {
            let values = endpoints.column(&param.key);
            endpoints.keep(set, |i| param.matches(values[i]));
        }
    }
}

impl<'t> Endpoints<'t> {
    fn new(table: Option<&'t Table>) -> Self {
        let len = table.map_or(0, Table::len);
        let mut endpoints = Self { table, len, addresses: Vec::new() };
        let text = |value: Option<&'t [u8]>| {
            value.and_then(|value| std::str::from_utf8(value).ok()).unwrap_or_default()
        };
        let (hosts, ports) = (endpoints.column("host"), endpoints.column("port"));
        let addresses = hosts.into_iter().zip(ports).map(|(host, port)| {
            let (host, port) = (text(host), text(port));
            let address = match host.contains(':') && !host.starts_with('[') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            };
            (host, address)
        });
        endpoints.addresses = addresses.collect();
        endpoints
    }

    /// The value of a parameter for each endpoint.
    fn column(&self, name: &str) -> Vec<Option<&'t [u8]>> {
        let mut values = vec![None; self.len];
        for (value, holders) in self.table.into_iter().flat_map(|table| table.each(name)) {
            holders.for_each(|i| values.iter_mut().skip(i).take(1).for_each(|v| *v = Some(value)));
        }
        values
    }

    fn keep(&self, set: &mut [u64], hit: impl Fn(usize) -> bool) {
        let mut kept = vec![0; set.len()];
        bits::indices(set).filter(|&i| i < self.len && hit(i)).for_each(|i| {
            bits::insert(&mut kept, i);
        });
        bits::intersect(set, &kept);
    }
}

/// Whether any matches; none of them is no constraint.
fn any(matchers: &[StringMatch], value: Option<&[u8]>) -> bool {
    matchers.is_empty() || matchers.iter().any(|matcher| matcher.matches(value))
}

/// Whether a list of the older form has an address: the host, with its port, or any host with
/// its port. No list is no constraint.
fn listed(list: &[String], host: &str, address: &str) -> bool {
    let port = ip::split(address).1;
    list.is_empty()
        || list.iter().any(|entry| {
            entry == host
                || entry == address
                || entry.strip_prefix("0.0.0.0:").is_some_and(|p| Some(p) == port)
        })
}
