use std::collections::VecDeque;

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
fn what_is_undone_while_it_is_written_is_written_again() {
    // The watch tells of the write and of what undid it before the answer to the write comes.
    let (mut ledger, now) = listed(&["a"], &[]);
    assert_eq!(ledger.pop(now).as_deref(), Some("a"));
    ledger.bundle(Step::Changed("a".into(), WANTED), now);
    ledger.bundle(Step::Changed("a".into(), OTHER), now);
    assert_eq!(ledger.pop(now), None, "it is being written");
    ledger.done("a", Some(WANTED), now);
    assert_eq!(ledger.pop(now + PAUSE).as_deref(), Some("a"));

    // The same, seen by a list, which has what was there before.
    let (mut ledger, now) = listed(&["a"], &[("a", OTHER)]);
    assert_eq!(ledger.pop(now).as_deref(), Some("a"));
    ledger.bundle(Step::Begin, now);
    ledger.bundle(Step::Listed("a".into(), OTHER), now);
    ledger.bundle(Step::End, now);
    ledger.done("a", Some(WANTED), now);
    assert_eq!(ledger.pop(now + PAUSE).as_deref(), Some("a"));

    // An event that is older than the write is put right by the write's own.
    let (mut ledger, now) = listed(&["a"], &[]);
    assert_eq!(ledger.pop(now).as_deref(), Some("a"));
    ledger.bundle(Step::Changed("a".into(), OTHER), now);
    ledger.done("a", Some(WANTED), now);
    ledger.bundle(Step::Changed("a".into(), WANTED), now);
    assert_eq!((ledger.pop(now + PAUSE), ledger.due()), (None, None));
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

/// An API server whose watch is late, and whose answers are.
struct Server {
    ledger: Ledger,
    now: Instant,
    held: HashMap<String, Digest>,
    /// What the watch has not told yet.
    events: VecDeque<Step<Digest>>,
    /// Writes under way; whether they have arrived.
    writes: Vec<(String, bool)>,
    count: usize,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Server {
    fn set(&mut self, name: &str, digest: Option<Digest>) {
        let before = match digest {
            Some(digest) => self.held.insert(name.into(), digest),
            None => self.held.remove(name),
        };
        match digest {
            // A write that changes nothing is no event.
            Some(digest) if before != Some(digest) => {
                self.events.push_back(Step::Changed(name.into(), digest));
            }
            None if before.is_some() => self.events.push_back(Step::Gone(name.into())),
            _ => {}
        }
    }

    fn arrive(&mut self, n: usize) {
        if let Some((name, arrived @ false)) = self.writes.get_mut(n) {
            *arrived = true;
            let name = name.clone();
            self.set(&name, Some(WANTED));
        }
    }

    fn answer(&mut self, n: usize) {
        if n < self.writes.len() {
            self.arrive(n);
            let (name, _) = self.writes.remove(n);
            self.ledger.done(&name, Some(WANTED), self.now);
        }
    }

    fn act(&mut self, what: u8, n: usize) {
        let name = NAMES[n % NAMES.len()];
        match what {
            0 => self.set(name, Some(OTHER)),
            1 => self.set(name, None),
            2 => self.arrive(n % 3),
            3 => self.answer(n % 3),
            4 => self.now += PAUSE,
            5 => {
                // The watch broke: a list tells what there is now.
                self.events.clear();
                self.ledger.bundle(Step::Begin, self.now);
                for (name, digest) in self.held.clone() {
                    self.ledger.bundle(Step::Listed(name, digest), self.now);
                }
                self.ledger.bundle(Step::End, self.now);
            }
            6 if !self.writes.is_empty() => {
                // It never arrived.
                let n = n % self.writes.len();
                if !self.writes[n].1 {
                    let (name, _) = self.writes.remove(n);
                    self.ledger.done(&name, None, self.now);
                }
            }
            _ => {
                if let Some(event) = self.events.pop_front() {
                    self.ledger.bundle(event, self.now);
                }
            }
        }
        while let Some(name) = self.ledger.pop(self.now) {
            assert!(self.writes.iter().all(|(other, _)| *other != name), "two writes at once");
            self.writes.push((name, false));
            self.count += 1;
        }
    }

    fn settle(&mut self) {
        while !self.events.is_empty() || !self.writes.is_empty() || self.ledger.due().is_some() {
            self.act(7, 0);
            self.act(3, 0);
            self.now += MAX_PAUSE;
            self.act(4, 0);
        }
    }
}

proptest::proptest! {
    #[test]
    fn whatever_comes_late_everybody_has_it_in_the_end(
        acts in proptest::collection::vec((0u8..8, 0usize..3), 0..80),
    ) {
        let (ledger, now) = listed(&NAMES, &[]);
        let (held, events) = (HashMap::new(), VecDeque::new());
        let mut server = Server { ledger, now, held, events, writes: Vec::new(), count: 0 };
        for (what, n) in acts {
            server.act(what, n);
        }
        server.settle();
        for name in NAMES {
            proptest::prop_assert_eq!(server.held.get(name), Some(&WANTED), "{}", name);
        }
        // And then there is silence.
        let count = server.count;
        server.now += MAX_PAUSE;
        server.act(4, 0);
        proptest::prop_assert_eq!(server.count, count);
    }
}
