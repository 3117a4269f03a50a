//! The endpoints of one moment, and what rules say of calls to them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;

use super::{balance::Lane, place::Place};
use crate::{
    decision::EffectiveParameters,
    endpoints::{Endpoint, EndpointSet},
};

/// Choices of endpoints whose turns are kept apart. Beyond these, a choice by weight.
const MAX_LANES: usize = 256;
/// Of an endpoint of which nobody says it.
const DEFAULT_WEIGHT: u32 = 100;
/// Larger ones count as this.
const MAX_WEIGHT: u32 = 1_000_000;
pub(super) const MAX_RETRIES: u32 = 10;

/// How a call to an endpoint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tuning {
    pub(super) weight: u32,
    /// Of a try, until the answer begins; `None`: no limit.
    pub(super) timeout: Option<Duration>,
    /// Tries after the first.
    pub(super) retries: u32,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { weight: DEFAULT_WEIGHT, timeout: None, retries: 2 }
    }
}

impl Tuning {
    /// What rules say, else the endpoint itself, else these.
    fn of(self, given: &EffectiveParameters, index: u32, endpoint: &Endpoint) -> Self {
        let number = |name| {
            let own = endpoint.params().get(name);
            [given.get(index, name), own].into_iter().flatten().find_map(|v| v.trim().parse().ok())
        };
        let whole = |name| number(name).map(|n: u64| u32::try_from(n).unwrap_or(u32::MAX));
        let timeout = number("timeout").map(|ms| (ms > 0).then(|| Duration::from_millis(ms)));
        Self {
            weight: whole("weight").unwrap_or(self.weight).min(MAX_WEIGHT),
            timeout: timeout.unwrap_or(self.timeout),
            retries: whole("retries").unwrap_or(self.retries).min(MAX_RETRIES),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct View {
    pub(super) set: EndpointSet,
    /// By index of the endpoint.
    pub(super) places: Box<[Arc<Place>]>,
    plan: ArcSwap<Plan>,
}

impl View {
    /// Of these endpoints; places that `before` knows go on.
    pub(super) fn new(set: EndpointSet, before: Option<&Self>, otherwise: Tuning) -> Self {
        let known = before.into_iter().flat_map(|view| view.places.iter());
        let mut known: HashMap<&str, Arc<Place>> =
            known.map(|place| (&*place.address, place.clone())).collect();
        let mut place = |endpoint| -> Arc<Place> {
            let address = Endpoint::address(endpoint);
            known.entry(address).or_insert_with(|| Arc::new(Place::new(address))).clone()
        };
        let places = set.endpoints().iter().map(&mut place).collect();
        let plan = Plan::new(Arc::default(), &set, otherwise);
        Self { set, places, plan: ArcSwap::from_pointee(plan) }
    }

    /// By what rules say now.
    pub(super) fn plan(&self, given: Arc<EffectiveParameters>, otherwise: Tuning) -> Arc<Plan> {
        let plan = self.plan.load();
        // What failed is not remembered by who gave it, but may say the same again.
        if Arc::ptr_eq(&plan.given, &given) || plan.given == given {
            return arc_swap::Guard::into_inner(plan);
        }
        let plan = Arc::new(Plan::new(given, &self.set, otherwise));
        self.plan.store(plan.clone());
        plan
    }
}

/// How calls to the endpoints are made, by one state of the rules.
#[derive(Debug)]
pub(super) struct Plan {
    given: Arc<EffectiveParameters>,
    /// By index of the endpoint.
    tuning: Box<[Tuning]>,
    whole: Arc<Lane>,
    lanes: ArcSwap<HashMap<u64, Arc<Lane>>>,
}

impl Plan {
    fn new(given: Arc<EffectiveParameters>, set: &EndpointSet, otherwise: Tuning) -> Self {
        let endpoints = (0..).zip(set.endpoints());
        let tuning: Box<[Tuning]> =
            endpoints.map(|(index, endpoint)| otherwise.of(&given, index, endpoint)).collect();
        let all: Vec<u32> = (0..set.len() as u32).collect();
        let whole = Arc::new(Lane::new(&all, |at| tuning_at(&tuning, at).weight));
        Self { given, tuning, whole, lanes: ArcSwap::default() }
    }

    pub(super) fn tuning(&self, endpoint: u32) -> Tuning {
        tuning_at(&self.tuning, endpoint)
    }

    /// Where these endpoints' turns are. Each choice of endpoints has its own, so that calls
    /// that rules treat differently do not take each other's turns.
    pub(super) fn lane(&self, candidates: &[u32]) -> Arc<Lane> {
        if candidates.len() == self.tuning.len() {
            return self.whole.clone();
        }
        let step =
            |hash: u64, at: &u32| (hash ^ u64::from(*at)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = candidates.iter().fold(0, |hash, at| step(hash, at).rotate_left(29));
        let lanes = self.lanes.load();
        if let Some(lane) = lanes.get(&hash)
            && lane.candidates() == candidates
        {
            return lane.clone();
        }
        let lane = Arc::new(self.passing(candidates));
        if lanes.len() < MAX_LANES {
            self.lanes.rcu(|lanes| {
                let mut lanes = HashMap::clone(lanes);
                lanes.entry(hash).or_insert_with(|| lane.clone());
                lanes
            });
        }
        lane
    }

    /// For one choice alone.
    pub(super) fn passing(&self, candidates: &[u32]) -> Lane {
        Lane::new(candidates, |at| self.tuning(at).weight)
    }
}

fn tuning_at(tuning: &[Tuning], endpoint: u32) -> Tuning {
    tuning.get(endpoint as usize).copied().unwrap_or_default()
}
