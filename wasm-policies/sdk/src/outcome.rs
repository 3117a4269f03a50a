//! What one evaluation answers.
//!
//! ```text
//!  0  u16  version, 1
//!  2  u16  number of rules R, as many as were asked
//!  4  u32  number of effects
//!  8  R × { u8 did, u8 0, u16 0, u32 how many endpoints remain }
//!     effects, each { u16 tag, u16 index of the rule or 0xffff, u32 length, bytes }
//! ```
//!
//! A host skips effects whose tag it does not know.

use crate::{abi, bytes::Reader, bytes::Writer};

/// Bytes of the fixed head.
pub const HEAD: usize = 8;
/// Bytes of a rule's entry.
pub const RULE: usize = 8;
/// The index of an effect that belongs to no single rule.
pub const ALL_RULES: u16 = u16::MAX;

/// Tags of effects.
pub mod tag {
    /// The remaining endpoints as a bit set, ⌈E/64⌉ × u64. Absent: the candidates remain.
    pub const ENDPOINTS: u16 = 1;
    /// A line for people, UTF-8. Only in answers to `explain`.
    pub const TEXT: u16 = 2;
    /// What the rule says of the call: u8 [`super::verdict`], then words for the caller, UTF-8.
    pub const VERDICT: u16 = 3;
    /// A parameter: u32 endpoint or 0xffffffff for all, u16 length of the name, name, value.
    pub const PARAMETER: u16 = 4;
    /// Takes from the rule's bucket: u32 how much, then the key's bytes.
    pub const TAKE: u16 = 5;
    /// How connections are taken: u8, 1 plaintext only, 2 both, 3 mutual TLS only.
    pub const MODE: u16 = 6;
}

/// Values of [`tag::VERDICT`].
pub mod verdict {
    /// Neither: a rule that allows calls, but not this one. Where such rules are and none
    /// allows, the call is refused.
    pub const NONE: u8 = 0;
    /// The call may go on.
    pub const ALLOW: u8 = 1;
    /// The call is refused.
    pub const DENY: u8 = 2;
}

/// What a rule did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Did {
    /// No part of it applied.
    Skipped = 0,
    /// It applied; a shadow rule would have.
    Applied = 1,
}

/// Per rule, in the order asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleOutcome {
    /// What it did.
    pub did: Did,
    /// How many endpoints remain after it; for a shadow rule, would remain.
    pub remaining: u32,
}

/// One effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect<'a> {
    /// See [`tag`].
    pub tag: u16,
    /// Index among the rules asked, or [`ALL_RULES`].
    pub rule: u16,
    /// By tag.
    pub bytes: &'a [u8],
}

/// Where a policy writes its answer.
pub struct OutcomeWriter<'a> {
    writer: Writer<'a>,
    rules: usize,
    effects: u32,
}

impl<'a> OutcomeWriter<'a> {
    /// For as many rules as were asked; all begin as skipped.
    #[inline]
    pub fn new(buffer: &'a mut [u8], rules: usize) -> Self {
        let mut writer = Writer::new(buffer);
        writer.u16(abi::VERSION as u16);
        writer.u16(rules as u16);
        writer.u32(0);
        writer.skip(rules * RULE);
        Self { writer, rules, effects: 0 }
    }

    /// Says what the rule at `index` did.
    #[inline]
    pub fn rule(&mut self, index: usize, outcome: RuleOutcome) {
        if index < self.rules {
            let entry = u64::from(outcome.did as u8) | u64::from(outcome.remaining) << 32;
            self.writer.patch(HEAD + index * RULE, &entry.to_le_bytes());
        }
    }

    /// Adds an effect.
    pub fn effect(&mut self, tag: u16, rule: u16, bytes: &[u8]) {
        self.head(tag, rule, bytes.len());
        self.writer.put(bytes);
    }

    /// Says what a rule says of the call, one of [`verdict`].
    pub fn verdict(&mut self, rule: u16, verdict: u8, words: &str) {
        self.head(tag::VERDICT, rule, 1 + words.len());
        self.writer.put(&[verdict]);
        self.writer.put(words.as_bytes());
    }

    /// Gives a parameter to an endpoint, or to all.
    pub fn parameter(&mut self, rule: u16, endpoint: Option<u32>, name: &str, value: &str) {
        self.head(tag::PARAMETER, rule, 6 + name.len() + value.len());
        self.writer.u32(endpoint.unwrap_or(u32::MAX));
        self.writer.u16(name.len() as u16);
        self.writer.put(name.as_bytes());
        self.writer.put(value.as_bytes());
    }

