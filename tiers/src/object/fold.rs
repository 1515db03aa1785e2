//! The set of live segments, as far as the log was read: added minus removed.
//!
//! A two-phase set (Shapiro et al., 2011): ids are never used again and a removal outlives its addition, so the order, the
//! delay and the repetition of log objects make no difference. Pure: no clock, no I/O.
mod progress;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use self::progress::Progress;
use super::id::{SegmentId, Stamp, WriterId};
use super::log::{LogObject, LogRecord};
use super::names::LogName;
use super::record::SegmentRecord;
use super::snapshot::{Manifest, Part};

/// Uses of segments that are not known (yet): beyond, they are dropped, which changes only the order of eviction.
const MAX_EARLY_USES: usize = 65_536;
/// Writers at once. Each start of a node makes one; they are forgotten with their log objects.
const MAX_WRITERS: usize = 100_000;

/// What folding changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FoldChange {
    /// A segment is live now.
    Added(Arc<SegmentRecord>),
    /// A segment was live and is no more.
    Removed(SegmentId),
}

/// A live segment.
#[derive(Clone, Debug)]
pub(crate) struct LiveSegment {
    pub record: Arc<SegmentRecord>,
    /// When somebody last read or touched it; when it was written, if nobody did.
    pub used: Stamp,
}

/// Live segments, tombstones, and which log objects they come from. See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fold {
    live: BTreeMap<SegmentId, LiveSegment>,
    removed: BTreeMap<SegmentId, Stamp>,
    /// Uses of segments whose addition was not seen yet.
    early: BTreeMap<SegmentId, Stamp>,
    writers: BTreeMap<WriterId, Progress>,
    newest: Stamp,
    bytes: u128,
    blocks: u64,
}

impl Fold {
    /// Nothing known.
    pub fn new() -> Self {
        Self::default()
    }

