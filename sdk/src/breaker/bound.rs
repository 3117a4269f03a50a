//! The breakers of one service's calls to one set of endpoints.

use std::{
    cell::RefCell,
    collections::HashMap,
    fmt::Write as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use super::{
    Attempt, Watched,
    cell::{Begun, Cell, Change, End, Token},
    settings::Settings,
};
use crate::{
    clock::Clock,
    decision::{Decision, Effect, Entry, RuleEffect, TYPE_CIRCUIT_BREAKER},
    endpoints::EndpointSet,
    metrics::{RuleStats, Verdict},
};

/// The breakers of one rule for one service, by address; with `per: service` the one for all of
/// them under an empty one.
#[derive(Debug)]
pub(super) struct Group {
    /// `<name>/<namespace>`.
    pub(super) rule: Arc<str>,
    pub(super) service: Box<str>,
    /// What the breakers were made for: others begin anew.
    pub(super) per_service: bool,
    pub(super) window: u64,
    /// Breakers that are not closed; while there are none, nothing is left out.
    pub(super) tripped: AtomicU32,
    pub(super) cells: Mutex<HashMap<Arc<str>, Arc<Breaker>>>,
}

/// A breaker with its name.
#[derive(Debug)]
pub(super) struct Breaker {
    /// Of the endpoint; empty: of all.
    pub(super) address: Arc<str>,
    pub(super) cell: Cell,
    /// How often it opened.
    pub(super) opened: AtomicU64,
}

/// Breakers of endpoints that are in no set in use, up to so many for each rule and service, are
/// kept in case that they come back.
const KEPT: usize = 1024;

impl Group {
    pub(super) fn new(rule: Arc<str>, service: &str, settings: &Settings) -> Self {
        Self {
            rule,
            service: service.into(),
            per_service: settings.per_service,
            window: settings.window,
            tripped: AtomicU32::new(0),
            cells: Mutex::default(),
        }
    }

    /// The breakers of these addresses.
    fn breakers<'a>(
        &self,
        addresses: impl Iterator<Item = Option<&'a str>>,
    ) -> Box<[Option<Arc<Breaker>>]> {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let mut breaker = |address: &str| match cells.get(address) {
            Some(breaker) => breaker.clone(),
            None => {
                let address: Arc<str> = address.into();
                let (cell, opened) = (Cell::default(), AtomicU64::new(0));
                let breaker = Arc::new(Breaker { address: address.clone(), cell, opened });
                cells.insert(address, breaker.clone());
                breaker
            }
        };
        let found: Box<[_]> = addresses.map(|address| address.map(&mut breaker)).collect();
        if cells.len() > 2 * found.len() + KEPT {
            cells.retain(|_, breaker| {
                let used = Arc::strong_count(breaker) > 1;
                if !used && breaker.cell.is_tripped() {
                    self.tripped.fetch_sub(1, Ordering::Relaxed);
                }
                used
            });
        }
        found
    }
}

/// A rule that speaks of the calls.
#[derive(Debug)]
struct Watch {
    shadow: bool,
    stats: Arc<RuleStats>,
    settings: Settings,
    group: Arc<Group>,
    /// By endpoint; `None`: the rule does not speak of it.
    breakers: Box<[Option<Arc<Breaker>>]>,
}

/// See the module. Rules stand in the order of their application.
#[derive(Debug, Default)]
pub(super) struct Bound(Vec<Watch>);

thread_local! {
    /// Endpoints that a rule would leave out: how long they have been, and their indices.
    static OUT: RefCell<Vec<(u32, u32)>> = const { RefCell::new(Vec::new()) };
}

impl Bound {
    /// With one more rule. `speaks` says of which endpoints it speaks.
    pub(super) fn push(
        &mut self,
        entry: &Entry,
        settings: Settings,
        group: Arc<Group>,
        endpoints: &EndpointSet,
        speaks: impl Fn(usize) -> bool,
    ) {
        let addresses = endpoints.endpoints().iter().enumerate().map(|(index, endpoint)| {
            // One without an address cannot be known again.
            let address = if settings.per_service { "" } else { endpoint.address() };
            (speaks(index) && (settings.per_service || !address.is_empty())).then_some(address)
        });
        let breakers = group.breakers(addresses);
        let (shadow, stats) = (entry.shadow, entry.stats.clone());
        self.0.push(Watch { shadow, stats, settings, group, breakers });
    }

    /// Leaves out endpoints whose breakers are open.
    pub(super) fn narrow(&self, decision: &mut Decision, clock: &Clock) {
        for watch in &self.0 {
            let before = decision.endpoints.len();
            let out = match watch.group.tripped.load(Ordering::Relaxed) {
                0 => 0,
                _ => watch.leave_out(&mut decision.endpoints, millis(clock)),
            };
            let effect = match (out > 0, watch.shadow) {
                (false, false) => Effect::Skipped,
                (true, false) => Effect::Applied,
                (false, true) => Effect::WouldSkip,
                (true, true) => Effect::WouldApply,
            };
            decision.rules.push(RuleEffect {
                kind: TYPE_CIRCUIT_BREAKER,
                key: watch.group.rule.clone(),
                effect,
                remaining: (before - out) as u32,
            });
        }
    }

