use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::scope::Labels;

fn pod(uid: &str) -> PodId {
    PodId { namespace: "shop".into(), name: format!("pod-{uid}"), uid: uid.into() }
}

/// Of a pod of some template; addresses come and go with pods.
fn traits(version: u32) -> Traits {
    let labels = Labels::new([("app", "web".to_owned()), ("version", version.to_string())]);
    Traits { addresses: Arc::new([std::net::Ipv4Addr::from(version).into()]), ..labels.into() }
}

fn present(uid: &str, version: u32) -> PodEvent {
    PodEvent::Present { uid: uid.into(), traits: traits(version) }
}

fn list(pods: &Pods, uids: &[&str]) {
    pods.apply(PodEvent::Listing);
    for uid in uids {
        pods.apply(present(uid, 1));
    }
    pods.apply(PodEvent::Listed);
}

/// The pods that the API server is to be asked about.
fn asked(pods: &Pods) -> Vec<String> {
    let mut asked: Vec<_> = pods.take_doubtful(9).iter().map(|pod| pod.uid.to_string()).collect();
    asked.sort();
    asked
}

#[test]
fn a_pod_is_followed_from_its_list_to_its_end() {
    let pods = Pods::new();
    let mut place = pods.follow(pod("a"));
    assert_eq!(place.standing(), Standing::Unknown);
    assert!(asked(&pods).is_empty(), "the list is waited for first");
    assert!(!pods.state().borrow().synced);
    list(&pods, &["a", "b"]);
    assert!(pods.state().borrow().synced);
    assert_eq!(place.standing(), Standing::Present(traits(1)));
    assert!(asked(&pods).is_empty());
    let changed =
        |place: &Place| place.receiver.as_ref().is_some_and(|r| r.has_changed().expect("open"));
    // The same again, and another pod's, are no change.
    pods.apply(present("a", 1));
    pods.apply(present("b", 2));
    assert!(!changed(&place));
    pods.apply(present("a", 2));
    assert_eq!(place.standing(), Standing::Present(traits(2)));
    pods.apply(PodEvent::Deleted { uid: "a".into() });
    assert_eq!(place.standing(), Standing::Gone);
    assert_eq!(pods.len(), 1);
    drop(place);
    assert_eq!(pods.followed(), 0);
}

#[test]
fn labels_are_kept_once_and_let_go() {
    let mut table = Table::default();
    let uid = |n: u32| -> Arc<str> { n.to_string().into() };
    for n in 0..1000 {
        table.apply(PodEvent::Present { uid: uid(n), traits: traits(7) });
    }
    assert_eq!(table.shapes(), 2, "its labels, and no annotations");
    // One pod that changes its labels all the time.
    for version in 0..10_000 {
        table.apply(PodEvent::Present { uid: uid(0), traits: traits(version) });
    }
    assert!(table.shapes() < 200, "{}", table.shapes());
}

#[test]
fn a_fresh_pod_is_asked_about_once() {
    let pods = Pods::new();
    list(&pods, &[]);
    let (mut first, mut second) = (pods.follow(pod("a")), pods.follow(pod("a")));
    assert_eq!(asked(&pods), ["a"]);
    assert!(asked(&pods).is_empty(), "one question is under way");
    pods.not_found_out(&pod("a"));
    assert_eq!(asked(&pods), ["a"], "again after a failure");
    pods.found(&pod("a"), Some(traits(1)));
    assert_eq!((first.standing(), second.standing()), {
        let there = Standing::Present(traits(1));
        (there.clone(), there)
    });
    // The watch comes to know it, and knows better than a late answer.
    pods.apply(present("a", 2));
    pods.found(&pod("a"), Some(traits(1)));
    assert_eq!(first.standing(), Standing::Present(traits(2)));
    drop(first);
    assert_eq!(pods.followed(), 1);
    // Of another pod with its name, or of none.
    let mut gone = pods.follow(pod("b"));
    assert_eq!(asked(&pods), ["b"]);
    pods.found(&pod("b"), None);
    assert_eq!(gone.standing(), Standing::Gone);
    // Nobody is told twice, and nobody comes back.
    pods.apply(present("b", 1));
    assert_eq!(gone.standing(), Standing::Gone);
    drop((second, gone));
    pods.found(&pod("a"), None);
    assert_eq!((pods.followed(), pods.len()), (0, 2));
}

