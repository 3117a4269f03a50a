//! Chance from one 64-bit draw per evaluation, the same natively and in the sandbox.

/// One step of splitmix64's output function.
#[inline]
pub const fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The number that condition `condition` of the rule at position `rule` draws: independent
/// of all other positions, and uniform when `draw` is.
#[inline]
pub const fn at(draw: u64, rule: u32, condition: u32) -> u64 {
    mix(draw ^ mix(((rule as u64) << 32) | condition as u64))
}

/// Which of `weights` a number falls on: index `i` with probability `weights[i] / sum`, exact
/// to 2⁻⁶⁴. `None` when the sum is 0.
#[inline]
pub fn pick(number: u64, weights: impl Iterator<Item = u32> + Clone) -> Option<usize> {
    let sum: u64 = weights.clone().map(u64::from).sum();
    let mut point = ((u128::from(number) * u128::from(sum)) >> 64) as u64;
    for (i, weight) in weights.enumerate() {
        let weight = u64::from(weight);
        if point < weight {
            return Some(i);
        }
        point -= weight;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_reference() {
        // First outputs of splitmix64 seeded with 0.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn picks_by_weight() {
        let weights = [0u32, 1, 0, 3];
        assert_eq!(pick(0, weights.iter().copied()), Some(1));
        assert_eq!(pick(u64::MAX / 4, weights.iter().copied()), Some(1));
        assert_eq!(pick(1 << 62, weights.iter().copied()), Some(3));
        assert_eq!(pick(u64::MAX, weights.iter().copied()), Some(3));
        assert_eq!(pick(7, [0u32, 0].iter().copied()), None);
        assert_eq!(pick(u64::MAX, [u32::MAX; 5].iter().copied()), Some(4));
    }
}
