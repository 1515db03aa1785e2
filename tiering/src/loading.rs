//! Readers that engine loads and leases hold, by slot: dense, since each key of each lookup goes through it.

use terrace_primary::SlotId;

/// Counts of readers. 4 bytes a slot.
pub(crate) struct Loading {
    counts: Vec<u32>,
}

impl Loading {
    pub fn new(slots: u32) -> Self {
        Self { counts: vec![0; slots as usize] }
    }

    /// One reader more on `slot`.
    pub fn add(&mut self, slot: SlotId) {
        if let Some(count) = self.counts.get_mut(slot.0 as usize) {
            *count += 1;
        }
    }

    /// One reader less. False: there is none.
    pub fn remove(&mut self, slot: SlotId) -> bool {
        match self.counts.get_mut(slot.0 as usize) {
            Some(count) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }

    pub fn contains(&self, slot: SlotId) -> bool {
        self.counts.get(slot.0 as usize).is_some_and(|count| *count > 0)
    }

    /// Slots with readers, and how many each.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, u32)> + '_ {
        let slots = (0..).map(SlotId).zip(&self.counts);
        slots.filter(|(_, count)| **count > 0).map(|(slot, count)| (slot, *count))
    }
}
