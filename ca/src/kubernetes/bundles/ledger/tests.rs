use super::*;

const WANTED: Digest = [1; 32];
const OTHER: Digest = [2; 32];

fn listed(spaces: &[&str], bundles: &[(&str, Digest)]) -> (Ledger, Instant) {
    let now = Instant::now();
    let mut ledger = Ledger::new(WANTED, ["kube-system".to_owned()]);
    ledger.space(Step::Begin, now);
    for name in spaces {
        ledger.space(Step::Listed((*name).into(), Space::Open), now);
    }
    ledger.space(Step::End, now);
    assert_eq!(ledger.pop(now), None, "bundles are not listed yet");
    ledger.bundle(Step::Begin, now);
    for (name, digest) in bundles {
        ledger.bundle(Step::Listed((*name).into(), *digest), now);
    }
    assert_eq!(ledger.pop(now), None, "the list is not complete");
    ledger.bundle(Step::End, now);
    (ledger, now)
}

fn all(ledger: &mut Ledger, now: Instant) -> Vec<String> {
    let mut names: Vec<_> = std::iter::from_fn(|| ledger.pop(now)).collect();
    names.sort();
    names
}

#[test]
fn only_what_lacks_it_is_written() {
    let (mut ledger, now) =
        listed(&["a", "b", "c", "kube-system"], &[("b", WANTED), ("c", OTHER), ("gone", OTHER)]);
    assert_eq!(all(&mut ledger, now), ["a", "c"]);
    assert_eq!(ledger.due(), None);
    ledger.done("a", Some(WANTED), now);
    ledger.done("c", Some(WANTED), now);
    let later = now + MAX_PAUSE;
    assert_eq!(all(&mut ledger, later), [""; 0], "an idle system writes nothing");
    // The watch says what we know.
    ledger.bundle(Step::Changed("a".into(), WANTED), later);
    assert_eq!(ledger.due(), None);
}

#[test]
fn new_namespaces_and_undone_bundles_are_written() {
    let (mut ledger, now) = listed(&["a"], &[("a", WANTED)]);
    ledger.space(Step::Changed("new".into(), Space::Open), now);
    assert_eq!(all(&mut ledger, now), ["new"]);
    ledger.done("new", Some(WANTED), now);
    ledger.bundle(Step::Changed("a".into(), OTHER), now);
    ledger.bundle(Step::Gone("new".into()), now);
    assert_eq!(all(&mut ledger, now), ["a"], "the other was written just now");
    assert_eq!(ledger.due(), Some(now + PAUSE));
    assert_eq!(all(&mut ledger, now + PAUSE), ["new"]);
}

#[test]
fn namespaces_that_end_are_left_alone() {
    let (mut ledger, now) = listed(&["a"], &[]);
    ledger.space(Step::Changed("a".into(), Space::Terminating), now);
    assert_eq!(all(&mut ledger, now), [""; 0]);
    ledger.space(Step::Changed("b".into(), Space::Open), now);
    assert_eq!(ledger.pop(now).as_deref(), Some("b"));
    ledger.space(Step::Gone("b".into()), now);
    assert_eq!(ledger.done("b", None, now), None);
    assert_eq!((ledger.due(), ledger.failing()), (None, 0));
}

#[test]
fn failures_are_tried_again_ever_later_and_hold_up_nobody() {
    let (mut ledger, mut now) = listed(&["bad", "good"], &[]);
    assert_eq!(all(&mut ledger, now), ["bad", "good"]);
    ledger.done("good", Some(WANTED), now);
    let mut last = Duration::ZERO;
    for _ in 0..12 {
        let pause = ledger.done("bad", None, now).expect("another try");
        assert!(pause > last || pause == MAX_PAUSE, "{pause:?} after {last:?}");
        assert_eq!(ledger.failing(), 1);
        // No event shortens it.
        ledger.space(Step::Changed("bad".into(), Space::Open), now);
        ledger.bundle(Step::Gone("bad".into()), now);
        assert_eq!(ledger.pop(now + pause / 2), None);
        now += pause;
        assert_eq!(ledger.pop(now).as_deref(), Some("bad"));
        last = pause;
    }
    assert_eq!(last, MAX_PAUSE);
    ledger.done("bad", Some(WANTED), now);
    assert_eq!(ledger.failing(), 0);
}

#[test]
fn another_bundle_goes_to_everybody() {
    let (mut ledger, now) = listed(&["a", "b"], &[("a", WANTED), ("b", WANTED)]);
    ledger.want(OTHER, now);
    assert_eq!(ledger.pop(now).as_deref(), Some("a"));
    // One that changes while it is written is looked at again.
    ledger.want([3; 32], now);
    ledger.done("a", Some(OTHER), now);
    assert_eq!(all(&mut ledger, now), ["b"]);
    assert_eq!(all(&mut ledger, now + PAUSE), ["a"]);
}

#[test]
fn a_list_anew_finds_what_a_gap_hid() {
    let (mut ledger, now) = listed(&["a", "b", "c"], &[("a", WANTED), ("b", WANTED)]);
    assert_eq!(all(&mut ledger, now), ["c"]);
    ledger.done("c", Some(WANTED), now);
    ledger.bundle(Step::Begin, now);
    ledger.bundle(Step::Listed("a".into(), WANTED), now);
    assert_eq!(ledger.pop(now), None, "half a list says nothing");
    ledger.bundle(Step::Begin, now);
    ledger.bundle(Step::Listed("b".into(), WANTED), now);
    ledger.bundle(Step::Listed("c".into(), OTHER), now);
    ledger.bundle(Step::End, now);
    assert_eq!(all(&mut ledger, now + PAUSE), ["a", "c"]);
}
