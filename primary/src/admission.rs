//! Which blocks are worth storing: those that were offered often enough.

use terrace_config::AdmissionConfig;

use crate::hash::Hasher;
use crate::key::Key;
use crate::key_table::KeyTable;
use crate::links::Links;

/// Counters since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionStats {
    /// Offers of blocks that were admitted.
    pub admitted: u64,
    /// Offers that were turned down.
    pub rejected: u64,
    /// Gauge: blocks that are remembered.
    pub tracked: u32,
    /// Blocks that were forgotten because the tracker was full.
    pub forgotten: u64,
}

/// Counts how often a block is offered, and admits it from the `store_threshold`-th time on. Remembers the
/// fingerprints of the `tracker_entries` blocks that were offered last, admitted ones too: a block that was worth
/// storing once is stored again at once after its eviction. All memory is taken at start.
pub struct Admission {
    threshold: u32,
    hasher: Hasher,
    /// Fingerprint of a block to its entry; the word is the number of offers.
    table: KeyTable,
    links: Links,
    /// Entries from here on were never used.
    untouched: u32,
    stats: AdmissionStats,
}

/// Offers that an entry can count: the bits of a table's word.
const MOST_OFFERS: u32 = (1 << 30) - 1;

const RECENT: u8 = 0;
const FREE: u8 = 1;

impl Admission {
    /// An admission with nothing offered yet. A threshold of 0 is 1: everything is admitted and nothing tracked.
    pub fn new(config: &AdmissionConfig) -> Self {
        let threshold = config.store_threshold.clamp(1, MOST_OFFERS);
        let entries = if threshold == 1 { 0 } else { config.tracker_entries.max(1) };
        Self {
            threshold,
            hasher: Hasher::random(),
            table: KeyTable::new(entries, 8),
            links: Links::new(entries, 2),
            untouched: 0,
            stats: AdmissionStats::default(),
        }
    }

    /// Counts an offer of `key`; whether the block is to be stored.
    pub fn offered(&mut self, key: &Key) -> bool {
        if self.threshold == 1 {
            self.stats.admitted += 1;
            return true;
        }
        let fingerprint = self.hasher.hash(key.as_bytes()).to_le_bytes();
        let offers = match self.table.find(&fingerprint) {
            Some(entry) => {
                let offers = self.table.word(entry).saturating_add(1).min(self.threshold);
                self.table.set_word(entry, offers);
                self.links.move_front(RECENT, entry);
                offers
            }
            None => {
                self.track(&fingerprint);
                1
            }
        };
        let admit = offers >= self.threshold;
        self.stats.admitted += u64::from(admit);
        self.stats.rejected += u64::from(!admit);
        admit
    }

    /// Counters now.
    pub fn stats(&self) -> AdmissionStats {
        AdmissionStats { tracked: self.links.len(RECENT), ..self.stats }
    }

    /// Bytes that the tracker takes.
    pub fn bytes(&self) -> usize {
        self.table.bytes() + self.links.bytes()
    }

    fn track(&mut self, fingerprint: &[u8; 8]) {
        if self.links.is_empty(FREE) && self.untouched < self.table.rows() {
            self.links.push_front(FREE, self.untouched);
            self.untouched += 1;
        } else if self.links.is_empty(FREE)
            && let Some(oldest) = self.links.back(RECENT)
        {
            self.forget(oldest);
            self.stats.forgotten += 1;
        }
        if let Some(entry) = self.links.pop_back(FREE)
            && self.table.insert_bytes(fingerprint, entry)
        {
            self.table.set_word(entry, 1);
            self.links.push_front(RECENT, entry);
        }
    }

    fn forget(&mut self, entry: u32) {
        self.table.remove(entry);
        self.links.move_front(FREE, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(block: u32) -> Key {
        Key::new(&block.to_be_bytes(), 0).expect("four bytes")
    }

    fn admission(store_threshold: u32, tracker_entries: u32) -> Admission {
        Admission::new(&AdmissionConfig { store_threshold, tracker_entries })
    }

    #[test]
    fn a_threshold_of_one_admits_all_and_tracks_nothing() {
        let mut admission = admission(1, 1000);
        assert!(admission.offered(&key(1)) && admission.offered(&key(2)));
        assert_eq!(admission.stats(), AdmissionStats { admitted: 2, ..AdmissionStats::default() });
    }

    #[test]
    fn a_block_is_admitted_from_the_third_offer_on() {
        let mut admission = admission(3, 10);
        let offers: Vec<bool> = (0..5).map(|_| admission.offered(&key(7))).collect();
        assert_eq!(offers, [false, false, true, true, true]);
        assert_eq!(admission.stats(), AdmissionStats { admitted: 3, rejected: 2, tracked: 1, forgotten: 0 });
    }

    #[test]
    fn the_tracker_forgets_the_block_offered_longest_ago() {
        let mut admission = admission(2, 3);
        for block in [1, 2, 3, 1, 4] {
            admission.offered(&key(block));
        }
        assert_eq!(admission.stats(), AdmissionStats { admitted: 1, rejected: 4, tracked: 3, forgotten: 1 });
        assert!(admission.offered(&key(1)), "was offered after 2");
        assert!(admission.offered(&key(3)));
        assert!(!admission.offered(&key(2)), "made room for 4");
    }
}
