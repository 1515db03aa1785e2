//! What a client has done.

/// Counters since the client was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Calls that waited for their reply and got it in time.
    pub round_trips: u64,
    /// Lookups among them: one for a request and step at most.
    pub lookups: u64,
    /// Lookups that were answered here, from the daemon's block table: no round trip was waited for.
    pub lookups_seen: u64,
    /// Leases on what they found that were not given: it had changed, there was no room, or the daemon was late.
    pub leases_refused: u64,
    /// Stores among them.
    pub stores: u64,
    /// Calls whose reply did not come within the budget.
    pub timeouts: u64,
    /// Times that replies began to be overdue.
    pub stalls: u64,
    /// Calls that were not made because an earlier reply was overdue.
    pub stalled_calls: u64,
    /// Late replies that came after all, and were undone.
    pub late_replies: u64,
    /// Lookups answered "not yet" because the daemon is late.
    pub stalled_lookups: u64,
    /// Stores dropped because the daemon is away or late.
    pub dropped_stores: u64,
    /// Requests that the daemon refused.
    pub refused: u64,
    /// Sessions opened.
    pub connects: u64,
    /// Sessions lost.
    pub disconnects: u64,
    /// Ends of steps sent.
    pub end_steps: u64,
    /// Keys left out because a message would have been too long.
    pub keys_left_out: u64,
    /// Replies that contradict what was asked; the connection was closed.
    pub protocol_faults: u64,
    /// Loads that were reported failed because the connection ended before the daemon had confirmed them.
    pub doomed_loads: u64,
    /// Ends of jobs that were to be told on the next connection and were too many: the daemon keeps their slots until this
    /// process is gone.
    pub forgotten_jobs: u64,
    /// Events that were not kept, here or in the daemon.
    pub events_lost: u64,
    /// Blocks loaded that were in the primary.
    pub loaded_primary: u64,
    /// Blocks loaded that a tier had brought.
    pub loaded_below: u64,
}
