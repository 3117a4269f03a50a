use std::{
    collections::BTreeMap,
    fs,
    future::Future,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rulecast_api::Code;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{FileStore, FileStoreConfig};
use crate::{
    index::{Index, Snapshot},
    store::{
        Store, StoreError,
        conformance::{self, KINDS, value},
    },
};

const DEADLINE: Duration = Duration::from_secs(10);

/// A folder of rules, and a store over it that an index follows.
struct Plane {
    root: TempDir,
    config: FileStoreConfig,
    index: Index,
    // Dropped before the folder is.
    running: Option<(std::sync::Arc<FileStore>, CancellationToken, tokio::task::JoinHandle<()>)>,
}

impl Plane {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let rules = root.path().join("rules");
        fs::create_dir(&rules).expect("a folder");
        let mut config = FileStoreConfig::new(rules, root.path().join("state"), KINDS);
        config.empty_doubt = Duration::from_millis(400);
        config.mass_doubt = Duration::from_millis(600);
        Self { root, config, index: Index::new(KINDS, "".into()), running: None }
    }

    fn start(&mut self) {
        let store = std::sync::Arc::new(FileStore::open(self.config.clone()).expect("opens"));
        self.index = Index::new(KINDS, store.lineage());
        let shutdown = CancellationToken::new();
        let run = self.index.clone().run(store.clone(), shutdown.clone());
        let task = tokio::spawn(async move {
            run.await.expect("the store lives");
        });
        self.running = Some((store, shutdown, task));
    }

    async fn started() -> Self {
        let mut plane = Self::new();
        plane.start();
        plane.until("listed", |s| s.listed).await;
        plane
    }

    async fn stop(&mut self) {
        if let Some((store, shutdown, task)) = self.running.take() {
            shutdown.cancel();
            task.await.expect("ends");
            drop(store);
        }
    }

    async fn restart(&mut self) {
        self.stop().await;
        self.start();
        self.until("listed", |s| s.listed).await;
    }

    fn path(&self, file: &str) -> PathBuf {
        self.config.folder.join(file)
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.path(file), text).expect("writes");
    }

    fn replace(&self, file: &str, text: &str) {
        let temporary = self.path(".temporary");
        fs::write(&temporary, text).expect("writes");
        fs::rename(temporary, self.path(file)).expect("renames");
    }

    async fn until(&self, what: &str, condition: impl Fn(&Snapshot) -> bool) -> Duration {
        let mut changes = self.index.changes();
        let start = Instant::now();
        let reached = async {
            while !condition(&self.index.snapshot()) {
                changes.changed().await.expect("the index lives");
            }
        };
        if tokio::time::timeout(DEADLINE, reached).await.is_err() {
            let s = self.index.snapshot();
            panic!(
                "{what}: not within {DEADLINE:?}: {:?} {:?} {:?}",
                rules_of(&s),
                s.problems,
                s.down
            );
        }
        start.elapsed()
    }

    async fn until_rules(&self, what: &str, rules: &[(&str, u64)]) -> Duration {
        let wanted: BTreeMap<String, u64> =
            rules.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        self.until(what, |s| rules_of(s) == wanted).await
    }

    /// Waits until the store has looked at everything written so far.
    async fn settled(&self, marker: u32) {
        self.replace("zz-marker.yaml", &rule("zz-marker", marker));
        let seen = |s: &Snapshot| rules_of(s).get("zz-marker") == Some(&u64::from(marker));
        self.until("the marker", seen).await;
    }
}

fn rules_of(snapshot: &Snapshot) -> BTreeMap<String, u64> {
    snapshot.rules().map(|s| (s.resource.id.name.clone(), value(s).expect("a value"))).collect()
}

fn rule(name: &str, value: u32) -> String {
    format!(
        "apiVersion: rulecast.io/v1alpha1\nkind: Probe\nmetadata:\n  name: {name}\n\
         spec:\n  key: com.A\n  value: {value}\n"
    )
}

fn run<F: Future<Output = ()>>(test: F) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(test);
}