    /// Begins a call; `None`: a breaker lets none through.
    pub(super) fn begin(self: &Arc<Self>, endpoint: u32, clock: &Clock) -> Option<Attempt> {
        let now = millis(clock);
        let mut watched = Watched {
            bound: self.clone(),
            clock: clock.clone(),
            endpoint,
            first: None,
            others: Vec::new(),
        };
        for (index, watch) in self.0.iter().enumerate() {
            let token = match watch.breaker(endpoint).map(|b| b.cell.begin(&watch.settings, now)) {
                Some(Begun::Watched(token)) => Some(token),
                Some(Begun::Refused) if !watch.shadow => {
                    // What has begun is given back.
                    drop(Attempt(Some(watched)));
                    return None;
                }
                Some(Begun::Refused | Begun::Unwatched) | None => None,
            };
            match index {
                0 => watched.first = token,
                _ => watched.others.push(token),
            }
        }
        Some(Attempt(Some(watched)))
    }

    /// Ends a call; the tokens are of the rules in their order.
    pub(super) fn end(
        &self,
        endpoint: u32,
        tokens: impl Iterator<Item = Option<Token>>,
        end: End,
        clock: &Clock,
    ) {
        let now = millis(clock);
        for (watch, token) in self.0.iter().zip(tokens) {
            let (Some(token), Some(breaker)) = (token, watch.breaker(endpoint)) else { continue };
            if let Some(change) = breaker.cell.end(&watch.settings, token, end, now) {
                watch.changed(breaker, change);
            }
        }
    }

    /// Says of each rule whose breakers are not closed which these are, line by line.
    pub(super) fn describe(&self, rules: &[RuleEffect], text: &mut String, now: u64) {
        for (watch, rule) in self.0.iter().zip(rules) {
            let RuleEffect { key, effect, remaining, .. } = rule;
            let _ = writeln!(text, "rule {key} (CircuitBreaker): {effect}, {remaining} remain");
            let mut last = None;
            for breaker in watch.breakers.iter().flatten() {
                let Some(shut) = breaker.cell.shut(&watch.settings, now) else { continue };
                if last.replace(&breaker.address) == Some(&breaker.address) {
                    continue;
                }
                let whose =
                    if breaker.address.is_empty() { "the service" } else { &breaker.address };
                let _ = writeln!(text, "  {whose} has been shut for {shut} ms");
            }
        }
    }
}

/// A clock's time, in milliseconds.
pub(super) fn millis(clock: &Clock) -> u64 {
    clock.now().as_millis() as u64
}

impl Watch {
    #[inline]
    fn breaker(&self, endpoint: u32) -> Option<&Breaker> {
        self.breakers.get(endpoint as usize)?.as_deref()
    }

    /// Takes what is shut out of `endpoints`, unless the rule is a shadow; gives how many. Where
    /// that were more than may be, those that have been shut longest stay.
    fn leave_out(&self, endpoints: &mut Vec<u32>, now: u64) -> usize {
        OUT.with_borrow_mut(|out| {
            out.clear();
            out.extend(endpoints.iter().filter_map(|&index| {
                let shut = self.breaker(index)?.cell.shut(&self.settings, now)?;
                Some((shut, index))
            }));
            let most = self.settings.most_out(endpoints.len());
            if out.len() > most {
                out.sort_unstable();
                if !self.shadow {
                    let spared = out[most..].iter().filter_map(|(_, index)| self.breaker(*index));
                    spared.for_each(|breaker| breaker.cell.spare());
                }
                out.truncate(most);
                out.sort_unstable_by_key(|(_, index)| *index);
            }
            if !self.shadow {
                let mut gone = out.iter().map(|(_, index)| *index).peekable();
                endpoints.retain(|index| gone.next_if_eq(index).is_none());
            }
            out.len()
        })
    }

    /// Takes note of a change, and says it.
    #[cold]
    fn changed(&self, breaker: &Breaker, change: Change) {
        let Group { rule, service, tripped, .. } = &*self.group;
        let Breaker { address: endpoint, opened, cell: _ } = breaker;
        match change {
            Change::Opened => tripped.fetch_add(1, Ordering::Relaxed),
            Change::Closed => tripped.fetch_sub(1, Ordering::Relaxed),
            Change::Reopened => 0,
        };
        match (change, self.shadow) {
            (Change::Closed, _) => tracing::info!(%rule, %service, %endpoint, "breaker closed"),
            (_, false) => tracing::warn!(%rule, %service, %endpoint, "breaker opened"),
            (_, true) => tracing::warn!(%rule, %service, %endpoint, "breaker would open"),
        }
        if change != Change::Closed {
            opened.fetch_add(1, Ordering::Relaxed);
            let (verdict, what) = match self.shadow {
                true => (Verdict::WouldOpen, "would open"),
                false => (Verdict::Opened, "opened"),
            };
            self.stats.rare(verdict);
            let whose = if endpoint.is_empty() { "all endpoints" } else { endpoint };
            self.stats.sample(verdict, || format!("{what} {whose} of {service}"));
        }
    }
}
