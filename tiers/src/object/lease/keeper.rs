//! Takes the lease and keeps it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use object_store::PutPayload;
use object_store::path::Path;

use super::{Lease, Step};
use crate::object::folder::SharedLogState;
use crate::object::format::LeaseNote;
use crate::object::requests::{Class, RequestError};
use crate::object::shared::Shared;

/// Terms in one listing: their holders delete all but the newest.
const TERMS: usize = 1_000;
/// Terms that are kept: what others have seen should not vanish below them.
const KEPT: u64 = 2;
/// A request that takes longer than this is of no use.
const LONGEST_REQUEST: Duration = Duration::from_secs(10);

/// Whether this node may collect.
#[derive(Clone)]
pub(in crate::object) enum Right {
    /// While it holds the lease.
    Lease(Arc<Mutex<Lease>>),
    /// It was told to.
    Always,
}

impl Right {
    /// Whether it holds now. To be asked again before whatever cannot be undone.
    pub fn holds(&self, shared: &Shared) -> bool {
        match self {
            Self::Always => true,
            Self::Lease(lease) => lock(lease).holds(shared.clock.now(), shared.wall.now_ms()),
        }
    }
}

fn lock(lease: &Mutex<Lease>) -> MutexGuard<'_, Lease> {
    lease.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the lease up while it is polled; never ends.
pub(in crate::object) async fn keep(shared: &Shared, state: &SharedLogState, lease: &Mutex<Lease>) {
    let length = shared.config.lease;
    loop {
        if let Err(error) = turn(shared, state, lease).await {
            tracing::debug!(tier = %shared.tier, %error, "the collector's lease could not be read or renewed");
        }
        let holds = lock(lease).holds(shared.clock.now(), shared.wall.now_ms());
        shared.counters.is_collector.set(u64::from(holds));
        // A holder wakes when a third is over. A failed renewal is tried three times more in what is left.
        tokio::time::sleep(if holds { length / 9 } else { length / 3 }).await;
    }
}

async fn turn(shared: &Shared, state: &SharedLogState, lease: &Mutex<Lease>) -> Result<(), RequestError> {
    let deadline = shared.clock.now().plus(LONGEST_REQUEST.min(shared.config.lease / 3));
    let rests = |lease: &Lease| lease.step(shared.clock.now(), shared.wall.now_ms()) == Step::Rest;
    let holds = {
        let lease = lock(lease);
        let holds = lease.holds(shared.clock.now(), shared.wall.now_ms());
        if holds && rests(&lease) {
            return Ok(());
        }
        holds
    };
    let listed = shared.requests.list(shared.names.leases(), None, TERMS, deadline).await?;
    let terms: Vec<u64> = listed.iter().filter_map(|object| shared.names.parse_lease(&object.location)).collect();
    let step = {
        let mut lease = lock(lease);
        lease.saw(terms.last().copied(), shared.clock.now());
        lease.step(shared.clock.now(), shared.wall.now_ms())
    };
    let Step::Take(term) = step else { return Ok(()) };
    let (asked, asked_ms) = (shared.clock.now(), shared.wall.now_ms());
    let (writer, stamp) = {
        let mut state = state.lock();
        (state.writer(), state.stamp(asked_ms))
    };
    let note = LeaseNote { term, writer, stamp, node: shared.node.clone() };
    let payload = PutPayload::from(note.encode(&shared.shape));
    match shared.requests.put(Class::Sync, &shared.names.lease(term), payload, true, deadline).await {
        Ok(()) => lock(lease).took(term, asked, asked_ms),
        Err(RequestError::Exists) => {
            lock(lease).missed(term, shared.clock.now());
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    if !holds {
        tracing::info!(tier = %shared.tier, term, "this node collects now");
    }
    let old = terms.into_iter().filter(|old| old.saturating_add(KEPT) <= term);
    let old: Vec<Path> = old.map(|term| shared.names.lease(term)).collect();
    if !old.is_empty() {
        // What stays is deleted with a later term.
        shared.requests.delete(old, deadline).await;
    }
    Ok(())
}
