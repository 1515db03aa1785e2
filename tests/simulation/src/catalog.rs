//! A simulated catalog: what a store of entries on disk would keep over the lives of processes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use terrace_tiers::catalog::{CatalogEntry, CatalogState, CatalogStore, CatalogValue};
use terrace_tiers::nvme::BlockName;

use crate::rng::Rng;

/// What is on disk.
#[derive(Debug, Default)]
struct Kept {
    entries: BTreeMap<BlockName, CatalogValue>,
    /// Changes that a crash may lose, oldest first.
    recent: VecDeque<(BlockName, Option<CatalogValue>)>,
    generation: u32,
    clean: bool,
    lost: bool,
    life: u64,
}

/// The catalog's disk: outlives processes. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CatalogDisk(Arc<Mutex<Kept>>);

impl CatalogDisk {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process died: of the last changes some are not there.
    pub fn crash(&self, rng: &mut Rng) {
        let kept = &mut *self.lock();
        kept.life += 1;
        let survivors = rng.index(kept.recent.len() + 1);
        for (name, value) in kept.recent.drain(..).take(survivors) {
            match value {
                Some(value) => kept.entries.insert(name, value),
                None => kept.entries.remove(&name),
            };
        }
    }

    /// Somebody deleted it.
    pub fn lose(&self) {
        let kept = &mut *self.lock();
        *kept = Kept { lost: true, life: kept.life + 1, generation: kept.generation, ..Kept::default() };
    }

    /// Opens it for a process that starts now.
    pub fn open(&self) -> SimCatalog {
        let kept = &mut *self.lock();
        kept.life += 1;
        kept.generation += 1;
        let state = if kept.lost || kept.generation == 1 {
            kept.entries.clear();
            CatalogState::Lost
        } else {
            CatalogState::Read { clean: kept.clean }
        };
        // After a crash the files may be newer than the entries: their CRCs are not to be believed.
        let clean = std::mem::take(&mut kept.clean);
        let believed = |value: &CatalogValue| CatalogValue { crc32: value.crc32.filter(|_| clean), ..*value };
        let unread =
            kept.entries.iter().map(|(name, value)| CatalogEntry { name: *name, value: believed(value) }).collect();
        SimCatalog { disk: self.clone(), life: kept.life, unread, state, generation: kept.generation, lost: 0 }
    }
}

/// The catalog of one process.
#[derive(Debug)]
pub struct SimCatalog {
    disk: CatalogDisk,
    life: u64,
    unread: VecDeque<CatalogEntry>,
    state: CatalogState,
    generation: u32,
    lost: u64,
}

/// Changes that reach the disk later.
const RECENT: usize = 8;

impl SimCatalog {
    /// Does something with the disk; nothing after the process' end.
    fn with(&self, act: impl FnOnce(&mut Kept)) {
        let kept = &mut *self.disk.lock();
        if kept.life == self.life {
            act(kept);
        }
    }

    fn change(&self, name: BlockName, value: Option<CatalogValue>) {
        self.with(|kept| {
            kept.recent.push_back((name, value));
            if kept.recent.len() > RECENT
                && let Some((name, value)) = kept.recent.pop_front()
            {
                match value {
                    Some(value) => kept.entries.insert(name, value),
                    None => kept.entries.remove(&name),
                };
            }
        });
    }
}

impl CatalogStore for SimCatalog {
    fn poll(&mut self, most: usize, out: &mut Vec<CatalogEntry>) -> CatalogState {
        // Few at a time, so that starts are seen half done.
        let count = most.min(7).min(self.unread.len());
        out.extend(self.unread.drain(..count));
        if self.unread.is_empty() { self.state } else { CatalogState::Reading }
    }

    fn generation(&self) -> u32 {
        self.generation
    }

    fn put(&mut self, name: &BlockName, value: &CatalogValue) {
        self.change(*name, Some(*value));
    }

    fn delete(&mut self, name: &BlockName) {
        self.change(*name, None);
    }

    fn room(&self) -> usize {
        1 << 20
    }

    fn flush(&mut self) {}

    fn distrust(&mut self) {
        self.with(|kept| kept.lost = true);
    }

    fn rebuilt(&mut self) {
        self.with(|kept| kept.lost = false);
    }

    fn shutdown(&mut self, clean: bool, _within: Duration) {
        self.with(|kept| {
            while let Some((name, value)) = kept.recent.pop_front() {
                match value {
                    Some(value) => kept.entries.insert(name, value),
                    None => kept.entries.remove(&name),
                };
            }
            kept.clean = clean;
            kept.life += 1;
        });
    }

    fn lost(&self) -> u64 {
        self.lost
    }
}
