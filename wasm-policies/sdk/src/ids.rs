//! Maps by the host's ids.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// By the host's ids of rules and sets. Looked up several times per evaluation.
pub type Ids<V> = HashMap<u32, V, BuildHasherDefault<IdHasher>>;

/// One multiplication: the ids are the host's own numbers, which nobody chooses to collide.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(u32::from(byte)));
    }

    #[inline]
    fn write_u32(&mut self, id: u32) {
        let mixed = (self.0 ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The table looks at the lowest and at the highest bits.
        self.0 = mixed ^ (mixed >> 32);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, hash::BuildHasher as _};

    use super::*;

    #[test]
    fn neighbouring_ids_spread() {
        let hash = |id: u32| BuildHasherDefault::<IdHasher>::default().hash_one(id);
        for first in [0, 1 << 16, u32::MAX - 1023] {
            let low: HashSet<u64> = (0..1024).map(|i| hash(first + i) % 1024).collect();
            let high: HashSet<u64> = (0..1024).map(|i| hash(first + i) >> 57).collect();
            assert!(low.len() > 512 && high.len() > 64, "{} {}", low.len(), high.len());
        }
    }
}
