//! What the store can do, found out by trying: some servers ignore what they do not know without a word.

use std::sync::atomic::{AtomicBool, Ordering};

use object_store::path::Path;
use object_store::{PutMode, PutPayload};
use terrace_config::{Collector, ObjectConfig};

use super::id::WriterId;
use super::requests::{Class, RequestError, Requests};
use crate::clock::Time;

/// What a store can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// A put with `If-None-Match: *` fails if the object exists. Without it there is no lease: one node must be told to collect.
    pub conditional_create: bool,
    /// A listing can begin behind a name. Without it every listing of the log is one of the whole log.
    pub list_after: bool,
}

impl Abilities {
    /// A store that can do everything.
    pub const ALL: Self = Self { conditional_create: true, list_after: true };

    /// Says in the log what is missing, and what follows.
    pub(crate) fn tell(&self, tier: &str, config: &ObjectConfig) {
        if !self.conditional_create {
            let follows = match config.collector {
                Collector::Auto => {
                    "there is no lease, and this node does not collect: set collector = \"always\" on one node of the cluster"
                }
                Collector::Always => "there is no lease: no other node may be told to collect",
                Collector::Never => "there is no lease: one other node must have collector = \"always\"",
            };
            tracing::warn!(tier, "the store ignores If-None-Match in a PUT; {follows}");
        }
        if !self.list_after {
            tracing::warn!(
                tier,
                "the store ignores start-after in a listing: every listing of the log reads all of its names; keep log_retention short"
            );
        }
    }
}

/// Abilities that are set while requests run.
#[derive(Debug)]
pub(super) struct SharedAbilities {
    conditional_create: AtomicBool,
    list_after: AtomicBool,
}

impl Default for SharedAbilities {
    fn default() -> Self {
        let shared = Self { conditional_create: AtomicBool::new(false), list_after: AtomicBool::new(false) };
        shared.set(Abilities::ALL);
        shared
    }
}

impl SharedAbilities {
    pub fn get(&self) -> Abilities {
        Abilities {
            conditional_create: self.conditional_create.load(Ordering::Relaxed),
            list_after: self.list_after.load(Ordering::Relaxed),
        }
    }

    pub fn set(&self, abilities: Abilities) {
        self.conditional_create.store(abilities.conditional_create, Ordering::Relaxed);
        self.list_after.store(abilities.list_after, Ordering::Relaxed);
    }
}

/// Bytes of an object that is written to try.
const PROBE_BYTES: usize = 64;

impl Requests {
    /// Tries the store with small objects below `<root>/probe/`, which are removed afterwards. Sets nothing. About ten requests.
    ///
    /// # Errors
    /// What keeps the store from being used at all; the text says what was tried.
    pub async fn probe(&self, root: &Path, writer: WriterId, deadline: Time) -> Result<Abilities, RequestError> {
        // New names for every probe: what one before could not remove would look like a store that knows no condition.
        let name = format!("{writer}-{:016x}", self.random());
        let dir = root.clone().join("probe").join(name.as_str());
        let again = root.clone().join("probe").join(format!("{name}-again")).join("1");
        let places = [dir.clone().join("1"), dir.clone().join("2"), again];
        let found = self.try_all(&dir, &places, deadline).await;
        let removed = self.delete(places.to_vec(), deadline).await;
        let abilities = found?;
        for outcome in removed {
            outcome.map_err(|error| tell("deleting an object", error))?;
        }
        Ok(abilities)
    }

    async fn try_all(
        &self,
        dir: &Path,
        [first, second, again]: &[Path; 3],
        deadline: Time,
    ) -> Result<Abilities, RequestError> {
        let conditional_create = self.try_create(first, again, deadline).await?;
        let put = self.put_mode(Class::Sync, second, content(2), PutMode::Overwrite, deadline).await;
        put.map_err(|error| tell("writing an object", error))?;
        self.try_range(second, deadline).await?;
        let list_after = self.try_list(dir, [first, second], deadline).await?;
        Ok(Abilities { conditional_create, list_after })
    }

