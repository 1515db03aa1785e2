//! What happened: plain counters of one pool, and of the acceptor.

use crate::protocol::Kind;

use super::session::Role;

/// Bounds that a client can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Sessions,
    Unopened,
    HelloDeadline,
    MessageBytes,
    KeysPerMessage,
    Requests,
    Jobs,
    Slots,
    OutBuffer,
    EarlyReports,
    Events,
    Pools,
    Attach,
    Copies,
}

impl Limit {
    pub const ALL: [Self; 14] = [
        Self::Sessions,
        Self::Unopened,
        Self::HelloDeadline,
        Self::MessageBytes,
        Self::KeysPerMessage,
        Self::Requests,
        Self::Jobs,
        Self::Slots,
        Self::OutBuffer,
        Self::EarlyReports,
        Self::Events,
        Self::Pools,
        Self::Attach,
        Self::Copies,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::Unopened => "unopened",
            Self::HelloDeadline => "hello_deadline",
            Self::MessageBytes => "message_bytes",
            Self::KeysPerMessage => "keys_per_message",
            Self::Requests => "requests",
            Self::Jobs => "jobs",
            Self::Slots => "slots",
            Self::OutBuffer => "out_buffer",
            Self::EarlyReports => "early_reports",
            Self::Events => "events",
            Self::Pools => "pools",
            Self::Attach => "attach",
            Self::Copies => "copies",
        }
    }
}

/// Of one pool. Gauges where the text says so.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolCounts {
    /// Gauge: open sessions of each role.
    pub sessions: [u64; Role::ALL.len()],
    /// Gauge.
    pub engines: u64,
    /// Received, by kind.
    pub messages: [u64; Kind::ALL.len()],
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Gauge, set when it is published.
    pub leases: u64,
    pub leases_taken: u64,
    pub leases_refused: u64,
    /// Gauge, set when it is published.
    pub jobs: u64,
    pub jobs_ok: u64,
    pub jobs_failed: u64,
    pub rows_stored: u64,
    pub rows_loaded: u64,
    /// Gauge, set when it is published: copy threads of workers.
    pub copiers: u64,
    pub attached: u64,
    pub attach_failed: u64,
    pub copies_stored: u64,
    pub copies_loaded: u64,
    pub copies_failed: u64,
    pub copies_refused: u64,
    pub copies_early: u64,
    pub copied_to_host: u64,
    pub copied_to_device: u64,
    pub pageable_bytes: u64,
    pub devices_lost: u64,
    pub protocol_errors: u64,
    pub closed_for_strikes: u64,
    pub engines_died: u64,
    pub reports_early: u64,
    pub completions_ignored: u64,
    pub refused: [u64; Limit::ALL.len()],
}

impl PoolCounts {
    pub fn refuse(&mut self, limit: Limit) {
        refuse(&mut self.refused, limit, 1);
    }

    pub fn refuse_many(&mut self, limit: Limit, times: u64) {
        refuse(&mut self.refused, limit, times);
    }

    pub fn message(&mut self, kind: Kind) {
        if let Some(count) = Kind::ALL.iter().position(|known| *known == kind).and_then(|at| self.messages.get_mut(at))
        {
            *count += 1;
        }
    }

    /// A session of this role opened (`1`) or ended (`-1`).
    pub(super) fn session(&mut self, role: Role, change: i64) {
        let at = Role::ALL.iter().position(|known| *known == role);
        if let Some(count) = at.and_then(|at| self.sessions.get_mut(at)) {
            *count = count.saturating_add_signed(change);
        }
    }
}

/// Of the whole daemon.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerCounts {
    pub connections: u64,
    pub refused_peers: u64,
    /// Gauge, set when it is published.
    pub pools: u64,
    /// Before a session was open.
    pub protocol_errors: u64,
    pub refused: [u64; Limit::ALL.len()],
}

impl ServerCounts {
    pub fn refuse(&mut self, limit: Limit) {
        refuse(&mut self.refused, limit, 1);
    }
}

fn refuse(refused: &mut [u64; Limit::ALL.len()], limit: Limit, times: u64) {
    if let Some(count) = Limit::ALL.iter().position(|known| *known == limit).and_then(|at| refused.get_mut(at)) {
        *count += times;
    }
}
