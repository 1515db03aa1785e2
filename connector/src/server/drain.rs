//! The end of a pool: in order, for another namespace, or at once.

use std::time::Duration;

use super::frames::push_message;
use super::pool::Pool;
use super::session::SessionId;
use crate::protocol::{FrameFlags, Goodbye, Kind};

/// How often a pool that gives way looks whether its tiers are done.
const NAP: Duration = Duration::from_millis(1);

impl Pool {
    /// Says goodbye. From here on lookups miss and stores are refused; the pool is over when nothing is owed, or
    /// `within` is past.
    pub fn drain(&mut self, within: Duration) {
        self.closing = Some(self.clock.now().plus(within));
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in ids {
            if let Some(connection) = self.sessions.get_mut(&id).and_then(|session| session.connection.as_mut()) {
                let goodbye = Goodbye { reason: "the daemon is closing".to_owned() };
                let frame = (Kind::Goodbye, FrameFlags::ONE_WAY, 0);
                push_message(&mut connection.output, frame, &goodbye, 0, self.limits.message_bytes);
            }
            self.flush(id);
        }
    }

    /// Whether the pool has ended. Ends it when it is time.
    pub fn is_over(&mut self) -> bool {
        let Some(until) = self.closing else { return false };
        // A job's copies are part of it.
        let has_jobs = self.engines.values().any(|engine| !engine.jobs.is_empty()) || !self.rows.is_empty();
        let is_done = !has_jobs && self.manager.drain();
        self.stepped();
        if !is_done && self.clock.now() < until {
            return false;
        }
        if !is_done {
            tracing::warn!("the deadline of draining passed before everything was stored");
        }
        self.stop();
        true
    }

    /// The same without sessions, at once: what is queued for the tiers has `within` to get there.
    pub fn give_way(&mut self, within: Duration) {
        let until = self.clock.now().plus(within);
        self.end_copies(within);
        while !self.rows.is_empty() && self.clock.now() < until {
            self.rows_landed();
            std::thread::sleep(NAP);
        }
        while !self.manager.drain() && self.clock.now() < until {
            std::thread::sleep(NAP);
        }
        self.stop();
    }

    /// Ends everything. Waits for the tiers, as long as `deadlines.drain` allows.
    pub fn stop(&mut self) {
        // Copies end before anybody lets go of the slots. On a device they may hang: then the threads keep region and memory.
        let within = self.closing.map_or(self.config.deadlines.drain, |until| until.since(self.clock.now()));
        self.end_copies(within);
        self.rows.join();
        self.rows_landed();
        self.manager.shutdown();
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in ids {
            self.end_session(id);
        }
    }
}
