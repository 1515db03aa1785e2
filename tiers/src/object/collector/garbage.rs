//! Removes segments: those that are too old or too much from the live set, and objects that nobody lives in from the store.

use std::collections::BTreeSet;

use object_store::ObjectMeta;
use object_store::path::Path;

use super::eviction::{Candidate, Limits, Victims, victims};
use super::{BATCH, Collecting, Trouble};
use crate::object::id::{SegmentId, Stamp};
use crate::object::requests::RequestError;

/// A removed segment's object stays so long: nodes that have not read of its removal yet may be reading it.
const GRACE_MS: u64 = 60_000;
/// Orphans that one pass removes; the next removes more.
const MAX_ORPHANS: usize = 1_000_000;
/// Segments that a pass asks for one by one because they were not listed.
const MAX_MISSING: usize = 1_000;

impl Collecting {
    /// Takes out of the live set what was not used for too long, and, if there is too much, what was not used for longest.
    /// `pressed`: a store found no room, so that there is too much even below the high mark.
    pub async fn evict(&mut self, pressed: bool, apply: bool) -> Result<(), Trouble> {
        let now = self.publisher.stamp();
        let Some(Victims { aged, evicted }) = self.victims(now, pressed) else { return Ok(()) };
        self.done.aged_bytes += bytes(&aged);
        self.done.evicted_bytes += bytes(&evicted);
        self.done.aged += aged.len() as u64;
        self.done.evicted += evicted.len() as u64;
        if apply {
            self.remove(aged, |collecting, count| collecting.shared.counters.segments_aged.add(count)).await?;
            self.remove(evicted, |collecting, count| collecting.shared.counters.segments_evicted.add(count)).await?;
        }
        Ok(())
    }

    fn victims(&self, now: Stamp, pressed: bool) -> Option<Victims> {
        let config = &self.shared.config;
        let share = |share: f64| (config.capacity_bytes as f64 * share) as u64;
        let low_bytes = share(config.low_watermark);
        let high_bytes = if pressed { low_bytes } else { share(config.high_watermark) };
        let used_since = config.max_age.map_or(Stamp(0), |age| now.minus_ms(age.as_millis() as u64));
        let state = self.state.lock();
        if state.fold.bytes() <= high_bytes && config.max_age.is_none() {
            return None;
        }
        let live = state.fold.live().map(|live| {
            let record = &live.record;
            Candidate { id: record.id, bytes: record.bytes, created: record.created, used: live.used }
        });
        let live: Vec<Candidate> = live.collect();
        drop(state);
        Some(victims(live, Limits { high_bytes, low_bytes, used_since }))
    }

    async fn remove(&self, gone: Vec<(SegmentId, u64)>, count: impl Fn(&Self, u64)) -> Result<(), Trouble> {
        for batch in gone.chunks(BATCH) {
            self.check_right()?;
            let ids: Vec<SegmentId> = batch.iter().map(|(id, _)| *id).collect();
            let published = self.publisher.remove(ids).await;
            if published != Ok(Ok(())) {
                return Err(Trouble::Unpublished);
            }
            count(self, batch.len() as u64);
        }
        Ok(())
    }

    /// Deletes the objects of segments that were removed a while ago.
    pub async fn delete_removed(&mut self, apply: bool) -> Result<(), Trouble> {
        let now = self.publisher.stamp();
        let due: Vec<SegmentId> = {
            let state = self.state.lock();
            let due =
                state.fold.removed().filter(|(id, at)| now.since_ms(*at) >= GRACE_MS && !self.deleted.contains(id));
            due.map(|(id, _)| id).collect()
        };
        self.done.removed += due.len() as u64;
        if !apply {
            return Ok(());
        }
        for batch in due.chunks(BATCH) {
            self.check_right()?;
            let paths = batch.iter().map(|id| self.shared.names.segment(*id)).collect();
            let outcomes = self.shared.requests.delete(paths, self.deadline()).await;
            for (id, outcome) in batch.iter().zip(outcomes) {
                match outcome {
                    Ok(()) => drop(self.deleted.insert(*id)),
                    Err(_) => self.done.failures += 1,
                }
            }
        }
        Ok(())
    }

