//! Sets of endpoints as bits: endpoint `i` is bit `i % 64` of word `i / 64`.

/// Words for `len` endpoints.
#[inline]
pub const fn words(len: usize) -> usize {
    len.div_ceil(64)
}

/// All of `len` endpoints.
pub fn all(len: usize) -> Vec<u64> {
    let mut set = vec![u64::MAX; words(len)];
    if let (Some(last), true) = (set.last_mut(), !len.is_multiple_of(64)) {
        *last = (1 << (len % 64)) - 1;
    }
    set
}

/// Adds an endpoint; one outside of the set is ignored.
#[inline]
pub fn insert(set: &mut [u64], index: usize) {
    if let Some(word) = set.get_mut(index / 64) {
        *word |= 1 << (index % 64);
    }
}

/// How many are in it.
#[inline]
pub fn count(set: &[u64]) -> usize {
    set.iter().map(|w| w.count_ones() as usize).sum()
}

/// Whether it has none.
#[inline]
pub fn is_empty(set: &[u64]) -> bool {
    set.iter().all(|&w| w == 0)
}

/// Keeps those that are in `other` too.
#[inline]
pub fn intersect(set: &mut [u64], other: &[u64]) {
    for (word, other) in set.iter_mut().zip(other) {
        *word &= other;
    }
}

/// Drops those that are in `other`.
#[inline]
pub fn subtract(set: &mut [u64], other: &[u64]) {
    for (word, other) in set.iter_mut().zip(other) {
        *word &= !other;
    }
}

/// Adds those that are in `other`.
#[inline]
pub fn unite(set: &mut [u64], other: &[u64]) {
    for (word, other) in set.iter_mut().zip(other) {
        *word |= other;
    }
}

/// Their indices, ascending.
#[inline]
pub fn indices(set: &[u64]) -> impl Iterator<Item = usize> + '_ {
    set.iter().enumerate().flat_map(|(i, &word)| {
        let mut rest = word;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let bit = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            Some(i * 64 + bit)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_lists() {
        for len in [0, 1, 63, 64, 65, 130] {
            let set = all(len);
            assert_eq!(count(&set), len);
            assert_eq!(indices(&set).collect::<Vec<_>>(), (0..len).collect::<Vec<_>>());
            assert_eq!(is_empty(&set), len == 0);
        }
    }
}
