//! Events: who holds which block, for routers and observers.

use std::collections::VecDeque;

use terrace_primary::Key;
use terrace_tiers::{Locality, Medium, TierDescriptor};

/// A change of what is readable where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block became readable in a tier (in the primary: `Cpu`, `Local`).
    BlockStored {
        /// The block.
        key: Key,
        /// The tier's medium.
        medium: Medium,
        /// The tier's locality.
        locality: Locality,
    },
    /// A tier no longer holds a block.
    BlockRemoved {
        /// The block.
        key: Key,
        /// The tier's medium.
        medium: Medium,
        /// The tier's locality.
        locality: Locality,
    },
    /// The primary was reset: none of its blocks is left. Secondaries keep theirs; what they stored since the last
    /// `take_events` follows this event.
    AllBlocksCleared,
}

/// Bounded: beyond the limit the oldest event is dropped and counted.
pub(crate) struct EventQueue {
    queue: VecDeque<(Source, Event)>,
    limit: usize,
    pub dropped: u64,
}

/// Where an event came from; a secondary may have the primary's medium and locality.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Primary,
    Secondary,
}

impl EventQueue {
    pub fn new(limit: u32) -> Self {
        Self { queue: VecDeque::new(), limit: limit as usize, dropped: 0 }
    }

    pub fn stored_in_primary(&mut self, key: Key) {
        self.push(Source::Primary, Event::BlockStored { key, medium: Medium::Cpu, locality: Locality::Local });
    }

    pub fn removed_from_primary(&mut self, key: Key) {
        self.push(Source::Primary, Event::BlockRemoved { key, medium: Medium::Cpu, locality: Locality::Local });
    }

    pub fn stored_in(&mut self, tier: &TierDescriptor, key: Key) {
        let (medium, locality) = (tier.medium, tier.locality);
        self.push(Source::Secondary, Event::BlockStored { key, medium, locality });
    }

    pub fn removed_from(&mut self, tier: &TierDescriptor, key: Key) {
        let (medium, locality) = (tier.medium, tier.locality);
        self.push(Source::Secondary, Event::BlockRemoved { key, medium, locality });
    }

    /// The primary was cleared: what is queued about it is void, and an observer that clears everything must hear the
    /// secondaries' news after that.
    pub fn cleared(&mut self) {
        self.queue.retain(|(source, _)| *source == Source::Secondary);
        if self.queue.len() >= self.limit && self.queue.pop_front().is_some() {
            self.dropped += 1;
        }
        self.queue.push_front((Source::Primary, Event::AllBlocksCleared));
    }

    pub fn take(&mut self, out: &mut Vec<Event>) {
        out.extend(self.queue.drain(..).map(|(_, event)| event));
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    fn push(&mut self, source: Source, event: Event) {
        if self.queue.len() >= self.limit {
            self.dropped += 1;
            if self.queue.pop_front().is_none() {
                return; // a limit of zero keeps nothing
            }
        }
        self.queue.push_back((source, event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> Key {
        Key::new(&[n; 4], 0).expect("a key")
    }

    #[test]
    fn the_oldest_is_dropped_and_counted() {
        let mut events = EventQueue::new(2);
        (0..5).for_each(|n| events.stored_in_primary(key(n)));
        let mut out = Vec::new();
        events.take(&mut out);
        assert_eq!(events.dropped, 3);
        let of = |n| Event::BlockStored { key: key(n), medium: Medium::Cpu, locality: Locality::Local };
        assert_eq!(out, [of(3), of(4)]);
    }

    #[test]
    fn a_reset_voids_what_is_queued_about_the_primary() {
        let mut events = EventQueue::new(8);
        let tier = TierDescriptor { name: "below".into(), medium: Medium::Cpu, locality: Locality::Local };
        events.stored_in_primary(key(1));
        events.stored_in(&tier, key(1));
        events.removed_from_primary(key(2));
        events.cleared();
        let mut out = Vec::new();
        events.take(&mut out);
        let below = Event::BlockStored { key: key(1), medium: Medium::Cpu, locality: Locality::Local };
        assert_eq!(out, [Event::AllBlocksCleared, below]);
    }
}
