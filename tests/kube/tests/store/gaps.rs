//! What happens while nobody looks.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kube::client::Body;
use rulecast_cluster::ClusterConfig;
use rulecast_dds::store::Event;
use rulecast_kube_tests::{Cluster, Proxy};

use crate::site::{DEADLINE, Followed, Site, holds, values};

/// A half-open connection must be noticed within this.
const NOTICED: Duration = Duration::from_secs(30);

/// The client that the plane uses.
pub(crate) async fn connect(kubeconfig: &Path) -> kube::Client {
    let config = ClusterConfig { kubeconfig: Some(kubeconfig.to_owned()), context: None };
    rulecast_cluster::connect(&config).await.expect("the kubeconfig can be used")
}

/// A client that shows each request to `hook` before it is sent.
fn hooked(
    client: kube::Client,
    hook: impl Fn(&mut http::Request<Body>) + Clone + Send + 'static,
) -> kube::Client {
    let service = tower::service_fn(move |mut request: http::Request<Body>| {
        hook(&mut request);
        let client = client.clone();
        async move { client.send(request).await }
    });
    kube::Client::new(service, "default")
}

/// Makes a watch begin where no server has any history, so that it is answered by 410.
fn age(request: &mut http::Request<Body>) {
    let uri = request.uri().to_string();
    let Some(at) = uri.find("resourceVersion=").filter(|_| is_watch(&uri)) else { return };
    let at = at + "resourceVersion=".len();
    let rest = uri[at..].find('&').map_or("", |end| &uri[at + end..]);
    *request.uri_mut() = format!("{}1{rest}", &uri[..at]).parse().expect("still a URI");
}

fn is_watch(uri: &str) -> bool {
    uri.contains("watch=true")
}

/// Whether a request asks for a page after the first.
fn continues(request: &http::Request<Body>) -> bool {
    request.uri().query().is_some_and(|query| query.contains("continue="))
}

fn removed(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::Remove { .. })).count()
}

/// Nobody gets through, and whoever was is out.
fn close(proxy: &Proxy) {
    proxy.refuse(true);
    proxy.cut();
}

#[tokio::test]
async fn what_changes_during_a_gap_is_learnt_after_it() {
    let cluster = Cluster::shared().await.expect("server");
    let site = Site::new(&cluster, "gap").await;
    let proxy = Proxy::start(cluster.addr()).await.expect("proxy");
    for (name, value) in [("changed", 1), ("gone", 1), ("same", 1)] {
        site.rule(name, value).await;
    }
    let client = connect(&cluster.kubeconfig_via(&proxy)).await;
    let followed = site.open(client).listed().await;

    close(&proxy);
    site.set("changed", 2).await;
    site.remove("gone").await;
    site.rule("new", 1).await;
    followed.until("the store is down", |now| now.down.is_some()).await;
    assert!(holds(&followed.now(), &[("changed", 1), ("gone", 1), ("same", 1)]));
    followed.told();
    proxy.refuse(false);
    followed
        .until("the changes", |now| holds(now, &[("changed", 2), ("new", 1), ("same", 1)]))
        .await;
    followed.until("the store is up", |now| now.down.is_none()).await;
    let same = |event: &Event| matches!(event, Event::Upsert(s) if s.resource.id.name == "same");
    assert!(!followed.told().iter().any(same), "what did not change was told");

    // A watch that is only closed is opened again, and nothing is lost or down.
    for value in 3..8 {
        proxy.cut();
        site.set("changed", value).await;
        let wanted = [("changed", u64::from(value)), ("new", 1), ("same", 1)];
        followed.until("a change after a cut", |now| holds(now, &wanted)).await;
    }
    let told = followed.told();
    assert_eq!(removed(&told), 0);
    assert!(!told.iter().any(|event| matches!(event, Event::Down(_))), "{told:?}");
}

#[tokio::test]
async fn a_half_open_connection_is_noticed() {
    let cluster = Cluster::shared().await.expect("server");
    let site = Site::new(&cluster, "half").await;
    let proxy = Proxy::start(cluster.addr()).await.expect("proxy");
    site.rule("a", 1).await;
    let client = connect(&cluster.kubeconfig_via(&proxy)).await;
    let followed = site.open(client).listed().await;
    proxy.stall(true);
    site.set("a", 2).await;
    followed.until_within(NOTICED, "it is noticed", |now| now.down.is_some()).await;
    assert!(holds(&followed.now(), &[("a", 1)]));
    proxy.stall(false);
    followed
        .until_within(NOTICED, "it recovers", |now| now.down.is_none() && holds(now, &[("a", 2)]))
        .await;
}

