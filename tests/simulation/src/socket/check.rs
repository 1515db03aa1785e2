//! What must hold after every step, and when all is over.

use std::time::Duration;

use terrace_connector::server::PoolView;
use terrace_primary::{BlockState, SlotId};

use super::world::World;
use crate::failure::Reason;

/// A session that does not read what it asked for is closed within this time, and a second to see it, of a moment at which that could be seen.
const STALL: Duration = Duration::from_secs(11);
/// Replies wait up to here; then the session is not served.
const PAUSE_BYTES: usize = 1 << 20;

/// A session by its engine, its rank, and what it has read: who reads, however slowly, is another one.
pub(super) type Reader = (String, Option<u32>, u64);

impl World {
    /// Everything that holds between two steps.
    pub fn check(&mut self) -> Result<(), Reason> {
        for below in self.below.borrow().iter() {
            if let Some(tier) = &below.tier {
                tier.lock().check().map_err(Reason::Invariant)?;
            }
        }
        let common = &mut self.common;
        let config = &common.settings.disks.config;
        let bytes = config.geometry.block_bytes as usize;
        let mut found = vec![0; bytes];
        let mut stalled = Vec::new();
        let server = self.server.borrow();
        for pool in server.pools() {
            let stats = pool.manager().stats();
            if stats.tiers.iter().any(|tier| tier.panicked) {
                return Err(Reason::Panic("inside the tier".into()));
            }
            if stats.completions_refused > 0 {
                return Err(Reason::Contract(format!("{} completions refused", stats.completions_refused)));
            }
            pool.manager().check().map_err(Reason::Invariant)?;
            let namespace = namespace_of(pool);
            let primary = pool.manager().primary();
            for slot in (0..config.primary.blocks).map(SlotId) {
                let (BlockState::Ready { .. }, Some(key)) = (primary.state(slot), primary.key(slot)) else { continue };
                if !common.model.was_stored(namespace, &key) {
                    return Err(Reason::NeverStored(format!("{key} in {slot:?}")));
                }
                if !pool.region().read_slot(slot, &mut found) || found != common.model.content(namespace, &key) {
                    return Err(Reason::WrongBytes(format!("{key} in {slot:?}")));
                }
            }
            let limit = ((f64::from(config.primary.blocks) * config.server.session_share) as u32).max(1);
            let (mut held, mut names) = (0, std::collections::BTreeSet::new());
            for session in pool.sessions() {
                held += session.slots;
                names.insert(session.engine);
                let is_within = session.slots <= limit
                    && session.load <= config.server.jobs_per_session as usize + LATE_OUTCOMES
                    && session.waiting_bytes <= 2 * config.server.message_bytes as usize;
                if !is_within {
                    return Err(Reason::Contract(format!("beyond the limits: {session:?}")));
                }
                if session.waiting_bytes > PAUSE_BYTES {
                    stalled.push((session.engine.to_owned(), session.rank, session.sent_bytes));
                }
            }
            if held > limit * names.len() as u32 {
                return Err(Reason::Contract(format!("sessions of {} engines hold {held} slots", names.len())));
            }
        }
        drop(server);
        self.check_engines(&mut found)?;
        self.clients.iter().try_for_each(|client| client.check(&self.server))?;
        self.check_stalled(stalled)
    }

    fn check_engines(&mut self, found: &mut [u8]) -> Result<(), Reason> {
        let server = self.server.borrow();
        for engine in &self.engines {
            for (region, slot, key) in engine.readable() {
                let is_right =
                    region.read_slot(slot, found) && found == self.common.model.content(engine.namespace, key);
                // Leases end with the session: the daemon may have closed that of an engine that does not read.
                if !is_right && !engine.is_hung_up() {
                    return Err(Reason::WrongBytes(format!("{key} is leased in {slot:?} to {}", engine.name)));
                }
            }
            // All its processes are gone, and the daemon was told.
            let jobs = server.pools().find_map(|pool| pool.jobs(&engine.name));
            let is_unseen = self.common.settings.unseen_per_mille > 0;
            if engine.is_dead() && !is_unseen && jobs.is_some() {
                return Err(Reason::Leak(format!("{} is dead and has {jobs:?} jobs", engine.name)));
            }
        }
        Ok(())
    }

    fn check_stalled(&mut self, stalled: Vec<Reader>) -> Result<(), Reason> {
        let now = self.now();
        self.stalled.retain(|name, _| stalled.contains(name));
        for name in stalled {
            let (since, seen) = self.stalled.entry(name.clone()).or_insert((now, None));
            if seen.is_none() && now.since(*since) >= Duration::from_secs(1) {
                *seen = Some(now);
            }
            if seen.is_some_and(|seen| now.since(seen) > STALL) {
                return Err(Reason::Contract(format!("{name:?} does not read since {:?}", now.since(*since))));
            }
        }
        Ok(())
    }

    /// Nothing is left when every engine is gone and every deadline has passed.
    pub fn check_quiet(&self) -> Result<(), Reason> {
        let server = self.server.borrow();
        for pool in server.pools() {
            let stats = pool.manager().stats();
            let held = (stats.readers, stats.writing, stats.holds, stats.requests);
            let (sessions, engines) = (pool.sessions().count(), pool.engines());
            if sessions + engines > 0 || held != (0, 0, 0, 0) {
                return Err(Reason::Leak(format!(
                    "{sessions} sessions, {engines} engines, readers, writing slots, holds, requests: {held:?}"
                )));
            }
            for tier in stats.tiers {
                if tier.promotions.queued + tier.promotions.running + tier.cascades.running > 0 {
                    return Err(Reason::Leak(format!("{tier:?}")));
                }
            }
        }
        Ok(())
    }
}

/// Outcomes of jobs of a session may come behind its last allowed job.
const LATE_OUTCOMES: usize = 1;

/// The number of a pool's namespace.
fn namespace_of(pool: PoolView<'_>) -> u8 {
    pool.namespace().model.parse().unwrap_or(u8::MAX)
}