#[test]
fn a_list_alone_ends_nobody() {
    let pods = Pods::new();
    list(&pods, &["a", "b"]);
    let (mut a, mut b) = (pods.follow(pod("a")), pods.follow(pod("b")));
    // Aborted half-way: it counts for nothing.
    pods.apply(PodEvent::Listing);
    pods.apply(present("a", 1));
    list(&pods, &["a", "b"]);
    assert!(asked(&pods).is_empty() && pods.len() == 2);
    // A pod that is deleted while the list is read.
    pods.apply(PodEvent::Listing);
    pods.apply(present("a", 1));
    pods.apply(PodEvent::Deleted { uid: "a".into() });
    pods.apply(PodEvent::Listed);
    assert_eq!((a.standing(), b.standing()), (Standing::Gone, Standing::Present(traits(1))));
    // The one that the list lacks is asked about; meanwhile it is what it was.
    assert_eq!((asked(&pods), pods.len()), (vec!["b".to_owned()], 0));
    pods.found(&pod("b"), Some(traits(3)));
    assert_eq!(b.standing(), Standing::Present(traits(3)));
    list(&pods, &[]);
    assert_eq!(asked(&pods), ["b"]);
    pods.found(&pod("b"), None);
    assert_eq!(b.standing(), Standing::Gone);
}

proptest! {
    /// Whatever comes in whatever order: who follows knows what a plain model knows, an end
    /// is final, and what is not known is asked about.
    #[test]
    fn followers_know_what_a_model_knows(
        events in proptest::collection::vec((0u8..7, 0usize..4, 0u32..3), 0..80),
    ) {
        const UIDS: [&str; 4] = ["a", "b", "c", "d"];
        let pods = Pods::new();
        list(&pods, &[]);
        let mut places: Vec<_> = UIDS.iter().map(|uid| pods.follow(pod(uid))).collect();
        let mut known: HashMap<&str, u32> = HashMap::new();
        let mut told: HashMap<&str, Standing> = HashMap::new();
        let mut listing: Option<HashSet<&str>> = None;
        let mut open: HashSet<String> = UIDS.iter().map(|uid| (*uid).to_owned()).collect();
        for (what, which, version) in events {
            let uid = UIDS[which];
            let mut settle = |open: &mut HashSet<String>, standing| {
                open.remove(uid);
                let told = told.entry(uid).or_default();
                if *told != Standing::Gone {
                    *told = standing;
                }
            };
            match what {
                0 => {
                    listing = Some(HashSet::new());
                    pods.apply(PodEvent::Listing);
                }
                1 => {
                    if let Some(seen) = listing.take() {
                        known.retain(|uid, _| seen.contains(uid));
                        let lacking = UIDS.iter().filter(|uid| {
                            !known.contains_key(*uid) && told.get(*uid) != Some(&Standing::Gone)
                        });
                        open.extend(lacking.map(|uid| (*uid).to_owned()));
                        pods.apply(PodEvent::Listed);
                    }
                }
                2 | 3 => {
                    known.insert(uid, version);
                    if let Some(seen) = &mut listing {
                        seen.insert(uid);
                    }
                    settle(&mut open, Standing::Present(traits(version)));
                    pods.apply(present(uid, version));
                }
                4 => {
                    known.remove(uid);
                    if let Some(seen) = &mut listing {
                        seen.remove(uid);
                    }
                    settle(&mut open, Standing::Gone);
                    pods.apply(PodEvent::Deleted { uid: uid.into() });
                }
                5 => {
                    if !known.contains_key(uid) {
                        settle(&mut open, Standing::Present(traits(version)));
                    }
                    pods.found(&pod(uid), Some(traits(version)));
                }
                _ => {
                    settle(&mut open, Standing::Gone);
                    pods.found(&pod(uid), None);
                }
            }
            prop_assert_eq!(pods.len(), known.len());
            for (place, uid) in places.iter_mut().zip(UIDS) {
                prop_assert_eq!(&place.standing(), told.entry(uid).or_default(), "{}", uid);
            }
        }
        let asked: HashSet<_> = asked(&pods).into_iter().collect();
        prop_assert_eq!(asked, open);
    }
}