/// A store whose watches cannot go on after a gap.
async fn forgetful(site: &Site, proxy: &Proxy) -> (Followed, Arc<AtomicUsize>) {
    let client = connect(&site.cluster.kubeconfig_via(proxy)).await;
    let watches = Arc::new(AtomicUsize::new(0));
    let count = watches.clone();
    let client = hooked(client, move |request| {
        // The second watch; those after a list go on.
        if is_watch(&request.uri().to_string()) && count.fetch_add(1, Ordering::SeqCst) == 1 {
            age(request);
        }
    });
    (site.open(client).listed().await, watches)
}

#[tokio::test]
async fn a_watch_that_is_too_old_is_replaced_by_a_list() {
    let cluster = Cluster::shared().await.expect("server");
    let site = Site::new(&cluster, "old").await;
    let proxy = Proxy::start(cluster.addr()).await.expect("proxy");
    for (name, value) in [("changed", 1), ("gone", 1), ("same", 1)] {
        site.rule(name, value).await;
    }
    let (followed, watches) = forgetful(&site, &proxy).await;
    close(&proxy);
    site.set("changed", 2).await;
    site.remove("gone").await;
    followed.told();
    proxy.refuse(false);
    followed.until("the changes", |now| holds(now, &[("changed", 2), ("same", 1)])).await;
    assert!(watches.load(Ordering::SeqCst) >= 2);
    let told: Vec<Event> =
        followed.told().into_iter().filter(|e| !matches!(e, Event::Down(_) | Event::Up)).collect();
    assert_eq!((told.len(), removed(&told)), (2, 1), "{told:?}");
    // And on from there.
    site.set("same", 2).await;
    followed.until("a later change", |now| holds(now, &[("changed", 2), ("same", 2)])).await;
}

#[tokio::test]
async fn a_great_loss_is_looked_at_again_before_it_is_believed() {
    let cluster = Cluster::shared().await.expect("server");
    let site = Site::new(&cluster, "loss").await;
    let proxy = Proxy::start(cluster.addr()).await.expect("proxy");
    site.rules("r", 24).await;
    let (followed, _) = forgetful(&site, &proxy).await;
    assert_eq!(followed.now().len(), 24);

    close(&proxy);
    for n in 0..13 {
        site.remove(&format!("r{n}")).await;
    }
    site.set("r20", 100).await;
    followed.told();
    proxy.refuse(false);
    let changed = ("r20".to_owned(), 100);
    followed.until("what changed", |now| values(now).contains(&changed)).await;
    assert_eq!(followed.now().len(), 24, "it was believed at once");
    // What is written again meanwhile was never away.
    site.rule("r0", 0).await;
    followed.until("it is believed", |now| now.len() == 12).await;
    let told = followed.told();
    assert_eq!(removed(&told), 12);
    let kept = |event: &Event| matches!(event, Event::Remove { id, .. } if id.name == "r0");
    assert!(!told.iter().any(kept));
    assert!(values(&followed.now()).contains(&("r0".into(), 0)));
}

#[tokio::test]
async fn a_list_that_breaks_off_removes_nothing() {
    /// So often the connection goes between two pages.
    const CUTS: usize = 3;
    let cluster = Cluster::shared().await.expect("server");
    let site = Site::new(&cluster, "pages").await;
    let proxy = Arc::new(Proxy::start(cluster.addr()).await.expect("proxy"));
    site.rules("r", 1100).await;
    let client = connect(&cluster.kubeconfig_via(&proxy)).await;
    let (watches, pages) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let client = {
        let (proxy, watches, pages) = (proxy.clone(), watches.clone(), pages.clone());
        hooked(client, move |request| {
            let watch = is_watch(&request.uri().to_string());
            if watch && watches.fetch_add(1, Ordering::SeqCst) == 1 {
                age(request);
            }
            // The first list is whole: pages 2 and 3.
            if continues(request) && (2..2 + CUTS).contains(&pages.fetch_add(1, Ordering::SeqCst)) {
                proxy.cut();
            }
        })
    };
    let followed = site.open(client).listed().await;
    assert_eq!(followed.now().len(), 1100);
    followed.told();

    close(&proxy);
    site.remove("r7").await;
    site.set("r8", 5000).await;
    site.rule("new", 1).await;
    proxy.refuse(false);
    let changed = ("r8".to_owned(), 5000);
    followed.until_within(DEADLINE * 2, "the changes", |now| values(now).contains(&changed)).await;
    assert!(pages.load(Ordering::SeqCst) >= 2 + CUTS, "the lists were not cut");
    let told: Vec<Event> =
        followed.told().into_iter().filter(|e| !matches!(e, Event::Down(_) | Event::Up)).collect();
    assert_eq!((told.len(), removed(&told)), (3, 1), "three changes: {told:?}");
    assert_eq!(followed.now().len(), 1100);
}
