//! Names segments again that no log names.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::fsck::stored_segments;
use super::problems::{Problem, Problems};
use super::view::{Depth, READS_AT_ONCE, View};
use super::{AdminError, Progress, REQUEST, Tell, view};
use crate::object::folder::SharedLogState;
use crate::object::id::{SegmentId, WriterId};
use crate::object::log::{LogRecord, record_bytes};
use crate::object::publisher::publisher;
use crate::object::record::SegmentRecord;
use crate::object::requests::{Class, RequestError};
use crate::object::segment::{IndexAnswer, decode_index};
use crate::object::shared::Shared;

/// Bytes from the end of a segment that are read at first: the whole index of most.
const TAIL_BYTES: u64 = 64 << 10;
/// Bytes of records in one log object.
const BATCH_BYTES: usize = 4 << 20;
/// One log object, from appending to the answer.
const PUBLISH: Duration = Duration::from_secs(120);

/// What was named again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Segments in the bucket that no log names, whose indices were asked for.
    pub segments_read: u64,
    /// Those that were named, or would be.
    pub segments_added: u64,
    /// Their blocks.
    pub blocks_added: u64,
    /// Bytes of their objects.
    pub bytes_added: u64,
    /// Those that are no whole segments, and other objects there: the first [`MAX_PROBLEMS`](super::MAX_PROBLEMS).
    pub unreadable: Vec<Problem>,
    /// Further ones.
    pub more_unreadable: u64,
}

pub(super) async fn rebuild(
    shared: Arc<Shared>,
    writer: WriterId,
    apply: bool,
    tell: Tell<'_>,
) -> Result<Rebuilt, AdminError> {
    let mut unreadable = Problems::default();
    // Before the log is read: what is published meanwhile is known by then.
    let stored = stored_segments(&shared, &mut unreadable, tell).await?;
    let View { fold, .. } = view::read(&shared, Depth::Needed, &mut Problems::default(), tell).await?;
    // A removed segment stays removed: its object goes soon.
    let unnamed: Vec<(SegmentId, u64)> =
        stored.into_iter().filter(|(id, _)| fold.get(*id).is_none() && !fold.is_removed(*id)).collect();
    let mut rebuilt = Rebuilt { segments_read: unnamed.len() as u64, ..Rebuilt::default() };
    let total = Some(rebuilt.segments_read);
    let mut records = Vec::new();
    let mut reads =
        stream::iter(unnamed).map(|(id, bytes)| read_index(&shared, id, bytes)).buffer_unordered(READS_AT_ONCE);
    let mut done = 0;
    while let Some(read) = reads.next().await {
        match read? {
            (_, Ok(record)) => records.push(Arc::new(record)),
            (_, Err(None)) => {}
            (id, Err(Some(what))) => unreadable.add(&shared.names.segment(id), what),
        }
        done += 1;
        tell(Progress { step: "reading indices", done, total });
    }
    drop(reads);
    for record in &records {
        rebuilt.segments_added += 1;
        rebuilt.blocks_added += u64::from(record.blocks());
        rebuilt.bytes_added = rebuilt.bytes_added.saturating_add(record.bytes);
    }
    (rebuilt.unreadable, rebuilt.more_unreadable) = (unreadable.all, unreadable.more);
    if apply && !records.is_empty() {
        let state = SharedLogState::new(writer);
        state.lock().observe(fold.newest(), shared.wall.now_ms());
        publish(shared, state, records, tell).await?;
    }
    Ok(rebuilt)
}

/// Appends the records to the log, a few megabytes of them at a time.
async fn publish(
    shared: Arc<Shared>,
    state: SharedLogState,
    records: Vec<Arc<SegmentRecord>>,
    tell: Tell<'_>,
) -> Result<(), AdminError> {
    let (handle, publishing) = publisher(shared, state);
    let publishing = tokio::spawn(publishing);
    let total = Some(records.len() as u64);
    let mut done = 0;
    let mut records = records.into_iter().map(LogRecord::Added).peekable();
    while records.peek().is_some() {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(record) = records.next_if(|next| batch.is_empty() || bytes + record_bytes(next) <= BATCH_BYTES) {
            bytes += record_bytes(&record);
            batch.push(record);
        }
        let count = batch.len() as u64;
        if !matches!(tokio::time::timeout(PUBLISH, handle.append(batch)).await, Ok(Ok(Ok(())))) {
            publishing.abort();
            return Err(AdminError::NotPublished(done));
        }
        done += count;
        tell(Progress { step: "writing the log", done, total });
    }
    drop(handle);
    // All is answered: it ends by itself.
    let _ = publishing.await;
    Ok(())
}

type IndexRead = (SegmentId, Result<SegmentRecord, Option<String>>);

/// The record of a segment from its own end; what is wrong with it; or nothing, if it is gone by now.
async fn read_index(shared: &Shared, id: SegmentId, bytes: u64) -> Result<IndexRead, RequestError> {
    let path = shared.names.segment(id);
    let mut wanted = TAIL_BYTES.min(bytes);
    loop {
        let deadline = shared.clock.now().plus(REQUEST);
        let (tail, bytes) = match shared.requests.get_tail(Class::Sync, &path, wanted, deadline).await {
            Ok(tail) => tail,
            Err(RequestError::NotFound) => return Ok((id, Err(None))),
            Err(error @ (RequestError::Truncated | RequestError::TooLarge)) => {
                return Ok((id, Err(Some(error.to_string()))));
            }
            Err(error) => return Err(error),
        };
        match decode_index(&shared.shape, id, &tail, bytes) {
            Ok(record) => return Ok((id, Ok(record))),
            Err(IndexAnswer::More(more)) if more > wanted => wanted = more,
            Err(answer) => return Ok((id, Err(Some(answer.to_string())))),
        }
    }
}
