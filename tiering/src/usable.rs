//! A primary of which only the first slots can be used: its region is still being backed.

use std::time::Duration;

use terrace_config::Limits;
use terrace_tiers::Time;

use crate::manager::{Shares, TieringOffloadingManager};

/// A region that has not grown for this long may never be whole: nobody waits for its slots.
const PATIENCE: Duration = Duration::from_secs(1);

impl TieringOffloadingManager {
    /// Uses only the first `slots` slots from here on, in numbers that only grow: see
    /// [`terrace_primary::Primary::set_usable`]. The shares of
    /// the primary are those of the slots that can be used. Told once before the first request, and again as more of
    /// the region is
    /// ready; a manager that is never told uses all.
    pub fn set_usable_slots(&mut self, slots: u32) {
        let before = self.primary.usable();
        self.primary.set_usable(slots);
        self.shares = Shares::of(&self.limits, self.primary.usable());
        if self.primary.usable() != before {
            self.grown_at = Some(self.now());
        }
    }

    /// Whether more slots will soon be usable.
    pub(crate) fn is_growing(&self, now: Time) -> bool {
        self.primary.usable() < self.primary.blocks()
            && self.grown_at.is_some_and(|grown_at| now < grown_at.plus(PATIENCE))
    }
}

impl Shares {
    /// The shares of `slots` slots.
    pub(crate) fn of(limits: &Limits, slots: u32) -> Self {
        // A positive share is one slot at least: a tiny primary still moves.
        let share = |share: f64| if share > 0.0 { ((share * f64::from(slots)) as u32).max(1) } else { 0 };
        Self {
            promotion: share(limits.promotion_share),
            cascade: share(limits.cascade_share),
            pin: share(limits.pin_share),
        }
    }
}
