//! Writes snapshots.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use object_store::PutPayload;

use super::parts::{LiveEntry, plan};
use super::{Collecting, Trouble};
use crate::object::folder::{Base, KnownPart, TOMBSTONES, manifest_numbers};
use crate::object::id::{SegmentId, Stamp, WriterId};
use crate::object::names::PartName;
use crate::object::requests::{Class, RequestError};
use crate::object::snapshot::{Manifest, Part, PartRef};

/// Readers list the log from so long before the newest name that the snapshot's writer had listed.
const LOG_SLACK_MS: u64 = 120_000;
/// Uses beside those in parts: beyond, the oldest are forgotten, which changes only the order of eviction.
const MAX_USED: usize = 1_000_000;

/// What a snapshot is made of: taken at one moment.
struct View {
    live: HashMap<SegmentId, LiveEntry>,
    removed: Vec<(SegmentId, Stamp)>,
    writers: Vec<(WriterId, u64, Stamp)>,
    base: Option<Base>,
    stamp: Stamp,
    log_from: Stamp,
    writer: WriterId,
}

impl Collecting {
    /// Writes a snapshot of what is folded here, if it says more than the newest one (`always`: in any case). Answers its number.
    ///
    /// The newest one must have been read by this node: nothing that a snapshot says is missing in its successors. When two nodes
    /// do this at once, one number is created once and the other node begins anew.
    pub async fn compact(&mut self, always: bool) -> Result<Option<u64>, Trouble> {
        let began = self.began();
        let newest = manifest_numbers(&self.shared, self.deadline()).await?.last().copied();
        let mut number = self.base_number();
        if newest > number {
            if !self.folder.read_anew().await {
                return Err(Trouble::Stale);
            }
            number = self.base_number();
        }
        // The newest may be damaged: then this goes on from the one before, under the next number.
        let Some(number) = newest.max(number).unwrap_or(0).checked_add(1) else { return Err(Trouble::Stale) };
        let there = self.parts_there().await?;
        let Some(view) = self.view() else { return Err(Trouble::Stale) };
        let known = view.base.as_ref().map_or(&[][..], |base| &base.parts);
        let is_there = |part: &PartRef| there.contains(&part.name());
        let whole = known.iter().all(|part| is_there(&part.reference)) && newest >= self.base_number();
        if !always && whole && self.says_nothing_new(&view) {
            return Ok(None);
        }
        let plan = plan(known, is_there, &view.live);
        let mut parts: Vec<KnownPart> = plan.keep.iter().filter_map(|place| known.get(*place)).cloned().collect();
        for (segments, count) in plan.write.into_iter().zip(0..) {
            parts.push(self.write_part(&view, segments, count).await?);
            tokio::task::yield_now().await;
        }
        let manifest = manifest(&view, number, &parts);
        let bytes = manifest.encode(&self.shared.shape).map_err(|_| Trouble::TooLarge)?;
        // Its parts are nobody's until it is there: they must not be so old that another collector takes them away.
        if !self.is_fresh(began) {
            return Err(Trouble::Stale);
        }
        self.check_right()?;
        let path = self.shared.names.manifest(number);
        match self.shared.requests.put(Class::Sync, &path, PutPayload::from(bytes), true, self.deadline()).await {
            Ok(()) => {}
            Err(RequestError::Exists) => return Err(Trouble::Stale),
            Err(error) => return Err(error.into()),
        }
        self.shared.counters.snapshots.bump();
        self.installed(manifest, parts);
        Ok(Some(number))
    }

    fn base_number(&self) -> Option<u64> {
        self.state.lock().base.as_ref().map(|base| base.number)
    }

    /// Names of all parts in the store.
    async fn parts_there(&mut self) -> Result<HashSet<PartName>, Trouble> {
        let prefix = self.shared.names.parts().clone();
        let mut there = HashSet::new();
        let mut after = None;
        loop {
            let page = self.page(&prefix, after.as_ref()).await?;
            there.extend(page.iter().filter_map(|object| self.shared.names.parse_part(&object.location)));
            after = match page.into_iter().last() {
                Some(last) if !self.last_page => Some(last.location),
                _ => return Ok(there),
            };
        }
    }

