//! Lists the log and reads what is new in it.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use object_store::ObjectMeta;

use super::snapshot::PAGE;
use crate::clock::Time;
use crate::object::id::Stamp;
use crate::object::log::{LogObject, MAX_LOG_BYTES};
use crate::object::names::LogName;
use crate::object::requests::{Class, RequestError};
use crate::object::shared::Shared;

/// Log objects read at once.
const READS_AT_ONCE: usize = 16;
/// One listing or one read, its retries included.
const REQUEST: Duration = Duration::from_secs(10);
/// Bytes that do not decode are asked for so often before they are believed, and so is what is said not to be there though it was listed.
const READS: u32 = 3;
/// Pause after that was said.
const GONE_PAUSE: Duration = Duration::from_millis(200);
/// Stamps further ahead of the fastest clock seen are not believed: what ages by stamps would age at once. Stores refuse requests that
/// were signed by such a clock.
const MAX_AHEAD_MS: u64 = 30 * 60 * 1_000;

/// What became of one log object of a page.
pub(super) enum Read {
    /// Here it is.
    Object(Box<LogObject>),
    /// It is none: not to be asked for again.
    Bad(LogName),
    /// It is said not to be there, though it was listed: removed meanwhile, or the store does not tell the truth.
    Gone(LogName),
}

/// A page of the log, and where the next begins.
pub(super) struct Page {
    pub names: Vec<LogName>,
    pub next: Option<object_store::path::Path>,
}

/// Where a listing of stamps from `from` on begins.
pub(super) fn start(shared: &Shared, from: Stamp) -> object_store::path::Path {
    shared.names.log_after(from)
}

/// The names behind `after`, as many as a page has. Names with stamps out of all bounds are left out.
pub(super) async fn page(
    shared: &Shared,
    after: &object_store::path::Path,
    ahead_ms: u64,
) -> Result<Page, RequestError> {
    let deadline = shared.clock.now().plus(REQUEST);
    let objects = shared.requests.list(shared.names.logs(), Some(after), PAGE, deadline).await?;
    let latest = shared.wall.now_ms().saturating_add(ahead_ms).saturating_add(MAX_AHEAD_MS);
    let name = |object: &ObjectMeta| shared.names.parse_log(&object.location).filter(|name| name.stamp.0 <= latest);
    let names = objects.iter().filter_map(name).collect();
    let next = objects.last().filter(|_| objects.len() >= PAGE).map(|last| last.location.clone());
    Ok(Page { names, next })
}

/// Reads these log objects, several at once, and hands each to `take` as it comes. An error is the first that the store made; the
/// others are read all the same.
pub(super) async fn read(shared: &Shared, names: Vec<LogName>, mut take: impl FnMut(Read)) -> Result<(), RequestError> {
    let mut failed = None;
    let mut reads = stream::iter(names).map(|name| read_one(shared, name)).buffer_unordered(READS_AT_ONCE);
    while let Some(read) = reads.next().await {
        match read {
            Ok(read) => take(read),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(()), Err)
}

async fn read_one(shared: &Shared, name: LogName) -> Result<Read, RequestError> {
    let path = shared.names.log(name);
    let mut gone = false;
    for _ in 0..READS {
        if gone {
            tokio::time::sleep(GONE_PAUSE).await;
        }
        let deadline: Time = shared.clock.now().plus(REQUEST);
        match shared.requests.get(Class::Sync, &path, MAX_LOG_BYTES as u64, deadline).await {
            Ok(bytes) => {
                if let Ok(object) = LogObject::decode(&shared.shape, &name, &bytes) {
                    return Ok(Read::Object(Box::new(object)));
                }
            }
            Err(RequestError::NotFound) => {
                shared.counters.logs_gone.bump();
                gone = true;
                continue;
            }
            Err(RequestError::TooLarge | RequestError::Truncated) => {}
            Err(error) => return Err(error),
        }
        gone = false;
    }
    Ok(if gone { Read::Gone(name) } else { Read::Bad(name) })
}
