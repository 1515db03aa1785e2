//! The one source of chance: a seed decides everything.

/// A small pseudo-random generator (xoshiro256++, Blackman and Vigna, seeded by splitmix64). Equal seeds give equal
/// numbers on every machine and in every version, so that a failing seed replays for ever.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

/// One step of splitmix64: a bijection of 64 bits that looks random.
pub const fn splitmix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            splitmix(state)
        }))
    }

    /// A generator of its own for one part of the world: what the part draws does not move the others.
    pub fn fork(&mut self, part: &str) -> Self {
        let label = part.bytes().fold(0_u64, |hash, byte| splitmix(hash ^ u64::from(byte)));
        Self::new(self.next() ^ label)
    }

    /// 64 random bits.
    #[expect(clippy::should_implement_trait, reason = "no iterator: it never ends and is never adapted")]
    pub fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number in `0..bound`; 0 when the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// An index in `0..len`; 0 when the length is 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number in `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from).saturating_add(1))
    }

    /// True `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.index(choices.len()))
    }

    /// A number in `1..=bound` that is small more often than large: its size in bits is drawn first.
    pub fn skewed(&mut self, bound: u64) -> u64 {
        let bits = self.below(u64::from(64 - bound.leading_zeros()) + 1);
        (self.next() & ((1_u64 << bits.min(63)) - 1)).clamp(1, bound.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_are_equal_and_forks_are_not() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        let drawn: Vec<u64> = (0..4).map(|_| a.next()).collect();
        assert_eq!(drawn, (0..4).map(|_| b.next()).collect::<Vec<_>>());
        assert_ne!(a.fork("disk").next(), b.fork("engine").next());
        assert_eq!(Rng::new(7).fork("x").next(), Rng::new(7).fork("x").next());
    }

    #[test]
    fn draws_stay_in_their_bounds_and_reach_both_ends() {
        let mut rng = Rng::new(1);
        let drawn: Vec<u64> = (0..1000).map(|_| rng.between(3, 9)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&9)));
        assert!((0..1000).all(|_| (1..=50).contains(&rng.skewed(50))));
        assert_eq!((rng.below(0), rng.chance(0), rng.chance(1000)), (0, false, true));
    }
}
