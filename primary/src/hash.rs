//! The hash of the tables: every byte of a key is mixed, a few nanoseconds a key, seeded per table.

use std::hash::{BuildHasher, RandomState};

/// Words of a seed.
const SEED_WORDS: usize = 4;

/// A seeded hash function. It names places in memory, of this process and of those that read its tables: no stable format.
///
/// Wide multiplications folded to 64 bits, as in wyhash (Wang Yi, public domain). Two tables have two seeds, so keys that
/// were made to collide in one do not in another.
#[derive(Clone, Debug)]
pub struct Hasher {
    seed: [u64; SEED_WORDS],
}

impl Hasher {
    /// A hash function with a random seed.
    #[allow(
        clippy::disallowed_methods,
        reason = "a seed that nobody may guess; it moves keys about in tables and no answer depends on it"
    )]
    pub fn random() -> Self {
        let state = RandomState::new();
        // An odd seed word is never zero, so no seed makes the first product constant.
        Self { seed: std::array::from_fn(|i| state.hash_one(i) | 1) }
    }

    /// The hash function of this seed.
    pub(crate) const fn of(seed: [u64; SEED_WORDS]) -> Self {
        Self { seed }
    }

    /// Its seed.
    pub(crate) const fn seed(&self) -> [u64; SEED_WORDS] {
        self.seed
    }

    /// A hash function that sends all keys to the same place.
    #[cfg(test)]
    pub(crate) fn useless() -> Self {
        Self { seed: [0; SEED_WORDS] }
    }

    /// The hash of `bytes`. All 64 bits are usable.
    #[inline(always)]
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        // The common length as a constant: the loop below unrolls to five multiplications.
        match <&[u8; 36]>::try_from(bytes) {
            Ok(bytes) => self.mix(bytes),
            Err(_) => self.mix(bytes),
        }
    }

    #[inline(always)]
    fn mix(&self, bytes: &[u8]) -> u64 {
        let [first, left, right, last] = self.seed;
        let mut hash = first ^ bytes.len() as u64;
        let (pairs, rest) = bytes.as_chunks::<16>();
        for pair in pairs {
            let [low, high] = halves(pair);
            hash = fold(low ^ hash, high ^ left);
        }
        let mut padded = [0; 16];
        for (to, from) in padded.iter_mut().zip(rest) {
            *to = *from;
        }
        let [low, high] = halves(&padded);
        fold(fold(low ^ hash, high ^ right), last)
    }
}

#[inline(always)]
fn halves(pair: &[u8; 16]) -> [u64; 2] {
    let whole = u128::from_le_bytes(*pair);
    [whole as u64, (whole >> 64) as u64]
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Keys that differ in one bit only, anywhere, must not meet in the bits that a table uses.
    #[test]
    fn every_bit_of_a_key_reaches_both_ends_of_the_hash() {
        let hasher = Hasher::random();
        for len in [5, 8, 12, 20, 36, 68] {
            let base = hasher.hash(&vec![0; len]);
            let mut seen = HashSet::from([base]);
            let mut flipped = 0;
            for bit in 0..len * 8 {
                let mut key = vec![0; len];
                key[bit / 8] ^= 1 << (bit % 8);
                let hash = hasher.hash(&key);
                assert!(seen.insert(hash), "{len} bytes, bit {bit}");
                flipped += (hash ^ base).count_ones();
            }
            let mean = f64::from(flipped) / (len * 8) as f64;
            assert!((24.0..40.0).contains(&mean), "{len} bytes: {mean} of 64 bits change");
        }
    }

    /// Counting keys, as tests and weak engines make them, spread over the high bits (place) and the low bits (tag).
    #[test]
    fn counting_keys_spread() {
        let hasher = Hasher::random();
        for at in [0, 15, 28, 32] {
            let (mut high, mut low) = ([0_u32; 256], [0_u32; 256]);
            for i in 0..65_536_u32 {
                let mut key = [0; 36];
                key[at..at + 4].copy_from_slice(&i.to_be_bytes());
                let hash = hasher.hash(&key);
                high[(hash >> 56) as usize] += 1;
                low[(hash & 255) as usize] += 1;
            }
            for count in high.iter().chain(&low) {
                assert!((128..=400).contains(count), "{count} of 256 expected, counter at byte {at}");
            }
        }
    }
}
