//! Content digests: of a delivered item, and of a set of them.

use std::fmt;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

/// SHA-256 of delivered bytes. Two items with one digest are the same item.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of an item's bytes, as delivered.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Of a set of items. `items` come sorted by key; an empty set has a digest too.
    pub fn of_set<'a>(items: impl IntoIterator<Item = (&'a str, &'a Digest)>) -> Self {
        let mut hash = Sha256::new();
        for (key, digest) in items {
            hash.update((key.len() as u64).to_le_bytes());
            hash.update(key.as_bytes());
            hash.update(digest.0);
        }
        Self(hash.finalize().into())
    }

    /// Reads 32 bytes; `None` for any other length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 32 bytes for a protobuf field.
    pub fn to_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }

    /// The first twelve hex digits, for people.
    pub fn short(&self) -> String {
        hex::encode(&self.0[..6])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_digest_depends_on_keys_and_boundaries() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let ab = Digest::of_set([("x", &a), ("y", &b)]);
        assert_ne!(ab, Digest::of_set([("x", &b), ("y", &a)]));
        assert_ne!(ab, Digest::of_set([("xy", &a)]));
        assert_eq!(ab, Digest::of_set([("x", &a), ("y", &b)]));
    }
}
