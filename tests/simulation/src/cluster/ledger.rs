//! The plain model of what a bucket holds for one namespace: what its log has ever said, by the order in which the bucket took it.
//!
//! A segment lives from the first log object that adds it to the first that removes it. What lives must be there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use terrace_primary::Key;
use terrace_tiers::object::log::{LogObject, LogRecord};
use terrace_tiers::object::names::Names;
use terrace_tiers::object::snapshot::{Manifest, Part};
use terrace_tiers::object::{SegmentId, SegmentRecord, Shape, WriterId};

/// A request that somebody may make only with the collector's lease is on its way so long at most, retries included.
const REQUEST: Duration = Duration::from_secs(31);

/// A removed segment's object stays a minute, and goes with the next round of a collector.
const GRACE: Duration = Duration::from_secs(120);

/// One namespace.
pub(crate) struct Ledger {
    pub names: Names,
    shape: Shape,
    lease: Duration,
    /// First taken of each number.
    logs: BTreeMap<(WriterId, u64), Vec<LogRecord>>,
    added: BTreeMap<SegmentId, Arc<SegmentRecord>>,
    /// And when first.
    removed: BTreeMap<SegmentId, Duration>,
    /// Segments whose objects a fault took or changed.
    spoiled: BTreeSet<SegmentId>,
    named: BTreeSet<Key>,
    /// When each life began to ask for each term, in time of the world. Asked again after a while, it began anew.
    asked: BTreeMap<(u64, u64), Duration>,
}

impl Ledger {
    pub fn new(prefix: &str, shape: Shape, lease: Duration) -> Self {
        let names = Names::new(prefix, &shape.namespace);
        let (logs, added, removed, asked) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (spoiled, named) = (BTreeSet::new(), BTreeSet::new());
        Self { names, shape, lease, logs, added, removed, spoiled, named, asked }
    }

    /// Live segments that no fault has touched.
    pub fn live(&self) -> impl Iterator<Item = &Arc<SegmentRecord>> {
        let lives = |id: &SegmentId| !self.removed.contains_key(id) && !self.spoiled.contains(id);
        self.added.values().filter(move |record| lives(&record.id))
    }

    /// Bytes of all live segments, those that a fault has touched too.
    pub fn live_bytes(&self) -> u64 {
        let live = self.added.values().filter(|record| !self.removed.contains_key(&record.id));
        live.map(|record| record.bytes).sum()
    }

    /// Whether this segment is in the log and was not removed from it.
    pub fn lives(&self, id: SegmentId) -> bool {
        self.added.contains_key(&id) && !self.removed.contains_key(&id)
    }

    /// Whether the object of this segment may be there: it lives, or was removed a short while ago.
    pub fn may_stay(&self, id: SegmentId, world: Duration) -> bool {
        self.lives(id) || self.removed.get(&id).is_some_and(|at| *at + GRACE >= world)
    }

    /// Whether the log ever named a segment with this block.
    pub fn was_named(&self, key: &Key) -> bool {
        self.named.contains(key)
    }

    /// Whether a fault took or changed the object.
    pub fn is_spoiled(&self, id: SegmentId) -> bool {
        self.spoiled.contains(&id)
    }

    /// Whether a live segment's object was taken or changed by a fault.
    pub fn has_spoiled(&self) -> bool {
        self.spoiled.iter().any(|id| self.lives(*id))
    }

    /// A fault takes or changes this object.
    pub fn spoil(&mut self, id: SegmentId) {
        self.spoiled.insert(id);
    }

