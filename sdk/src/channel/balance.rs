//! Which of several endpoints gets a call.

use std::sync::atomic::{AtomicU64, Ordering};

use rulecast_policy::draw::mix;

/// How calls spread over the endpoints that rules leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Balance {
    /// Each in its turn, evenly spaced, as often as its weight says. Shares are exact.
    #[default]
    RoundRobin,
    /// Of two that are drawn by weight, the one with fewer calls under way for its weight.
    LeastRequest,
    /// The same for all calls with the same value of this header (metadata of gRPC), in every
    /// process. When endpoints come or go, only the values that these have or had move. Calls
    /// without the header spread by weight.
    Hash(String),
}

/// A hash that is the same in all processes and versions.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    // FNV-1a; `mix` makes up for its weak high bits.
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// The endpoint of a key by weighted rendezvous: the one with the lowest score, whatever others
/// there are. So a smaller set moves only the keys of those that left. Endpoints are given as
/// index, hash and weight; those without weight only count when none has any.
pub(super) fn rendezvous(
    key: u64,
    endpoints: impl Iterator<Item = (u32, u64, u32)>,
) -> Option<u32> {
    let mut best: Option<(bool, f64, u32)> = None;
    for (index, hash, weight) in endpoints {
        // Uniform in (0, 1): an exponential wait with the weight as rate; the first one wins.
        let uniform = ((mix(hash ^ key) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let score = -uniform.ln() / f64::from(weight.max(1));
        let better = best.is_none_or(|(none, least, _)| (weight == 0, score) < (none, least));
        if better {
            best = Some((weight == 0, score, index));
        }
    }
    best.map(|(_, _, index)| index)
}

/// Endpoints between which calls are balanced, with where their turns stand. Shared by threads
/// without locks.
#[derive(Debug)]
pub(super) struct Lane {
    /// Those asked for.
    candidates: Box<[u32]>,
    /// Those of them that get calls, by weight.
    members: Box<[Member]>,
    turn: AtomicU64,
}

/// An endpoint with its weight.
pub(super) type Weighed = (u32, u32);

#[derive(Debug)]
struct Member {
    endpoint: u32,
    weight: u32,
    /// Of [`FULL`]: how often it takes its turn.
    share: u16,
    /// The weights up to this one.
    sum: u64,
}

const FULL: u64 = u16::MAX as u64;

impl Lane {
    /// Over endpoints with these weights. Those of weight 0 get no calls unless all are.
    pub(super) fn new(candidates: &[u32], weight: impl Fn(u32) -> u32) -> Self {
        let most = candidates.iter().map(|&endpoint| weight(endpoint)).max().unwrap_or_default();
        let mut sum = 0;
        let member = |&endpoint: &u32| {
            let weight = if most == 0 { 1 } else { weight(endpoint) };
            let share = u64::from(weight) * FULL / u64::from(most.max(1));
            sum += u64::from(weight);
            let share = u16::try_from(share).unwrap_or(u16::MAX).max(1);
            (weight > 0).then_some(Member { endpoint, weight, share, sum })
        };
        Self {
            candidates: candidates.into(),
            members: candidates.iter().filter_map(member).collect(),
            // A fleet that starts together does not begin with the same endpoint.
            turn: AtomicU64::new(fastrand::u32(..).into()),
        }
    }

    pub(super) fn candidates(&self) -> &[u32] {
        &self.candidates
    }

    /// Whose turn it is. In each round a member takes its turn or passes it, as often as its
    /// share of the largest weight; `None` only without members.
    pub(super) fn next(&self) -> Option<u32> {
        let count = self.members.len() as u64;
        loop {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let (at, round) = (turn.checked_rem(count)?, turn / count);
            let member = self.members.get(at as usize)?;
            let share = u64::from(member.share);
            // Neighbours are half a period apart, so that they do not pass all at once.
            let phase = (share * (round % FULL) + at % 2 * (FULL / 2)) % FULL;
            if phase >= FULL - share {
                return Some(member.endpoint);
            }
        }
    }

    /// Two members drawn by weight, the second among the others; fewer when there are fewer.
    pub(super) fn two(&self) -> Option<(Weighed, Option<Weighed>)> {
        let total = self.members.last()?.sum;
        let first = self.members.get(self.at(fastrand::u64(..total)))?;
        let of = |member: &Member| (member.endpoint, member.weight);
        let rest = total - u64::from(first.weight);
        if rest == 0 {
            return Some((of(first), None));
        }
        // The line of weights without the first one's piece.
        let point = fastrand::u64(..rest);
        let before = first.sum - u64::from(first.weight);
        let point = if point < before { point } else { point + u64::from(first.weight) };
        Some((of(first), self.members.get(self.at(point)).map(of)))
    }

    fn at(&self, point: u64) -> usize {
        self.members.partition_point(|member| member.sum <= point)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn turns(lane: &Lane, count: usize) -> HashMap<u32, usize> {
        let mut counts = HashMap::new();
        (0..count).for_each(|_| *counts.entry(lane.next().expect("one")).or_default() += 1);
        counts
    }

    #[test]
    fn equal_weights_take_turns() {
        let lane = Lane::new(&[3, 5, 9], |_| 100);
        for _ in 0..10 {
            assert_eq!(turns(&lane, 3), [(3, 1), (5, 1), (9, 1)].into());
        }
    }

    #[test]
    fn turns_go_by_weight() {
        let weights = [100, 0, 300, 600];
        let lane = Lane::new(&[0, 1, 2, 3], |at| weights[at as usize]);
        let counts = turns(&lane, 10_000);
        assert_eq!(counts.get(&1), None);
        for at in [0, 2, 3] {
            let (count, wanted) = (counts[&at] as i64, i64::from(weights[at as usize]) * 10);
            assert!((count - wanted).abs() <= 4, "{counts:?}");
        }
    }

    #[test]
    fn turns_are_spaced_evenly() {
        let lane = Lane::new(&[0, 1], |at| [1, 4][at as usize]);
        let mut since = 0;
        for _ in 0..1000 {
            since = if lane.next() == Some(0) { 0 } else { since + 1 };
            assert!(since <= 5, "{since} calls in a row elsewhere");
        }
    }

    #[test]
    fn threads_share_the_turns() {
        let lane = Lane::new(&[0, 1], |_| 1);
        let counts: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| turns(&lane, 2_500))).collect();
            threads.into_iter().map(|thread| thread.join().expect("ends")).collect()
        });
        let of = |at| counts.iter().filter_map(|c| c.get(&at)).sum::<usize>();
        assert_eq!((of(0), of(1)), (5_000, 5_000));
    }

    #[test]
    fn all_without_weight_are_alike() {
        let lane = Lane::new(&[0, 1], |_| 0);
        assert_eq!(turns(&lane, 10), [(0, 5), (1, 5)].into());
        assert_eq!(Lane::new(&[], |_| 1).next(), None);
        assert_eq!(Lane::new(&[], |_| 1).two(), None);
        assert_eq!(Lane::new(&[7], |_| 1).two(), Some(((7, 1), None)));
    }

    #[test]
    fn pairs_are_drawn_by_weight() {
        fastrand::seed(7);
        let weights = [100, 300, 600];
        let lane = Lane::new(&[0, 1, 2], |at| weights[at as usize]);
        let mut firsts = [0i32; 3];
        for _ in 0..20_000 {
            let ((first, weight), second) = lane.two().expect("two");
            assert_eq!(weight, weights[first as usize]);
            assert_ne!(Some(first), second.map(|(at, _)| at));
            firsts[first as usize] += 1;
        }
        for (count, weight) in firsts.into_iter().zip(weights) {
            assert!((count - weight as i32 * 20).abs() < 400, "{firsts:?}");
        }
    }

    fn owners(count: u32, weight: impl Fn(u32) -> u32, without: Option<u32>) -> Vec<u32> {
        let hashed = |at: u32| (at, hash(format!("10.0.0.{at}:80").as_bytes()), weight(at));
        let list = || (0..count).filter(|at| Some(*at) != without).map(hashed);
        let key = |key: u32| hash(&key.to_le_bytes());
        (0..20_000).map(|at| rendezvous(key(at), list()).expect("one")).collect()
    }

    #[test]
    fn keys_spread_by_weight() {
        let weights = [100, 100, 200, 0];
        let owners = owners(4, |at| weights[at as usize], None);
        let count = |of| owners.iter().filter(|owner| **owner == of).count() as i64;
        assert_eq!(count(3), 0);
        for (at, wanted) in [(0, 5_000), (1, 5_000), (2, 10_000)] {
            assert!((count(at) - wanted).abs() < 300, "{} of {wanted}", count(at));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn only_the_keys_of_who_leaves_move(count in 2u32..8, gone in 0u32..8) {
            let gone = gone % count;
            let (before, after) = (owners(count, |_| 1, None), owners(count, |_| 1, Some(gone)));
            for (before, after) in before.into_iter().zip(after) {
                prop_assert!(before == after || before == gone);
            }
        }
    }

    #[test]
    fn hashes_stay_what_they_are() {
        // Processes of other versions must agree on who has a key.
        assert_eq!(hash(b"user-1"), hash(b"user-1"));
        assert_ne!(hash(b"user-1"), hash(b"user-2"));
    }
}