#[test]
fn conforms() {
    let root = tempfile::tempdir().expect("a folder");
    let rules = root.path().join("rules");
    fs::create_dir(&rules).expect("a folder");
    let config = FileStoreConfig::new(rules, root.path().join("state"), KINDS);
    run(conformance::run(|| async { FileStore::open(config.clone()).expect("opens") }));
}

#[test]
fn every_way_of_writing_is_seen_soon() {
    run(async {
        let plane = Plane::started().await;
        plane.write("a.yaml", &rule("a", 1));
        plane.until_rules("a new file", &[("a", 1)]).await;
        plane.replace("a.yaml", &rule("a", 2));
        plane.until_rules("renamed over", &[("a", 2)]).await;
        plane.write("a.yaml", &rule("a", 3));
        let took = plane.until_rules("truncated and written", &[("a", 3)]).await;
        assert!(took < Duration::from_millis(500), "{took:?}");
        // As vim does: the old one moved away, the new one written.
        fs::rename(plane.path("a.yaml"), plane.path("a.yaml~")).expect("renames");
        plane.write("a.yaml", &rule("a", 4));
        plane.until_rules("with a backup", &[("a", 4)]).await;
        for ignored in [".b.yaml", "b.yaml~", "b.yaml.swp", "b.txt", "#b.yaml#"] {
            plane.write(ignored, &rule("b", 1));
        }
        // In new subfolders, all at once.
        fs::create_dir_all(plane.path("x/y")).expect("folders");
        plane.write("x/y/c.json", &format!("{{\t\"apiVersion\": \"rulecast.io/v1alpha1\", \"kind\": \"Probe\", \"metadata\": {{\"name\": \"c\"}}, \"spec\": {{\"key\": \"com.A\", \"value\": {}}}}}", 5));
        plane.until_rules("in a subfolder", &[("a", 4), ("c", 5)]).await;
        // From one file to another: never away.
        let revision = plane.index.snapshot().rules().next().expect("a").revision;
        fs::rename(plane.path("a.yaml"), plane.path("x/a.yml")).expect("renames");
        let moved = |s: &Snapshot| s.rules().any(|r| &*r.origin.file == "x/a.yml");
        plane.until("moved", moved).await;
        assert_eq!(plane.index.snapshot().rules().next().expect("a").revision, revision);
        fs::remove_dir_all(plane.path("x")).expect("removes");
        plane.until_rules("removed", &[]).await;
    });
}

#[test]
fn links_are_followed_when_they_turn() {
    run(async {
        let plane = Plane::started().await;
        // As Kubernetes mounts a ConfigMap.
        for (version, value) in [("..1", 1), ("..2", 2)] {
            fs::create_dir(plane.path(version)).expect("a folder");
            plane.write(&format!("{version}/a.yaml"), &rule("a", value));
        }
        symlink("..1", plane.path("..data")).expect("links");
        symlink("..data/a.yaml", plane.path("a.yaml")).expect("links");
        plane.until_rules("mounted", &[("a", 1)]).await;
        symlink("..2", plane.path("..data_tmp")).expect("links");
        fs::rename(plane.path("..data_tmp"), plane.path("..data")).expect("renames");
        plane.until_rules("turned", &[("a", 2)]).await;
        // A folder seen by two names is one.
        fs::create_dir(plane.path("real")).expect("a folder");
        symlink("real", plane.path("seen")).expect("links");
        plane.write("real/b.yaml", &rule("b", 1));
        plane.until_rules("by one name", &[("a", 2), ("b", 1)]).await;
        plane.write("real/b.yaml", &rule("b", 2));
        plane.until_rules("by one name still", &[("a", 2), ("b", 2)]).await;
        assert!(plane.index.snapshot().problems.is_empty());
    });
}

#[test]
fn the_folder_itself_may_be_a_link() {
    run(async {
        let mut plane = Plane::new();
        for (version, value) in [("v1", 1), ("v2", 2)] {
            let folder = plane.root.path().join(version);
            fs::create_dir(&folder).expect("a folder");
            fs::write(folder.join("a.yaml"), rule("a", value)).expect("writes");
        }
        let link = plane.root.path().join("current");
        symlink("v1", &link).expect("links");
        plane.config.folder = link.clone();
        plane.start();
        plane.until_rules("first", &[("a", 1)]).await;
        let next = plane.root.path().join("next");
        symlink("v2", &next).expect("links");
        fs::rename(next, link).expect("renames");
        plane.until_rules("turned", &[("a", 2)]).await;
        plane.write("a.yaml", &rule("a", 3));
        plane.until_rules("and watched", &[("a", 3)]).await;
    });
}

