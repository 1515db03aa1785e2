//! Inserting a run of blocks that may not all deserve their place.

use super::Primary;
use crate::key::Key;
use crate::slot::SlotId;
use crate::state::RowWord;

/// The origin of a block of the run that is being inserted; no tier has so high a number.
const OF_THIS_RUN: u8 = u8::MAX;

impl Primary {
    /// Takes a slot for `key` as [`Primary::insert_writing`] does. If none is free the policy picks a victim among the
    /// evictable blocks **and the blocks that this run has inserted before**: a long run that is used once displaces its own tail
    /// rather than what is used again and again. Evicted blocks are appended to `evicted`; a displaced one is gone as if it had been
    /// aborted, and its slot, which is handed out again at once, is appended to `displaced`. `None`, and
    /// nothing is evicted: no victim, the key is present, or it is too long.
    ///
    /// A run is inserted tail first and ends with [`Primary::end_run`].
    pub fn insert_in_run(&mut self, key: &Key, evicted: &mut Vec<Key>, displaced: &mut Vec<SlotId>) -> Option<SlotId> {
        if self.free == 0 && !(self.table.could_insert(key) && self.take_victim(evicted, displaced)) {
            return None;
        }
        let slot = self.insert_writing(key)?;
        self.set_origin(slot, OF_THIS_RUN);
        Some(slot)
    }

    /// Ends a run: its blocks are like any other from here on.
    pub fn end_run(&mut self, slots: &[SlotId]) {
        for slot in slots {
            self.set_origin(*slot, 0);
        }
    }

    fn take_victim(&mut self, evicted: &mut Vec<Key>, displaced: &mut Vec<SlotId>) -> bool {
        let mut victims = std::mem::take(&mut self.victims);
        victims.clear();
        let table = &self.table;
        let may_leave = |slot: SlotId| {
            let word = RowWord(table.word(slot.0));
            word.is_evictable() || !word.is_ready() && word.origin() == OF_THIS_RUN
        };
        self.policy.evict(1, &may_leave, &mut victims);
        let victim = victims.first().copied();
        self.victims = victims;
        let Some(victim) = victim else {
            self.stats.room_refused += 1;
            return false;
        };
        if self.word(victim).is_ready() {
            evicted.extend(self.table.key(victim.0));
            self.evictable -= 1;
            self.stats.evicted += 1;
        } else {
            displaced.push(victim);
            self.writing -= 1;
        }
        self.table.remove(victim.0);
        self.left(victim);
        self.set_free(victim);
        true
    }
}
