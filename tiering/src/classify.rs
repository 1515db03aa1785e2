//! Where is each key? Asked without side effects: the primary first, then each tier in config order.

use std::ops::ControlFlow;

use terrace_primary::{BlockState, Key, SlotId};
use terrace_tiers::{TierLookup, Time};

use crate::manager::TieringOffloadingManager;
use crate::request::TierFilter;

/// Keys that a tier is asked for at once: enough to be cheap, few enough that the tail behind a miss is not asked for.
pub(crate) const KEYS_AT_ONCE: usize = 64;

/// Where a key was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Readable in the primary.
    Ready(SlotId),
    /// On its way into the primary.
    Writing,
    /// Readable in this tier, and every faster one that may be asked said that it has not got it.
    Tier(u8),
    /// A tier does not know yet; slower ones were not asked.
    Unknown,
    /// Nowhere.
    Absent,
}

/// Which tiers may be asked, and when.
#[derive(Clone, Copy)]
pub(crate) struct Scope {
    pub filter: TierFilter,
    pub now: Time,
    /// False: the request has waited long enough, and takes what the primary has.
    pub below: bool,
}

impl TieringOffloadingManager {
    /// Fills `classes` for `keys`, of which there are `KEYS_AT_ONCE` at most.
    pub(crate) fn classify(&mut self, keys: &[Key], classes: &mut [Class], scope: Scope) {
        let mut missing = std::mem::take(&mut self.scratch.indices);
        missing.clear();
        self.primary.find_batch(keys, |at, found| {
            classes[at] = match found {
                Some((slot, BlockState::Ready { .. })) => Class::Ready(slot),
                Some(_) if scope.below => Class::Writing,
                Some(_) => Class::Absent,
                None => {
                    missing.push(at as u32);
                    Class::Absent
                }
            };
            ControlFlow::Continue(())
        });
        for tier in 0..self.tiers.len() {
            if missing.is_empty() || !scope.below {
                break;
            }
            if scope.filter.allows(tier) && self.tiers[tier].accepts(scope.now) {
                self.ask_tier(tier, keys, &mut missing, classes, scope.now);
            }
        }
        self.scratch.indices = missing;
        self.check_ready(classes, scope);
    }

    /// Asks one tier for the missing keys; those that it has, or does not know yet, are missing no more.
    fn ask_tier(&mut self, tier: usize, keys: &[Key], missing: &mut Vec<u32>, classes: &mut [Class], now: Time) {
        let mut asked = std::mem::take(&mut self.scratch.keys);
        let mut answers = std::mem::take(&mut self.scratch.answers);
        asked.clear();
        asked.extend(missing.iter().map(|at| keys[*at as usize]));
        answers.clear();
        let called = self.call_tier(tier, |tier| tier.lookup(&asked, &mut answers)).is_some();
        if called && answers.len() == asked.len() {
            let patient = self.tiers[tier].is_unknown_allowed(&answers, now, self.deadlines.lookup);
            let mut answer = answers.iter();
            let counts = &mut self.tiers[tier].keys;
            missing.retain(|at| {
                let key = &keys[*at as usize];
                let class = match answer.next() {
                    Some(TierLookup::Found) if self.suspects.contains(key, tier) => {
                        counts.suspect += 1;
                        return true;
                    }
                    Some(TierLookup::Found) => {
                        counts.found += 1;
                        Class::Tier(tier as u8)
                    }
                    Some(TierLookup::Unknown) => {
                        counts.unknown += 1;
                        if !patient {
                            return true;
                        }
                        Class::Unknown
                    }
                    _ => {
                        counts.absent += 1;
                        return true;
                    }
                };
                classes[*at as usize] = class;
                false
            });
        } else if called {
            self.tiers[tier].protocol_faults += 1;
        }
        self.scratch.keys = asked;
        self.scratch.answers = answers;
    }
}