#[test]
fn a_bad_document_keeps_its_last_good_version() {
    run(async {
        let mut plane = Plane::started().await;
        let two = |b: &str| format!("{}---\n{b}", rule("a", 1));
        plane.write("f.yaml", &two(&rule("b", 1)));
        plane.until_rules("both", &[("a", 1), ("b", 1)]).await;
        let revision = plane.index.snapshot().revision;

        plane.write("f.yaml", &two(&rule("b", 2_000_000)));
        plane.until("reported", |s| !s.problems.is_empty()).await;
        for restarted in [false, true] {
            if restarted {
                plane.restart().await;
            }
            let s = plane.index.snapshot();
            assert_eq!(rules_of(&s), [("a".into(), 1), ("b".into(), 1)].into());
            let [problem] = &*s.problems else { panic!("{:?}", s.problems) };
            assert_eq!(
                (&*problem.file, problem.line, problem.column, problem.code),
                ("f.yaml", 15, 10, Code::FieldInvalid)
            );
            assert_eq!(problem.field, "spec.value");
            assert_eq!(problem.resource, "Probe b/default");
            assert!(problem.last_good_in_force && problem.hint.contains("1000000"));
            let accepted: Vec<bool> = s.rules().map(|r| r.accepted).collect();
            assert_eq!(accepted, [true, false]);
            assert!(s.rules().all(|r| r.revision <= revision), "nothing in force has changed");
            assert!(s.revision >= revision);
        }

        // Not even a document: all that came from the file stays.
        plane.write("f.yaml", "apiVersion: [");
        plane.until("reported", |s| s.rules().all(|r| !r.accepted)).await;
        plane.restart().await;
        plane.until_rules("kept", &[("a", 1), ("b", 1)]).await;
        let s = plane.index.snapshot();
        assert_eq!((s.problems.len(), s.problems[0].code), (1, Code::ManifestSyntax));
        assert!(s.problems[0].last_good_in_force);

        // A name that cannot be read may be of any of them.
        plane.write("f.yaml", &two(&rule("B", 3)));
        plane.until("reported", |s| s.problems.iter().any(|p| p.field == "metadata.name")).await;
        plane.until_rules("kept", &[("a", 1), ("b", 1)]).await;

        plane.write("f.yaml", &two(&rule("b", 4)));
        plane.until_rules("mended", &[("a", 1), ("b", 4)]).await;
        plane.until("no problems", |s| s.problems.is_empty()).await;
        plane.write("g.yaml", "kind: Prob\n");
        plane
            .until("none to keep", |s| {
                s.problems.iter().any(|p| p.file == "g.yaml" && !p.last_good_in_force)
            })
            .await;
        plane.write("f.yaml", &rule("a", 1));
        plane.until_rules("taken out", &[("a", 1)]).await;
    });
}

#[test]
fn two_of_one_name_are_an_error_of_both() {
    run(async {
        let mut plane = Plane::started().await;
        plane.write("a.yaml", &rule("x", 1));
        plane.until_rules("one", &[("x", 1)]).await;
        plane.write("b.yaml", &format!("# second\n{}", rule("x", 2)));
        plane.until("both are named", |s| s.problems.len() == 2).await;
        for restarted in [false, true] {
            if restarted {
                plane.restart().await;
            }
            let s = plane.index.snapshot();
            assert_eq!(rules_of(&s), [("x".into(), 1)].into());
            for (problem, place) in s.problems.iter().zip([("a.yaml", 1), ("b.yaml", 2)]) {
                assert_eq!((&*problem.file, problem.line), place);
                assert_eq!(problem.code, Code::ManifestDuplicate);
                assert!(problem.message.contains("a.yaml:1"), "{problem}");
                assert!(problem.message.contains("b.yaml:2"), "{problem}");
                assert!(problem.last_good_in_force);
            }
            assert!(s.rules().all(|r| !r.accepted));
        }
        fs::remove_file(plane.path("a.yaml")).expect("removes");
        plane.until_rules("the other one", &[("x", 2)]).await;
        plane.until("accepted", |s| s.problems.is_empty() && s.rules().all(|r| r.accepted)).await;

        // None before: none applies. Also twice in one list on one line.
        plane.replace("n.yaml", &format!("{}---\n{}", rule("n", 1), rule("n", 1)));
        plane.until("both are named", |s| s.problems.len() == 2).await;
        assert_eq!(rules_of(&plane.index.snapshot()), [("x".into(), 2)].into());
        assert!(plane.index.snapshot().problems.iter().all(|p| !p.last_good_in_force));
    });
}