    /// The second conditional put of one name must fail. `again`: another name, should the first put of `path` fail.
    async fn try_create(&self, path: &Path, again: &Path, deadline: Time) -> Result<bool, RequestError> {
        let mut path = path;
        match self.put_mode(Class::Sync, path, content(0), PutMode::Create, deadline).await {
            Ok(()) => {}
            Err(error @ (RequestError::Denied(_) | RequestError::Deadline | RequestError::OverBudget)) => {
                return Err(tell("writing an object", error));
            }
            // Not known (501), or not done: what a plain put says counts. But a store that was unwell until just now knows it: without
            // the condition this node would collect nothing for as long as it lives.
            Err(_) => {
                let put = self.put_mode(Class::Sync, path, content(0), PutMode::Overwrite, deadline).await;
                put.map_err(|error| tell("writing an object", error))?;
                path = again;
                if self.put_mode(Class::Sync, path, content(0), PutMode::Create, deadline).await.is_err() {
                    return Ok(false);
                }
            }
        }
        match self.put_mode(Class::Sync, path, content(1), PutMode::Create, deadline).await {
            Ok(()) => Ok(false),
            Err(RequestError::Exists) => {
                let bytes = self.get(Class::Sync, path, PROBE_BYTES as u64, deadline).await;
                let bytes = bytes.map_err(|error| tell("reading an object that was just written", error))?;
                // Some refuse and write all the same.
                Ok(bytes.as_ref() == bytes_of(0))
            }
            Err(error) => Err(tell("writing an object if it is not there", error)),
        }
    }

    /// Without ranges nothing can be loaded.
    async fn try_range(&self, path: &Path, deadline: Time) -> Result<(), RequestError> {
        let told = |error| match error {
            RequestError::Truncated => {
                RequestError::Failed("the store does not give ranges of objects: it cannot be used".to_owned())
            }
            error => tell("reading a range of an object", error),
        };
        let (start, end) = (3, 40);
        let mut body = self.get_range(path, start as u64..end as u64, deadline).await.map_err(told)?;
        let mut read = Vec::new();
        while let Some(bytes) = body.next().await.map_err(told)? {
            read.extend_from_slice(&bytes);
        }
        if bytes_of(2).get(start..end) == Some(read.as_slice()) { Ok(()) } else { Err(told(RequestError::Truncated)) }
    }

    async fn try_list(&self, dir: &Path, [first, second]: [&Path; 2], deadline: Time) -> Result<bool, RequestError> {
        let told = |error| tell("listing objects", error);
        let all = self.list(dir, None, 10, deadline).await.map_err(told)?;
        let shows = |path: &Path| all.iter().any(|meta| meta.location == *path);
        if !shows(first) || !shows(second) {
            let text = "a listing does not show objects that were just written: such a store cannot be used".to_owned();
            return Err(RequestError::Failed(text));
        }
        let after = self.list_as_given(dir, Some(first), 10, deadline).await.map_err(told)?;
        Ok(after.len() == 1 && after.iter().all(|meta| meta.location == *second))
    }
}

/// The bytes of the object that is written as `number`.
const fn bytes_of(number: u8) -> [u8; PROBE_BYTES] {
    let mut bytes = [0; PROBE_BYTES];
    let mut at = 0;
    while at < PROBE_BYTES {
        bytes[at] = number * 64 + at as u8;
        at += 1;
    }
    bytes
}

fn content(number: u8) -> PutPayload {
    bytes_of(number).to_vec().into()
}

/// Names what was tried.
fn tell(tried: &str, error: RequestError) -> RequestError {
    match error {
        RequestError::Denied(text) => RequestError::Denied(format!("{tried}: {text}")),
        RequestError::OverBudget | RequestError::Deadline | RequestError::Closed | RequestError::Throttled => error,
        other => RequestError::Failed(format!("{tried}: {other}")),
    }
}
