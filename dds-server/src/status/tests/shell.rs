//! The shell, with tokio's clock held: a minute takes no time.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant as Clock, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::store::{Expected, Store, StoreError, Watch};
use rulecast_api::Resource;

/// Keeps status in memory.
#[derive(Default)]
struct Shelf {
    statuses: Mutex<HashMap<ResourceId, Value>>,
    writes: Mutex<Vec<(Clock, ResourceId)>>,
    reads: AtomicUsize,
    /// Answers nothing.
    silent: std::sync::atomic::AtomicBool,
    waiting: Arc<AtomicUsize>,
}

/// Counts calls that wait, until they are dropped.
struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shelf {
    async fn answer(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(self.waiting.clone());
        if self.silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        sleep(ms(20)).await;
    }

    fn status(&self, name: &str) -> Option<RuleStatus> {
        let statuses = self.statuses.lock().expect("whole");
        statuses.get(&id(name)).map(|v| serde_json::from_value(v.clone()).expect("valid"))
    }

    fn written(&self) -> usize {
        self.writes.lock().expect("whole").len()
    }
}

impl Store for Shelf {
    fn lineage(&self) -> Arc<str> {
        "l".into()
    }

    fn watch(&self) -> Watch {
        Watch::new(mpsc::channel(1).1)
    }

    fn put(&self, _: Resource, _: Expected) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(async { Err(StoreError::Ended) })
    }

    fn delete(&self, _: ResourceId, _: Expected) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(async { Err(StoreError::Ended) })
    }

    fn write_status(&self, id: ResourceId, status: Value) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.writes.lock().expect("whole").push((Clock::now(), id.clone()));
            self.answer().await;
            self.statuses.lock().expect("whole").insert(id, status);
            Ok(())
        })
    }

    fn read_status(&self, id: ResourceId) -> BoxFuture<'_, Result<Option<Value>, StoreError>> {
        Box::pin(async move {
            self.reads.fetch_add(1, Ordering::SeqCst);
            self.answer().await;
            Ok(self.statuses.lock().expect("whole").get(&id).cloned())
        })
    }
}

struct Running {
    /// Its planner stays unused.
    bench: Bench,
    shelf: Arc<Shelf>,
    lead: watch::Sender<bool>,
    shutdown: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Running {
    fn start() -> Self {
        let index = Index::new(KINDS, "l".into());
        index.apply(vec![Event::Listing, Event::Listed { revision: 1 }]);
        let bench = Bench::over(index, HashMap::new());
        let shelf = Arc::new(Shelf::default());
        let (lead, leads) = watch::channel(true);
        let shutdown = CancellationToken::new();
        let (store, config) = (shelf.clone() as Arc<dyn Store>, StatusConfig::default());
        let (views, rollout) = (bench.views.clone(), bench.rollout.clone());
        let status = crate::status::run(store, views, rollout, leads, config, shutdown.clone());
        let views = bench.views.clone().run(shutdown.clone());
        let tasks = vec![tokio::spawn(status), tokio::spawn(views)];
        Self { bench, shelf, lead, shutdown, tasks }
    }

    fn rule(&mut self, name: &str, generation: i64) {
        let value = u32::try_from(generation).expect("small");
        let stored = self.bench.stored(name, generation, value);
        self.bench.index.apply(vec![Event::Upsert(stored)]);
    }

    async fn until(&self, what: &str, holds: impl Fn(&Shelf) -> bool) {
        let wait = async {
            while !holds(&self.shelf) {
                sleep(ms(10)).await;
            }
        };
        timeout(secs(60), wait).await.unwrap_or_else(|_| panic!("{what}"));
    }

    async fn stop(self) {
        self.shutdown.cancel();
        for task in self.tasks {
            timeout(secs(5), task).await.expect("in time").expect("without a panic");
        }
    }
}

fn now() -> Instant {
    Clock::now().into_std()
}

#[tokio::test(start_paused = true)]
async fn a_rule_s_way_to_its_status_takes_less_than_two_seconds() {
    let mut running = Running::start();
    let mut client = running.bench.connect("app");
    client.applies(now(), &[]);
    running.rule("a", 1);
    client.place.changed().await;
    client.view(now());
    let counts = |shelf: &Shelf| shelf.status("a").map(|s| (s.matched, s.applied));
    let begun = Clock::now();
    running.until("pending", |shelf| counts(shelf) == Some((1, 0))).await;
    assert!(begun.elapsed() < secs(2), "{:?}", begun.elapsed());
    client.applies(now(), &[]);
    let begun = Clock::now();
    running.until("applied", |shelf| counts(shelf) == Some((1, 1))).await;
    assert!(begun.elapsed() < secs(2), "{:?}", begun.elapsed());
    // From here on nothing happens.
    sleep(secs(60)).await;
    assert_eq!((running.shelf.written(), running.shelf.reads.load(Ordering::SeqCst)), (2, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_becomes_late_though_nothing_happens() {
    let mut running = Running::start();
    let mut client = running.bench.connect("app");
    client.applies(now(), &[]);
    running.rule("a", 1);
    client.place.changed().await;
    client.view(now());
    sleep(secs(12)).await;
    let status = running.shelf.status("a").expect("a status");
    let programmed = status.conditions.iter().find(|c| c.kind == PROGRAMMED).expect("it");
    assert_eq!((programmed.status, programmed.reason.as_str()), (False, "Lagging"));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn with_the_lead_goes_what_is_under_way() {
    let mut running = Running::start();
    running.rule("a", 1);
    running.until("written", |shelf| shelf.written() == 1).await;
    running.until("stands", |shelf| shelf.status("a").is_some()).await;
    running.shelf.silent.store(true, Ordering::SeqCst);
    sleep(secs(1)).await;
    running.rule("a", 2);
    running.until("under way", |shelf| shelf.written() == 2).await;
    assert_eq!(running.shelf.waiting.load(Ordering::SeqCst), 1);
    running.lead.send_replace(false);
    running.until("dropped", |shelf| shelf.waiting.load(Ordering::SeqCst) == 0).await;
    running.shelf.silent.store(false, Ordering::SeqCst);
    running.rule("b", 1);
    sleep(secs(60)).await;
    assert_eq!(running.shelf.written(), 2, "another leads");
    running.lead.send_replace(true);
    running
        .until("both", |shelf| {
            let generation = |name| shelf.status(name).map(|s| s.observed_generation);
            (generation("a"), generation("b")) == (Some(2), Some(1))
        })
        .await;
    assert_eq!(running.shelf.written(), 4);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_asked_again() {
    let mut running = Running::start();
    running.shelf.silent.store(true, Ordering::SeqCst);
    running.rule("a", 1);
    sleep(secs(30)).await;
    let asked = running.shelf.reads.load(Ordering::SeqCst);
    assert!((2..=3).contains(&asked), "{asked}: each waits for ten seconds");
    running.shelf.silent.store(false, Ordering::SeqCst);
    running.until("written", |shelf| shelf.status("a").is_some()).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_hundred_rules_are_written_at_twenty_a_second() {
    let mut running = Running::start();
    let begun = Clock::now();
    for n in 0..200 {
        running.rule(&n.to_string(), 1);
    }
    running.until("all", |shelf| shelf.written() == 200).await;
    let took = begun.elapsed();
    assert!((secs(9)..secs(12)).contains(&took), "{took:?}");
    let writes = running.shelf.writes.lock().expect("whole").clone();
    for window in writes.windows(21) {
        assert!(window[20].0 - window[0].0 >= secs(1), "more than 20 in a second");
    }
    running.stop().await;
}