    /// Lists all segments. Deletes those that no log names and that are so old that none will; takes out of the live set those that are
    /// not there.
    pub async fn sweep(&mut self, apply: bool) -> Result<(), Trouble> {
        // What is not folded here is not nobody's: the log must be known without a gap.
        if !self.folder.list_whole().await || self.state.lock().fold.gaps().next().is_some() {
            self.shared.counters.sweeps_put_off.bump();
            return Err(Trouble::Stale);
        }
        let mut missing: BTreeSet<SegmentId> = self.state.lock().fold.live().map(|live| live.record.id).collect();
        let began = self.began();
        self.look_at_the_clock().await?;
        let orphans = self.find_orphans(&mut missing).await?;
        if !self.is_fresh(began) {
            return Err(Trouble::Stale);
        }
        self.delete_orphans(orphans, apply).await?;
        self.remove_missing(missing, apply).await
    }

    /// Objects that are neither live nor removed, and old. Takes what is there out of `missing`.
    async fn find_orphans(
        &mut self,
        missing: &mut BTreeSet<SegmentId>,
    ) -> Result<Vec<(SegmentId, ObjectMeta)>, Trouble> {
        let prefix = self.shared.names.segments().clone();
        let mut orphans = Vec::new();
        let mut after: Option<Path> = None;
        loop {
            let page = self.page(&prefix, after.as_ref()).await?;
            after = page.last().filter(|_| !self.last_page).map(|last| last.location.clone());
            {
                let state = self.state.lock();
                for object in page {
                    let Some(id) = self.shared.names.parse_segment(&object.location) else { continue };
                    missing.remove(&id);
                    let nobodys = state.fold.get(id).is_none() && !state.fold.is_removed(id);
                    if nobodys && orphans.len() < MAX_ORPHANS {
                        orphans.push((id, object));
                    }
                }
            }
            if after.is_none() {
                break;
            }
            tokio::task::yield_now().await;
        }
        // By the newest time that the store gave, which is known only now.
        orphans.retain(|(_, object)| self.is_older(object, self.shared.config.orphan_age));
        Ok(orphans)
    }

    async fn delete_orphans(&mut self, orphans: Vec<(SegmentId, ObjectMeta)>, apply: bool) -> Result<(), Trouble> {
        let batches: Vec<&[(SegmentId, ObjectMeta)]> = orphans.chunks(BATCH).collect();
        for batch in batches {
            self.check_right()?;
            let still: Vec<&ObjectMeta> = {
                let state = self.state.lock();
                let nobodys = |id| state.fold.get(id).is_none() && !state.fold.is_removed(id);
                batch.iter().filter(|(id, _)| nobodys(*id)).map(|(_, object)| object).collect()
            };
            self.done.orphans += still.len() as u64;
            self.done.orphan_bytes += still.iter().map(|object| object.size).sum::<u64>();
            if apply {
                let deleted = self.delete(still.iter().map(|object| object.location.clone()).collect()).await;
                self.shared.counters.segments_orphaned.add(deleted);
            }
        }
        Ok(())
    }

    /// Segments that were not listed though they live: asked for once more, then removed for all nodes.
    async fn remove_missing(&mut self, missing: BTreeSet<SegmentId>, apply: bool) -> Result<(), Trouble> {
        let mut gone = Vec::new();
        for id in missing.into_iter().take(MAX_MISSING) {
            if self.state.lock().fold.get(id).is_none() {
                continue;
            }
            match self.shared.requests.head(&self.shared.names.segment(id), self.deadline()).await {
                Err(RequestError::NotFound) => gone.push((id, 0)),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.done.lost += gone.len() as u64;
        if apply {
            self.remove(gone, |collecting, count| collecting.shared.counters.segments_lost.add(count)).await?;
        }
        Ok(())
    }
}

fn bytes(segments: &[(SegmentId, u64)]) -> u64 {
    segments.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
}
