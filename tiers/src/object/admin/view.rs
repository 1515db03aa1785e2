//! What snapshot and log say at one moment.

use futures_util::{StreamExt, stream};
use object_store::ObjectMeta;
use object_store::path::Path;

use super::problems::Problems;
use super::{Progress, REQUEST, Tell, listing};
use crate::object::fold::Fold;
use crate::object::folder::{Unread, manifest_numbers, read_manifest, read_part};
use crate::object::log::{LogObject, MAX_LOG_BYTES};
use crate::object::names::LogName;
use crate::object::requests::{Class, RequestError};
use crate::object::shared::Shared;
use crate::object::snapshot::{Manifest, Part};

/// Objects read at once.
pub(super) const READS_AT_ONCE: usize = 16;
/// A snapshot of which something is gone was replaced meanwhile: the newest is looked for again, so often.
const ATTEMPTS: u32 = 3;
/// Log objects with stamps so far ahead are left out by nodes too.
const MAX_AHEAD_MS: u64 = 30 * 60 * 1_000;

/// How much of the log is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// What nodes read when they start.
    Needed,
    /// Every object there is.
    All,
}

/// The live segments, and what they come from.
pub(super) struct View {
    pub fold: Fold,
    /// The snapshot that was read.
    pub manifest: Option<Manifest>,
    /// Log objects read.
    pub logs: u64,
}

/// Reads the newest sound snapshot and the log. What cannot be decoded is a problem; an error is the store's.
pub(super) async fn read(
    shared: &Shared,
    depth: Depth,
    problems: &mut Problems,
    tell: Tell<'_>,
) -> Result<View, RequestError> {
    let (mut fold, manifest) = read_snapshot(shared, depth, problems, tell).await?;
    let from = match (&manifest, depth) {
        (Some(manifest), Depth::Needed) => Some(shared.names.log_after(manifest.log_from)),
        _ => None,
    };
    let objects = listing::all(shared, shared.names.logs(), from, "listing the log", tell).await?;
    let latest = shared.wall.now_ms().saturating_add(MAX_AHEAD_MS);
    let mut wanted: Vec<(LogName, Path)> = Vec::with_capacity(objects.len());
    for ObjectMeta { location, .. } in objects {
        match shared.names.parse_log(&location) {
            None => problems.add(&location, "no name of a log object"),
            Some(name) if name.stamp.0 > latest => {
                problems.add(&location, "its stamp lies in the future: nodes leave it out")
            }
            Some(name) if depth == Depth::Needed && fold.has(&name) => {}
            Some(name) => wanted.push((name, location)),
        }
    }
    let total = wanted.len() as u64;
    let mut logs = 0;
    let mut reads =
        stream::iter(wanted).map(|(name, path)| read_log(shared, name, path)).buffer_unordered(READS_AT_ONCE);
    while let Some(read) = reads.next().await {
        match read? {
            (_, _, Ok(object)) => {
                fold.apply(&object, &mut Vec::new());
            }
            (_, _, Err(None)) => {}
            (name, path, Err(Some(what))) => {
                problems.add(&path, what);
                fold.skip(&name);
            }
        }
        logs += 1;
        tell(Progress { step: "reading the log", done: logs, total: Some(total) });
    }
    for writer in fold.gaps() {
        problems.add(shared.names.logs(), format!("a log object of writer {writer} is missing between others"));
    }
    Ok(View { fold, manifest, logs })
}

type LogRead = (LogName, Path, Result<Box<LogObject>, Option<String>>);

/// A log object; what is wrong with it; or nothing, if it was collected since it was listed.
async fn read_log(shared: &Shared, name: LogName, path: Path) -> Result<LogRead, RequestError> {
    let deadline = shared.clock.now().plus(REQUEST);
    let answer = match shared.requests.get(Class::Sync, &path, MAX_LOG_BYTES as u64, deadline).await {
        Ok(bytes) => LogObject::decode(&shared.shape, &name, &bytes)
            .map(Box::new)
            .map_err(|fault| Some(format!("log object: {fault}"))),
        Err(RequestError::NotFound) => Err(None),
        Err(error @ (RequestError::TooLarge | RequestError::Truncated)) => Err(Some(format!("log object: {error}"))),
        Err(error) => return Err(error),
    };
    Ok((name, path, answer))
}

/// Why a snapshot cannot be read: which object, and how.
enum Unwhole {
    Bad(Path),
    Gone(Path),
    Failed(RequestError),
}

async fn read_snapshot(
    shared: &Shared,
    depth: Depth,
    problems: &mut Problems,
    tell: Tell<'_>,
) -> Result<(Fold, Option<Manifest>), RequestError> {
    for attempt in 1..=ATTEMPTS {
        let mut found = Problems::default();
        let mut read = None;
        let mut moved = false;
        let deadline = shared.clock.now().plus(REQUEST);
        for number in manifest_numbers(shared, deadline).await?.into_iter().rev() {
            if read.is_some() {
                // Older ones are only checked.
                if depth == Depth::All && matches!(read_manifest(shared, number, deadline).await, Err(Unread::Bad)) {
                    found.add(&shared.names.manifest(number), "snapshot: it does not decode");
                }
                continue;
            }
            match read_whole(shared, number, tell).await {
                Ok(snapshot) => read = Some(snapshot),
                Err(Unwhole::Failed(error)) => return Err(error),
                Err(Unwhole::Bad(path)) => found.add(&path, "snapshot: it does not decode"),
                Err(Unwhole::Gone(path)) => {
                    moved = true;
                    found.add(&path, "snapshot: it is gone");
                }
            }
            if moved && attempt < ATTEMPTS {
                break;
            }
        }
        if moved && attempt < ATTEMPTS {
            continue;
        }
        problems.extend(found);
        if let Some((manifest, parts)) = read {
            return Ok((Fold::from_snapshot(&manifest, &parts), Some(manifest)));
        }
        break;
    }
    Ok((Fold::new(), None))
}

async fn read_whole(shared: &Shared, number: u64, tell: Tell<'_>) -> Result<(Manifest, Vec<Part>), Unwhole> {
    let at = |path: Path| {
        move |unread| match unread {
            Unread::Bad => Unwhole::Bad(path),
            Unread::Gone => Unwhole::Gone(path),
            Unread::Failed(error) => Unwhole::Failed(error),
        }
    };
    let deadline = || shared.clock.now().plus(REQUEST);
    let manifest = read_manifest(shared, number, deadline()).await.map_err(at(shared.names.manifest(number)))?;
    let mut parts = Vec::with_capacity(manifest.parts.len());
    let mut reads = stream::iter(manifest.parts.iter().copied())
        .map(
            |part| async move { read_part(shared, part, deadline()).await.map_err(at(shared.names.part(part.name()))) },
        )
        .buffered(READS_AT_ONCE);
    while let Some(part) = reads.next().await {
        parts.push(part?);
        let total = Some(manifest.parts.len() as u64);
        tell(Progress { step: "reading the snapshot", done: parts.len() as u64, total });
    }
    drop(reads);
    Ok((manifest, parts))
}
