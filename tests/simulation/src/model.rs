//! The plain model: what the bytes of each block must be, and which blocks were ever stored.

use std::collections::{BTreeMap, BTreeSet};

use terrace_primary::Key;

use crate::rng::{Rng, splitmix};

/// Digest of the namespace with this number.
pub fn namespace_digest(namespace: u8) -> [u8; 32] {
    std::array::from_fn(|at| splitmix(u64::from(namespace) << 8 | at as u64) as u8)
}

/// What must hold of bytes, by key.
#[derive(Debug)]
pub struct Model {
    block_bytes: usize,
    hash_bytes: usize,
    contents: BTreeMap<(u8, Key), Vec<u8>>,
    stored: BTreeSet<(u8, Key)>,
}

impl Model {
    /// A model in which nothing was stored.
    pub const fn new(block_bytes: u32, hash_bytes: u8) -> Self {
        Self {
            block_bytes: block_bytes as usize,
            hash_bytes: hash_bytes as usize,
            contents: BTreeMap::new(),
            stored: BTreeSet::new(),
        }
    }

    /// The key of block `depth` of a chain. The first `shared` blocks are those of chain 0.
    pub fn key(&self, chain: u64, depth: u64, shared: u64, group: u32) -> Key {
        let chain = if depth < shared { 0 } else { chain };
        let mut rng = Rng::new(chain << 32 | depth);
        let hash: Vec<u8> = (0..self.hash_bytes).map(|_| rng.next() as u8).collect();
        Key::new(&hash, group).unwrap_or_else(|error| panic!("the simulation makes keys of legal length: {error}"))
    }

    /// The bytes that the block must have. Two namespaces never agree on them.
    pub fn content(&mut self, namespace: u8, key: &Key) -> &[u8] {
        let block_bytes = self.block_bytes;
        self.contents.entry((namespace, *key)).or_insert_with(|| {
            let seed = key.as_bytes().iter().fold(u64::from(namespace), |seed, byte| splitmix(seed ^ u64::from(*byte)));
            let mut rng = Rng::new(seed);
            let words = std::iter::repeat_with(|| rng.next().to_le_bytes());
            words.flatten().take(block_bytes).collect()
        })
    }

    /// The engine stored the block.
    pub fn store(&mut self, namespace: u8, key: Key) {
        self.stored.insert((namespace, key));
    }

    /// Whether it ever did.
    pub fn was_stored(&self, namespace: u8, key: &Key) -> bool {
        self.stored.contains(&(namespace, *key))
    }

    /// Every block of a namespace that was ever stored, in order of keys.
    pub fn all_stored(&self, namespace: u8) -> Vec<Key> {
        self.stored.iter().filter(|(of, _)| *of == namespace).map(|(_, key)| *key).collect()
    }
}
