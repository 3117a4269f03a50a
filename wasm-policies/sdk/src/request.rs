//! What one evaluation is asked.
//!
//! ```text
//!  0  u16  version, 1
//!  2  u16  number of rules R
//!  4  u32  id of the endpoint set
//!  8  u64  draw
//! 16  u32  number of endpoints E
//! 20  u32  number of attributes A
//! 24  R × { u32 rule id, u16 position, u16 flags }      flags bit 0: shadow
//!     ⌈E/64⌉ × u64                                      the candidates
//!     A × { u16 slot, u16 0, u32 offset, u32 length }   offset from the request's start;
//!                                                       0xffffffff: absent
//!     the values
//! ```

use crate::{abi, bits, bytes::Writer};

/// Bytes of the fixed head.
pub const HEAD: usize = 24;
/// Bytes of a rule's entry.
pub const RULE: usize = 8;
/// Bytes of an attribute's entry.
pub const ATTRIBUTE: usize = 12;
/// The offset that marks an absent attribute.
pub const ABSENT: u32 = u32::MAX;
/// Flag of a rule that is evaluated and reported, never enforced.
pub const SHADOW: u16 = 1;

/// A rule to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleRef {
    /// As committed.
    pub id: u32,
    /// Its place among the rules in force, which keeps its draws apart from the others'.
    pub position: u16,
    /// [`SHADOW`].
    pub flags: u16,
}

impl RuleRef {
    /// As it stands in a request. Lists are encoded once and used for many requests.
    #[inline]
    pub fn encode(self) -> [u8; RULE] {
        let entry =
            u64::from(self.id) | u64::from(self.position) << 32 | u64::from(self.flags) << 48;
        entry.to_le_bytes()
    }
}

/// A request, still encoded.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The endpoint set that the candidates are of.
    pub set: u32,
    /// The source of chance; 0 when the policy declared none.
    pub draw: u64,
    endpoints: usize,
    rules: &'a [u8],
    candidates: &'a [u8],
    attributes: &'a [u8],
    all: &'a [u8],
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl<'a> Request<'a> {
    /// Reads the frame; `None` when it is malformed. Attribute values are checked on access.
    #[inline]
    pub fn read(all: &'a [u8]) -> Option<Self> {
        if u16_at(all, 0)? != abi::VERSION as u16 {
            return None;
        }
        let rules = usize::from(u16_at(all, 2)?) * RULE;
        let endpoints = u32_at(all, 16)? as usize;
        let attributes = (u32_at(all, 20)? as usize).checked_mul(ATTRIBUTE)?;
        if endpoints > abi::MAX_ENDPOINTS {
            return None;
        }
        let candidates = HEAD + rules;
        let slots = candidates + bits::words(endpoints) * 8;
        Some(Self {
            set: u32_at(all, 4)?,
            draw: u64::from_le_bytes(all.get(8..16)?.try_into().ok()?),
            endpoints,
            rules: all.get(HEAD..candidates)?,
            candidates: all.get(candidates..slots)?,
            attributes: all.get(slots..slots.checked_add(attributes)?)?,
            all,
        })
    }

    /// How many endpoints the set has.
    #[inline]
    pub fn endpoints(&self) -> usize {
        self.endpoints
    }

    /// The rules to apply, in order.
    #[inline]
    pub fn rules(&self) -> impl ExactSizeIterator<Item = RuleRef> + Clone + 'a {
        self.rules.chunks_exact(RULE).map(|r| RuleRef {
            id: u32::from_le_bytes([r[0], r[1], r[2], r[3]]),
            position: u16::from_le_bytes([r[4], r[5]]),
            flags: u16::from_le_bytes([r[6], r[7]]),
        })
    }

    /// The same, still encoded: equal bytes are equal lists.
    #[inline]
    pub(crate) fn list(&self) -> &'a [u8] {
        self.rules
    }

    /// The candidates' words, see [`bits`].
    #[inline]
    pub fn candidates(&self) -> impl ExactSizeIterator<Item = u64> + 'a {
        self.candidates
            .chunks_exact(8)
            .map(|w| u64::from_le_bytes([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]]))
    }

    /// An attribute's value; `None` when it is absent (or lies outside of the request).
    #[inline]
    pub fn attribute(&self, slot: u16) -> Option<&'a [u8]> {
        let has = |entry: &&[u8]| entry[..2] == slot.to_le_bytes();
        // Where every slot is in use, each is in its place.
        let at = usize::from(slot) * ATTRIBUTE;
        let entry = match self.attributes.get(at..at + ATTRIBUTE).filter(has) {
            Some(entry) => entry,
            None => self.attributes.chunks_exact(ATTRIBUTE).find(has)?,
        };
        let (offset, len) = (u32_at(entry, 4)?, u32_at(entry, 8)?);
        if offset == ABSENT {
            return None;
        }
        let start = offset as usize;
        self.all.get(start..start.checked_add(len as usize)?)
    }

    /// An attribute as text; `None` when it is absent or not UTF-8.
    pub fn text(&self, slot: u16) -> Option<&'a str> {
        std::str::from_utf8(self.attribute(slot)?).ok()
    }
}

