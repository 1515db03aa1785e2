//! Slots that may be handed out: a region that is still being backed has fewer than the table.

use super::Primary;

impl Primary {
    /// Hands out only the first `slots` slots (cut to [`Primary::blocks`]) from here on: those beyond are neither free
    /// nor used. The
    /// first call, if no slot was handed out before it, sets the number; after that it only grows, and a smaller one
    /// changes nothing. A table
    /// that is never told has all its slots.
    pub fn set_usable(&mut self, slots: u32) {
        let slots = slots.min(self.blocks);
        let may_shrink = !self.usable_told && self.untouched == 0;
        self.usable_told = true;
        if slots > self.usable {
            self.free += slots - self.usable;
            self.usable = slots;
        } else if may_shrink {
            // Nothing was handed out: all that is usable is free.
            self.free = slots;
            self.usable = slots;
        }
    }

    /// Slots that may be handed out, used or free: see [`Primary::set_usable`].
    pub const fn usable(&self) -> u32 {
        self.usable
    }
}
