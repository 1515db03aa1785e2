//! Reads the newest snapshot that is whole.

use futures_util::{StreamExt, TryStreamExt, stream};

use super::state::{Base, KnownPart};
use crate::clock::Time;
use crate::object::fold::Fold;
use crate::object::names::Names;
use crate::object::requests::{Class, RequestError};
use crate::object::shared::Shared;
use crate::object::snapshot::{MAX_MANIFEST_BYTES, MAX_PART_BYTES, Manifest, Part, PartRef};

/// Names in one page of a listing: some answers of the store.
pub(super) const PAGE: usize = 5_000;
/// Manifests that are tried, the newest first.
const TRIED: usize = 4;
/// Parts read at once.
const PARTS_AT_ONCE: usize = 8;
/// A part that disappears between the manifest and itself belongs to a snapshot that was replaced meanwhile: the next is looked for, so
/// many times.
const ATTEMPTS: u32 = 3;

/// Why a part, or a manifest, is not there.
pub(crate) enum Unread {
    /// It is not what it should be.
    Bad,
    /// The store says that it is not there.
    Gone,
    /// It could not be read.
    Failed(RequestError),
}

impl From<RequestError> for Unread {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::NotFound => Self::Gone,
            RequestError::TooLarge | RequestError::Truncated => Self::Bad,
            error => Self::Failed(error),
        }
    }
}

/// The newest snapshot that can be read, folded; nothing if there is none, or none that is sound. Fails if the store does, and with
/// [`RequestError::NotFound`] where one is listed, cannot be had, and none before it is sound: to begin with nothing would be to forget what
/// lives.
pub(super) async fn read_snapshot(shared: &Shared, deadline: Time) -> Result<(Fold, Option<Base>), RequestError> {
    let mut gone = false;
    for _ in 0..ATTEMPTS {
        gone = false;
        let mut numbers = manifest_numbers(shared, deadline).await?;
        numbers.reverse();
        for number in numbers.into_iter().take(TRIED) {
            match read_whole(shared, number, deadline).await {
                Ok((fold, base)) => return Ok((fold, Some(base))),
                Err(Unread::Failed(error)) => return Err(error),
                Err(Unread::Gone) => gone = true,
                Err(Unread::Bad) => {
                    shared.counters.logs_bad.bump();
                    tracing::warn!(tier = %shared.tier, number, "a snapshot is damaged; the one before is read");
                }
            }
        }
        if !gone {
            break;
        }
    }
    if gone { Err(RequestError::NotFound) } else { Ok((Fold::new(), None)) }
}

/// Numbers of all manifests, the oldest first.
pub(crate) async fn manifest_numbers(shared: &Shared, deadline: Time) -> Result<Vec<u64>, RequestError> {
    let names: &Names = &shared.names;
    let mut numbers = Vec::new();
    let mut after = None;
    loop {
        let page = shared.requests.list(names.snapshots(), after.as_ref(), PAGE, deadline).await?;
        numbers.extend(page.iter().filter_map(|object| names.parse_manifest(&object.location)));
        match page.last() {
            Some(last) if page.len() >= PAGE => after = Some(last.location.clone()),
            _ => return Ok(numbers),
        }
    }
}

/// A manifest.
pub(crate) async fn read_manifest(shared: &Shared, number: u64, deadline: Time) -> Result<Manifest, Unread> {
    let path = shared.names.manifest(number);
    let bytes = shared.requests.get(Class::Sync, &path, MAX_MANIFEST_BYTES as u64, deadline).await?;
    Manifest::decode(&shared.shape, number, &bytes).map_err(|_| Unread::Bad)
}

/// A part that a manifest names.
pub(crate) async fn read_part(shared: &Shared, part: PartRef, deadline: Time) -> Result<Part, Unread> {
    let path = shared.names.part(part.name());
    let bytes = shared.requests.get(Class::Sync, &path, part.bytes.min(MAX_PART_BYTES as u64), deadline).await?;
    let shape = shared.shape;
    // On another thread: this one takes the next part in meanwhile.
    let decoded = shared.compute(move || {
        part.check(&bytes)?;
        Part::decode(&shape, part.name(), &bytes)
    });
    decoded.await.ok_or(Unread::Bad)?.map_err(|_| Unread::Bad)
}

async fn read_whole(shared: &Shared, number: u64, deadline: Time) -> Result<(Fold, Base), Unread> {
    let manifest = read_manifest(shared, number, deadline).await?;
    let parts = stream::iter(manifest.parts.iter().copied());
    let parts = parts.map(|reference| async move {
        let part = read_part(shared, reference, deadline).await?;
        Ok::<_, Unread>((reference, part))
    });
    let parts: Vec<(PartRef, Part)> = parts.buffered(PARTS_AT_ONCE).try_collect().await?;
    let fold = Fold::from_snapshot(&manifest, parts.iter().map(|(_, part)| part));
    Ok((fold, base(&manifest, &parts)))
}

/// What a compaction must know of a snapshot.
fn base(manifest: &Manifest, parts: &[(PartRef, Part)]) -> Base {
    let known = parts.iter().map(|(reference, part)| KnownPart {
        reference: *reference,
        segments: part.segments.iter().map(|(segment, used)| (segment.id, *used)).collect(),
    });
    Base {
        number: manifest.number,
        log_from: manifest.log_from,
        covered: manifest.writers.iter().map(|(writer, sequence, _)| (*writer, *sequence)).collect(),
        parts: known.collect(),
    }
}