#[test]
fn a_missing_folder_is_a_store_that_is_down() {
    run(async {
        let mut plane = Plane::new();
        fs::remove_dir(&plane.config.folder).expect("removes");
        plane.start();
        plane.until("down", |s| s.down.is_some()).await;
        assert!(!plane.index.snapshot().listed, "nothing is known");
        fs::create_dir(&plane.config.folder).expect("a folder");
        plane.write("a.yaml", &rule("a", 1));
        plane.write("b.yaml", &rule("b", 1));
        plane.until_rules("up", &[("a", 1), ("b", 1)]).await;
        assert!(plane.index.snapshot().down.is_none());

        let away = plane.root.path().join("away");
        fs::rename(&plane.config.folder, &away).expect("renames");
        plane.until("down", |s| s.down.is_some()).await;
        let s = plane.index.snapshot();
        assert_eq!(s.len(), 2);
        assert_eq!(s.down.as_ref().expect("down").code, Code::StoreDown);
        fs::remove_file(away.join("b.yaml")).expect("removes");
        fs::rename(&away, &plane.config.folder).expect("renames");
        plane.until("up", |s| s.down.is_none()).await;
        plane.until_rules("what is gone is gone", &[("a", 1)]).await;
        plane.write("a.yaml", &rule("a", 2));
        plane.until_rules("watched again", &[("a", 2)]).await;
    });
}

#[test]
fn an_empty_file_is_doubted() {
    run(async {
        let plane = Plane::started().await;
        plane.write("a.yaml", &rule("a", 1));
        plane.until_rules("there", &[("a", 1)]).await;
        plane.write("a.yaml", "");
        plane.settled(1).await;
        assert!(rules_of(&plane.index.snapshot()).contains_key("a"));
        plane.write("a.yaml", &rule("a", 2));
        plane.until_rules("written late", &[("a", 2), ("zz-marker", 1)]).await;
        plane.write("a.yaml", "# nothing\n");
        let took = plane.until_rules("believed", &[("zz-marker", 1)]).await;
        assert!(took >= Duration::from_millis(300), "{took:?}");
    });
}

#[test]
fn a_great_loss_is_looked_at_twice() {
    run(async {
        let mut plane = Plane::started().await;
        let names: Vec<String> = (0..30).map(|n| format!("r{n:02}")).collect();
        for name in &names {
            plane.write(&format!("{name}.yaml"), &rule(name, 1));
        }
        plane.until("all", |s| s.len() == 30).await;
        // It comes back: nothing was ever away.
        remove(&plane, &names[10..]);
        plane.settled(1).await;
        assert_eq!(plane.index.snapshot().len(), 31);
        let revision = plane.index.snapshot().revision;
        for name in &names[10..] {
            plane.write(&format!("{name}.yaml"), &rule(name, 1));
        }
        plane.settled(2).await;
        assert_eq!(plane.index.snapshot().revision, revision + 1);
        // It lasts: it is believed, also where it happened while the plane was down.
        remove(&plane, &names[25..]);
        plane.until("few are believed", |s| s.len() == 26).await;
        plane.stop().await;
        remove(&plane, &names[3..25]);
        plane.start();
        plane.until("listed", |s| s.listed).await;
        assert_eq!(plane.index.snapshot().len(), 26, "not at once");
        plane.until("believed", |s| s.len() == 4).await;
    });
}

