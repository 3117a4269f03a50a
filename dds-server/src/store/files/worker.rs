//! Decides what is in force.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use notify::{RecursiveMode, Watcher as _};
use rulecast_api::{
    Code, Digest, Resource, ResourceId,
    manifest::{self, Format, Problem},
};
use serde_json::Value;
use tokio::sync::{mpsc as channel, oneshot};

use super::{
    FileStoreConfig, edit,
    folder::{self, At, Signature, Touched},
    state::{self, Durable, State},
};
use crate::store::{Event, Expected, Origin, StoreError, StoreProblem, Stored, Version, digest};

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the thread is asked.
pub(super) enum Message {
    Touched(Touched),
    Watch(channel::Sender<Vec<Event>>),
    Put(Resource, Expected, Reply<i64>),
    Delete(ResourceId, Expected, Reply<i64>),
    WriteStatus(ResourceId, Value, Reply<()>),
    ReadStatus(ResourceId, Reply<Option<Value>>),
    Stop,
}

/// A file as it was read last.
#[derive(Default)]
struct FileState {
    signature: Option<Signature>,
    /// It may have changed since without looking different.
    racy: bool,
    /// Of the bytes that `documents` were read from.
    content: Option<Digest>,
    documents: Vec<Document>,
    syntax: Option<Problem>,
    /// Why it could not be read.
    fault: Option<String>,
    /// It is missing or empty, and believed to be when it still is at this time.
    doubt: Option<Instant>,
}

struct Document {
    line: u32,
    id: Option<ResourceId>,
    outcome: Result<(Resource, Digest), Vec<Problem>>,
}

impl FileState {
    /// Whether it is broken in such a way that it may hold resources not seen in it.
    fn opaque(&self) -> bool {
        self.syntax.is_some()
            || self.fault.is_some()
            || self.documents.iter().any(|document| document.id.is_none())
    }
}

struct Subscriber {
    sender: channel::Sender<Vec<Event>>,
    /// It has missed a batch and gets a new list as soon as it has room.
    behind: bool,
}

pub(super) struct Worker {
    config: FileStoreConfig,
    state: State,
    messages: mpsc::Sender<Message>,
    watcher: Option<notify::RecommendedWatcher>,
    /// Which folder is watched.
    watched: Option<(u64, u64)>,

    files: BTreeMap<PathBuf, FileState>,
    blind: BTreeMap<PathBuf, String>,
    /// Which documents say that they are a resource: file and place in it.
    claims: HashMap<ResourceId, BTreeSet<(PathBuf, usize)>>,
    in_force: BTreeMap<ResourceId, Stored>,
    /// The resources in force by the file that they came from.
    by_file: HashMap<PathBuf, BTreeSet<ResourceId>>,
    /// What must be decided anew.
    affected: BTreeSet<ResourceId>,
    /// Gone, if a later list says so too; until when.
    held: BTreeSet<ResourceId>,
    held_until: Option<Instant>,

    listed: bool,
    down: Option<StoreProblem>,
    state_problem: Option<StoreProblem>,
    problems: Arc<[StoreProblem]>,
    subscribers: Vec<Subscriber>,

    touched: BTreeSet<PathBuf>,
    touched_all: bool,
    first_touch: Option<Instant>,
    last_touch: Instant,
    next_rescan: Instant,
}

/// How much a scan believes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// What looks like an accident must last.
    Doubtful,
    /// We did it ourselves.
    Full,
}

impl Worker {
    pub(super) fn new(
        config: FileStoreConfig,
        state: State,
        kept: Vec<Stored>,
        messages: mpsc::Sender<Message>,
    ) -> Self {
        let now = Instant::now();
        let mut worker = Self {
            config,
            state,
            messages,
            watcher: None,
            watched: None,
            files: BTreeMap::new(),
            blind: BTreeMap::new(),
            claims: HashMap::new(),
            in_force: BTreeMap::new(),
            by_file: HashMap::new(),
            affected: BTreeSet::new(),
            held: BTreeSet::new(),
            held_until: None,
            listed: false,
            down: None,
            state_problem: None,
            problems: Arc::from([]),
            subscribers: Vec::new(),
            touched: BTreeSet::new(),
            touched_all: false,
            first_touch: None,
            last_touch: now,
            next_rescan: now,
        };
        for stored in kept {
            worker.affected.insert(stored.resource.id.clone());
            worker.set_in_force(stored);
        }
        worker
    }

