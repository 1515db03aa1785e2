//! The plain model: which bytes a GPU block of some tokens must have, and which a slot.

use std::collections::{BTreeMap, BTreeSet};

use terrace_primary::{Key, Region, SlotId};

use super::settings::Settings;
use crate::rng::{Rng, splitmix};

/// Stands for the tokens of a GPU block and of all before it.
pub(crate) type Name = u64;

/// What must hold of bytes.
#[derive(Debug)]
pub(crate) struct Content {
    hash_bytes: usize,
    per_chunk: usize,
    /// Per group, the pages of its tensors.
    pages: Vec<Vec<usize>>,
    made: BTreeMap<(u8, Name, u32), Vec<u8>>,
    /// The GPU blocks of each offloaded block that a request could name.
    chunks: BTreeMap<Key, Vec<Name>>,
    /// What some engine has computed.
    computed: BTreeSet<(u8, Name)>,
    buffer: Vec<u8>,
}

/// What a slot has instead of what it must have.
#[derive(Debug)]
pub(crate) enum Wrong {
    /// No engine has computed that.
    NeverComputed,
    /// The first byte that differs in a GPU block at this place of the chunk.
    Bytes { place: usize },
}

impl Content {
    pub fn new(settings: &Settings) -> Self {
        let geometry = settings.disks.config.geometry;
        let pages = |tensors: &usize| settings.pages.iter().take(*tensors).map(|page| *page as usize).collect();
        Self {
            hash_bytes: usize::from(geometry.hash_bytes),
            per_chunk: geometry.blocks_per_chunk as usize,
            pages: settings.group_tensors.iter().map(pages).collect(),
            made: BTreeMap::new(),
            chunks: BTreeMap::new(),
            computed: BTreeSet::new(),
            buffer: vec![0; geometry.block_bytes as usize],
        }
    }

    /// The hash that an engine computes for these tokens.
    pub fn hash(&self, name: Name) -> Vec<u8> {
        let mut rng = Rng::new(name);
        (0..self.hash_bytes).map(|_| rng.next() as u8).collect()
    }

    /// A request of these tokens has come: its chunks may be stored from now on.
    pub fn announce(&mut self, names: &[Name]) {
        for chunk in names.chunks_exact(self.per_chunk) {
            let Some(last) = chunk.last() else { continue };
            let hash = self.hash(*last);
            for group in 0..self.pages.len() as u32 {
                let key = Key::new(&hash, group).unwrap_or_else(|error| panic!("hashes have a legal length: {error}"));
                self.chunks.entry(key).or_insert_with(|| chunk.to_vec());
            }
        }
    }

    /// An engine of this namespace computes the block.
    pub fn compute(&mut self, namespace: u8, name: Name) {
        self.computed.insert((namespace, name));
    }

    /// The bytes of a GPU block in a group, tensor after tensor. No two namespaces, blocks or groups agree on them.
    pub fn of(&mut self, namespace: u8, name: Name, group: usize) -> &[u8] {
        let len = self.pages.get(group).map_or(0, |pages| pages.iter().sum());
        self.made.entry((namespace, name, group as u32)).or_insert_with(|| {
            let mut rng = Rng::new(splitmix(name ^ splitmix(u64::from(namespace) << 8 | group as u64)));
            std::iter::repeat_with(|| rng.next().to_le_bytes()).flatten().take(len).collect()
        })
    }

    /// Whether the slot has the bytes of the key. In a slot, pages of a tensor lie side by side, tensors one after the other.
    pub fn check_slot(&mut self, namespace: u8, region: &Region, slot: SlotId, key: &Key) -> Result<(), Wrong> {
        let names = self.chunks.get(key).cloned().ok_or(Wrong::NeverComputed)?;
        if names.iter().any(|name| !self.computed.contains(&(namespace, *name))) {
            return Err(Wrong::NeverComputed);
        }
        let group = key.group() as usize;
        let pages = self.pages.get(group).cloned().ok_or(Wrong::NeverComputed)?;
        let mut found = std::mem::take(&mut self.buffer);
        let is_there = region.read_slot(slot, &mut found);
        let wrong = names.iter().enumerate().find_map(|(place, name)| {
            let must = self.of(namespace, *name, group);
            let (mut in_slot, mut in_block) = (0, 0);
            for page in &pages {
                let at = in_slot + place * page;
                if !is_there || found.get(at..at + page) != must.get(in_block..in_block + page) {
                    return Some(Wrong::Bytes { place });
                }
                (in_slot, in_block) = (in_slot + page * names.len(), in_block + page);
            }
            None
        });
        self.buffer = found;
        wrong.map_or(Ok(()), Err)
    }
}