    /// What is known now; tombstones that nobody needs any more are forgotten first.
    fn view(&self) -> Option<View> {
        let wall_ms = self.shared.wall.now_ms();
        let mut state = self.state.lock();
        let complete = state.complete?;
        let stamp = state.stamp(wall_ms);
        let kept = self.shared.config.log_retention * TOMBSTONES;
        let base = state.base.clone();
        let in_parts: HashSet<SegmentId> =
            base.iter().flat_map(|base| &base.parts).flat_map(|part| &part.segments).map(|(id, _)| *id).collect();
        let needed = |id| in_parts.contains(&id) || !self.deleted.contains(&id);
        // By the log's own time: while nothing is written, the log objects of the last writers stay where they are, and a writer that was
        // forgotten would begin anew with every listing, with a gap before the first that is left.
        let before = state.fold.newest().minus_ms(kept.as_millis() as u64);
        state.fold.prune(before, needed);
        // What is listed and cannot be read here, others must come by, though it is older.
        let listed_to = complete.upto.minus_ms(LOG_SLACK_MS);
        let log_from = state.fold.earliest_missed().map_or(listed_to, |missed| listed_to.min(missed.minus_ms(1)));
        Some(View {
            live: state.fold.live().map(|live| (live.record.id, (Arc::clone(&live.record), live.used))).collect(),
            removed: state.fold.removed().collect(),
            writers: state.fold.writers().collect(),
            base,
            stamp,
            log_from,
            writer: state.writer(),
        })
    }

    fn says_nothing_new(&self, view: &View) -> bool {
        let Some(base) = &view.base else { return view.live.is_empty() && view.writers.is_empty() };
        let covered = view.writers.iter().all(|(writer, sequence, _)| base.covered.get(writer) == Some(sequence));
        covered && base.covered.len() == view.writers.len()
    }

    async fn write_part(&self, view: &View, segments: Vec<LiveEntry>, count: u64) -> Result<KnownPart, Trouble> {
        // Stamps are given once, and snapshots are a minute apart.
        let name = PartName { writer: view.writer, number: view.stamp.0.saturating_mul(1_024).saturating_add(count) };
        let ids = segments.iter().map(|(segment, used)| (segment.id, *used)).collect();
        let encoded = Part { segments }.encode(&self.shared.shape, name);
        let (bytes, reference) = encoded.map_err(|_| Trouble::TooLarge)?;
        self.check_right()?;
        let path = self.shared.names.part(name);
        self.shared.requests.put(Class::Sync, &path, PutPayload::from(bytes), false, self.deadline()).await?;
        Ok(KnownPart { reference, segments: ids })
    }

    fn installed(&mut self, manifest: Manifest, parts: Vec<KnownPart>) {
        let mut state = self.state.lock();
        state.base = Some(Base {
            number: manifest.number,
            log_from: manifest.log_from,
            covered: manifest.writers.iter().map(|(writer, sequence, _)| (*writer, *sequence)).collect(),
            parts,
        });
        let fold = &state.fold;
        self.deleted.retain(|id| fold.is_removed(*id));
    }
}

fn manifest(view: &View, number: u64, parts: &[KnownPart]) -> Manifest {
    let in_parts = parts.iter().flat_map(|part| &part.segments);
    let used = in_parts.filter_map(|(id, noted)| {
        let (_, used) = view.live.get(id)?;
        (used > noted).then_some((*id, *used))
    });
    let mut used: Vec<(SegmentId, Stamp)> = used.collect();
    if used.len() > MAX_USED {
        used.sort_unstable_by_key(|(_, at)| std::cmp::Reverse(*at));
        used.truncate(MAX_USED);
    }
    // What a part has and is not live stays removed as long as the part is there, though its tombstone may be forgotten here.
    let mut removed: BTreeMap<SegmentId, Stamp> = view.removed.iter().copied().collect();
    for (id, _) in parts.iter().flat_map(|part| &part.segments).filter(|(id, _)| !view.live.contains_key(id)) {
        removed.entry(*id).or_default();
    }
    Manifest {
        number,
        stamp: view.stamp,
        log_from: view.log_from,
        parts: parts.iter().map(|part| part.reference).collect(),
        writers: view.writers.clone(),
        removed: removed.into_iter().collect(),
        used,
    }
}
