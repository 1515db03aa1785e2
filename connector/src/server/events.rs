//! Events for the sessions that ask: one bounded log per pool, and a place in it for each session.

use std::collections::VecDeque;

use terrace_tiering::Event;
use terrace_tiers::{Locality, Medium};

use crate::protocol::EventBatch;

/// The last events, numbered.
#[derive(Debug)]
pub(super) struct EventLog {
    events: VecDeque<Event>,
    /// Number of the first one in `events`.
    first: u64,
    limit: usize,
}

impl EventLog {
    pub fn new(limit: u32) -> Self {
        Self { events: VecDeque::new(), first: 0, limit: limit as usize }
    }

    /// Number of the next event.
    pub fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    /// Appends; beyond the limit the oldest go.
    pub fn append(&mut self, events: impl IntoIterator<Item = Event>) {
        self.events.extend(events);
        let over = self.events.len().saturating_sub(self.limit);
        self.events.drain(..over);
        self.first += over as u64;
    }

    /// Moves `at` on over at most `most` events and returns them in batches, and how many were lost before them.
    pub fn read(&self, at: &mut u64, most: usize) -> (Vec<EventBatch>, u64) {
        let lost = self.first.saturating_sub(*at);
        let from = (*at).max(self.first);
        let skip = usize::try_from(from - self.first).unwrap_or(usize::MAX);
        let mut batches: Vec<EventBatch> = Vec::new();
        let mut read = 0;
        for event in self.events.iter().skip(skip).take(most) {
            read += 1;
            let (what, medium, locality, key) = match event {
                Event::BlockStored { key, medium, locality } => {
                    (0, medium_byte(*medium), locality_byte(*locality), Some(key))
                }
                Event::BlockRemoved { key, medium, locality } => {
                    (1, medium_byte(*medium), locality_byte(*locality), Some(key))
                }
                Event::AllBlocksCleared => (2, 0, 0, None),
            };
            match batches.last_mut() {
                Some(last) if (last.what, last.medium, last.locality) == (what, medium, locality) && what < 2 => {}
                _ => batches.push(EventBatch { what, medium, locality, keys: Vec::new() }),
            }
            if let (Some(last), Some(key)) = (batches.last_mut(), key) {
                last.keys.extend_from_slice(key.as_bytes());
            }
        }
        *at = from + read;
        (batches, lost)
    }
}

pub(super) const fn medium_byte(medium: Medium) -> u8 {
    match medium {
        Medium::Cpu => 0,
        Medium::Storage => 1,
    }
}

pub(super) const fn locality_byte(locality: Locality) -> u8 {
    match locality {
        Locality::Local => 0,
        Locality::Remote => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_primary::Key;

    fn stored(n: u8) -> Event {
        let key = Key::new(&[n], 0).expect("a key");
        Event::BlockStored { key, medium: Medium::Cpu, locality: Locality::Local }
    }

    fn removed(n: u8) -> Event {
        let key = Key::new(&[n], 0).expect("a key");
        Event::BlockRemoved { key, medium: Medium::Storage, locality: Locality::Local }
    }

    #[test]
    fn runs_are_batched_and_readers_do_not_disturb_each_other() {
        let mut log = EventLog::new(10);
        log.append([stored(1), stored(2), removed(1), Event::AllBlocksCleared, Event::AllBlocksCleared, stored(3)]);
        let (mut a, mut b) = (0, 0);
        let (batches, lost) = log.read(&mut a, 99);
        let shape: Vec<_> = batches.iter().map(|batch| (batch.what, batch.medium, batch.keys.len())).collect();
        assert_eq!((shape, lost, a), (vec![(0, 0, 10), (1, 1, 5), (2, 0, 0), (2, 0, 0), (0, 0, 5)], 0, 6));
        assert_eq!(log.read(&mut b, 2).0.len(), 1);
        assert_eq!((b, log.read(&mut a, 99).0.len()), (2, 0));
    }

    #[test]
    fn who_reads_too_late_is_told_how_many_it_lost() {
        let mut log = EventLog::new(3);
        let mut at = log.end();
        log.append((0..8).map(stored));
        let (batches, lost) = log.read(&mut at, 99);
        assert_eq!((lost, at, batches.len()), (5, 8, 1));
        assert_eq!(batches.first().map(|batch| batch.keys.len()), Some(15));
    }
}