fn remove(plane: &Plane, names: &[String]) {
    for name in names {
        fs::remove_file(plane.path(&format!("{name}.yaml"))).expect("removes");
    }
}

#[test]
fn the_same_content_is_no_change() {
    run(async {
        let plane = Plane::started().await;
        plane.write("a.yaml", &rule("a", 1));
        plane.until_rules("there", &[("a", 1)]).await;
        plane.settled(1).await;
        let before = plane.index.snapshot();
        for _ in 0..5 {
            plane.replace("a.yaml", &rule("a", 1));
            plane.write("a.yaml", &rule("a", 1));
        }
        // Written otherwise, and still the same.
        plane.replace(
            "a.yaml",
            "{apiVersion: rulecast.io/v1alpha1, kind: Probe, metadata: {name: a, namespace: default}, spec: {value: 0x1, key: com.A, enabled: true}}",
        );
        plane.settled(2).await;
        let after = plane.index.snapshot();
        assert_eq!(after.revision, before.revision + 1, "only the marker");
        let revision = |s: &Snapshot| s.rules().next().map(|r| r.revision);
        assert_eq!(revision(&after), revision(&before));
    });
}

#[test]
fn revisions_never_go_back_within_a_lineage() {
    run(async {
        let mut plane = Plane::started().await;
        let mut last = 0;
        let lineage = plane.index.snapshot().lineage.clone();
        for round in 1..4 {
            plane.write("a.yaml", &rule("a", round));
            plane.until_rules("changed", &[("a", u64::from(round))]).await;
            let revision = plane.index.snapshot().revision;
            assert!(revision > last);
            last = revision;
            // What a kill leaves: the state folder as it is now.
            let copy = plane.root.path().join(format!("copy{round}"));
            copy_folder(&plane.config.state, &copy);
            plane.stop().await;
            plane.config.state = copy;
            plane.start();
            plane.until_rules("listed", &[("a", u64::from(round))]).await;
            let s = plane.index.snapshot();
            assert_eq!(s.lineage, lineage);
            assert!(s.revision >= last);
            assert_eq!(s.rules().next().map(|r| r.revision), Some(revision), "kept its own");
            last = s.revision;
        }
        // Lost, or damaged: another lineage.
        plane.stop().await;
        fs::write(plane.config.state.join("lineage.json"), "{").expect("writes");
        plane.start();
        plane.until_rules("listed", &[("a", 3)]).await;
        let second = plane.index.snapshot().lineage.clone();
        assert_ne!(second, lineage);
        plane.stop().await;
        fs::remove_dir_all(&plane.config.state).expect("removes");
        plane.start();
        plane.until_rules("listed", &[("a", 3)]).await;
        assert_ne!(plane.index.snapshot().lineage, second);
    });
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("reads") {
        let entry = entry.expect("reads");
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("copies");
        }
    }
}

#[test]
fn damaged_state_is_ignored_and_a_used_one_refused() {
    run(async {
        let mut plane = Plane::started().await;
        plane.write("a.yaml", &rule("a", 1));
        plane.until_rules("there", &[("a", 1)]).await;
        let second = FileStore::open(plane.config.clone()).expect_err("in use");
        assert!(matches!(second, StoreError::Locked { .. }), "{second}");
        plane.stop().await;
        for entry in fs::read_dir(plane.config.state.join("accepted")).expect("reads") {
            let path = entry.expect("reads").path();
            let text = fs::read_to_string(&path).expect("reads");
            fs::write(&path, text.replace("\"value\":1", "\"value\":9")).expect("writes");
        }
        plane.write("a.yaml", "kind: [");
        plane.start();
        plane.until("listed", |s| s.listed && !s.problems.is_empty()).await;
        assert!(plane.index.snapshot().is_empty(), "a version nobody wrote is not served");

        plane.stop().await;
        let mut config = plane.config.clone();
        config.state = config.folder.join("state");
        let inside = FileStore::open(config.clone()).expect_err("inside");
        assert_eq!(inside.code(), Code::StoreState);
        config.state = config.folder.join(".state");
        FileStore::open(config).expect("hidden is fine");
    });
}

