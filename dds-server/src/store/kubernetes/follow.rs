//! Follows the objects of one kind: a complete list, then a watch from there, and again
//! whenever the watch cannot go on.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, Stream, StreamExt as _};
use rulecast_api::{Kind, Kinds, ResourceId};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{
    api::{Api, Definition},
    fault::{Fault, Why, crd},
    hub::Hub,
    object::{Meta, Object, Reading, Unreadable, read},
    state::{Change, List, Taken, Trust},
};

/// A failure that lasts shorter is told to nobody: a server that restarts, a network that blinks.
const PATIENCE: Duration = Duration::from_secs(1);
/// The first pause after a failure; it doubles, up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// A kind that is missing is looked for so often.
const MISSING: Duration = Duration::from_secs(1);
/// A watch that ends sooner is followed by a pause.
const SHORT: Duration = Duration::from_secs(1);
/// Changes taken as one batch.
const BATCH: usize = 1000;

pub(super) struct Follower {
    pub(super) kind: Kind,
    pub(super) kinds: Kinds,
    pub(super) api: Api,
    pub(super) hub: Arc<Hub>,
    /// How long a great loss is doubted.
    pub(super) mass_doubt: Duration,
    pub(super) failing: Failing,
    /// The kind was missing, or about to be, when it was looked at last.
    pub(super) vanished: bool,
    /// When what is missing from the last list is looked for again.
    pub(super) doubt: Option<Instant>,
    /// Whole lists: the server does not keep history for as long as the pages take.
    pub(super) unpaged: bool,
}

/// How long something has been failing, and how often.
#[derive(Default)]
pub(super) struct Failing {
    since: Option<Instant>,
    times: u32,
}

impl Failing {
    /// One more, that was begun then; true: it is time to tell.
    pub(super) fn more(&mut self, began: Instant) -> bool {
        self.times = self.times.saturating_add(1);
        self.since.get_or_insert(began).elapsed() >= PATIENCE
    }

    /// It works again; whether that lasts is not known yet.
    fn answered(&mut self) {
        self.since = None;
    }

    /// How long to wait before the next attempt.
    pub(super) fn pause(&self) -> Duration {
        let (first, most) = PAUSE;
        let pause = first.saturating_mul(1 << self.times.saturating_sub(1).min(10)).min(most);
        // Replicas that lost the same server do not come back as one.
        pause.mul_f64(0.75 + 0.5 * fastrand::f64())
    }
}

/// Why a watch was left.
enum Left {
    /// It has ended, as watches do.
    Ended,
    /// It cannot go on: a list is needed.
    Relist,
    /// It could not begin.
    Failed(Fault),
    /// It told something that it cannot go on after.
    Broken(Fault),
}

/// A line of a watch.
#[derive(Deserialize)]
struct Line<T> {
    object: T,
}

#[derive(Deserialize)]
struct Head {
    r#type: Type,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Type {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

impl Follower {
    /// Never ends.
    pub(super) async fn run(mut self) {
        loop {
            let began = Instant::now();
            match self.list().await {
                Ok(Some((position, epoch))) => self.watch(position, epoch).await,
                Ok(None) => {}
                Err(fault) => self.failed(&fault, began).await,
            }
        }
    }

    /// Reads a complete list and says up to where it goes; `None`: it has to be read again.
    /// One that breaks off changes nothing.
    async fn list(&mut self) -> Result<Option<(i64, u64)>, Fault> {
        let kind = self.kind;
        let epoch = self.hub.read(|state| state.epoch());
        let mut list = List { at: 0, readings: Vec::new() };
        let mut token = None;
        loop {
            let paged = !self.unpaged;
            let (mut page, at) = match self.api.page(kind, paged, token.take()).await {
                Err(Fault { why: Why::Gone, .. }) if paged => {
                    self.unpaged = true;
                    return Ok(None);
                }
                page => page?,
            };
            if list.at == 0 {
                list.at = at;
            }
            token = page.next();
            for object in page.items() {
                let mut reading = self.reading("list", object)?;
                self.hub.read(|state| state.lighten(&mut reading));
                list.readings.push(reading);
            }
            if token.is_none() {
                break;
            }
        }
        self.unpaged = false;

        if self.hub.read(|state| state.lacks(kind, &list))
            && self.api.definition(kind).await? == Definition::Going
        {
            return Err(Fault { verb: "list", resource: crd(kind), why: Why::Going });
        }
        let now = Instant::now();
        let trust = match self.doubt {
            Some(until) if until <= now => Trust::Full,
            _ if self.vanished => Trust::Little,
            _ => Trust::Most,
        };
        let at = list.at;
        let taken = self.hub.with(|state| {
            let taken = state.complete(kind, epoch, list, trust);
            if taken != Taken::Outdated {
                state.set_up(kind);
            }
            taken
        });
        match taken {
            Taken::Outdated => return Ok(None),
            Taken::Whole => {
                self.vanished = false;
                self.doubt = None;
            }
            Taken::Doubted if self.doubt.is_none() => {
                tracing::warn!(
                    %kind, again_in = ?self.mass_doubt,
                    "most rules are missing from the list; looking again before believing it"
                );
                self.doubt = Some(now + self.mass_doubt);
            }
            Taken::Doubted => {}
        }
        self.failing.answered();
        Ok(Some((at, epoch)))
    }

