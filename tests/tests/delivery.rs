//! Delivery under faults, over real mutual TLS with certificates of a real authority:
//! clients that reject, do not answer, do not read, come back, or must not come in.

#[path = "delivery/client.rs"]
mod client;
#[path = "delivery/note.rs"]
mod note;
#[path = "delivery/reports.rs"]
mod reports;
#[path = "common/site.rs"]
mod site;

use std::{sync::Arc, time::Duration};

use client::{Stream, resume, subscribe, subscribe_to};
use note::{CALLERS, CONNECTIONS, KINDS, NOTES, ROUTES, manifest, note, route};
use prost::Message as _;
use rulecast_api::{
    Code,
    proto::{
        observe::v1::{Node, ObserveRequest},
        rules::v1::AuthorizationPolicy,
    },
};
use rulecast_identity::{ConnectOptions, Expected, IdentityHandle, Svid, connect, tls};
use rustls::{SignatureScheme, client::ResolvesClientCert, sign::CertifiedKey};
use serde_json::json;
use site::{Authority, HOUR, LIMIT, Plane, Site};

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
    site.write("moving", &note("shop", "moving", "com.example.Moving", "0"));
    let plane = site.plane().await;
    let deaf = site.identity("shop", "deaf").await;
    let web = site.identity("shop", "web").await;
    // 8 MiB in chunks: far more than the windows of a connection take.
    let mut stuck = Stream::open(&plane, &deaf, subscribe(NOTES)).await.expect("let in");
    let begun = stuck.whole(NOTES).await;
    assert_eq!(begun.rules.len(), LARGE + 1);
    assert!(begun.chunks >= 8, "{}", begun.chunks);
    stuck.ack(NOTES, &begun).await;
    let moving = subscribe_to(NOTES, &["com.example.Moving"]);
    let mut reader = Stream::open(&plane, &web, moving).await.expect("let in");
    reader.until(NOTES, |whole| whole.text("moving/shop") == "0").await;

    // From here on it does not read. It misses 1.6 GiB of responses, and 50 MiB of rules.
    let text = |n: usize| format!("{n} {}", "x".repeat(256 << 10));
    let before = resident();
    for n in 1..=CHANGES {
        let text = text(n);
        site.write("moving", &note("shop", "moving", "com.example.Moving", &text));
        let whole = reader.until(NOTES, |whole| whole.text("moving/shop") == text).await;
        assert_eq!(whole.keys(), ["moving/shop"]);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 24 << 20, "grown by {} MiB", grown >> 20);
    // Who comes now has everything at once.
    let other = site.identity("shop", "other").await;
    let mut other = Stream::open(&plane, &other, subscribe(NOTES)).await.expect("let in");
    let whole = other.whole(NOTES).await;
    assert_eq!(whole.rules.len(), LARGE + 1);
    assert!(whole.text("moving/shop") == text(CHANGES));

    // It reads again: what was under way, then the newest.
    let under_way = stuck.whole(NOTES).await;
    assert!(under_way.text("moving/shop") != text(CHANGES));
    stuck.ack(NOTES, &under_way).await;
    let newest = stuck.whole(NOTES).await;
    assert_eq!(newest.rules.len(), LARGE + 1);
    assert!(newest.text("moving/shop") == text(CHANGES));
    stuck.ack(NOTES, &newest).await;
    plane.rule("moving/shop", |rule| rule.applied == 2 && rule.matched == 3).await;
    other.ack(NOTES, &whole).await;
    plane.rule("moving/shop", |rule| rule.applied == 3).await;

    // A shutdown waits for it no longer than the time for draining.
    drop((reader, other));
    site.write("moving", &note("shop", "moving", "com.example.Moving", "last"));
    assert!(stuck.message().await.expect("a chunk").more_chunks);
    let took = plane.end().await;
    assert!(took < site.drain + LIMIT / 2, "{took:?}");
    stuck.end().await;
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
    let begun = stream.until(ROUTES, |whole| whole.rules.len() == 2).await;
    // So that the revision is not the first.
    site.write("a", &route("shop", "a", SERVICE, "=> region=beijing"));
    let first = stream.until(ROUTES, |whole| whole.revision > begun.revision).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_come_in_is_refused_each_for_its_own_reason() {
    let site = Site::new().await;
    site.write("a", &route("shop", "a", SERVICE, "=> region=$region"));
    let plane = site.plane().await;
    let bundle = site.identity("shop", "web").await.bundle();
    // Each believes the plane; only what it shows is wrong.
    let showing = |mut svid: Svid| {
        svid.bundle = bundle.clone();
        IdentityHandle::fixed(svid)
    };
    let twin = Authority::start("td.test").await;
    let svid = showing(twin.join("shop", "web", HOUR).await);
    refused(&plane, &svid, Code::PeerUntrusted).await;
    let stranger = Authority::start("elsewhere.test").await;
    let svid = showing(stranger.join("shop", "web", HOUR).await);
    refused(&plane, &svid, Code::PeerTrustDomain).await;
    // And one that believes another authority is not given the plane's.
    let svid = IdentityHandle::fixed(twin.join("shop", "web", HOUR).await);
    refused(&plane, &svid, Code::PeerUntrusted).await;

    // None at all.
    let web = site.identity("shop", "web").await;
    let mut bare = (*tls::client_config(&web, Expected::dds()).expect("valid")).clone();
    bare.client_auth_cert_resolver = Arc::new(NoCertificate);
    let options = ConnectOptions::default();
    let error = connect(&plane.address.to_string(), Arc::new(bare), &options).await;
    assert_eq!(error.expect_err("refused").code(), Code::CredentialMissing);

    // One that ends while its stream is open ends the stream, and lets nobody in again.
    let brief = site.authority.join("shop", "brief", Duration::from_secs(5)).await;
    let brief = IdentityHandle::fixed(brief);
    let mut stream = Stream::open(&plane, &brief, subscribe(ROUTES)).await.expect("let in");
    assert_eq!(stream.whole(ROUTES).await.keys(), ["a/shop"]);
    let status = stream.end().await;
    assert_eq!(status.code(), tonic::Code::Unauthenticated, "{status}");
    assert!(status.message().contains(Code::IdentityEnded.as_str()), "{status}");
    // TLS counts in whole seconds: until the last one is over it ends as the first did.
    let code = loop {
        match Stream::open(&plane, &brief, subscribe(ROUTES)).await {
            Ok(mut stream) => {
                assert_eq!(stream.end().await.code(), tonic::Code::Unauthenticated);
            }
            Err(code) => break code,
        }
    };
    assert_eq!(code, Code::PeerExpired);
    // Of all these the plane knows nobody.
    plane.clients(<[_]>::is_empty).await;
    plane.end().await;
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

async fn refused(plane: &Plane, identity: &IdentityHandle, code: Code) {
    match Stream::open(plane, identity, subscribe(ROUTES)).await {
        Ok(_) => panic!("let in instead of {code}"),
        Err(refused) => assert_eq!(refused, code),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_of_other_namespaces_are_not_seen() {
    let mut site = Site::new().await;
    site.owners.insert("com.example.Owned".into(), "orders".into());
    // Of the namespace "orders": its own callers', and everybody's where it is the owner.
    site.write("own", &route("orders", "own", "com.example.Other", "=> region=$region"));
    site.write("owned", &route("orders", "owned", "com.example.Owned", "=> region=$region"));
    site.write("root", &route("root", "all", SERVICE, "=> region=$region"));
    site.write("shop", &route("shop", "shop", "com.example.Owned", "=> region=$region"));
    let plane = site.plane().await;
    let web = site.identity("shop", "web").await;
    // What it says of itself opens nothing, and a named service no more than all of them.
    let node = Node { application: "orders".into(), ..Node::default() };
    for services in [&[][..], &["com.example.Other", "com.example.Owned", SERVICE][..]] {
        let first = subscribe_to(ROUTES, services);
        let first = ObserveRequest { node: Some(node.clone()), ..first };
        let mut stream = Stream::open(&plane, &web, first).await.expect("let in");
        assert_eq!(stream.whole(ROUTES).await.keys(), ["all/root", "owned/orders", "shop/shop"]);
    }
    let orders = site.identity("orders", "web").await;
    let mut theirs = Stream::open(&plane, &orders, subscribe(ROUTES)).await.expect("let in");
    let seen = theirs.until(ROUTES, |_| true).await;
    assert_eq!(seen.keys(), ["all/root", "own/orders", "owned/orders"]);

    // Changes there are not even told of: the next thing that the shop hears is its own.
    let mut stream = Stream::open(&plane, &web, subscribe(ROUTES)).await.expect("let in");
    let first = stream.until(ROUTES, |_| true).await;
    site.write("own", &route("orders", "own", "com.example.Other", "=> region=beijing"));
    let own = seen.rules["own/orders"].0;
    theirs.until(ROUTES, |whole| whole.rules["own/orders"].0 != own).await;
    site.write("shop", &route("shop", "shop", "com.example.Owned", "=> region=beijing"));
    let next = stream.whole(ROUTES).await;
    assert_ne!(next.rules["shop/shop"].0, first.rules["shop/shop"].0);
    assert_eq!(next.keys(), first.keys());
    plane.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_that_shuts_down_ends_its_streams_with_a_reason() {
    let mut site = Site::new().await;
    site.drain = Duration::from_secs(60);
    site.write("a", &route("shop", "a", SERVICE, "=> region=$region"));
    let plane = site.plane().await;
    let web = site.identity("shop", "web").await;
    let mut answered = Stream::open(&plane, &web, subscribe(ROUTES)).await.expect("let in");
    answered.until(ROUTES, |_| true).await;
    let mut unanswered = Stream::open(&plane, &web, subscribe(ROUTES)).await.expect("let in");
    unanswered.whole(ROUTES).await;
    let (address, socket) = (plane.address, site.path().join("admin.sock"));
    plane.stop.cancel();
    for stream in [&mut answered, &mut unanswered] {
        let status = stream.end().await;
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
        assert!(status.message().contains(Code::Draining.as_str()), "{status}");
    }
    drop((answered, unanswered));
    // The time for draining is not waited for when there is nothing to drain.
    let took = plane.end().await;
    assert!(took < site.drain / 2, "{took:?}");
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "it listens no more");
    assert!(!socket.exists());
}

/// What a tenant is told, whole and word for word: decoded, and searched for others' words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_see_nothing_of_each_others_policies() {
    let site = Site::new().await;
    let from = |who: &str, to: &str| {
        json!({ "from": { "principals": [format!("td.test/ns/{who}-caller/sa/x")] },
                "to": { "namespaces": [to], "notNamespaces": [format!("{to}-hidden")] } })
    };
    let rules = json!({ "action": "ALLOW", "rules": [from("shop", "shop"), from("bank", "bank")] });
    site.write("all", &manifest(CALLERS, "root", "all", rules));
    for (own, other) in [("shop", "bank"), ("bank", "shop")] {
        // Its own, and one that means to reach the other.
        let own_rule = json!({ "action": "DENY", "rules": [from(&format!("{own}-own"), own)] });
        site.write(&format!("{own}-own"), &manifest(CALLERS, own, &format!("{own}-own"), own_rule));
        let reach = json!({ "action": "DENY", "rules": [{ "to": { "namespaces": [other] } }] });
        let name = format!("{own}-reach");
        site.write(&name, &manifest(CALLERS, own, &name, reach));
        let selector = json!([{ "principals": [format!("spiffe://td.test/ns/{other}/app/web")] }]);
        let off = json!({ "action": "DISABLED", "selector": selector });
        let name = format!("{own}-off");
        site.write(&name, &manifest(CONNECTIONS, own, &name, off));
        let strict = json!({ "action": "STRICT", "selector": [{ "namespaces": [own] }] });
        let name = format!("{own}-strict");
        site.write(&name, &manifest(CONNECTIONS, own, &name, strict));
    }
    let plane = site.plane().await;
    let mut streams = Vec::new();
    for (own, other) in [("shop", "bank"), ("bank", "shop")] {
        let web = site.identity(own, "web").await;
        let mut stream = Stream::open(&plane, &web, subscribe(CALLERS)).await.expect("let in");
        let callers = stream.whole(CALLERS).await;
        assert_eq!(callers.keys(), ["all/root", &format!("{own}-own/{own}")]);
        for (key, who) in
            [("all/root", own), (&*format!("{own}-own/{own}"), &*format!("{own}-own"))]
        {
            let spec = callers.rules[key].1.spec.clone();
            let policy = AuthorizationPolicy::decode(spec).expect("a policy");
            assert_eq!(policy.rules.len(), 1, "{key}");
            let principals = &policy.rules[0].from[0].principals;
            assert_eq!(*principals, [format!("td.test/ns/{who}-caller/sa/x")]);
        }
        stream.ack(CALLERS, &callers).await;
        stream.send(subscribe(CONNECTIONS)).await;
        let connections = stream.whole(CONNECTIONS).await;
        assert_eq!(connections.keys(), [format!("{own}-strict/{own}")]);
        stream.ack(CONNECTIONS, &connections).await;
        for (_, rule) in callers.rules.values().chain(connections.rules.values()) {
            let bytes = String::from_utf8_lossy(&rule.encode_to_vec()).into_owned();
            assert!(!bytes.contains(other) && !bytes.contains("hidden"), "{bytes}");
        }
        // Both tenants hold a part of it, each its own, and both count.
        streams.push(stream);
        let many = streams.len() as u32;
        plane.rule("all/root", |r| (r.matched, r.applied) == (many, many)).await;
    }
    let unmatched = plane.rule("shop-reach/shop", |rule| rule.accepted).await;
    assert_eq!((unmatched.matched, unmatched.applied), (0, 0), "{unmatched:?}");
}
