//! What a replay drives: a connector in this process, or one whose manager is a daemon's.

use serde::Serialize;
use terrace_connector::client::SessionState;
use terrace_connector::{Connector, Counters, OffloadingConnector, RemoteConnector};
use terrace_tiering::Stats;

/// A connector, and what a replay wants to know of it.
pub trait Stack: Connector {
    /// What the connector has done.
    fn counters(&self) -> Counters;

    /// Transfers planned or running.
    fn transfers_in_flight(&self) -> usize;

    /// Whether cascades are queued or running.
    fn has_cascades(&mut self) -> bool;

    /// Slots that an abandoned operation may still write to.
    fn limbo(&self) -> u32;

    /// What the manager has done. Of a daemon, which serves others too, only what this replay did: loads, and nothing
    /// of its tiers.
    fn stats(&self) -> Stats;

    /// The socket's part; `None` in process.
    fn socket(&self) -> Option<Socket>;
}

/// What the socket cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Socket {
    pub round_trips: u64,
    pub lookups: u64,
    /// Lookups that the daemon's block table answered, without a round trip.
    pub lookups_seen: u64,
    /// Leases on what they found that were not given.
    pub leases_refused: u64,
    pub stores: u64,
    pub end_steps: u64,
    /// Calls whose reply did not come within the budget.
    pub timeouts: u64,
    /// Times that replies began to be overdue.
    pub stalls: u64,
    /// Calls that did not wait, because an earlier reply was overdue.
    pub stalled_calls: u64,
    pub stalled_lookups: u64,
    pub dropped_stores: u64,
    pub refused: u64,
    pub protocol_faults: u64,
    pub doomed_loads: u64,
    /// Connections after the first one.
    pub reconnects: u64,
    pub disconnects: u64,
}

impl Stack for OffloadingConnector {
    fn counters(&self) -> Counters {
        self.counters()
    }

    fn transfers_in_flight(&self) -> usize {
        self.transfers_in_flight()
    }

    fn has_cascades(&mut self) -> bool {
        self.manager().cascade_backlog() > 0
    }

    fn limbo(&self) -> u32 {
        self.manager().primary().limbo()
    }

    fn stats(&self) -> Stats {
        self.manager().stats()
    }

    fn socket(&self) -> Option<Socket> {
        None
    }
}

impl Stack for RemoteConnector {
    fn counters(&self) -> Counters {
        self.counters()
    }

    fn transfers_in_flight(&self) -> usize {
        self.transfers_in_flight()
    }

    fn has_cascades(&mut self) -> bool {
        let manager = self.manager_mut();
        let is_cascade = |name: &str| {
            name.starts_with("terrace_cascade_blocks")
                && ["\"queued\"", "\"running\""].iter().any(|state| name.contains(state))
        };
        match manager.stats() {
            Some(values) => values.iter().any(|(name, value)| is_cascade(name) && *value > 0.0),
            // Late: not known yet. Away: there are none for this replay.
            None => manager.session().state() == SessionState::Stalled,
        }
    }

    fn limbo(&self) -> u32 {
        0
    }

    fn stats(&self) -> Stats {
        let counters = self.client_counters();
        let mut stats = Stats { loaded_primary: counters.loaded_primary, ..Stats::default() };
        if let Some(below) = stats.loaded_by_tier.first_mut() {
            *below = counters.loaded_below;
        }
        stats
    }

    fn socket(&self) -> Option<Socket> {
        let counters = self.client_counters();
        Some(Socket {
            round_trips: counters.round_trips,
            lookups: counters.lookups,
            lookups_seen: counters.lookups_seen,
            leases_refused: counters.leases_refused,
            stores: counters.stores,
            end_steps: counters.end_steps,
            timeouts: counters.timeouts,
            stalls: counters.stalls,
            stalled_calls: counters.stalled_calls,
            stalled_lookups: counters.stalled_lookups,
            dropped_stores: counters.dropped_stores,
            refused: counters.refused,
            protocol_faults: counters.protocol_faults,
            doomed_loads: counters.doomed_loads,
            reconnects: counters.connects.saturating_sub(1),
            disconnects: counters.disconnects,
        })
    }
}