    /// Takes from a rule's bucket.
    pub fn take(&mut self, rule: u16, cost: u32, key: &[u8]) {
        self.head(tag::TAKE, rule, 4 + key.len());
        self.writer.u32(cost);
        self.writer.put(key);
    }

    /// Says how connections are taken.
    pub fn mode(&mut self, rule: u16, mode: u8) {
        self.effect(tag::MODE, rule, &[mode]);
    }

    /// Says which endpoints remain.
    #[inline]
    pub fn endpoints(&mut self, set: &[u64]) {
        self.head(tag::ENDPOINTS, ALL_RULES, set.len() * 8);
        for &word in set {
            self.writer.u64(word);
        }
    }

    #[inline]
    fn head(&mut self, tag: u16, rule: u16, len: usize) {
        let head = u64::from(tag) | u64::from(rule) << 16 | (len as u64) << 32;
        self.writer.u64(head);
        self.effects += 1;
    }

    /// Bytes of the answer; `None` when it did not fit.
    #[inline]
    pub fn finish(mut self) -> Option<usize> {
        self.writer.patch(4, &self.effects.to_le_bytes());
        self.writer.finish()
    }
}

/// An answer, checked in full on reading.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    rules: &'a [u8],
    effects: &'a [u8],
}

impl<'a> Outcome<'a> {
    /// Reads the answer to a request of `rules` rules; `None` when it is malformed.
    #[inline]
    pub fn read(bytes: &'a [u8], rules: usize) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        if reader.u16()? != abi::VERSION as u16 || usize::from(reader.u16()?) != rules {
            return None;
        }
        let count = reader.u32()?;
        let entries = reader.take(rules.checked_mul(RULE)?)?;
        if entries.chunks_exact(RULE).any(|e| e[0] > Did::Applied as u8) {
            return None;
        }
        let effects = bytes.get(HEAD + entries.len()..)?;
        let mut seen = 0u32;
        while !reader.is_empty() {
            let (_, rule, len) = (reader.u16()?, reader.u16()?, reader.size()?);
            if rule != ALL_RULES && usize::from(rule) >= rules {
                return None;
            }
            reader.take(len)?;
            seen = seen.checked_add(1)?;
        }
        (seen == count).then_some(Self { rules: entries, effects })
    }

    /// What each rule did, in the order asked.
    #[inline]
    pub fn rules(&self) -> impl ExactSizeIterator<Item = RuleOutcome> + 'a {
        self.rules.chunks_exact(RULE).map(|e| RuleOutcome {
            did: if e[0] == Did::Applied as u8 { Did::Applied } else { Did::Skipped },
            remaining: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
        })
    }

    /// The effects, in order.
    #[inline]
    pub fn effects(&self) -> impl Iterator<Item = Effect<'a>> + 'a {
        let mut reader = Reader::new(self.effects);
        std::iter::from_fn(move || {
            let (tag, rule, len) = (reader.u16()?, reader.u16()?, reader.size()?);
            Some(Effect { tag, rule, bytes: reader.take(len)? })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn round_trips() {
        let mut buffer = [0; 128];
        let mut writer = OutcomeWriter::new(&mut buffer, 2);
        let applied = RuleOutcome { did: Did::Applied, remaining: 3 };
        writer.rule(1, applied);
        writer.endpoints(&[7]);
        writer.effect(tag::TEXT, 1, b"hello");
        let len = writer.finish().expect("fits");
        let outcome = Outcome::read(&buffer[..len], 2).expect("well-formed");
        let skipped = RuleOutcome { did: Did::Skipped, remaining: 0 };
        assert_eq!(outcome.rules().collect::<Vec<_>>(), [skipped, applied]);
        let effects: Vec<_> = outcome.effects().map(|e| (e.tag, e.rule, e.bytes.len())).collect();
        assert_eq!(effects, [(tag::ENDPOINTS, ALL_RULES, 8), (tag::TEXT, 1, 5)]);
        assert!(Outcome::read(&buffer[..len], 1).is_none());
        assert!(Outcome::read(&buffer[..len - 1], 2).is_none());
        assert!(OutcomeWriter::new(&mut [0; 10], 2).finish().is_none());
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80), rules in 0usize..4) {
            let mut bytes = bytes;
            if bytes.len() > 4 { bytes[..4].copy_from_slice(&[1, 0, rules as u8, 0]); }
            if let Some(outcome) = Outcome::read(&bytes, rules) {
                outcome.rules().count();
                outcome.effects().count();
            }
        }
    }
}
