//! Delivery under faults, over real mutual TLS with certificates of a real authority:
//! clients that reject, do not answer, do not read, come back, or must not come in.

#[path = "delivery/client.rs"]
mod client;
#[path = "delivery/note.rs"]
mod note;
#[path = "delivery/site.rs"]
mod site;

use client::{Stream, resume, subscribe, subscribe_to};
use note::{NOTES, ROUTES, note, route};
use rulecast_api::proto::observe::v1::{Node, ObserveRequest};
use site::Site;

const SERVICE: &str = "com.example.OrderService";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_rejected_is_told_and_sent_again_only_when_it_changes() {
    let site = Site::new().await;
    for name in ["a", "b", "c"] {
        site.write(name, &route("shop", name, SERVICE, "=> region=$region"));
    }
    let plane = site.plane().await;
    let web = site.identity("shop", "web").await;
    let mut stream = Stream::open(&plane, &web, subscribe(ROUTES)).await.expect("let in");
    let first = stream.whole(ROUTES).await;
    assert_eq!(first.keys(), ["a/shop", "b/shop", "c/shop"]);
    let rejected = first.reject("b/shop", "no module runs this");
    stream.answer(ROUTES, &first, vec![rejected.clone()]).await;
    let told = plane.rule("b/shop", |rule| rule.rejected == 1).await;
    assert_eq!((told.matched, told.applied), (1, 0), "{told:?}");
    assert_eq!(told.rejections.len(), 1);
    assert_eq!(told.rejections[0].reason, "no module runs this");
    assert!(told.rejections[0].client.contains("spiffe://td.test/ns/shop/app/web"), "{told:?}");
    for key in ["a/shop", "c/shop"] {
        let told = plane.rule(key, |rule| rule.applied == 1).await;
        assert_eq!((told.matched, told.rejected), (1, 0), "{told:?}");
    }

    // Another rule changes: what was rejected is named, not sent.
    site.write("a", &route("shop", "a", SERVICE, "=> region=beijing"));
    let second = stream.whole(ROUTES).await;
    assert_eq!((second.keys(), second.delta), (vec!["a/shop", "c/shop"], false));
    let digest = first.rules["b/shop"].0;
    assert_eq!(second.withheld, [("b/shop".to_owned(), digest)].into());
    stream.ack(ROUTES, &second).await;
    let new = second.rules["a/shop"].0.to_bytes();
    plane.rule("a/shop", |rule| rule.applied == 1 && rule.digest == new).await;
    plane.rule("b/shop", |rule| rule.rejected == 1 && rule.applied == 0).await;

    // Back again, with the rejection: nothing is sent, and it is still known.
    drop(stream);
    let again = ObserveRequest { rejected: vec![rejected.clone()], ..resume(ROUTES, &second) };
    let mut stream = Stream::open(&plane, &web, again).await.expect("let in");
    let same = stream.whole(ROUTES).await;
    assert!(same.delta && same.rules.is_empty() && same.removed.is_empty(), "{same:?}");
    stream.ack(ROUTES, &same).await;
    plane.rule("b/shop", |rule| rule.matched == 1 && rule.rejected == 1).await;
    plane.rule("a/shop", |rule| rule.matched == 1 && rule.applied == 1).await;
    // Also without a place to go on from.
    drop(stream);
    let again = ObserveRequest { rejected: vec![rejected.clone()], ..subscribe(ROUTES) };
    let mut stream = Stream::open(&plane, &web, again).await.expect("let in");
    let full = stream.whole(ROUTES).await;
    assert_eq!((full.keys(), full.withheld.len()), (vec!["a/shop", "c/shop"], 1));
    stream.ack(ROUTES, &full).await;
    // A client that evaluates otherwise may try what another could not.
    let node = Some(Node { engine_digest: b"engine two".as_slice().into(), ..Node::default() });
    let other = ObserveRequest { rejected: vec![rejected], node, ..resume(ROUTES, &second) };
    let mut changed = Stream::open(&plane, &web, other).await.expect("let in");
    let full = changed.whole(ROUTES).await;
    assert_eq!((full.keys().len(), full.withheld.len(), full.delta), (3, 0, false));
    drop(changed);

    // Changed content is sent.
    site.write("b", &route("shop", "b", SERVICE, "=> region=hangzhou"));
    let last = stream.whole(ROUTES).await;
    assert_eq!(last.keys(), ["a/shop", "b/shop", "c/shop"]);
    assert!(last.withheld.is_empty() && last.rules["b/shop"].0 != digest);
    stream.ack(ROUTES, &last).await;
    let told = plane.rule("b/shop", |rule| rule.applied == 1 && rule.matched == 1).await;
    assert_eq!((told.rejected, told.rejections.len()), (0, 0), "{told:?}");
    plane.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_that_is_never_answered_does_not_hold_up_another() {
    let site = Site::new().await;
    site.write("note", &note("shop", "note", SERVICE, "0"));
    site.write("route", &route("shop", "route", SERVICE, "=> region=r0"));
    let plane = site.plane().await;
    let web = site.identity("shop", "web").await;
    let mut stream = Stream::open(&plane, &web, subscribe(NOTES)).await.expect("let in");
    let unanswered = stream.whole(NOTES).await;
    assert_eq!(unanswered.text("note/shop"), "0");
    stream.send(subscribe(ROUTES)).await;
    let mut last = stream.whole(ROUTES).await;
    stream.ack(ROUTES, &last).await;
    for n in 1..=5 {
        site.write("note", &note("shop", "note", SERVICE, &n.to_string()));
        site.write("route", &route("shop", "route", SERVICE, &format!("=> region=r{n}")));
        // No note comes between.
        let next = stream.whole(ROUTES).await;
        assert_ne!(next.rules["route/shop"].0, last.rules["route/shop"].0);
        stream.ack(ROUTES, &next).await;
        last = next;
    }
    let another = site.identity("shop", "another").await;
    let mut fresh = Stream::open(&plane, &another, subscribe(NOTES)).await.expect("let in");
    fresh.until(NOTES, |whole| whole.text("note/shop") == "5").await;
    // The late answer brings the newest note, not all those between. The last change may be
    // on its way to this stream still.
    stream.ack(NOTES, &unanswered).await;
    let late = stream.whole(NOTES).await;
    if late.text("note/shop") != "5" {
        stream.ack(NOTES, &late).await;
        assert_eq!(stream.whole(NOTES).await.text("note/shop"), "5");
    }
    plane.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_costs_one_response_and_delays_nobody() {
    const CHANGES: usize = 200;
    const LARGE: usize = 16;
    let site = Site::new().await;
    for n in 0..LARGE {
        let name = format!("large-{n}");
        site.write(&name, &note("shop", &name, SERVICE, &"x".repeat(512 << 10)));
    }
    site.write("small", &note("shop", "small", "com.example.Small", "0"));
    let plane = site.plane().await;
    let deaf = site.identity("shop", "deaf").await;
    let web = site.identity("shop", "web").await;
    // 8 MiB in chunks: far more than the windows of a connection take.
    let mut stuck = Stream::open(&plane, &deaf, subscribe(NOTES)).await.expect("let in");
    let begun = stuck.whole(NOTES).await;
    assert_eq!(begun.rules.len(), LARGE + 1);
    assert!(begun.chunks >= 8, "{}", begun.chunks);
    stuck.ack(NOTES, &begun).await;
    let small = subscribe_to(NOTES, &["com.example.Small"]);
    let mut reader = Stream::open(&plane, &web, small).await.expect("let in");
    reader.until(NOTES, |whole| whole.text("small/shop") == "0").await;

    // From here on it does not read. All states that it misses are 1.6 GiB.
    let before = resident();
    for n in 1..=CHANGES {
        let text = n.to_string();
        site.write("small", &note("shop", "small", "com.example.Small", &text));
        let whole = reader.until(NOTES, |whole| whole.text("small/shop") == text).await;
        assert_eq!(whole.keys(), ["small/shop"]);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "grown by {} MiB", grown >> 20);
    // Who comes now has everything at once.
    let other = site.identity("shop", "other").await;
    let mut other = Stream::open(&plane, &other, subscribe(NOTES)).await.expect("let in");
    let whole = other.whole(NOTES).await;
    assert_eq!((whole.text("small/shop"), whole.rules.len()), ("200", LARGE + 1));

    // It reads again: what was under way, then the newest.
    let under_way = stuck.whole(NOTES).await;
    assert_eq!(under_way.text("small/shop"), "1");
    stuck.ack(NOTES, &under_way).await;
    let newest = stuck.whole(NOTES).await;
    assert_eq!((newest.text("small/shop"), newest.rules.len()), ("200", LARGE + 1));
    stuck.ack(NOTES, &newest).await;
    plane.rule("small/shop", |rule| rule.applied == 2 && rule.matched == 3).await;
    other.ack(NOTES, &whole).await;
    plane.rule("small/shop", |rule| rule.applied == 3).await;
    plane.end().await;
}

/// Bytes of memory that this process has now: plane and clients together.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("a number") * 4096
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_back_unchanged_gets_no_data_also_from_a_restarted_plane() {
    let site = Site::new().await;
    for name in ["a", "b"] {
        site.write(name, &route("shop", name, SERVICE, "=> region=$region"));
    }
    let plane = site.plane().await;
    let web = site.identity("shop", "web").await;
    let mut stream = Stream::open(&plane, &web, subscribe(ROUTES)).await.expect("let in");
    stream.until(ROUTES, |whole| whole.rules.len() == 2).await;
    // So that the revision is not the first.
    site.write("a", &route("shop", "a", SERVICE, "=> region=beijing"));
    let first = stream.until(ROUTES, |whole| whole.revision > 0).await;
    drop(stream);
    let mut stream = Stream::open(&plane, &web, resume(ROUTES, &first)).await.expect("let in");
    let same = stream.whole(ROUTES).await;
    assert!(same.delta && same.rules.is_empty() && same.removed.is_empty(), "{same:?}");
    assert_eq!((&same.lineage, same.revision), (&first.lineage, first.revision));
    // Without a token it is everything; of another client's scope too.
    let mut full = Stream::open(&plane, &web, subscribe(ROUTES)).await.expect("let in");
    assert_eq!(full.whole(ROUTES).await.rules.len(), 2);
    let app = site.identity("shop", "app").await;
    let mut foreign = Stream::open(&plane, &app, resume(ROUTES, &same)).await.expect("let in");
    let whole = foreign.whole(ROUTES).await;
    assert_eq!((whole.delta, whole.rules.len()), (false, 2));
    drop((stream, full, foreign));
    plane.end().await;

    let plane = site.plane().await;
    let mut stream = Stream::open(&plane, &web, resume(ROUTES, &same)).await.expect("let in");
    let after = stream.whole(ROUTES).await;
    assert!(after.delta && after.rules.is_empty() && after.removed.is_empty(), "{after:?}");
    assert_eq!(after.lineage, first.lineage);
    assert!(after.revision >= first.revision, "{} < {}", after.revision, first.revision);
    plane.end().await;

    // Changed while the plane was away.
    site.write("b", &route("shop", "b", SERVICE, "=> region=hangzhou"));
    let plane = site.plane().await;
    let mut stream = Stream::open(&plane, &web, resume(ROUTES, &after)).await.expect("let in");
    let changed = stream.whole(ROUTES).await;
    assert_eq!((changed.delta, changed.rules.len()), (false, 2));
    assert_ne!(changed.rules["b/shop"].0, first.rules["b/shop"].0);
    assert_eq!(changed.rules["a/shop"].0, first.rules["a/shop"].0);
    assert_eq!(changed.lineage, first.lineage);
    assert!(changed.revision > after.revision, "{} after {}", changed.revision, after.revision);
    plane.end().await;
}
