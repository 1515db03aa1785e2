//! Removing a namespace from a bucket, all of it.

use std::time::Duration;

use object_store::path::Path;
use terrace_config::{Geometry, MAX_LABEL_BYTES, Namespace, ObjectLocation};

use super::{Admin, AdminError, Progress, REQUEST, Tell};
use crate::object::names::Names;
use crate::object::requests::{Class, RequestError};
use crate::tenant::parse_label;

/// Objects listed, then deleted, at once.
const PAGE: usize = 10_000;
/// How often what is left is deleted again: a node that still runs writes meanwhile.
const ROUNDS: u32 = 3;

/// What there is of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Objects of every kind.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Admin {
    /// The fields of a namespace, if its label stands in the bucket and is its own.
    ///
    /// # Errors
    /// [`AdminError::Request`].
    pub fn label(&self, namespace: &[u8; 32]) -> Result<Option<(Namespace, Geometry)>, AdminError> {
        let path = Names::new(self.prefix.as_ref(), namespace).label();
        let deadline = self.clock.now().plus(REQUEST);
        match self.runtime.block_on(self.requests.get(Class::Sync, &path, MAX_LABEL_BYTES as u64, deadline)) {
            Ok(bytes) => Ok(parse_label(namespace, &bytes)),
            Err(RequestError::NotFound | RequestError::TooLarge | RequestError::Truncated) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Counts every object of a namespace, whatever it is.
    ///
    /// # Errors
    /// [`AdminError::Request`].
    pub fn contents(&self, namespace: &[u8; 32], tell: Tell<'_>) -> Result<Contents, AdminError> {
        let root = Names::new(self.prefix.as_ref(), namespace).root().clone();
        self.runtime.block_on(self.count(&root, tell)).map_err(Into::into)
    }

    /// How long ago the collector's lease was last renewed, by the store's clock and this host's: a node that has the namespace open
    /// renews it, unless it is configured not to collect. `None`: there is no lease, or it was renewed in the future.
    ///
    /// # Errors
    /// [`AdminError::Request`].
    pub fn lease_age(&self, namespace: &[u8; 32]) -> Result<Option<Duration>, AdminError> {
        let leases = Names::new(self.prefix.as_ref(), namespace).leases().clone();
        let deadline = self.clock.now().plus(REQUEST);
        let terms = self.runtime.block_on(self.requests.list(&leases, None, PAGE, deadline))?;
        let newest = terms.iter().map(|term| term.last_modified.timestamp_millis()).max();
        let newest = newest.and_then(|newest| u64::try_from(newest).ok());
        Ok(newest.and_then(|newest| self.wall.now_ms().checked_sub(newest)).map(Duration::from_millis))
    }

    /// Deletes every object of a namespace, and lists again until none is left or a few rounds are over. What is left is the answer: nodes
    /// that have the namespace open go on writing. Of a directory that stands for a bucket the namespace's own directory goes too, with
    /// what uploads that were cut off left in it; a bucket keeps their parts until its lifecycle rule removes them.
    ///
    /// # Errors
    /// [`AdminError::Request`]; what was deleted until then is.
    pub fn erase(&self, namespace: &[u8; 32], tell: Tell<'_>) -> Result<Contents, AdminError> {
        let names = Names::new(self.prefix.as_ref(), namespace);
        self.runtime.block_on(self.erase_below(names.root(), tell))?;
        if let Ok(ObjectLocation::Directory(directory)) = self.config.location()
            && let Some(name) = names.root().parts().next_back()
        {
            // What it cannot remove is counted below, or is no object and empty.
            let _ = std::fs::remove_dir_all(directory.join(name.as_ref()));
        }
        let left = self.runtime.block_on(self.count(names.root(), &mut |_| {}))?;
        Ok(left)
    }

    async fn erase_below(&self, root: &Path, tell: Tell<'_>) -> Result<(), RequestError> {
        let mut deleted = 0;
        for _ in 0..ROUNDS {
            let before = deleted;
            let mut after: Option<Path> = None;
            loop {
                let deadline = self.clock.now().plus(REQUEST);
                let page = self.requests.list(root, after.as_ref(), PAGE, deadline).await?;
                let whole = page.len() < PAGE;
                after = page.last().map(|last| last.location.clone());
                let paths: Vec<Path> = page.into_iter().map(|object| object.location).collect();
                let deadline = self.clock.now().plus(REQUEST);
                let outcomes = self.requests.delete(paths, deadline).await;
                deleted += outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64;
                tell(Progress { step: "deleting objects", done: deleted, total: None });
                if whole {
                    break;
                }
            }
            if deleted == before {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn count(&self, root: &Path, tell: Tell<'_>) -> Result<Contents, RequestError> {
        let mut contents = Contents::default();
        let mut after: Option<Path> = None;
        loop {
            let deadline = self.clock.now().plus(REQUEST);
            let page = self.requests.list(root, after.as_ref(), PAGE, deadline).await?;
            contents.objects += page.len() as u64;
            contents.bytes += page.iter().map(|object| object.size).sum::<u64>();
            tell(Progress { step: "listing objects", done: contents.objects, total: None });
            if page.len() < PAGE {
                return Ok(contents);
            }
            after = page.last().map(|last| last.location.clone());
        }
    }
}
