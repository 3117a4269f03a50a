//! One evaluation.

use std::net::IpAddr;

use rulecast_api::ip;
use rulecast_policy::{
    draw::mix,
    request::Request,
    trace::{Quiet, Trace},
};

use crate::compile::{Check, Rules, Samples, Test};

/// A call, with what is worked out of it once.
pub(crate) struct Call<'a> {
    request: &'a Request<'a>,
    /// The caller's address, once it was asked for.
    ip: Option<Option<IpAddr>>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(request: &'a Request<'a>) -> Self {
        Self { request, ip: None }
    }

    /// Whether a policy looks at the call: by its id, so that the same call is looked at
    /// everywhere and every time, or not at all. Policies with equal shares choose the same.
    pub(crate) fn is_sampled(&self, rules: &Rules, trace: &mut impl Trace) -> bool {
        let (below, slot) = match rules.samples {
            Samples::All => return true,
            Samples::None => {
                trace.say(|| "no request is looked at: samples is 0".to_owned());
                return false;
            }
            Samples::Below(below, slot) => (below, slot),
        };
        let point = match self.request.attribute(slot).filter(|id| !id.is_empty()) {
            Some(id) => point(id),
            None => mix(self.request.draw),
        };
        let share = |n: u64| n as f64 / 18_446_744_073_709_551_616.0 * 100.0;
        trace.say(|| {
            let not = if point < below { "is" } else { "is not" };
            let (point, below) = (share(point), share(below));
            format!("the request {not} looked at: it falls on {point:.3} %, samples {below:.3} %")
        });
        point < below
    }

    /// Whether a policy that looks at the call matches it.
    pub(crate) fn matches(&mut self, rules: &Rules, trace: &mut impl Trace) -> bool {
        if rules.everything {
            trace.say(|| "there are no rules, so every call matches".to_owned());
            return true;
        }
        for (i, tests) in rules.rules.iter().enumerate() {
            let failed = tests.iter().find(|test| !self.holds(test));
            trace.say(|| match failed {
                None => format!("rule {i} holds"),
                Some(test) => format!("rule {i} does not hold: {}", self.why_not(test)),
            });
            if failed.is_some() == rules.all {
                return !rules.all;
            }
        }
        rules.all && !rules.rules.is_empty()
    }

    /// Whether one of its rules holds, or with `None` the policy as a whole matches.
    #[inline]
    pub(crate) fn rule_holds(&mut self, rules: &Rules, rule: Option<u32>) -> bool {
        match rule {
            None => self.matches(rules, &mut Quiet),
            Some(rule) => rules
                .rules
                .get(rule as usize)
                .is_some_and(|tests| tests.iter().all(|test| self.holds(test))),
        }
    }

    fn holds(&mut self, test: &Test) -> bool {
        let value = self.request.attribute(test.slot);
        match &test.check {
            Check::OneOf(values) => value.is_some_and(|value| values.meet(value)),
            Check::NoneOf(values) => !value.is_some_and(|value| values.meet(value)),
            Check::Within(blocks) => {
                let ip = self.ip(value);
                ip.is_some() && blocks.iter().any(|block| block.matches_ip(ip, None))
            }
            Check::Outside(blocks) => {
                let ip = self.ip(value);
                !(ip.is_some() && blocks.iter().any(|block| block.matches_ip(ip, None)))
            }
        }
    }

    fn ip(&mut self, value: Option<&[u8]>) -> Option<IpAddr> {
        *self.ip.get_or_insert_with(|| ip::ip(std::str::from_utf8(value?).ok()?))
    }

    fn why_not(&self, test: &Test) -> String {
        let value = match self.request.attribute(test.slot) {
            Some(value) => {
                let text: String = String::from_utf8_lossy(value).chars().take(64).collect();
                format!("{} is {text:?}", test.name)
            }
            None => format!("{} is absent", test.name),
        };
        match &test.check {
            Check::OneOf(values) => format!("{value}, wanted {}", values.shown()),
            Check::NoneOf(values) => format!("{value}, excluded are {}", values.shown()),
            Check::Within(_) => format!("{value}, which is in none of the blocks"),
            Check::Outside(_) => format!("{value}, which is in a block that is excluded"),
        }
    }
}

/// Where a request's id falls, evenly: FNV-1a, mixed since its upper bits are weak.
fn point(id: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    mix(id.iter().fold(0xcbf2_9ce4_8422_2325, fold))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_fall_evenly_and_stay_where_they_are() {
        assert_eq!(point(b"request-1"), point(b"request-1"));
        let mut tenths = [0; 10];
        for n in 0..100_000 {
            let point = point(format!("req-{n}").as_bytes());
            tenths[((u128::from(point) * 10) >> 64) as usize] += 1;
        }
        assert!(tenths.iter().all(|n| (9_600..10_400).contains(n)), "{tenths:?}");
    }
}
