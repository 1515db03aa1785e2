//! One round of the collector, asked for by an operator.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{interval, timeout};

use super::{AdminError, Progress, REQUEST, Tell};
use crate::object::collector::{Collecting, Trouble};
use crate::object::folder::{SharedLogState, folder};
use crate::object::id::WriterId;
use crate::object::lease::keeper::Right;
use crate::object::port::changes;
use crate::object::publisher::publisher;
use crate::object::shared::Shared;

/// How long the first reading of the log may take.
const READING: Duration = Duration::from_secs(600);
/// What was appended to the log is written by the end of this.
const PUBLISHING: Duration = Duration::from_secs(60);
/// Time between two looks at how far the round is.
const LOOK: Duration = Duration::from_millis(200);

/// What a round of the collector did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Segments taken out of the log for room. Their objects go with a later round.
    pub evicted: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Segments taken out of the log because nobody used them for `max_age`.
    pub aged: u64,
    /// Their bytes.
    pub aged_bytes: u64,
    /// Live segments that were not in the store: taken out of the log.
    pub lost: u64,
    /// Objects deleted of segments that were taken out of the log a while ago.
    pub deleted_segments: u64,
    /// Segments that no log names, older than `orphan_age`: deleted.
    pub orphans: u64,
    /// Their bytes.
    pub orphan_bytes: u64,
    /// Log objects deleted.
    pub deleted_logs: u64,
    /// Parts of snapshots deleted.
    pub deleted_parts: u64,
    /// Manifests and leftovers of probes deleted.
    pub deleted_others: u64,
    /// Number of the snapshot that was written.
    pub snapshot: Option<u64>,
    /// Deletions that failed; a later round tries them again.
    pub failures: u64,
}

pub(super) async fn collect(
    shared: Arc<Shared>,
    writer: WriterId,
    apply: bool,
    tell: Tell<'_>,
) -> Result<Collected, AdminError> {
    if apply {
        // Snapshots need to know whether the store can create conditionally.
        let deadline = shared.clock.now().plus(REQUEST);
        let abilities = shared.requests.probe(shared.names.root(), writer, deadline).await?;
        shared.requests.set_abilities(abilities);
    }
    let state = SharedLogState::new(writer);
    // Nobody looks blocks up here: what the folder has to say goes nowhere.
    let (nowhere, _) = changes();
    let (reports, _) = unbounded_channel();
    let (publisher_handle, publishing) = publisher(Arc::clone(&shared), state.clone());
    let (folder_handle, folding) = folder(Arc::clone(&shared), state.clone(), nowhere, reports);
    let (publishing, folding) = (tokio::spawn(publishing), tokio::spawn(folding));
    let outcome = {
        let round = async {
            if !timeout(READING, folder_handle.list_whole()).await.unwrap_or(false) {
                return Err(Trouble::Stale);
            }
            let own = Arc::clone(&shared);
            Collecting::new(own, state, folder_handle, publisher_handle, Right::Always).once(apply).await
        };
        tokio::pin!(round);
        let mut looks = interval(LOOK);
        loop {
            tokio::select! {
                outcome = &mut round => break outcome,
                _ = looks.tick() => {
                    let counters = &shared.counters;
                    let sent = [&counters.gets, &counters.puts, &counters.lists, &counters.deletes];
                    tell(Progress { step: "collecting, requests:", done: sent.map(|count| count.get()).iter().sum(), total: None });
                }
            }
        }
    };
    // The last handles are gone: the publisher ends when all is written.
    let written = timeout(PUBLISHING, publishing).await;
    folding.abort();
    let done = outcome.map_err(|trouble| match trouble {
        Trouble::Store(error) => AdminError::Request(error),
        trouble => AdminError::Unfinished(trouble.to_string()),
    })?;
    if written.is_err() {
        return Err(AdminError::Unfinished("the log could not be written to its end".to_owned()));
    }
    Ok(Collected {
        evicted: done.evicted,
        evicted_bytes: done.evicted_bytes,
        aged: done.aged,
        aged_bytes: done.aged_bytes,
        lost: done.lost,
        deleted_segments: done.removed,
        orphans: done.orphans,
        orphan_bytes: done.orphan_bytes,
        deleted_logs: done.deleted_logs,
        deleted_parts: done.deleted_parts,
        deleted_others: done.deleted_others,
        snapshot: done.snapshot,
        failures: done.failures,
    })
}
