//! The bytes that a block must hold: every 8-byte word depends on the block and on its place, so a byte that comes from
//! another block, from another offset, or from an earlier owner of the memory is told at once.

use super::mix::{GOLDEN, mix};

/// Names the content of one GPU block: what the block id and the KV-cache group demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content(u64);

impl Content {
    /// What block `id` holds in `group`.
    #[inline]
    pub const fn of(id: u64, group: u32) -> Self {
        Self(mix(id ^ mix(group as u64 + 1)))
    }

    #[inline]
    const fn word(self, index: u64) -> u64 {
        let x = self.0.wrapping_add(index.wrapping_mul(GOLDEN));
        (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }

    /// Writes the content.
    pub fn fill(self, memory: &mut [u8]) {
        let (words, rest) = memory.as_chunks_mut::<8>();
        let count = words.len() as u64;
        for (index, word) in (0u64..).zip(words) {
            *word = self.word(index).to_le_bytes();
        }
        let last = self.word(count).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// The offset of the first word that is wrong, in bytes; `None` if all is right.
    pub fn mismatch(self, memory: &[u8]) -> Option<usize> {
        /// Words compared before a branch.
        const STRIDE: usize = 32;
        let (words, rest) = memory.as_chunks::<8>();
        let mut at = 0;
        for group in words.chunks(STRIDE) {
            let wrong = (at as u64..)
                .zip(group)
                .fold(0, |wrong, (index, word)| wrong | (u64::from_le_bytes(*word) ^ self.word(index)));
            if wrong != 0 {
                let inside = (at as u64..)
                    .zip(group)
                    .position(|(index, word)| u64::from_le_bytes(*word) != self.word(index))
                    .unwrap_or(0);
                return Some((at + inside) * 8);
            }
            at += group.len();
        }
        let last = self.word(words.len() as u64).to_le_bytes();
        (rest != &last[..rest.len()]).then_some(words.len() * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_is_found() {
        for length in [0, 1, 7, 8, 9, 255, 256, 4096, 4103] {
            let mut memory = vec![0; length];
            let content = Content::of(5, 1);
            content.fill(&mut memory);
            assert_eq!(content.mismatch(&memory), None, "{length}");
            for at in 0..length {
                memory[at] ^= 0x10;
                assert_eq!(content.mismatch(&memory), Some(at / 8 * 8), "{length}, {at}");
                memory[at] ^= 0x10;
            }
        }
    }

    #[test]
    fn no_two_blocks_share_a_word() {
        let mut seen = std::collections::HashSet::new();
        let mut memory = vec![0; 4096];
        for id in 0..64 {
            for group in 0..2 {
                Content::of(id, group).fill(&mut memory);
                for word in memory.chunks(8) {
                    assert!(seen.insert(word.to_vec()), "block {id}, group {group}");
                }
            }
        }
    }
}