#[test]
fn a_state_folder_that_was_removed_is_written_again() {
    run(async {
        let mut plane = Plane::new();
        plane.config.rescan = Duration::from_millis(50);
        plane.start();
        plane.write("a.yaml", &rule("a", 1));
        plane.until_rules("accepted", &[("a", 1)]).await;
        let lineage = plane.index.snapshot().lineage.clone();
        fs::remove_dir_all(&plane.config.state).expect("removes");
        plane.write("b.yaml", &rule("b", 1));
        plane.until_rules("goes on", &[("a", 1), ("b", 1)]).await;
        let second = FileStore::open(plane.config.clone());
        assert!(matches!(second, Err(StoreError::Locked { .. })), "{second:?}");
        plane.write("a.yaml", "spec: [");
        plane.restart().await;
        plane.until_rules("the last good one", &[("a", 1), ("b", 1)]).await;
        assert_eq!(plane.index.snapshot().lineage, lineage);
    });
}

#[test]
fn names_that_are_no_text_are_said_and_read_from_nowhere() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};
    run(async {
        let plane = Plane::started().await;
        let folder = plane.config.folder.join(OsStr::from_bytes(b"d\xff"));
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("a.yaml"), rule("a", 1)).expect("writes");
        fs::write(plane.config.folder.join(OsStr::from_bytes(b"\xff.yaml")), rule("b", 1))
            .expect("writes");
        plane.write("line\n\u{1b}[31m.yaml", "spec: [");
        plane.write("C.YAML", &rule("c", 1));
        let told = |s: &Snapshot| {
            s.problems.iter().filter(|p| p.message.contains("not UTF-8")).count() >= 2
                && s.problems.iter().any(|p| p.to_string().contains("line\\n\\u{1b}[31m.yaml"))
        };
        plane.until("told", told).await;
        plane.until_rules("and in capitals", &[("c", 1)]).await;
    });
}

#[test]
fn a_burst_ends_equal_to_the_folder_also_over_a_restart() {
    run(async {
        let mut plane = Plane::started().await;
        let mut random = fastrand::Rng::with_seed(7);
        let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
        for change in 0..1000_u32 {
            let name = format!("r{}", random.u32(0..120));
            let file = format!("{name}.yaml");
            if random.u32(0..4) == 0 && wanted.remove(&name).is_some() {
                fs::remove_file(plane.path(&file)).expect("removes");
            } else {
                match random.bool() {
                    true => plane.write(&file, &rule(&name, change)),
                    false => plane.replace(&file, &rule(&name, change)),
                }
                wanted.insert(name, u64::from(change));
            }
            if change == 500 {
                plane.restart().await;
            }
        }
        plane.until("equal", |s| rules_of(s) == wanted).await;
        plane.until("no problems", |s| s.problems.is_empty()).await;
    });
}

#[test]
fn writes_leave_the_rest_of_a_file_as_it_is() {
    run(async {
        let plane = Plane::started().await;
        let text = format!("# ours\n{}--- # second\n{}", rule("a", 1), rule("b", 1));
        plane.write("f.yaml", &text);
        plane.until_rules("there", &[("a", 1), ("b", 1)]).await;
        let (store, ..) = plane.running.as_ref().expect("running");
        let changed = conformance::resource("b", "default", "com.A", 2);
        store.put(changed, crate::store::Expected::Any).await.expect("puts");
        let now = fs::read_to_string(plane.path("f.yaml")).expect("reads");
        assert!(now.starts_with(&format!("# ours\n{}---\n", rule("a", 1))), "{now}");
        plane.until_rules("changed", &[("a", 1), ("b", 2)]).await;
        let id = conformance::resource("b", "default", "com.A", 2).id;
        store.delete(id, crate::store::Expected::Any).await.expect("deletes");
        plane.until_rules("deleted", &[("a", 1)]).await;
        let now = fs::read_to_string(plane.path("f.yaml")).expect("reads");
        assert_eq!(now, format!("# ours\n{}", rule("a", 1)));
    });
}