    fn reading(&self, verb: &'static str, object: Object) -> Result<Reading, Fault> {
        let unreadable = |error: Unreadable| Fault::unreadable(verb, crd(self.kind), &error);
        read(self.kinds, self.kind, object).map_err(unreadable)
    }

    /// Follows a watch, and the next ones, until a list is needed.
    async fn watch(&mut self, mut position: i64, epoch: u64) {
        // A list is as new as the storage.
        let mut verify = false;
        loop {
            let over = self.doubt.is_some_and(|until| until <= Instant::now());
            if over || self.hub.read(|state| state.epoch()) != epoch {
                return;
            }
            let began = Instant::now();
            let mut lasted = false;
            let left = match self.begin(position, verify).await {
                Ok(None) => return,
                Ok(Some((lines, silence))) => {
                    self.hub.with(|state| state.set_up(self.kind));
                    self.failing.answered();
                    let left = self.follow(lines, silence, &mut position, epoch).await;
                    lasted = began.elapsed() >= SHORT;
                    left
                }
                Err(fault) => Left::Failed(fault),
            };
            verify = true;
            if lasted {
                self.failing = Failing::default();
            }
            match left {
                Left::Relist => return,
                Left::Ended if lasted => {}
                Left::Ended => self.soon(began).await,
                // The server has forgotten what came after this position.
                Left::Failed(Fault { why: Why::Gone, .. })
                | Left::Broken(Fault { why: Why::Gone, .. }) => return self.soon(began).await,
                // What a watch then tells of the time in between would be the end of all objects.
                Left::Failed(fault) if fault.why == Why::Missing => {
                    return self.failed(&fault, began).await;
                }
                Left::Failed(fault) => self.failed(&fault, began).await,
                Left::Broken(fault) => {
                    tracing::warn!(kind = %self.kind, ?fault, "a watch broke; its rules are listed anew");
                    return self.failed(&fault, Instant::now()).await;
                }
            }
        }
    }

    /// Begins a watch; `None`: the storage is older than what was seen of it. A server would
    /// then keep silent until it has caught up.
    async fn begin(
        &self,
        position: i64,
        verify: bool,
    ) -> Result<
        Option<(impl Stream<Item = std::io::Result<String>> + Unpin + use<>, Duration)>,
        Fault,
    > {
        if verify && self.api.newest(self.kind).await? < position {
            return Ok(None);
        }
        self.api.watch(self.kind, position).await.map(Some)
    }

