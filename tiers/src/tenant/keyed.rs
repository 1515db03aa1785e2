//! A tier under whose names nobody without the tenant's key knows what is stored.
//!
//! Keys become names on the way down and keys again on the way up, on the manager's thread: manager and primary know keys, what is
//! below knows names. A name costs four short hashes. Blocks are written under the first key's names and found under those of all.

use std::sync::Arc;
use std::time::Duration;

use terrace_primary::Key;

use super::keyring::Keyring;
use crate::tier::{JobId, LoadJob, Refused, SecondaryTier, StoreJob, TierDescriptor, TierEvent, TierLookup, TierStats};

/// See the module.
pub struct KeyedTier {
    inner: Box<dyn SecondaryTier>,
    keys: Arc<Keyring>,
    names: Vec<Key>,
    answers: Vec<TierLookup>,
    /// Places of keys that no key before has found.
    absent: Vec<usize>,
}

impl KeyedTier {
    /// `inner` under the names of `keys`.
    pub fn new(inner: Box<dyn SecondaryTier>, keys: Arc<Keyring>) -> Self {
        Self { inner, keys, names: Vec::new(), answers: Vec::new(), absent: Vec::new() }
    }

    fn first_name(&self, key: &Key) -> Key {
        self.keys.first().map_or(*key, |first| first.name_of(key))
    }

    /// The name under which the block is found, or the first if it is under none.
    fn found_name(&mut self, key: &Key) -> Key {
        let [_, more @ ..] = self.keys.keys() else { return *key };
        let first = self.first_name(key);
        if more.is_empty() {
            return first;
        }
        for name in self.keys.keys().iter().map(|tenant| tenant.name_of(key)) {
            self.inner.lookup(&[name], &mut self.answers);
            if self.answers.first() == Some(&TierLookup::Found) {
                return name;
            }
        }
        first
    }
}

impl SecondaryTier for KeyedTier {
    fn descriptor(&self) -> &TierDescriptor {
        self.inner.descriptor()
    }

    fn lookup(&mut self, keys: &[Key], out: &mut Vec<TierLookup>) {
        let ring = Arc::clone(&self.keys);
        let mut rings = ring.keys().iter();
        let Some(first) = rings.next() else { return self.inner.lookup(keys, out) };
        self.names.clear();
        self.names.extend(keys.iter().map(|key| first.name_of(key)));
        self.inner.lookup(&self.names, out);
        for tenant in rings {
            self.absent.clear();
            let absent = out.iter().enumerate().filter(|(_, answer)| **answer == TierLookup::Absent);
            self.absent.extend(absent.map(|(at, _)| at));
            self.names.clear();
            self.names.extend(self.absent.iter().filter_map(|at| keys.get(*at)).map(|key| tenant.name_of(key)));
            self.inner.lookup(&self.names, &mut self.answers);
            for (at, answer) in self.absent.iter().zip(&self.answers) {
                if let Some(place) = out.get_mut(*at) {
                    *place = *answer;
                }
            }
        }
    }

    fn submit_store(&mut self, mut job: StoreJob) -> Result<(), Refused> {
        for block in &mut job.blocks {
            block.key = self.first_name(&block.key);
        }
        self.inner.submit_store(job)
    }

    fn submit_load(&mut self, mut job: LoadJob) -> Result<(), Refused> {
        for block in &mut job.blocks {
            block.key = self.found_name(&block.key);
        }
        self.inner.submit_load(job)
    }

    fn abandon(&mut self, job: JobId) {
        self.inner.abandon(job);
    }

    fn poll(&mut self, out: &mut Vec<TierEvent>) {
        let before = out.len();
        self.inner.poll(out);
        for event in out.iter_mut().skip(before) {
            // Under the name that the first key gives. What another key wrote, or nobody's, becomes a key that nobody asked for.
            if let (TierEvent::Removed { key }, Some(first)) = (event, self.keys.first()) {
                *key = first.key_of(key);
            }
        }
    }

    fn next_to_scrub(&mut self) -> Option<Key> {
        // Its name under the first key is the name that is stored, whichever key made that.
        let name = self.inner.next_to_scrub()?;
        Some(self.keys.first().map_or(name, |first| first.key_of(&name)))
    }

    fn set_limit(&mut self, bytes: u64) {
        self.inner.set_limit(bytes);
    }

    fn touch(&mut self, keys: &[Key]) {
        let ring = Arc::clone(&self.keys);
        for tenant in ring.keys() {
            self.names.clear();
            self.names.extend(keys.iter().map(|key| tenant.name_of(key)));
            self.inner.touch(&self.names);
        }
    }

    fn shutdown(&mut self, within: Duration) {
        self.inner.shutdown(within);
    }

    fn stats(&self) -> TierStats {
        self.inner.stats()
    }
}
