//! One segment's way: into the store, then into the log.

use std::sync::Arc;

use super::super::record::SegmentRecord;
use super::super::requests::Class;
use super::super::shared::Shared;
use super::Publish;
use super::sealed::Sealed;
use crate::tier::Fault;

/// A segment whose upload began longer ago than this part of the orphans' age is not named in the log any more: a collector
/// might already take it for nobody's.
const ORPHAN_SHARE: u32 = 4;

/// Sends a segment by its deadline, frees its memory, then waits until the log names it. What fails behind the upload leaves
/// an orphan, which the collector removes.
pub(super) async fn upload(
    shared: Arc<Shared>,
    publisher: Arc<impl Publish>,
    sealed: Sealed,
) -> Result<Arc<SegmentRecord>, Fault> {
    let Shared { config, names, clock, requests, counters, .. } = &*shared;
    let record = Arc::clone(&sealed.record);
    let path = names.segment(record.id);
    let latest = clock.now().plus(config.orphan_age / ORPHAN_SHARE);
    let deadline = sealed.deadline.min(latest);
    let mut parts = sealed.into_parts(config.part_bytes.into());
    let sent = match (parts.len(), parts.pop()) {
        (1, Some(payload)) => requests.put(Class::Store, &path, payload, true, deadline).await,
        (_, Some(last)) => {
            parts.push(last);
            requests.put_multipart(&path, parts, deadline).await
        }
        (_, None) => return Err(Fault::Io),
    };
    if let Err(error) = sent {
        tracing::debug!(tier = %shared.tier, segment = %record.id, %error, "a segment was not stored");
        return Err(error.into());
    }
    if clock.now() > latest {
        return Err(Fault::Expired);
    }
    if !publisher.publish(Arc::clone(&record)).await {
        return Err(Fault::Io);
    }
    counters.segments_stored.bump();
    Ok(record)
}
