//! One kind on one stream.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use prost::Message;
use prost_types::Any;
use rulecast_api::{
    Digest, Kind,
    proto::{
        RULE_TYPE_URL,
        observe::v1::{ObserveResponse, ResumeToken, WithheldItem},
    },
};

use super::{
    limits::{MAX_REJECTED, MAX_TOKEN, Services},
    wire,
};
use crate::{rollout::Rejected, view::View};

/// Withheld items that a resume token names; with more there is none, and resuming costs
/// the full state.
const MAX_WITHHELD_IN_TOKEN: usize = 256;

/// A client's rejections of items of one kind.
#[derive(Debug, Default)]
pub(super) struct Rejections(BTreeMap<Digest, Rejected>);

impl Rejections {
    /// Remembers a rejection, up to a limit.
    pub(super) fn add(&mut self, rejected: Rejected) {
        if self.0.len() < MAX_REJECTED || self.0.contains_key(&rejected.digest) {
            self.0.insert(rejected.digest, rejected);
        }
    }

    pub(super) fn contains(&self, digest: &Digest) -> bool {
        self.0.contains_key(digest)
    }

    /// Those that speak of items of a view, under the view's keys.
    pub(super) fn within(&self, view: &View) -> Vec<Rejected> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        let mut unnamed = false;
        for rejected in self.0.values() {
            match view.get(&rejected.key) {
                Some(item) if item.digest == rejected.digest => found.push(rejected.clone()),
                _ => unnamed = true,
            }
        }
        if unnamed {
            // A client that could not read an item may not know its key.
            let named: BTreeSet<_> = found.iter().map(|r| r.digest).collect();
            for item in &view.items {
                if let Some(rejected) = self.0.get(&item.digest)
                    && !named.contains(&item.digest)
                {
                    found.push(Rejected { key: item.key.clone(), ..rejected.clone() });
                }
            }
        }
        found
    }

    /// Forgets what is not in a view: content that was replaced may be sent if it returns.
    fn keep(&mut self, within: &[Rejected]) {
        if self.0.len() != within.len() {
            self.0 = within.iter().map(|r| (r.digest, r.clone())).collect();
        }
    }
}

/// A response under way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) nonce: String,
    pub(super) view: Arc<View>,
    /// As told to the client.
    pub(super) revision: i64,
    /// When the view came.
    pub(super) seen_at: Instant,
    /// Nothing but the new place: the client has the content.
    delta: bool,
    /// The first item that has not left.
    cursor: usize,
    withheld: Vec<Digest>,
    /// The last chunk has left.
    pub(super) left: bool,
}

/// What the client asked for and has not got yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Nothing.
    No,
    /// The current state, at once.
    Now,
    /// The current state, as soon as the rate allows.
    Limited,
}

/// The state of one kind on one stream.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) kind: Kind,
    pub(super) services: Services,
    /// Declared, and not in force yet.
    pub(super) wanted: Option<Services>,
    pub(super) asked: Asked,
    /// Where the client says that it stands, until a response begins.
    pub(super) resume: Option<ResumeToken>,
    /// It wants the full state nevertheless.
    pub(super) whole: bool,
    pub(super) rejections: Rejections,
    pub(super) flight: Option<Flight>,
    /// Until when the view may stay behind `resume`.
    pub(super) behind_until: Option<Instant>,
    view: Option<(Arc<View>, Instant)>,
    /// The view of the last response.
    told: Option<Arc<View>>,
    /// The highest revision that the client has seen, and its lineage.
    floor: Option<(Arc<str>, i64)>,
}

impl Delivery {
    pub(super) fn new(kind: Kind, services: Services) -> Self {
        Self {
            kind,
            services,
            wanted: None,
            asked: Asked::Now,
            resume: None,
            whole: false,
            rejections: Rejections::default(),
            flight: None,
            behind_until: None,
            view: None,
            told: None,
            floor: None,
        }
    }

    /// The newest view, if there is one.
    pub(super) fn view(&self) -> Option<&Arc<View>> {
        self.view.as_ref().map(|(view, _)| view)
    }

    /// Whether what a client rejects may be in what it is sent next. It may have spoken
    /// before it got a response that replaced the item.
    pub(super) fn concerns(&self, key: &str, digest: &Digest) -> bool {
        self.view().is_none_or(|view| match view.get(key) {
            Some(item) if item.digest == *digest => true,
            _ => view.items.iter().any(|item| item.digest == *digest),
        })
    }

    /// Forgets the view: one of another scope follows.
    pub(super) fn rescope(&mut self, services: Services) {
        self.services = services;
        self.view = None;
        self.behind_until = None;
        self.asked = Asked::Now;
    }

    /// Takes a newer view; false for one that is older than what is known or was sent.
    pub(super) fn take_view(&mut self, now: Instant, view: Arc<View>) -> bool {
        let newer = |known: &View| {
            known.lineage != view.lineage
                || known.scope_hash != view.scope_hash
                || known.revision <= view.revision
        };
        if !self.view().into_iter().chain(&self.told).all(|known| newer(known)) {
            return false;
        }
        let seen_at = match &self.view {
            Some((known, at)) if known.set_digest == view.set_digest => *at,
            _ => now,
        };
        self.view = Some((view, seen_at));
        true
    }

    /// Whether the view is behind what the client has seen.
    pub(super) fn behind(&self) -> bool {
        match (&self.resume, self.view()) {
            (Some(token), Some(view)) => {
                token.lineage == *view.lineage
                    && token.scope_hash.as_ref() == view.scope_hash.as_bytes()
                    && token.set_digest.as_ref() != view.set_digest.as_bytes()
                    && view.revision < token.revision
            }
            _ => false,
        }
    }

