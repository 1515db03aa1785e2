//! What there is.

use super::problems::Problems;
use super::view::{Depth, View};
use super::{AdminError, Tell, listing, view};
use crate::object::id::{SegmentId, Stamp};
use crate::object::shared::Shared;

/// A live segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentLine {
    /// Its name.
    pub id: SegmentId,
    /// Blocks in it.
    pub blocks: u32,
    /// Bytes of its object.
    pub bytes: u64,
    /// When it was written.
    pub created: Stamp,
    /// When somebody last read or touched it, as far as the log says; when it was written, if nobody did.
    pub last_used: Stamp,
}

/// How much there is in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceStat {
    /// Live segments.
    pub segments: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Bytes of their objects.
    pub bytes: u64,
    /// When the newest was written.
    pub newest: Option<Stamp>,
    /// When the one was last used that was not used for longest.
    pub oldest_used: Option<Stamp>,
    /// Segments that were removed and are still remembered as such.
    pub removed: u64,
    /// Lives of nodes that wrote to the log and are not forgotten.
    pub writers: u64,
    /// Log objects.
    pub logs: u64,
    /// Their bytes.
    pub log_bytes: u64,
    /// Number of the snapshot that nodes start from.
    pub snapshot: Option<u64>,
    /// How long ago that was written, in milliseconds, by this machine's clock.
    pub snapshot_age_ms: Option<u64>,
    /// Its parts.
    pub parts: u64,
    /// The collector's highest term.
    pub lease_term: Option<u64>,
}

pub(super) async fn list(shared: &Shared, tell: Tell<'_>) -> Result<Vec<SegmentLine>, AdminError> {
    let View { fold, .. } = view::read(shared, Depth::Needed, &mut Problems::default(), tell).await?;
    let mut lines: Vec<SegmentLine> = fold
        .live()
        .map(|live| SegmentLine {
            id: live.record.id,
            blocks: live.record.blocks(),
            bytes: live.record.bytes,
            created: live.record.created,
            last_used: live.used,
        })
        .collect();
    lines.sort_unstable_by_key(|line| (line.created, line.id));
    Ok(lines)
}

pub(super) async fn stat(shared: &Shared, tell: Tell<'_>) -> Result<NamespaceStat, AdminError> {
    let View { fold, manifest, .. } = view::read(shared, Depth::Needed, &mut Problems::default(), tell).await?;
    let logs = listing::all(shared, shared.names.logs(), None, "listing the log", tell).await?;
    let terms = listing::all(shared, shared.names.leases(), None, "listing the lease", tell).await?;
    let now = shared.wall.now_ms();
    Ok(NamespaceStat {
        segments: fold.segments() as u64,
        blocks: fold.blocks(),
        bytes: fold.bytes(),
        newest: fold.live().map(|live| live.record.created).max(),
        oldest_used: fold.live().map(|live| live.used).min(),
        removed: fold.removed().len() as u64,
        writers: fold.writers().count() as u64,
        logs: logs.len() as u64,
        log_bytes: logs.iter().map(|object| object.size).sum(),
        snapshot: manifest.as_ref().map(|manifest| manifest.number),
        snapshot_age_ms: manifest.as_ref().map(|manifest| now.saturating_sub(manifest.stamp.0)),
        parts: manifest.as_ref().map_or(0, |manifest| manifest.parts.len() as u64),
        lease_term: terms.iter().filter_map(|object| shared.names.parse_lease(&object.location)).max(),
    })
}
