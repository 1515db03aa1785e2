//! Removes what snapshots have made needless: log objects, older manifests, parts, and what probes left.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use object_store::ObjectMeta;
use object_store::path::Path;

use super::{BATCH, Collecting, Trouble};
use crate::object::folder::{Unread, manifest_numbers, read_manifest};
use crate::object::id::{Stamp, WriterId};
use crate::object::names::LogName;
use crate::object::snapshot::Manifest;

/// Manifests that are kept: should the newest be damaged, the ones before and the log behind them say the same.
const KEPT: usize = 3;
/// Pages of log objects that one pass looks at.
const LOG_PAGES: usize = 16;

/// What the kept manifests still need.
struct Needed {
    parts: HashSet<Path>,
    /// Log objects that all of them have: per writer, up to this sequence.
    covered: HashMap<WriterId, u64>,
    /// The earliest place where a reader begins to list.
    log_from: Stamp,
}

impl Collecting {
    /// Removes what no reader of the kept snapshots needs. Nothing, before there are several of them.
    pub async fn clean(&mut self, apply: bool) -> Result<(), Trouble> {
        self.look_at_the_clock().await?;
        let mut numbers = manifest_numbers(&self.shared, self.deadline()).await?;
        let kept = numbers.split_off(numbers.len().saturating_sub(KEPT));
        let Some(needed) = self.needed(&kept).await? else { return Ok(()) };
        let old: Vec<Path> = numbers.iter().map(|number| self.shared.names.manifest(*number)).collect();
        let (count, removed) = (old.len() as u64, self.remove_objects(old, apply).await?);
        self.done.deleted_others += removed;
        // Readers fall back to whatever manifest is there: what is behind it stays as long.
        if removed < count {
            self.shared.counters.cleanings_put_off.bump();
            return Ok(());
        }
        self.clean_parts(&needed, apply).await?;
        self.clean_log(&needed, apply).await?;
        self.clean_probes(apply).await
    }

    /// `None`: not all of these manifests can be read, or too few, to remove anything. Readers may find the one that is missing here.
    async fn needed(&self, kept: &[u64]) -> Result<Option<Needed>, Trouble> {
        let mut manifests: Vec<Manifest> = Vec::new();
        for number in kept {
            match read_manifest(&self.shared, *number, self.deadline()).await {
                Ok(manifest) => manifests.push(manifest),
                Err(Unread::Failed(error)) => return Err(error.into()),
                Err(Unread::Bad | Unread::Gone) => {
                    self.shared.counters.cleanings_put_off.bump();
                    return Ok(None);
                }
            }
        }
        if manifests.len() < 2 {
            return Ok(None);
        }
        let parts = manifests.iter().flat_map(|manifest| &manifest.parts);
        let parts = parts.map(|part| self.shared.names.part(part.name())).collect();
        let log_from = manifests.iter().map(|manifest| manifest.log_from).min().unwrap_or_default();
        // What a snapshot covers its successors cover too: the oldest one covers least.
        let covered = manifests.first().map(|oldest| &oldest.writers[..]).unwrap_or_default();
        let covered = covered.iter().map(|(writer, sequence, _)| (*writer, *sequence)).collect();
        Ok(Some(Needed { parts, covered, log_from }))
    }

    /// Parts that no kept manifest names, unless they are so young that the manifest may still come.
    async fn clean_parts(&mut self, needed: &Needed, apply: bool) -> Result<(), Trouble> {
        let prefix = self.shared.names.parts().clone();
        let mut after = None;
        let mut old = Vec::new();
        loop {
            let page = self.page(&prefix, after.as_ref()).await?;
            after = page.last().filter(|_| !self.last_page).map(|last| last.location.clone());
            old.extend(page.into_iter().filter(|object| {
                self.shared.names.parse_part(&object.location).is_some() && !needed.parts.contains(&object.location)
            }));
            if after.is_none() {
                break;
            }
        }
        old.retain(|object| self.is_older(object, self.shared.config.orphan_age));
        let old = old.into_iter().map(|object| object.location).collect();
        self.done.deleted_parts += self.remove_objects(old, apply).await?;
        Ok(())
    }

    /// Log objects that all kept manifests have, once they are old.
    async fn clean_log(&mut self, needed: &Needed, apply: bool) -> Result<(), Trouble> {
        let prefix = self.shared.names.logs().clone();
        let retention = self.shared.config.log_retention;
        let mut after = None;
        for _ in 0..LOG_PAGES {
            let page = self.page(&prefix, after.as_ref()).await?;
            after = page.last().filter(|_| !self.last_page).map(|last| last.location.clone());
            let some_old = page.iter().any(|object| self.is_older(object, retention));
            let old = page.iter().filter(|object| self.is_needless(needed, object, retention));
            let old = old.map(|object| object.location.clone()).collect();
            self.done.deleted_logs += self.remove_objects(old, apply).await?;
            // Names go by time, roughly: behind a page of young ones all are young.
            if after.is_none() || !some_old {
                break;
            }
        }
        Ok(())
    }

    fn is_needless(&self, needed: &Needed, object: &ObjectMeta, retention: Duration) -> bool {
        let Some(LogName { stamp, writer, sequence }) = self.shared.names.parse_log(&object.location) else {
            return false;
        };
        let covered = needed.covered.get(&writer).is_some_and(|all| sequence <= *all);
        // Of a writer that snapshots have forgotten: where no reader looks any more.
        let forgotten = stamp < needed.log_from.minus_ms(retention.as_millis() as u64 * 2);
        (covered || forgotten) && self.is_older(object, retention)
    }

    /// What probes left whose node died meanwhile.
    async fn clean_probes(&mut self, apply: bool) -> Result<(), Trouble> {
        let prefix = self.shared.names.root().clone().join("probe");
        let page = self.page(&prefix, None).await?;
        let old = page.into_iter().filter(|object| self.is_older(object, self.shared.config.orphan_age));
        let old = old.map(|object| object.location).collect();
        self.done.deleted_others += self.remove_objects(old, apply).await?;
        Ok(())
    }

    /// Deletes objects of the log and of snapshots. Answers how many were, or would be.
    async fn remove_objects(&mut self, paths: Vec<Path>, apply: bool) -> Result<u64, Trouble> {
        if !apply {
            return Ok(paths.len() as u64);
        }
        let mut removed = 0;
        for batch in paths.chunks(BATCH) {
            self.check_right()?;
            removed += self.delete(batch.to_vec()).await;
        }
        self.shared.counters.logs_removed.add(removed);
        Ok(removed)
    }
}