    /// Whether a response could begin, but for the rate of repeats; then what kind of.
    pub(super) fn startable(&self) -> Option<Asked> {
        let view = self.view()?;
        if self.behind() {
            return None;
        }
        match &self.flight {
            Some(flight) if !flight.left => return None,
            // Asking again gives up the answer to what has left.
            Some(_) => return (self.asked != Asked::No).then_some(self.asked),
            None => {}
        }
        let changed = self.told.as_ref().is_some_and(|told| told.set_digest != view.set_digest);
        match self.asked {
            // What is new goes at once, and is what was asked for.
            Asked::Limited if changed => Some(Asked::Now),
            Asked::No => changed.then_some(Asked::Now),
            asked => Some(asked),
        }
    }

    /// Begins a response. What it says is settled here, before any of it leaves.
    pub(super) fn start(&mut self, nonce: String) -> Option<&Flight> {
        let (view, seen_at) = self.view.clone()?;
        let withheld = self.rejections.within(&view);
        self.rejections.keep(&withheld);
        let mut delta = false;
        let mut floor = view.revision;
        if let Some((lineage, revision)) = &self.floor
            && *lineage == view.lineage
        {
            floor = floor.max(*revision);
        }
        if let Some(token) = self.resume.take()
            && token.lineage == *view.lineage
        {
            floor = floor.max(token.revision);
            // What was sent since the client took the token may reach it before this does.
            let stands = self.told.as_ref().is_none_or(|told| {
                told.lineage == view.lineage
                    && told.scope_hash == view.scope_hash
                    && told.set_digest == view.set_digest
            });
            delta = stands
                && !self.whole
                && token.scope_hash.as_ref() == view.scope_hash.as_bytes()
                && token.set_digest.as_ref() == view.set_digest.as_bytes()
                && token
                    .withheld
                    .iter()
                    .all(|w| Digest::from_bytes(w).is_some_and(|w| self.rejections.contains(&w)));
        }
        self.whole = false;
        self.floor = Some((view.lineage.clone(), floor));
        self.told = Some(view.clone());
        self.asked = Asked::No;
        self.behind_until = None;
        self.flight = Some(Flight {
            nonce,
            view,
            revision: floor,
            seen_at,
            delta,
            cursor: 0,
            withheld: withheld.iter().map(|r| r.digest).collect(),
            left: false,
        });
        self.flight.as_ref()
    }

    /// The response under way for a client of [`Wire::Dubbo`](super::Wire::Dubbo): one
    /// message.
    pub(super) fn whole_state(&mut self) -> Option<ObserveResponse> {
        let flight = self.flight.as_mut().filter(|flight| !flight.left)?;
        flight.left = true;
        let type_url = wire::type_url(self.kind);
        let item = |value: &Bytes| Any { type_url: type_url.clone(), value: value.to_vec() };
        Some(ObserveResponse {
            nonce: flight.nonce.clone(),
            r#type: self.kind.type_name.to_owned(),
            revision: flight.revision,
            data: flight.view.items.iter().filter_map(|i| i.compat.as_ref()).map(item).collect(),
            ..ObserveResponse::default()
        })
    }

    /// The next chunk of the response under way, of about `size` bytes.
    pub(super) fn chunk(&mut self, size: usize) -> Option<ObserveResponse> {
        let flight = self.flight.as_mut().filter(|flight| !flight.left)?;
        let mut response = ObserveResponse {
            nonce: flight.nonce.clone(),
            r#type: self.kind.type_name.to_owned(),
            revision: flight.revision,
            lineage: flight.view.lineage.to_string(),
            delta: flight.delta,
            ..ObserveResponse::default()
        };
        let items = &flight.view.items;
        if flight.delta {
            flight.cursor = items.len();
        }
        let withheld: BTreeSet<_> = flight.withheld.iter().collect();
        let mut filled = 0;
        while let Some(item) = items.get(flight.cursor) {
            let hold = withheld.contains(&item.digest);
            // Tags and lengths around an item take less than this.
            let len = 16
                + if hold { item.key.len() + 32 } else { item.bytes.len() + RULE_TYPE_URL.len() };
            if filled > 0 && filled + len > size {
                break;
            }
            filled += len;
            if hold {
                let item_digest = item.digest.to_bytes();
                response.withheld.push(WithheldItem { key: item.key.clone(), item_digest });
            } else {
                let value = item.bytes.to_vec();
                response.data.push(Any { type_url: RULE_TYPE_URL.to_owned(), value });
            }
            flight.cursor += 1;
        }
        flight.left = flight.cursor == items.len();
        response.more_chunks = !flight.left;
        if flight.left && flight.withheld.len() <= MAX_WITHHELD_IN_TOKEN {
            let token = ResumeToken {
                lineage: flight.view.lineage.to_string(),
                revision: flight.revision,
                scope_hash: flight.view.scope_hash.to_bytes(),
                set_digest: flight.view.set_digest.to_bytes(),
                withheld: flight.withheld.iter().map(Digest::to_bytes).collect(),
            };
            response.resume_token = token.encode_to_vec().into();
        }
        Some(response)
    }
}

/// Reads a resume token. One that is not ours is none: the client then gets the full state.
pub(super) fn read_token(bytes: &Bytes) -> Option<ResumeToken> {
    if bytes.is_empty() || bytes.len() > MAX_TOKEN {
        return None;
    }
    ResumeToken::decode(bytes.clone()).ok()
}
