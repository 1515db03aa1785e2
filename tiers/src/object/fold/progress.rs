//! Which log objects of one writer are folded.

use std::collections::BTreeSet;

use crate::object::id::Stamp;

/// Log objects beyond a missing one. With more, what was never listed is given up; what was holds up all behind these.
const MAX_BEYOND: usize = 4_096;

/// Sequences of one writer that are folded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// All up to this one.
    contiguous: u64,
    /// And these, behind a missing one.
    beyond: BTreeSet<u64>,
    /// The last that is known to have been written, though nobody could read it.
    listed: u64,
    /// While one of those is missing: the earliest stamp of any.
    missed: Option<Stamp>,
    newest: Stamp,
}

impl Progress {
    /// All up to `contiguous`.
    pub fn covered(contiguous: u64, newest: Stamp) -> Self {
        Self { contiguous, beyond: BTreeSet::new(), listed: 0, missed: None, newest }
    }

    /// Takes note of one. False if it was there already (there is no log object 0), or is one too many behind a missing one.
    pub fn note(&mut self, sequence: u64, stamp: Stamp) -> bool {
        if self.has(sequence) {
            return false;
        }
        if self.missed.is_some() && self.beyond.len() >= MAX_BEYOND && sequence != self.contiguous.saturating_add(1) {
            self.miss(sequence, stamp);
            return false;
        }
        self.newest = self.newest.max(stamp);
        self.beyond.insert(sequence);
        if self.beyond.len() > MAX_BEYOND {
            self.skip_to_first();
        }
        self.advance();
        true
    }

    /// One was listed and could not be read: missing until it is noted, even if none comes behind it.
    pub fn miss(&mut self, sequence: u64, stamp: Stamp) {
        self.listed = self.listed.max(sequence);
        self.missed = Some(self.missed.map_or(stamp, |earliest| earliest.min(stamp)));
        self.newest = self.newest.max(stamp);
    }

    /// If one is missing that was listed: the earliest stamp of such a one, or an earlier one.
    pub fn missed(&self) -> Option<Stamp> {
        self.missed
    }

    /// Whether [`Self::miss`] was told of it, or of a later one, and it is missing still.
    pub fn misses(&self, sequence: u64) -> bool {
        sequence <= self.listed && !self.has(sequence)
    }

    fn advance(&mut self) {
        while let Some(next) = self.contiguous.checked_add(1)
            && self.beyond.remove(&next)
        {
            self.contiguous = next;
        }
        if self.contiguous >= self.listed {
            self.missed = None;
        }
    }

    fn skip_to_first(&mut self) {
        if let Some(first) = self.beyond.pop_first() {
            self.contiguous = first;
        }
        self.advance();
    }

    /// Whether it is folded or given up.
    pub fn has(&self, sequence: u64) -> bool {
        sequence <= self.contiguous || self.beyond.contains(&sequence)
    }

    /// Whether one is missing though it, or a later one, is known to have been written.
    pub fn has_gap(&self) -> bool {
        !self.beyond.is_empty() || self.contiguous < self.listed
    }

    /// Gives up all that are missing.
    pub fn close(&mut self) {
        while !self.beyond.is_empty() {
            self.skip_to_first();
        }
        self.contiguous = self.contiguous.max(self.listed);
        self.missed = None;
    }

    /// All up to this one are folded.
    pub fn contiguous(&self) -> u64 {
        self.contiguous
    }

    /// Newest stamp.
    pub fn newest(&self) -> Stamp {
        self.newest
    }
}