    pub(super) fn state_path(&self) -> PathBuf {
        self.state.folder().to_owned()
    }

    pub(super) fn run(mut self, inbox: &mpsc::Receiver<Message>) {
        self.scan(None, Trust::Doubtful);
        loop {
            let wait = self.next_deadline().saturating_duration_since(Instant::now());
            let mut next = match inbox.recv_timeout(wait) {
                Ok(message) => Some(message),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            };
            // All that waits, but not for ever.
            for _ in 0..1024 {
                match next {
                    None => break,
                    Some(Message::Stop) => return,
                    Some(message) => self.message(message),
                }
                next = inbox.try_recv().ok();
            }
            if let Some(message) = next {
                if matches!(message, Message::Stop) {
                    return;
                }
                self.message(message);
            }
            self.catch_up();
            self.scan_if_due();
        }
    }

    fn message(&mut self, message: Message) {
        // Whoever asked may have gone; that is theirs to know.
        match message {
            Message::Touched(touched) => self.touch(touched),
            Message::Watch(sender) => {
                self.subscribers.push(Subscriber { sender, behind: true });
            }
            Message::Put(resource, expected, reply) => {
                let _ = reply.send(self.put(&resource, expected));
            }
            Message::Delete(id, expected, reply) => {
                let _ = reply.send(self.delete(&id, expected));
            }
            Message::WriteStatus(id, status, reply) => {
                let _ = reply.send(self.state.write_status(&id, &status));
            }
            Message::ReadStatus(id, reply) => {
                let _ = reply.send(self.state.read_status(&id));
            }
            Message::Stop => {}
        }
    }

    fn touch(&mut self, touched: Touched) {
        match touched {
            Touched::Nothing => return,
            Touched::Files(files) => self.touched.extend(files),
            Touched::Everything => self.touched_all = true,
        }
        self.last_touch = Instant::now();
        self.first_touch.get_or_insert(self.last_touch);
    }

    /// When the touched files are read.
    fn due(&self) -> Option<Instant> {
        let first = self.first_touch?;
        Some((self.last_touch + self.config.quiet).min(first + self.config.ceiling))
    }