    async fn follow(
        &mut self,
        mut lines: impl Stream<Item = std::io::Result<String>> + Unpin,
        silence: Duration,
        position: &mut i64,
        epoch: u64,
    ) -> Left {
        let mut epochs = self.hub.epoch();
        loop {
            let until = Instant::now() + silence;
            let first = tokio::select! {
                line = timeout_at(until, lines.next()) => line,
                () = changed(&mut epochs, epoch) => return Left::Relist,
                () = reached(self.doubt) => return Left::Relist,
            };
            let mut batch = match first {
                Ok(Some(line)) => vec![line],
                Ok(None) => return Left::Ended,
                Err(_) => {
                    let why = format!("silent for {silence:?}");
                    return Left::Failed(Fault::failed("watch", crd(self.kind), why));
                }
            };
            // What has come together goes together; what comes alone does not wait.
            while batch.len() < BATCH
                && let Some(Some(line)) = lines.next().now_or_never()
            {
                batch.push(line);
            }
            if let Err(left) = self.take(batch, position, epoch).await {
                return left;
            }
        }
    }
}

/// Waits until the epoch is another one.
async fn changed(epochs: &mut watch::Receiver<u64>, epoch: u64) {
    if epochs.wait_for(|now| *now != epoch).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits for a time, or for ever.
async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

impl Follower {
    /// Takes lines of a watch; an error says why it cannot go on after them.
    async fn take(
        &mut self,
        batch: Vec<std::io::Result<String>>,
        position: &mut i64,
        epoch: u64,
    ) -> Result<(), Left> {
        let kind = self.kind;
        let (mut changes, mut at, mut left) = (Vec::new(), *position, Ok(()));
        for line in batch {
            let line = match line {
                Ok(line) => line,
                Err(error) => {
                    // As when it ends: whether the server is there shows at the next attempt.
                    tracing::debug!(%kind, %error, "a watch broke off");
                    left = Err(Left::Ended);
                    break;
                }
            };
            match self.line(&line) {
                Ok(Told::Change(change, revision)) => {
                    at = at.max(revision);
                    changes.push(change);
                }
                Ok(Told::Bookmark(revision)) => at = at.max(revision),
                Err(fault) => {
                    left = Err(Left::Broken(fault));
                    break;
                }
            }
        }
        let removes = changes.iter().any(|change| matches!(change, Change::Remove { .. }));
        if removes {
            match self.api.definition(kind).await {
                Ok(Definition::Going) => {
                    changes.retain(|change| !matches!(change, Change::Remove { .. }));
                    let resource = crd(kind);
                    left = Err(Left::Broken(Fault { verb: "watch", resource, why: Why::Going }));
                }
                Ok(Definition::There) => {}
                Ok(Definition::Unknown) => tracing::debug!(
                    %kind, "whether its CRD is being removed cannot be seen: get is forbidden"
                ),
                // Nothing of the batch is taken; the next watch tells it again.
                Err(fault) => return Err(Left::Failed(fault)),
            }
        }
        *position = at;
        if !changes.is_empty() || left.is_ok() {
            let current = self.hub.with(|state| state.apply(kind, epoch, changes, at));
            if !current {
                return Err(Left::Relist);
            }
        }
        left
    }

    fn line(&self, line: &str) -> Result<Told, Fault> {
        let kind = self.kind;
        let unreadable = |error: serde_json::Error| {
            Fault::failed("watch", crd(kind), format!("a line that cannot be read: {error}"))
        };
        let unusable = |error: Unreadable| Fault::unreadable("watch", crd(kind), &error);
        let Head { r#type } = serde_json::from_str(line).map_err(unreadable)?;
        match r#type {
            Type::Added | Type::Modified => {
                let Line { object } = serde_json::from_str(line).map_err(unreadable)?;
                let reading = self.reading("watch", object)?;
                let revision = reading.revision;
                Ok(Told::Change(Change::Upsert(reading), revision))
            }
            Type::Deleted => {
                let Line::<Bare> { object: Bare { metadata } } =
                    serde_json::from_str(line).map_err(unreadable)?;
                let revision = metadata.revision().map_err(unusable)?;
                let Meta { name, namespace, .. } = metadata;
                let id = ResourceId { kind, namespace, name };
                Ok(Told::Change(Change::Remove { id, revision }, revision))
            }
            Type::Bookmark => {
                let Line::<Bare> { object } = serde_json::from_str(line).map_err(unreadable)?;
                Ok(Told::Bookmark(object.metadata.revision().map_err(unusable)?))
            }
            Type::Error => {
                let Line::<Value> { object } = serde_json::from_str(line).map_err(unreadable)?;
                let status = serde_json::from_value(object).map_err(unreadable)?;
                Err(Fault::new("watch", crd(kind), kube::Error::Api(status)))
            }
        }
    }

    /// Waits before another attempt after one that went well and led to little.
    async fn soon(&mut self, began: Instant) {
        self.failing.more(began);
        self.failing.answered();
        sleep(self.failing.pause()).await;
    }

    /// Something failed: says so when it lasts, and waits before the next attempt.
    async fn failed(&mut self, fault: &Fault, began: Instant) {
        let missing = matches!(fault.why, Why::Missing | Why::Going);
        self.vanished |= missing;
        let tell = self.failing.more(began);
        tracing::debug!(kind = %self.kind, ?fault, times = self.failing.times, "rules cannot be read");
        if tell {
            let kind = Some(self.kind);
            self.hub.with(|state| {
                let problem = fault.problem(kind, state.holds(kind));
                if state.set_down(kind, problem.clone()) {
                    tracing::warn!(%problem, "store down");
                }
            });
        }
        let pause = self.failing.pause();
        sleep(if missing { pause.min(MISSING) } else { pause }).await;
    }
}

/// What a line tells, with the revision up to which that goes.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives for a moment; a box would be made per event"
)]
enum Told {
    Change(Change, i64),
    Bookmark(i64),
}

#[derive(Deserialize)]
struct Bare {
    metadata: Meta,
}
