use std::time::Duration;

use prost::Message as _;
use rulecast_api::proto::rules::v1::RateLimit;

/// Fractions of a nanosecond that are counted: 2⁻³² ns.
const FRACTION: u32 = 32;

/// How a bucket fills, by the generic cell rate algorithm. Of a bucket one moment is kept: when
/// it will be full again. It stands before now by at most the time that a burst takes to refill.
///
/// Moments are nanoseconds, as fixed-point numbers: whole ones would make the rate wrong where
/// many calls share a millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// In which one call comes back.
    interval: u128,
    burst: u32,
}

impl Quota {
    /// `None`: takes none at all.
    pub(crate) fn new(requests: u32, period: Duration, burst: u32) -> Option<Self> {
        let interval = (period.as_nanos() << FRACTION).checked_div(requests.into())?;
        (interval > 0 && burst > 0).then_some(Self { interval, burst })
    }

    /// Of a rule's spec.
    pub(crate) fn decode(spec: &[u8]) -> Option<Self> {
        let message = RateLimit::decode(spec).ok()?;
        Self::new(message.requests, Duration::from_millis(message.period_ms), message.burst)
    }

    /// A moment, by the time since some beginning.
    pub(super) fn moment(since: Duration) -> u128 {
        since.as_nanos() << FRACTION
    }

    /// Takes from a bucket that is full again at `full`. Else says when it can be taken, if
    /// nobody comes before.
    pub(super) fn take(&self, full: &mut u128, now: u128, cost: u32) -> Result<(), Duration> {
        // After a change to a smaller burst nobody waits for what the larger one allowed.
        *full = (*full).min(now + self.span(self.burst));
        let next = self.after(*full, now, cost)?;
        *full = next;
        Ok(())
    }

    /// As [`take`](Self::take), without taking.
    pub(super) fn check(&self, full: u128, now: u128, cost: u32) -> Result<(), Duration> {
        self.after(full.min(now + self.span(self.burst)), now, cost).map(drop)
    }

    /// Undoes a take.
    pub(super) fn give_back(&self, full: &mut u128, cost: u32) {
        *full = full.saturating_sub(self.span(cost));
    }

    fn after(&self, full: u128, now: u128, cost: u32) -> Result<u128, Duration> {
        let next = full.max(now) + self.span(cost);
        match next.saturating_sub(now + self.span(self.burst)) {
            0 => Ok(next),
            wait => {
                let nanos = (wait >> FRACTION) + u128::from(wait << (128 - FRACTION) != 0);
                Err(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
            }
        }
    }

    /// In which so many calls come back. More than a burst at once counts as a burst: else it
    /// could never be taken.
    fn span(&self, calls: u32) -> u128 {
        self.interval * u128::from(calls.min(self.burst))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> u128 {
        Quota::moment(Duration::from_millis(millis))
    }

    fn quota(requests: u32, burst: u32) -> Quota {
        Quota::new(requests, SECOND, burst).expect("a quota")
    }

    #[test]
    fn a_burst_at_once_and_then_evenly() {
        let (quota, mut full) = (quota(10, 3), 0);
        let mut take = |millis| quota.take(&mut full, at(millis), 1);
        assert_eq!([take(0), take(0), take(0)], [Ok(()); 3]);
        assert_eq!(take(0), Err(Duration::from_millis(100)));
        assert_eq!(take(99), Err(Duration::from_millis(1)));
        assert_eq!(take(100), Ok(()));
        assert_eq!(take(150), Err(Duration::from_millis(50)));
        assert_eq!([take(300), take(300)], [Ok(()); 2]);
        assert!(take(300).is_err());
        // After a pause no more than a burst has gathered.
        assert_eq!([take(9000), take(9000), take(9000)], [Ok(()); 3]);
        assert!(take(9000).is_err());
    }

    #[test]
    fn rates_that_do_not_divide_evenly_are_kept() {
        for requests in [3, 7, 999_999_937] {
            let (quota, mut full) = (quota(requests, 1), 0);
            assert_eq!(quota.take(&mut full, at(0), 1), Ok(()));
            let wait = quota.take(&mut full, at(0), 1).expect_err("just taken").as_nanos();
            assert_eq!(wait, 1_000_000_000_u128.div_ceil(requests.into()));
        }
        let quota = quota(3, 3);
        let mut full = 0;
        for second in 0..100 {
            let taken = (0..4).filter(|_| quota.take(&mut full, at(second * 1000), 1).is_ok());
            assert_eq!(taken.count(), 3, "a second later all are back");
        }
    }

    #[test]
    fn what_is_given_back_was_never_taken() {
        let quota = quota(10, 2);
        let mut full = at(50);
        let before = full;
        quota.take(&mut full, at(20), 1).expect("there");
        quota.give_back(&mut full, 1);
        assert_eq!(full, before);
    }

    #[test]
    fn a_smaller_burst_holds_at_once() {
        let mut full = 0;
        quota(1, 1000).take(&mut full, at(0), 1000).expect("there");
        let small = quota(1, 1);
        assert_eq!(small.check(full, at(0), 1), Err(SECOND));
        assert_eq!(small.take(&mut full, at(0), 1), Err(SECOND));
        assert_eq!(small.take(&mut full, at(1000), 1), Ok(()));
    }

    #[test]
    fn extremes_are_taken() {
        let day = Duration::from_secs(86_400);
        let slow = Quota::new(1, day, u32::MAX).expect("a quota");
        let mut full = 0;
        slow.take(&mut full, at(u64::MAX / 2_000_000), u32::MAX).expect("there");
        assert!(slow.take(&mut full, at(0), u32::MAX).is_err());
        let fast = Quota::new(u32::MAX, Duration::from_millis(1), 1).expect("a quota");
        let mut full = 0;
        fast.take(&mut full, 0, 5).expect("more than a burst counts as one");
        assert!(fast.take(&mut full, 0, 1).is_err());
        assert_eq!(Quota::new(0, SECOND, 1), None);
        assert_eq!(Quota::new(1, Duration::ZERO, 1), None);
        assert_eq!(Quota::new(1, SECOND, 0), None);
    }

    proptest! {
        /// As a bucket of tokens that are counted: it refills by `requests` parts of a call each
        /// nanosecond, of which a second's make one call.
        #[test]
        fn it_is_a_token_bucket(
            requests in prop::sample::select(vec![1_u32, 2, 5, 8, 100, 1000, 1_000_000]),
            burst in 1_u32..20,
            steps in prop::collection::vec((0_u64..400_000_000, 1_u32..4), 1..200),
        ) {
            let quota = quota(requests, burst);
            let whole = SECOND.as_nanos();
            let most = u128::from(burst) * whole;
            let (mut tokens, mut full, mut nanos) = (most, 0, 0);
            for (pause, cost) in steps {
                nanos += u128::from(pause);
                tokens = most.min(tokens + u128::from(pause) * u128::from(requests));
                let wanted = u128::from(cost.min(burst)) * whole;
                let now = nanos << FRACTION;
                let checked = quota.check(full, now, cost);
                let taken = quota.take(&mut full, now, cost);
                prop_assert_eq!(checked, taken);
                match tokens.checked_sub(wanted) {
                    Some(left) => {
                        prop_assert_eq!(taken, Ok(()));
                        tokens = left;
                    }
                    None => {
                        let wait = (wanted - tokens).div_ceil(requests.into());
                        prop_assert_eq!(taken.expect_err("too few").as_nanos(), wait);
                    }
                }
            }
        }
    }
}