    fn next_deadline(&self) -> Instant {
        // While the folder is away nothing about it is decided.
        let up = self.down.is_none();
        let doubts = self.files.values().filter_map(|file| file.doubt).min().filter(|_| up);
        let held_until = self.held_until.filter(|_| up);
        let behind = self
            .subscribers
            .iter()
            .any(|s| s.behind)
            .then(|| Instant::now() + Duration::from_millis(20));
        [Some(self.next_rescan), self.due(), doubts, held_until, behind]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.next_rescan)
    }

    fn scan_if_due(&mut self) {
        let now = Instant::now();
        let up = self.down.is_none();
        let held = up && self.held_until.is_some_and(|until| until <= now);
        let due = self.due().is_some_and(|due| due <= now);
        if self.next_rescan <= now || held || (due && self.touched_all) {
            return self.scan(None, Trust::Doubtful);
        }
        let doubtful: Vec<PathBuf> = self
            .files
            .iter()
            .filter(|(_, file)| up && file.doubt.is_some_and(|until| until <= now))
            .map(|(path, _)| path.clone())
            .collect();
        if due || !doubtful.is_empty() {
            let mut paths = if due { std::mem::take(&mut self.touched) } else { BTreeSet::new() };
            if due {
                self.first_touch = None;
            }
            paths.extend(doubtful);
            self.scan(Some(paths), Trust::Doubtful);
        }
    }

    /// Reads what changed among `paths`, or in the whole folder, and acts on it.
    fn scan(&mut self, paths: Option<BTreeSet<PathBuf>>, trust: Trust) {
        let root = self.config.folder.clone();
        let now = Instant::now();
        let mut events = Vec::new();
        let identity = match folder::identity(&root) {
            Ok(identity) => identity,
            Err(error) => return self.went_down(&error),
        };
        let moved = self.watched != Some(identity);
        if moved {
            self.watch_folder(&root, identity);
        }

        // After a change of folders nothing known about single files holds.
        let some = paths.filter(|_| !moved && self.down.is_none()).and_then(|paths| {
            let mut found = BTreeMap::new();
            for path in paths {
                let at = folder::at(&root, &path);
                // Through a link to a folder one file may be seen by two names: only a whole
                // list knows which it goes by.
                if matches!(at, At::Folder) || folder::through_link(&root, &path) {
                    return None;
                }
                found.insert(path, at);
            }
            Some(found)
        });
        let full = some.is_none();
        let found = match some {
            Some(found) => found,
            None => {
                self.touched.clear();
                self.touched_all = false;
                self.first_touch = None;
                self.next_rescan = now + self.config.rescan;
                let listing = match folder::list(&root) {
                    Ok(listing) => listing,
                    Err(error) => return self.went_down(&error),
                };
                self.blind = listing.blind;
                let mut found: BTreeMap<_, _> =
                    listing.files.into_iter().map(|(path, s)| (path, At::File(s))).collect();
                for path in self.files.keys().chain(self.by_file.keys()) {
                    if !found.contains_key(path) {
                        let blind = path.ancestors().find_map(|p| self.blind.get(p));
                        let at = blind.map_or(At::Nothing, |why| At::Unknown(why.clone()));
                        found.insert(path.clone(), at);
                    }
                }
                found
            }
        };
        let back = self.down.take().is_some();
        if back {
            events.push(Event::Up);
        }
        let missing_doubt = if (moved && self.listed) || back {
            self.config.empty_doubt
        } else {
            self.config.missing_doubt
        };
        for (path, at) in found {
            match at {
                At::File(signature) => self.read(&root, &path, signature, trust),
                At::Unknown(why) => self.fault(&path, why),
                At::Nothing | At::Folder => self.missing(&path, missing_doubt, trust),
            }
        }

        // What is held is believed by a later whole list only.
        let believe_held = full && self.held_until.is_some_and(|until| until <= now);
        self.decide(trust, believe_held, &mut events);
        let first = !self.listed;
        self.listed = true;
        self.publish(events, first);
    }

    fn went_down(&mut self, error: &io::Error) {
        self.next_rescan = Instant::now() + self.config.rescan.min(Duration::from_millis(500));
        self.touched.clear();
        self.touched_all = false;
        self.first_touch = None;
        self.watched = None;
        // Its parent says when it is back.
        self.watch_parent();
        if self.down.is_some() {
            return;
        }
        let problem = StoreProblem {
            message: format!(
                "the folder of rules {} cannot be read: {error}",
                self.config.folder.display()
            ),
            hint: "make it readable; until then the last known rules stay in force".into(),
            last_good_in_force: !self.in_force.is_empty(),
            object: None,
            ..about_store(Code::StoreDown)
        };
        tracing::warn!(%problem, "store down");
        self.down = Some(problem.clone());
        self.publish(vec![Event::Down(problem)], false);
    }

    fn new_watcher(&self) -> notify::Result<notify::RecommendedWatcher> {
        let (root, messages) = (self.config.folder.clone(), self.messages.clone());
        notify::recommended_watcher(move |event| {
            let touched = folder::touched(&root, event);
            if touched != Touched::Nothing {
                let _ = messages.send(Message::Touched(touched));
            }
        })
    }

    fn watch_folder(&mut self, root: &Path, identity: (u64, u64)) {
        self.watched = Some(identity);
        let watcher = self.new_watcher().and_then(|mut watcher| {
            watcher.watch(root, RecursiveMode::Recursive)?;
            if let Some(parent) = root.parent() {
                // For a folder that is moved away or a link that is turned. Not vital.
                let _ = watcher.watch(parent, RecursiveMode::NonRecursive);
            }
            Ok(watcher)
        });
        self.keep_watcher(watcher);
    }

    fn watch_parent(&mut self) {
        let Some(parent) = self.config.folder.parent() else { return };
        let watcher = self.new_watcher().and_then(|mut watcher| {
            watcher.watch(parent, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        // Without it the folder is looked at from time to time.
        self.watcher = watcher.ok();
    }

    fn keep_watcher(&mut self, watcher: notify::Result<notify::RecommendedWatcher>) {
        if let Err(error) = &watcher {
            tracing::warn!(%error, rescan = ?self.config.rescan,
                "no events for the folder of rules; changes are seen at the next look");
        }
        self.watcher = watcher.ok();
    }

    // ---- files ----

    /// Puts a new state in a file's place and marks what that may change.
    fn replace(&mut self, path: &Path, new: Option<FileState>) {
        if let Some(old) = self.files.remove(path) {
            for (at, document) in old.documents.iter().enumerate() {
                let Some(id) = &document.id else { continue };
                if let Some(claims) = self.claims.get_mut(id) {
                    claims.remove(&(path.to_owned(), at));
                    if claims.is_empty() {
                        self.claims.remove(id);
                    }
                }
                self.affected.insert(id.clone());
            }
        }
        if let Some(ids) = self.by_file.get(path) {
            self.affected.extend(ids.iter().cloned());
        }
        if let Some(new) = new {
            for (at, document) in new.documents.iter().enumerate() {
                if let Some(id) = &document.id {
                    self.claims.entry(id.clone()).or_default().insert((path.to_owned(), at));
                    self.affected.insert(id.clone());
                }
            }
            self.files.insert(path.to_owned(), new);
        }
        tracing::debug!(file = %path.display(), "rule file changed");
    }

    fn read(&mut self, root: &Path, path: &Path, signature: Signature, trust: Trust) {
        let known = self.files.get(path).filter(|file| {
            file.signature == Some(signature)
                && !file.racy
                && file.fault.is_none()
                && file.doubt.is_none()
        });
        if known.is_some() {
            return;
        }
        let (signature, bytes) = match folder::read(root, path) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.missing(path, self.config.missing_doubt, trust);
            }
            Err(error) => return self.fault(path, error.to_string()),
        };
        let racy = folder::racy(&signature);
        let content = Digest::of(&bytes);
        if let Some(file) = self.files.get_mut(path)
            && file.content == Some(content)
        {
            file.signature = Some(signature);
            file.racy = racy;
            return;
        }
        let format = folder::format(path).unwrap_or(Format::Yaml);
        let read = manifest::parse(self.config.kinds, &bytes, format);
        let empty = read.documents.is_empty() && read.syntax.is_none();
        if empty && trust == Trust::Doubtful && self.doubts(path, self.config.empty_doubt) {
            return;
        }
        let documents = read
            .documents
            .into_iter()
            .map(|document| Document {
                line: document.line,
                id: document.id,
                outcome: document.outcome.map(|resource| {
                    let digest = digest(&resource);
                    (resource, digest)
                }),
            })
            .collect();
        let file = FileState {
            signature: Some(signature),
            racy,
            content: Some(content),
            documents,
            syntax: read.syntax,
            fault: None,
            doubt: None,
        };
        self.replace(path, Some(file));
    }

    fn missing(&mut self, path: &Path, doubt: Duration, trust: Trust) {
        // What is known of a file without having been read comes from an earlier process;
        // after the first list its absence has been believed, or is held as a great loss.
        if !self.files.contains_key(path) && (self.listed || !self.by_file.contains_key(path)) {
            return;
        }
        if trust == Trust::Doubtful && self.doubts(path, doubt) {
            return;
        }
        self.replace(path, None);
    }

    /// Whether a file that seems to have nothing in it is still in doubt. Meanwhile what
    /// came from it stays, and what is found in another file counts.
    fn doubts(&mut self, path: &Path, doubt: Duration) -> bool {
        let now = Instant::now();
        match self.files.get(path).and_then(|file| file.doubt) {
            Some(until) => until > now,
            None if self.by_file.get(path).is_some_and(|ids| !ids.is_empty()) => {
                let file = FileState { doubt: Some(now + doubt), ..FileState::default() };
                self.replace(path, Some(file));
                true
            }
            None => false,
        }
    }

    fn fault(&mut self, path: &Path, why: String) {
        if self.files.get(path).is_some_and(|file| file.fault.as_ref() == Some(&why)) {
            return;
        }
        self.replace(path, Some(FileState { fault: Some(why), ..FileState::default() }));
    }

    // ---- decisions ----

    fn set_in_force(&mut self, stored: Stored) {
        let id = stored.resource.id.clone();
        let path = PathBuf::from(&*stored.origin.file);
        if let Some(old) = self.in_force.insert(id.clone(), stored) {
            self.unlink(&id, &old.origin);
        }
        self.by_file.entry(path).or_default().insert(id);
    }

    fn unlink(&mut self, id: &ResourceId, origin: &Origin) {
        let path = Path::new(&*origin.file);
        if let Some(ids) = self.by_file.get_mut(path) {
            ids.remove(id);
            if ids.is_empty() {
                self.by_file.remove(path);
            }
        }
    }

    /// Decides about everything affected. A great loss must last before it is believed.
    fn decide(&mut self, trust: Trust, believe_held: bool, events: &mut Vec<Event>) {
        let mut affected = std::mem::take(&mut self.affected);
        if believe_held {
            affected.append(&mut self.held);
            self.held_until = None;
        }
        let before = self.in_force.len();
        let mut gone = BTreeSet::new();
        self.state_problem = None;
        match self.state.restore(self.in_force.values()) {
            Ok(false) => {}
            Ok(true) => tracing::warn!(
                folder = %self.state.folder().display(),
                "the state folder was removed while in use; it is written again"
            ),
            Err(error) => {
                // Nothing is decided that could not be kept.
                self.affected.append(&mut affected);
                return self.state_refused(&error);
            }
        }
        for id in affected {
            match self.decide_one(&id, events) {
                Ok(true) => {
                    self.held.remove(&id);
                }
                Ok(false) => {
                    gone.insert(id);
                }
                Err(error) => self.state_failed(&error, id),
            }
        }
        if self.held.is_empty() {
            self.held_until = None;
        }
        if gone.is_empty() {
            return;
        }
        let great = before >= 20 && gone.len() * 2 > before;
        if trust == Trust::Doubtful && !believe_held && (self.held_until.is_some() || great) {
            if self.held_until.is_none() {
                tracing::warn!(
                    gone = gone.len(),
                    of = before,
                    "more than half of the rules are gone at once; looking again before believing it"
                );
                self.held_until = Some(Instant::now() + self.config.mass_doubt);
            }
            self.held.append(&mut gone);
            return;
        }
        for id in gone {
            self.held.remove(&id);
            match self.remove(&id) {
                Ok(revision) => events.push(Event::Remove { id, revision }),
                Err(error) => self.state_failed(&error, id),
            }
        }
    }

    fn state_failed(&mut self, error: &StoreError, id: ResourceId) {
        tracing::error!(%error, %id, "a change waits for the state folder");
        self.affected.insert(id);
        self.state_refused(error);
    }

    fn state_refused(&mut self, error: &StoreError) {
        self.next_rescan = Instant::now() + Duration::from_millis(500);
        self.state_problem = Some(StoreProblem {
            // The code stands in the problem already.
            message: error.to_string().trim_start_matches("RC0304: ").to_owned(),
            hint: "until then changes wait".into(),
            last_good_in_force: true,
            object: None,
            ..about_store(Code::StoreState)
        });
    }

    fn remove(&mut self, id: &ResourceId) -> Result<i64, StoreError> {
        let revision = self.state.next()?;
        self.state.forget(id)?;
        if let Some(old) = self.in_force.remove(id) {
            self.unlink(id, &old.origin);
        }
        Ok(revision)
    }

    /// Decides about one resource; false: it is gone, and yet to be removed.
    fn decide_one(&mut self, id: &ResourceId, events: &mut Vec<Event>) -> Result<bool, StoreError> {
        let old = self.in_force.get(id);
        let claims = self.claims.get(id);
        let mut only = claims.into_iter().flatten();
        match (only.next(), only.next()) {
            (None, _) => {
                let Some(old) = old else { return Ok(true) };
                let path = PathBuf::from(&*old.origin.file);
                let blind = path.ancestors().any(|p| self.blind.contains_key(p));
                match self.files.get(&path) {
                    Some(file) if file.opaque() => self.mark(id, false, events),
                    Some(file) if file.doubt.is_some() => {}
                    _ if blind => self.mark(id, false, events),
                    _ => return Ok(false),
                }
            }
            (Some((path, at)), None) => {
                let Some(document) = self.files.get(path).and_then(|f| f.documents.get(*at)) else {
                    return Ok(true);
                };
                let origin = Origin { file: path.to_string_lossy().into(), line: document.line };
                match &document.outcome {
                    Err(_) => self.mark(id, false, events),
                    Ok((resource, digest)) => {
                        let same = old.filter(|old| old.digest == *digest);
                        if same.is_some_and(|old| old.accepted && old.origin == origin) {
                            return Ok(true);
                        }
                        let moved = same.is_none_or(|old| old.origin.file != origin.file);
                        let kept = same.map(|old| (old.revision, old.resource.clone()));
                        let (resource, digest) = (resource.clone(), *digest);
                        let (revision, resource) = match kept {
                            Some(kept) => kept,
                            None => (self.state.next()?, resource),
                        };
                        let stored = Stored {
                            resource,
                            revision,
                            digest,
                            origin,
                            accepted: true,
                            version: Version::default(),
                        };
                        // Kept before anybody sees it, so that a restart cannot know less.
                        if moved {
                            self.state.keep(&stored)?;
                        }
                        events.push(Event::Upsert(stored.clone()));
                        self.set_in_force(stored);
                    }
                }
            }
            (Some(_), Some(_)) => self.mark(id, false, events),
        }
        Ok(true)
    }

    /// Says of a resource in force whether what is stored is it.
    fn mark(&mut self, id: &ResourceId, accepted: bool, events: &mut Vec<Event>) {
        if let Some(stored) = self.in_force.get_mut(id)
            && stored.accepted != accepted
        {
            stored.accepted = accepted;
            events.push(Event::Upsert(stored.clone()));
        }
    }

    // ---- what others learn ----

    fn all_problems(&self) -> Vec<StoreProblem> {
        let mut all: Vec<_> = self.state_problem.iter().cloned().collect();
        for (path, why) in &self.blind {
            all.push(StoreProblem {
                file: path.to_string_lossy().into(),
                message: format!("it cannot be read: {why}"),
                hint: "make it readable for this user".into(),
                last_good_in_force: self.by_file.keys().any(|p| p.starts_with(path)),
                object: None,
                ..about_store(Code::StoreFile)
            });
        }
        for (path, file) in &self.files {
            let name = path.to_string_lossy();
            // What a reader could not see in it is what came from it and is not accepted.
            let held = || self.by_file.get(path).is_some_and(|ids| !ids.is_empty());
            if let Some(why) = &file.fault
                && !path.ancestors().any(|p| self.blind.contains_key(p))
            {
                all.push(StoreProblem {
                    file: name.clone().into(),
                    message: format!("it cannot be read: {why}"),
                    hint: "make it readable for this user".into(),
                    last_good_in_force: held(),
                    object: None,
                    ..about_store(Code::StoreFile)
                });
            }
            for (place, document) in file.documents.iter().enumerate() {
                let in_force = document.id.as_ref().map(|id| self.in_force.contains_key(id));
                let in_force = in_force.unwrap_or_else(held);
                for problem in document.outcome.as_ref().err().into_iter().flatten() {
                    all.push(of_document(&name, problem, in_force));
                }
                let Some(id) = &document.id else { continue };
                let others: Vec<String> = self
                    .claims
                    .get(id)
                    .into_iter()
                    .flatten()
                    .filter(|(other, at)| !(other == path && *at == place))
                    .filter_map(|(other, at)| {
                        let line = self.files.get(other)?.documents.get(*at)?.line;
                        Some(format!("{}:{line}", other.display()))
                    })
                    .collect();
                if !others.is_empty() {
                    all.push(StoreProblem {
                        file: name.clone().into(),
                        line: document.line,
                        column: 1,
                        field: "metadata.name".into(),
                        value: Some(id.name.clone()),
                        message: format!(
                            "{id} is written more than once: in {name}:{} and in {}",
                            document.line,
                            others.join(", ")
                        ),
                        hint: if in_force {
                            "keep one; until then the version before stays in force".into()
                        } else {
                            "keep one; until then none is in force".into()
                        },
                        resource: id.to_string(),
                        last_good_in_force: in_force,
                        object: None,
                        ..about_store(Code::ManifestDuplicate)
                    });
                }
            }
            if let Some(problem) = &file.syntax {
                all.push(of_document(&name, problem, held()));
            }
        }
        all
    }

    fn publish(&mut self, mut events: Vec<Event>, first: bool) {
        let problems = self.all_problems();
        if *problems != *self.problems {
            for problem in problems.iter().filter(|p| !self.problems.contains(p)) {
                tracing::warn!(%problem, "rule file");
            }
            self.problems = problems.into();
            events.push(Event::Problems(self.problems.clone()));
        }
        if first {
            // Whoever watches already has no list yet.
            self.subscribers.iter_mut().for_each(|s| s.behind = true);
        } else if !events.is_empty() {
            for subscriber in self.subscribers.iter_mut().filter(|s| !s.behind) {
                if let Err(channel::error::TrySendError::Full(_)) =
                    subscriber.sender.try_send(events.clone())
                {
                    subscriber.behind = true;
                }
            }
        }
        self.catch_up();
    }

    /// Gives a new list to whoever has missed something.
    fn catch_up(&mut self) {
        self.subscribers.retain(|s| !s.sender.is_closed());
        if self.subscribers.iter().any(|s| s.behind && s.sender.capacity() > 0) {
            let list = self.list();
            for subscriber in self.subscribers.iter_mut().filter(|s| s.behind) {
                subscriber.behind = subscriber.sender.try_send(list.clone()).is_err();
            }
        }
    }

    fn list(&self) -> Vec<Event> {
        let mut events = Vec::new();
        if self.listed {
            events.push(Event::Listing);
            events.extend(self.in_force.values().cloned().map(Event::Upsert));
            events.push(Event::Listed { revision: self.state.revision() });
        }
        events.push(Event::Problems(self.problems.clone()));
        events.extend(self.down.clone().map(Event::Down));
        events
    }

    // ---- writes ----

    fn expect(&self, id: &ResourceId, expected: Expected) -> Result<(), StoreError> {
        let found = self.in_force.get(id).map(|stored| stored.revision);
        let fits = match expected {
            Expected::Any => true,
            Expected::Absent => found.is_none(),
            Expected::Revision(revision) => found == Some(revision),
        };
        if fits {
            return Ok(());
        }
        let shown = |revision| format!("at revision {revision}");
        Err(StoreError::Conflict {
            id: id.clone(),
            expected: match expected {
                Expected::Revision(revision) => shown(revision),
                _ => "absent".into(),
            },
            found: found.map_or_else(|| "absent".into(), shown),
        })
    }

    /// Where a resource stands, if it can be rewritten there.
    fn place(&self, id: &ResourceId) -> Result<Option<(PathBuf, usize)>, StoreError> {
        let unwritable = |path: &str, reason: &str| {
            Err(StoreError::Unwritable { path: path.into(), reason: reason.into() })
        };
        if let Some(problem) = &self.down {
            return Err(StoreError::Down {
                folder: self.config.folder.clone(),
                reason: problem.message.clone(),
            });
        }
        let claims: Vec<_> = self.claims.get(id).into_iter().flatten().collect();
        match (claims.as_slice(), self.in_force.get(id)) {
            ([], None) => Ok(None),
            ([], Some(stored)) => {
                unwritable(&stored.origin.file, "the file cannot be read; mend it by hand first")
            }
            ([(path, at)], _) => {
                let broken = self.files.get(path).is_some_and(|file| file.syntax.is_some());
                if broken {
                    return unwritable(
                        &path.to_string_lossy(),
                        "the file cannot be read to its end; mend it by hand first",
                    );
                }
                Ok(Some((path.clone(), *at)))
            }
            ([(path, _), ..], _) => unwritable(
                &path.to_string_lossy(),
                "the resource is written more than once; remove one by hand first",
            ),
        }
    }

    /// Brings what is known up to date before a write builds on it.
    fn settle(&mut self) {
        self.scan(None, Trust::Doubtful);
    }

    fn put(&mut self, resource: &Resource, expected: Expected) -> Result<i64, StoreError> {
        let id = &resource.id;
        self.settle();
        self.expect(id, expected)?;
        let digest = digest(resource);
        let place = self.place(id)?;
        let current = self.in_force.get(id).filter(|s| s.digest == digest && s.accepted);
        if let Some(stored) = current {
            return Ok(stored.revision);
        }
        let value = manifest::to_json(resource);
        let path = match place {
            Some((path, at)) => {
                self.rewrite(&path, at, Some(&value))?;
                path
            }
            None => {
                let path = new_path(id);
                if self.files.contains_key(&path) {
                    return Err(StoreError::Unwritable {
                        path: path.to_string_lossy().into(),
                        reason: "the file is there, with something else in it; move that".into(),
                    });
                }
                self.write(&path, &manifest::to_yaml(&value))?;
                path
            }
        };
        self.scan(Some(BTreeSet::from([path.clone()])), Trust::Full);
        match self.in_force.get(id).filter(|s| s.digest == digest && s.accepted) {
            Some(stored) => Ok(stored.revision),
            None => Err(StoreError::Unwritable {
                path: path.to_string_lossy().into(),
                reason: "what was written does not read back; look at the store's problems".into(),
            }),
        }
    }

    fn delete(&mut self, id: &ResourceId, expected: Expected) -> Result<i64, StoreError> {
        self.settle();
        self.expect(id, expected)?;
        let Some((path, at)) = self.place(id)? else { return Ok(self.state.revision()) };
        self.rewrite(&path, at, None)?;
        self.scan(Some(BTreeSet::from([path])), Trust::Full);
        Ok(self.state.revision())
    }

    /// Replaces one document of a file; the file goes with its only one.
    fn rewrite(&self, path: &Path, at: usize, value: Option<&Value>) -> Result<(), StoreError> {
        let unwritable =
            |reason: String| StoreError::Unwritable { path: path.to_string_lossy().into(), reason };
        let lines: Vec<u32> = self
            .files
            .get(path)
            .map(|file| file.documents.iter().map(|document| document.line).collect())
            .unwrap_or_default();
        let root = &self.config.folder;
        let Some(value) = value.map(|value| (value, manifest::to_yaml(value))) else {
            if lines.len() == 1 {
                return std::fs::remove_file(root.join(path))
                    .map_err(|error| unwritable(error.to_string()));
            }
            return self.edit(path, &lines, at, None);
        };
        let (value, yaml) = value;
        if lines.len() > 1 {
            return self.edit(path, &lines, at, Some(&yaml));
        }
        match folder::format(path) {
            Some(Format::Json) => self.write(path, &format!("{value:#}\n")),
            _ => self.write(path, &yaml),
        }
    }

    fn edit(
        &self,
        path: &Path,
        lines: &[u32],
        at: usize,
        new: Option<&str>,
    ) -> Result<(), StoreError> {
        let unwritable =
            |reason: String| StoreError::Unwritable { path: path.to_string_lossy().into(), reason };
        let text = std::fs::read_to_string(self.config.folder.join(path))
            .map_err(|error| unwritable(error.to_string()))?;
        let edited = lines
            .get(at)
            .filter(|_| !text.trim_start().starts_with(['{', '[']))
            .and_then(|line| edit::replace(&text, lines, *line, new))
            .ok_or_else(|| {
                unwritable("the resource is one of a list there; change it by hand".into())
            })?;
        self.write(path, &edited)
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), StoreError> {
        let full = self.config.folder.join(path);
        let outcome = full
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            // Through a link, what it leads to is changed.
            .and_then(|()| if full.exists() { full.canonicalize() } else { Ok(full.clone()) })
            .and_then(|full| state::write(&full, text.as_bytes(), Durable::Power));
        outcome.map_err(|error| StoreError::Unwritable {
            path: path.to_string_lossy().into(),
            reason: error.to_string(),
        })
    }
}

/// The file of a resource that has none yet.
fn new_path(id: &ResourceId) -> PathBuf {
    // A file's name has at most 255 bytes.
    let name = if id.name.len() > 200 {
        format!(
            "{}-{}",
            id.name.get(..180).unwrap_or_default(),
            Digest::of(id.name.as_bytes()).short()
        )
    } else {
        id.name.clone()
    };
    Path::new(id.kind.plural).join(&id.namespace).join(format!("{name}.yaml"))
}

fn about_store(code: Code) -> StoreProblem {
    StoreProblem {
        file: String::new(),
        line: 0,
        column: 0,
        code,
        field: String::new(),
        value: None,
        message: String::new(),
        hint: String::new(),
        resource: String::new(),
        last_good_in_force: false,
        object: None,
    }
}

fn of_document(file: &str, problem: &Problem, last_good_in_force: bool) -> StoreProblem {
    StoreProblem {
        file: file.into(),
        line: problem.line,
        column: problem.column,
        code: problem.code,
        field: problem.field.clone(),
        value: problem.value.clone(),
        message: problem.message.clone(),
        hint: problem.hint.clone(),
        resource: problem.resource.clone(),
        last_good_in_force,
        object: None,
    }
}
