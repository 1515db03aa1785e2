//! Which blocks leave first.

mod aged;
mod arc;
mod ghosts;
mod lru;

use terrace_config::Policy;

use crate::slot::SlotId;

pub use arc::ArcPolicy;
pub use lru::LruPolicy;

/// Decides which slots are evicted. A slot is *tracked* from `insert` to `remove` or its eviction; calls for slots in the
/// wrong state do nothing.
///
/// No call allocates: everything is taken when the policy is made.
pub trait EvictionPolicy: Send {
    /// Tracks `slot`, which got a block that was used once, and makes it the most recent. `fingerprint` names the block: a
    /// policy that remembers evicted blocks knows it again.
    fn insert(&mut self, slot: SlotId, fingerprint: u64);

    /// Makes `slot` the most recent of its kind without counting a use.
    fn rerank(&mut self, slot: SlotId);

    /// Counts a use of `slot` and makes it the most recent.
    fn touch(&mut self, slot: SlotId);

    /// Tracks `slot` no more. Not an eviction: the block is not remembered.
    fn remove(&mut self, slot: SlotId);

    /// `slot` became evictable: it was published, or its last reader left.
    fn unpinned(&mut self, slot: SlotId);

    /// Takes the `n` slots that should leave first, appends them to `victims` and tracks them no more. Slots that are not
    /// `evictable` are passed over. False, and nothing is taken, if fewer than `n` tracked slots are evictable.
    ///
    /// What was passed over is not looked at again until `unpinned` names it: calls stay cheap however much is pinned.
    fn evict(&mut self, n: u32, evictable: &dyn Fn(SlotId) -> bool, victims: &mut Vec<SlotId>) -> bool;

    /// Forgets everything.
    fn clear(&mut self);

    /// Slots tracked.
    fn tracked(&self) -> u32;

    /// Bytes that the policy takes.
    fn bytes(&self) -> usize;
}

/// A policy over `slots` slots.
pub(crate) fn build(policy: Policy, slots: u32) -> Box<dyn EvictionPolicy> {
    match policy {
        Policy::Lru => Box::new(LruPolicy::new(slots)),
        Policy::Arc => Box::new(ArcPolicy::new(slots)),
    }
}
