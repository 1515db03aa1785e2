//! What a session may hold at once, and what those before it still hold of that.
//!
//! A process that opens sessions, lets them hold slots and drops the connections again and again would fill the pool:
//! slots that may still be copied to stay held. So what they hold counts against the next session of that process, and
//! of that engine.

use std::collections::{BTreeMap, BTreeSet};

use super::pool::{Pool, count};
use super::session::{Role, Session, SessionId};

/// Who holds slots without a connection.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// Sessions whose connection is lost: they keep what may still be copied to or from.
    lost: BTreeSet<SessionId>,
    /// Sessions that are over, while others copy for jobs of theirs.
    over: BTreeMap<SessionId, Over>,
}

#[derive(Debug)]
struct Over {
    process: Option<i32>,
    engine: String,
    slots: u32,
}

impl Behind {
    pub fn lose(&mut self, id: SessionId) {
        self.lost.insert(id);
    }

    /// A session is over; copies for it hold this many slots.
    pub fn end(&mut self, id: SessionId, session: &Session, slots: u32) {
        self.lost.remove(&id);
        if slots > 0 {
            self.over.insert(id, Over { process: session.process, engine: session.engine.clone(), slots });
        }
    }

    /// Copies for a session that is over have ended.
    pub fn release(&mut self, id: SessionId, slots: u32) {
        let Some(over) = self.over.get_mut(&id) else { return };
        over.slots = over.slots.saturating_sub(slots);
        if over.slots == 0 {
            self.over.remove(&id);
        }
    }
}

impl Pool {
    /// Slots that a session may take beyond those that it holds.
    pub fn room(&self, id: SessionId) -> u32 {
        let Some(session) = self.sessions.get(&id) else { return 0 };
        let is_same = |process: Option<i32>, engine: &str| {
            engine == session.engine || (process.is_some() && process == session.process)
        };
        let lost = self.behind.lost.iter().filter_map(|id| self.sessions.get(id));
        let lost = lost.filter(|lost| is_same(lost.process, &lost.engine)).map(|lost| lost.slots);
        let over = self.behind.over.values().filter(|over| is_same(over.process, &over.engine)).map(|over| over.slots);
        lost.chain(over).fold(self.limits.slots.saturating_sub(session.slots), u32::saturating_sub)
    }

    /// A session that was just taken out is over, and what it held by itself is given back.
    pub fn leave_behind(&mut self, id: SessionId, session: &Session) {
        let jobs = self.engines.get(&session.engine).into_iter().flat_map(|engine| engine.jobs.values());
        let jobs = jobs.filter(|job| job.session == id).map(|job| count(job.keys.len()));
        let slots = match session.role {
            Role::Worker => 0,
            Role::Scheduler => jobs.fold(0, u32::saturating_add),
            Role::Tier => self.rows.copying(id),
        };
        self.behind.end(id, session, slots);
    }
}