    /// A log object was taken. `there`: size of the object of a segment.
    pub fn log_taken(
        &mut self,
        path: &object_store::path::Path,
        bytes: &[u8],
        world: Duration,
        there: impl Fn(&object_store::path::Path) -> Option<u64>,
    ) -> Result<(), String> {
        let Some(name) = self.names.parse_log(path) else { return Err(format!("{path} is no name of a log object")) };
        let object = LogObject::decode(&self.shape, &name, bytes).map_err(|error| format!("{path}: {error:?}"))?;
        if let Some(first) = self.logs.get(&(name.writer, name.sequence)) {
            let same = *first == object.records;
            return if same { Ok(()) } else { Err(format!("{path}: one number stands for two objects")) };
        }
        for record in &object.records {
            match record {
                LogRecord::Added(segment) => {
                    let size = there(&self.names.segment(segment.id));
                    if size != Some(segment.bytes) && !self.spoiled.contains(&segment.id) {
                        return Err(format!("{path} adds {}, whose object is {size:?}", segment.id));
                    }
                    self.named.extend((0..segment.blocks()).filter_map(|position| segment.key(position)));
                    self.added.insert(segment.id, Arc::clone(segment));
                }
                LogRecord::Removed { id, .. } => {
                    self.removed.entry(*id).or_insert(world);
                }
                LogRecord::Used { .. } => {}
            }
        }
        self.logs.insert((name.writer, name.sequence), object.records);
        Ok(())
    }

    /// A life asks for a term of the lease. It does so for a third of the lease's length, retries included; later it has begun anew.
    pub fn term_asked(&mut self, life: u64, term: u64, world: Duration) {
        let began = self.asked.entry((life, term)).or_insert(world);
        if world > *began + self.lease / 3 {
            *began = world;
        }
    }

    /// A manifest was taken. What lives is in it, or is added by a log object that it does not cover and that is there. `there`: the bytes of
    /// a part; `logs`: names of all log objects.
    pub fn manifest_taken<'a>(
        &self,
        number: u64,
        bytes: &[u8],
        there: impl Fn(&object_store::path::Path) -> Option<Bytes>,
        logs: impl Iterator<Item = &'a object_store::path::Path>,
    ) -> Result<(), String> {
        let manifest = Manifest::decode(&self.shape, number, bytes);
        let manifest = manifest.map_err(|error| format!("manifest {number}: {error:?}"))?;
        let mut within = BTreeSet::new();
        for part in &manifest.parts {
            // One that came late may name what is gone by now.
            let Some(bytes) = there(&self.names.part(part.name())) else { return Ok(()) };
            let part = Part::decode(&self.shape, part.name(), &bytes);
            let part = part.map_err(|error| format!("a part of manifest {number}: {error:?}"))?;
            within.extend(part.segments.iter().map(|(segment, _)| segment.id));
        }
        for (id, _) in &manifest.removed {
            within.remove(id);
        }
        let covered: BTreeMap<WriterId, u64> =
            manifest.writers.iter().map(|(writer, upto, _)| (*writer, *upto)).collect();
        let left: BTreeSet<(WriterId, u64)> = logs
            .filter_map(|path| self.names.parse_log(path))
            .filter(|name| covered.get(&name.writer).is_none_or(|upto| name.sequence > *upto))
            .map(|name| (name.writer, name.sequence))
            .collect();
        for ((writer, sequence), records) in self.logs.iter().filter(|(place, _)| !left.contains(place)) {
            let lost = records.iter().find_map(|record| match record {
                LogRecord::Added(segment) if self.lives(segment.id) && !within.contains(&segment.id) => {
                    Some(segment.id)
                }
                _ => None,
            });
            if let Some(id) = lost {
                let upto = covered.get(writer);
                return Err(format!("manifest {number} is without {id}, of {writer} {sequence}; it covers {upto:?}"));
            }
        }
        Ok(())
    }

    /// Whether a life that asks now for what only a collector does can believe that it holds the lease.
    pub fn may_collect(&self, life: u64, world: Duration) -> bool {
        // Not always for the highest term: a listing that showed no lease has it begin at the first one again.
        let last = self.asked.range((life, 0)..=(life, u64::MAX)).map(|(_, asked)| *asked).max();
        last.is_some_and(|asked| world <= asked + self.lease * 4 / 5 + REQUEST)
    }
}