    /// What a snapshot says.
    pub fn from_snapshot<'a>(manifest: &Manifest, parts: impl IntoIterator<Item = &'a Part>) -> Self {
        let mut fold = Self { newest: manifest.stamp, ..Self::default() };
        for (writer, contiguous, newest) in &manifest.writers {
            fold.writers.insert(*writer, Progress::covered(*contiguous, *newest));
        }
        fold.removed.extend(manifest.removed.iter().copied());
        for part in parts {
            for (record, used) in &part.segments {
                fold.add(record, &mut Vec::new());
                fold.use_segment(record.id, *used);
            }
        }
        for (id, used) in &manifest.used {
            fold.use_segment(*id, *used);
        }
        fold
    }

    /// Whether this log object is folded (or was given up).
    pub fn has(&self, name: &LogName) -> bool {
        self.writers.get(&name.writer).is_some_and(|progress| progress.has(name.sequence))
    }

    /// Folds a log object, once: changes of what is live are appended. False: it was folded before, or its writer is one too
    /// many, or it is behind too many that are missing, and nothing changed.
    pub fn apply(&mut self, object: &LogObject, changes: &mut Vec<FoldChange>) -> bool {
        if !self.note(object.writer, object.sequence, object.stamp) {
            return false;
        }
        for record in &object.records {
            match record {
                LogRecord::Added(record) => self.add(record, changes),
                LogRecord::Removed { id, at } => self.remove(*id, *at, changes),
                LogRecord::Used { id, at } => self.use_segment(*id, *at),
            }
        }
        true
    }

    /// A log object that cannot be decoded counts as folded: it is not asked for again.
    pub fn skip(&mut self, name: &LogName) {
        self.note(name.writer, name.sequence, name.stamp);
    }

    /// A log object is listed and cannot be read: it is a gap until it is folded, or given up.
    pub fn miss(&mut self, name: &LogName) {
        if self.writers.len() < MAX_WRITERS || self.writers.contains_key(&name.writer) {
            self.writers.entry(name.writer).or_default().miss(name.sequence, name.stamp);
        }
    }

    /// Whether [`Self::miss`] was told of it and it was not folded since.
    pub fn misses(&self, name: &LogName) -> bool {
        self.writers.get(&name.writer).is_some_and(|progress| progress.misses(name.sequence))
    }

    /// If a log object of this writer was listed and is missing: the earliest stamp of any such, or an earlier one.
    pub fn missed(&self, writer: WriterId) -> Option<Stamp> {
        self.writers.get(&writer)?.missed()
    }

    /// The same of all writers.
    pub fn earliest_missed(&self) -> Option<Stamp> {
        self.writers.values().filter_map(Progress::missed).min()
    }

    fn note(&mut self, writer: WriterId, sequence: u64, stamp: Stamp) -> bool {
        let writers = self.writers.len();
        let fresh = match self.writers.entry(writer) {
            Entry::Occupied(mut known) => known.get_mut().note(sequence, stamp),
            Entry::Vacant(_) if writers >= MAX_WRITERS => false,
            Entry::Vacant(place) => place.insert(Progress::default()).note(sequence, stamp),
        };
        if fresh {
            self.newest = self.newest.max(stamp);
        }
        fresh
    }

    fn add(&mut self, record: &Arc<SegmentRecord>, changes: &mut Vec<FoldChange>) {
        if self.removed.contains_key(&record.id) {
            return;
        }
        let Entry::Vacant(place) = self.live.entry(record.id) else { return };
        let early = self.early.remove(&record.id).unwrap_or_default();
        place.insert(LiveSegment { record: Arc::clone(record), used: record.created.max(early) });
        self.bytes += u128::from(record.bytes);
        self.blocks += u64::from(record.blocks());
        changes.push(FoldChange::Added(Arc::clone(record)));
    }

    fn remove(&mut self, id: SegmentId, at: Stamp, changes: &mut Vec<FoldChange>) {
        let tombstone = self.removed.entry(id).or_default();
        *tombstone = at.max(*tombstone);
        self.early.remove(&id);
        if let Some(LiveSegment { record, .. }) = self.live.remove(&id) {
            self.bytes -= u128::from(record.bytes);
            self.blocks -= u64::from(record.blocks());
            changes.push(FoldChange::Removed(id));
        }
    }

    fn use_segment(&mut self, id: SegmentId, at: Stamp) {
        if let Some(segment) = self.live.get_mut(&id) {
            segment.used = segment.used.max(at);
        } else if !self.removed.contains_key(&id) && (self.early.len() < MAX_EARLY_USES || self.early.contains_key(&id))
        {
            let early = self.early.entry(id).or_default();
            *early = at.max(*early);
        }
    }

    /// Writers of whom a log object is missing though it was listed, or a later one was seen.
    pub fn gaps(&self) -> impl Iterator<Item = WriterId> {
        self.writers.iter().filter(|(_, progress)| progress.has_gap()).map(|(writer, _)| *writer)
    }

    /// Gives up what is missing of a writer: it counts as folded from here on.
    pub fn close_gaps(&mut self, writer: WriterId) {
        if let Some(progress) = self.writers.get_mut(&writer) {
            progress.close();
        }
    }

    /// Newest stamp of what was folded.
    pub fn newest(&self) -> Stamp {
        self.newest
    }

    /// All live segments, in order of their ids.
    pub fn live(&self) -> impl ExactSizeIterator<Item = &LiveSegment> {
        self.live.values()
    }

    /// A live segment.
    pub fn get(&self, id: SegmentId) -> Option<&LiveSegment> {
        self.live.get(&id)
    }

    /// All tombstones, with the time of their removal.
    pub fn removed(&self) -> impl ExactSizeIterator<Item = (SegmentId, Stamp)> {
        self.removed.iter().map(|(id, at)| (*id, *at))
    }

    /// Whether there is a tombstone.
    pub fn is_removed(&self, id: SegmentId) -> bool {
        self.removed.contains_key(&id)
    }

    /// Per writer: all log objects up to this sequence are folded, and the newest stamp seen.
    pub fn writers(&self) -> impl Iterator<Item = (WriterId, u64, Stamp)> {
        self.writers.iter().map(|(writer, progress)| (*writer, progress.contiguous(), progress.newest()))
    }

    /// Forgets tombstones older than `before` that `keep` does not want, early uses, and writers silent since `before`: what they wrote
    /// is in a snapshot, their log objects are gone, and they do not go on under the same id. Not writers of whom something is missing
    /// that was listed.
    pub fn prune(&mut self, before: Stamp, keep: impl Fn(SegmentId) -> bool) {
        self.removed.retain(|id, at| *at >= before || keep(*id));
        self.early.retain(|_, at| *at >= before);
        self.writers.retain(|_, progress| progress.newest() >= before || progress.missed().is_some());
    }

    /// Number of live segments.
    pub fn segments(&self) -> usize {
        self.live.len()
    }

    /// Bytes of all live segments.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    /// Blocks of all live segments.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }
}