/// What a host encodes.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The endpoint set that the candidates are of.
    pub set: u32,
    /// 0 unless a rule declared the draw.
    pub draw: u64,
    /// The set's size.
    pub endpoints: usize,
    /// The candidates' words, as many as the set's size needs.
    pub candidates: &'a [u64],
    /// The rules to apply, each as [`RuleRef::encode`] gives it.
    pub rules: &'a [[u8; RULE]],
}

/// Encodes a request into `buffer` and gives its length; `None` when it does not fit.
/// Each attribute is its slot and value, `None` where absent; a guest is faster when they come
/// by ascending slot.
#[inline]
pub fn write<'v>(
    buffer: &mut [u8],
    frame: Frame<'_>,
    attributes: impl ExactSizeIterator<Item = (u16, Option<&'v [u8]>)>,
) -> Option<usize> {
    let count = attributes.len();
    let mut writer = Writer::new(buffer);
    writer.u16(abi::VERSION as u16);
    writer.u16(u16::try_from(frame.rules.len()).ok()?);
    writer.u32(frame.set);
    writer.u64(frame.draw);
    writer.u32(u32::try_from(frame.endpoints).ok()?);
    writer.u32(u32::try_from(count).ok()?);
    writer.put(frame.rules.as_flattened());
    for &word in frame.candidates.iter().take(bits::words(frame.endpoints)) {
        writer.u64(word);
    }
    let table = writer.at();
    writer.skip(count.checked_mul(ATTRIBUTE)?);
    for (i, (slot, value)) in attributes.enumerate() {
        let (offset, len) = match value {
            Some(value) => (writer.at() as u32, value.len() as u32),
            None => (ABSENT, 0),
        };
        let mut entry = [0; ATTRIBUTE];
        entry[..2].copy_from_slice(&slot.to_le_bytes());
        entry[4..8].copy_from_slice(&offset.to_le_bytes());
        entry[8..].copy_from_slice(&len.to_le_bytes());
        writer.patch(table + i * ATTRIBUTE, &entry);
        if let Some(value) = value {
            writer.put(value);
        }
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn round_trips() {
        let mut buffer = [0; 256];
        let rule = RuleRef { id: 7, position: 1, flags: SHADOW };
        let rules = [rule.encode()];
        let candidates = [u64::MAX, 1];
        let frame =
            Frame { set: 3, draw: 9, endpoints: 65, candidates: &candidates, rules: &rules };
        let attributes = [(4, Some(b"getFoo".as_slice())), (5, None), (6, Some(b"".as_slice()))];
        let len = write(&mut buffer, frame, attributes.into_iter()).expect("fits");
        let request = Request::read(&buffer[..len]).expect("well-formed");
        assert_eq!((request.set, request.draw, request.endpoints()), (3, 9, 65));
        assert_eq!(request.rules().collect::<Vec<_>>(), [rule]);
        assert_eq!(request.candidates().collect::<Vec<_>>(), [u64::MAX, 1]);
        assert_eq!(request.attribute(4), Some(b"getFoo".as_slice()));
        assert_eq!(request.attribute(5), None);
        assert_eq!(request.text(6), Some(""));
        assert_eq!(request.attribute(7), None);
        let dense = [(0, Some(b"a".as_slice())), (1, None), (2, Some(b"c".as_slice()))];
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            let attributes = order.map(|at: usize| dense[at]);
            let mut buffer = [0; 256];
            let len = write(&mut buffer, frame, attributes.into_iter()).expect("fits");
            let request = Request::read(&buffer[..len]).expect("well-formed");
            for (slot, value) in dense {
                assert_eq!(request.attribute(slot), value, "{slot} of {order:?}");
            }
        }
        for short in 0..len {
            let mut small = vec![0; short];
            assert!(write(&mut small, frame, attributes.into_iter()).is_none());
        }
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80), slot: u16) {
            let mut bytes = bytes;
            if bytes.len() > 2 { bytes[0] = 1; bytes[1] = 0; }
            if let Some(request) = Request::read(&bytes) {
                request.rules().count();
                request.candidates().count();
                request.attribute(slot);
            }
        }
    }
}
