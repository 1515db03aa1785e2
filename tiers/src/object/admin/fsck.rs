//! Whether everything in a namespace fits together.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::problems::{Problem, Problems};
use super::view::{Depth, READS_AT_ONCE, View};
use super::{AdminError, Progress, REQUEST, Tell, deep, listing, view};
use crate::object::id::SegmentId;
use crate::object::record::SegmentRecord;
use crate::object::requests::{Class, RequestError};
use crate::object::segment::decode_index;
use crate::object::shared::Shared;

/// What was checked, and what is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Live segments.
    pub segments: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Bytes of their objects.
    pub bytes: u64,
    /// Log objects.
    pub logs: u64,
    /// Parts of the newest snapshot.
    pub parts: u64,
    /// Segments in the bucket that no log names: being written now, or left over. The collector removes them when they are old.
    pub orphans: u64,
    /// Their bytes.
    pub orphan_bytes: u64,
    /// What is wrong: the first [`MAX_PROBLEMS`](super::MAX_PROBLEMS).
    pub problems: Vec<Problem>,
    /// Further problems.
    pub more_problems: u64,
}

/// Objects below `segments/`: what is there by name, and how large.
pub(super) async fn stored_segments(
    shared: &Shared,
    problems: &mut Problems,
    tell: Tell<'_>,
) -> Result<HashMap<SegmentId, u64>, RequestError> {
    let objects = listing::all(shared, shared.names.segments(), None, "listing segments", tell).await?;
    let mut found = HashMap::with_capacity(objects.len());
    for object in objects {
        match shared.names.parse_segment(&object.location) {
            Some(id) => drop(found.insert(id, object.size)),
            None => problems.add(&object.location, "no name of a segment"),
        }
    }
    Ok(found)
}

pub(super) async fn fsck(shared: &Shared, deep: bool, tell: Tell<'_>) -> Result<Checked, AdminError> {
    let mut problems = Problems::default();
    // Listed before the log is read: what was published in between is known, and no orphan.
    let stored = stored_segments(shared, &mut problems, tell).await?;
    let View { fold, manifest, logs } = view::read(shared, Depth::All, &mut problems, tell).await?;
    let (mut orphans, mut orphan_bytes) = (0, 0_u64);
    for (_, bytes) in stored.iter().filter(|(id, _)| fold.get(**id).is_none() && !fold.is_removed(**id)) {
        orphans += 1;
        orphan_bytes = orphan_bytes.saturating_add(*bytes);
    }
    let mut suspects = Vec::new();
    let mut checks = stream::iter(fold.live().map(|live| Arc::clone(&live.record)))
        .map(|record| async move {
            let verdict = check(shared, &record, deep).await;
            (record, verdict)
        })
        .buffer_unordered(READS_AT_ONCE);
    let (mut done, total) = (0, Some(fold.segments() as u64));
    while let Some((record, verdict)) = checks.next().await {
        match verdict? {
            Verdict::Sound => {}
            Verdict::Gone => suspects.push(record.id),
            Verdict::Wrong(what) => problems.add(&shared.names.segment(record.id), what),
        }
        done += 1;
        tell(Progress { step: if deep { "reading blocks" } else { "checking segments" }, done, total });
    }
    drop(checks);
    if !suspects.is_empty() {
        // The log may have removed them meanwhile.
        let now = view::read(shared, Depth::Needed, &mut Problems::default(), tell).await?;
        for id in suspects.into_iter().filter(|id| now.fold.get(*id).is_some()) {
            problems.add(&shared.names.segment(id), "segment: the log names it, and it is gone");
        }
    }
    Ok(Checked {
        segments: fold.segments() as u64,
        blocks: fold.blocks(),
        bytes: fold.bytes(),
        logs,
        parts: manifest.map_or(0, |manifest| manifest.parts.len() as u64),
        orphans,
        orphan_bytes,
        problems: problems.all,
        more_problems: problems.more,
    })
}

/// What one segment is like.
enum Verdict {
    Sound,
    Gone,
    Wrong(String),
}

async fn check(shared: &Shared, record: &SegmentRecord, deep: bool) -> Result<Verdict, RequestError> {
    let wrong = |what: &dyn std::fmt::Display| Ok(Verdict::Wrong(format!("segment: {what}")));
    let path = shared.names.segment(record.id);
    let deadline = shared.clock.now().plus(REQUEST);
    let wanted = shared.shape.index_bytes(record.blocks());
    let (tail, bytes) = match shared.requests.get_tail(Class::Sync, &path, wanted, deadline).await {
        Ok(tail) => tail,
        Err(RequestError::NotFound) => return Ok(Verdict::Gone),
        Err(error @ (RequestError::Truncated | RequestError::TooLarge)) => return wrong(&error),
        Err(error) => return Err(error),
    };
    if bytes != record.bytes {
        return wrong(&format!("it has {bytes} bytes, {} in the log", record.bytes));
    }
    match decode_index(&shared.shape, record.id, &tail, bytes) {
        Err(answer) => return wrong(&format!("its index: {answer}")),
        Ok(index) if index != *record => return wrong(&"its index is not the one in the log"),
        Ok(_) => {}
    }
    if deep {
        match deep::check_blocks(shared, record).await {
            Ok(None) => {}
            Ok(Some(what)) => return wrong(&what),
            Err(RequestError::NotFound) => return Ok(Verdict::Gone),
            Err(RequestError::Truncated) => return wrong(&RequestError::Truncated),
            Err(error) => return Err(error),
        }
    }
    Ok(Verdict::Sound)
}
