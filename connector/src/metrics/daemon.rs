//! What the daemon counts, of each pool and of all.

use terrace_primary::Region;
use terrace_primary::metrics::{Family, Metric, PrimaryView, Publisher, Table};
use terrace_tiering::TieringOffloadingManager;
use terrace_tiering::metrics::ManagerPublisher;

use super::pool_label;
use crate::server::counts::{Limit, PoolCounts, ServerCounts};

const REFUSED: &str = "terrace_refused_total";
const REFUSED_HELP: &str = "What was refused because a bound was reached, by the bound: sessions, unopened (connections without a \
                            Hello), hello_deadline, message_bytes, keys_per_message, requests, jobs, slots, out_buffer (a client that does not \
                            read), early_reports, events (dropped unread), pools, attach (memories and pages of a worker), copies (of a worker, not ended). Pool \"none\": before a pool was chosen.";
const PROTOCOL_ERRORS: &str = "terrace_protocol_errors_total";
const PROTOCOL_ERRORS_HELP: &str = "Frames refused as a fault of the client. Pool \"none\": before a session was open.";

/// The sessions of a pool.
pub(super) static POOL: Table<PoolCounts> = Table {
    labels: &["pool"],
    families: &[
        Family::by(
            "terrace_sessions",
            "Open sessions.",
            "role",
            &[
                ("scheduler", |pool| pool.sessions[0]),
                ("worker", |pool| pool.sessions[1]),
                ("tier", |pool| pool.sessions[2]),
            ],
        ),
        Family::one("terrace_engines", "Engines with an open session.", |pool| pool.engines),
        Family::one(
            "terrace_engines_died_total",
            "Engines whose processes ended without saying goodbye; what they held was taken back.",
            |pool| pool.engines_died,
        ),
        Family::by(
            "terrace_messages_total",
            "Frames received, by kind.",
            "kind",
            &[
                ("hello", |pool| pool.messages[0]),
                ("lookup", |pool| pool.messages[1]),
                ("prepare_store", |pool| pool.messages[2]),
                ("end_step", |pool| pool.messages[3]),
                ("complete", |pool| pool.messages[4]),
                ("ping", |pool| pool.messages[5]),
                ("reset", |pool| pool.messages[6]),
                ("pin", |pool| pool.messages[7]),
                ("unpin", |pool| pool.messages[8]),
                ("store_rows", |pool| pool.messages[9]),
                ("load_rows", |pool| pool.messages[10]),
                ("stats", |pool| pool.messages[11]),
                ("bye", |pool| pool.messages[12]),
                ("goodbye", |pool| pool.messages[13]),
                ("attach", |pool| pool.messages[14]),
                ("copy", |pool| pool.messages[15]),
                ("copied", |pool| pool.messages[16]),
                ("lease", |pool| pool.messages[17]),
            ],
        ),
        Family::one(
            "terrace_round_trips_total",
            "Requests whose sender waits for the answer: lookup, prepare_store, ping, reset, pin, unpin, stats, attach and lease.",
            |pool| [1, 2, 5, 6, 7, 8, 11, 14, 17].iter().filter_map(|kind: &usize| pool.messages.get(*kind)).sum(),
        ),
        Family::one("terrace_steps_total", "Engine steps that ended.", |pool| pool.messages[3]),
        Family::one("terrace_received_bytes_total", "Bytes received from clients.", |pool| pool.received_bytes),
        Family::one("terrace_sent_bytes_total", "Bytes sent to clients.", |pool| pool.sent_bytes),
        Family::one("terrace_leases", "Leases: lookups whose hits are kept readable until their step ends.", |pool| {
            pool.leases
        }),
        Family::one("terrace_leases_taken_total", "Leases given out.", |pool| pool.leases_taken),
        Family::one(
            "terrace_leases_refused_total",
            "Leases not given on what a client had found in the block table: it had changed since, or the session has no room for so many.",
            |pool| pool.leases_refused,
        ),
        Family::one("terrace_jobs", "Loads and stores of engines that have not ended.", |pool| pool.jobs),
        Family::by(
            "terrace_jobs_total",
            "Loads and stores of engines that ended: ok (all who copy reported it done), failed.",
            "outcome",
            &[("ok", |pool| pool.jobs_ok), ("failed", |pool| pool.jobs_failed)],
        ),
        Family::by(
            "terrace_rows_total",
            "Rows that the daemon copied between an engine's own region and the pool (role tier).",
            "direction",
            &[("store", |pool| pool.rows_stored), ("load", |pool| pool.rows_loaded)],
        ),
        Family::one(
            "terrace_early_reports_total",
            "Reports of workers that came before the step that begins their load; they are kept until it comes.",
            |pool| pool.reports_early,
        ),
        Family::one("terrace_completions_ignored_total", "Reports of jobs that are not known any more.", |pool| {
            pool.completions_ignored
        }),
        Family::one(
            "terrace_device_workers",
            "Workers whose GPU memory the daemon has open, those that are gone but still copied for included.",
            |pool| pool.copiers,
        ),
        Family::by(
            "terrace_device_attaches_total",
            "Workers that handed over their GPU memory: ok, failed (they have no copies by the daemon).",
            "outcome",
            &[("ok", |pool| pool.attached), ("failed", |pool| pool.attach_failed)],
        ),
        Family::by(
            "terrace_device_copies_total",
            "Jobs that the daemon copied for workers: stored, loaded, failed (the device failed, or the worker was gone), refused (not the \
             worker's to copy, too many, or never begun).",
            "outcome",
            &[
                ("stored", |pool| pool.copies_stored),
                ("loaded", |pool| pool.copies_loaded),
                ("failed", |pool| pool.copies_failed),
                ("refused", |pool| pool.copies_refused),
            ],
        ),
        Family::one(
            "terrace_device_copies_early_total",
            "Copies that came before the step that begins their load; they are kept until it comes.",
            |pool| pool.copies_early,
        ),
        Family::by(
            "terrace_device_copied_bytes_total",
            "Bytes of these jobs: to_host (stores), to_device (loads).",
            "direction",
            &[("to_host", |pool| pool.copied_to_host), ("to_device", |pool| pool.copied_to_device)],
        ),
        Family::one(
            "terrace_device_pageable_bytes_total",
            "Bytes copied while their slots were not registered with the driver, which is slow.",
            |pool| pool.pageable_bytes,
        ),
        Family::one(
            "terrace_devices_lost_total",
            "Workers whose device failed for good while the daemon copied for them.",
            |pool| pool.devices_lost,
        ),
        Family::one(PROTOCOL_ERRORS, PROTOCOL_ERRORS_HELP, |pool| pool.protocol_errors),
        Family::one(
            "terrace_closed_for_strikes_total",
            "Connections closed because their client broke rules again and again.",
            |pool| pool.closed_for_strikes,
        ),
        Family::by(
            REFUSED,
            REFUSED_HELP,
            "limit",
            &[
                (Limit::Sessions.name(), |pool| pool.refused[Limit::Sessions as usize]),
                (Limit::Unopened.name(), |pool| pool.refused[Limit::Unopened as usize]),
                (Limit::HelloDeadline.name(), |pool| pool.refused[Limit::HelloDeadline as usize]),
                (Limit::MessageBytes.name(), |pool| pool.refused[Limit::MessageBytes as usize]),
                (Limit::KeysPerMessage.name(), |pool| pool.refused[Limit::KeysPerMessage as usize]),
                (Limit::Requests.name(), |pool| pool.refused[Limit::Requests as usize]),
                (Limit::Jobs.name(), |pool| pool.refused[Limit::Jobs as usize]),
                (Limit::Slots.name(), |pool| pool.refused[Limit::Slots as usize]),
                (Limit::OutBuffer.name(), |pool| pool.refused[Limit::OutBuffer as usize]),
                (Limit::EarlyReports.name(), |pool| pool.refused[Limit::EarlyReports as usize]),
                (Limit::Events.name(), |pool| pool.refused[Limit::Events as usize]),
                (Limit::Pools.name(), |pool| pool.refused[Limit::Pools as usize]),
                (Limit::Attach.name(), |pool| pool.refused[Limit::Attach as usize]),
                (Limit::Copies.name(), |pool| pool.refused[Limit::Copies as usize]),
            ],
        ),
    ],
};

/// Whoever connects, before a pool is chosen. Labels as in the table of a pool where a name stands in both.
pub(super) static SERVER: Table<ServerCounts> = Table {
    labels: &[],
    families: &[
        Family::one("terrace_connections_total", "Connections accepted.", |server| server.connections),
        Family::one(
            "terrace_refused_peers_total",
            "Connections closed because their user is not on the allow list.",
            |server| server.refused_peers,
        ),
        Family::one("terrace_pools", "Pools: namespaces that are open.", |server| server.pools),
    ],
};

/// The same, for what a pool counts too.
pub(super) static NO_POOL: Table<ServerCounts> = Table {
    labels: &["pool"],
    families: &[
        Family::one(PROTOCOL_ERRORS, PROTOCOL_ERRORS_HELP, |server| server.protocol_errors),
        Family::by(
            REFUSED,
            REFUSED_HELP,
            "limit",
            &[
                (Limit::Sessions.name(), |server| server.refused[Limit::Sessions as usize]),
                (Limit::Unopened.name(), |server| server.refused[Limit::Unopened as usize]),
                (Limit::HelloDeadline.name(), |server| server.refused[Limit::HelloDeadline as usize]),
                (Limit::MessageBytes.name(), |server| server.refused[Limit::MessageBytes as usize]),
                (Limit::Pools.name(), |server| server.refused[Limit::Pools as usize]),
            ],
        ),
    ],
};

/// Publishes all of one pool; kept by its thread.
pub(crate) struct PoolPublisher {
    primary: Publisher<PrimaryView>,
    manager: ManagerPublisher,
    sessions: Publisher<PoolCounts>,
}

impl PoolPublisher {
    pub(crate) fn new(digest: &[u8; 32]) -> Self {
        let pool = pool_label(digest);
        let labels = [("pool", pool.as_str())];
        Self {
            primary: Publisher::new(&terrace_primary::metrics::TABLE, &labels),
            manager: ManagerPublisher::new(&pool),
            sessions: Publisher::new(&POOL, &labels),
        }
    }

    /// Tells the recorder in force. Takes some tens of microseconds.
    pub(crate) fn publish(&mut self, manager: &TieringOffloadingManager, region: &Region, counts: &PoolCounts) {
        self.primary.publish(&PrimaryView::of(manager.primary(), region));
        self.manager.publish(&manager.stats());
        self.sessions.publish(counts);
    }
}

/// Publishes what the acceptor counts.
pub(crate) struct ServerPublisher {
    server: Publisher<ServerCounts>,
    no_pool: Publisher<ServerCounts>,
}

impl ServerPublisher {
    pub(crate) fn new() -> Self {
        Self { server: Publisher::new(&SERVER, &[]), no_pool: Publisher::new(&NO_POOL, &[("pool", "none")]) }
    }

    pub(crate) fn publish(&mut self, counts: &ServerCounts) {
        self.server.publish(counts);
        self.no_pool.publish(counts);
    }
}

/// All counters and gauges of a pool, as names of `docs/metrics.md` (with labels, less `pool`) and values.
pub(crate) fn flat_pool(
    manager: &TieringOffloadingManager,
    region: &Region,
    counts: &PoolCounts,
) -> Vec<(String, f64)> {
    let mut out = Vec::new();
    terrace_primary::metrics::TABLE.flatten(&[], &PrimaryView::of(manager.primary(), region), &mut out);
    terrace_tiering::metrics::flatten(&manager.stats(), &mut out);
    POOL.flatten(&[], counts, &mut out);
    out
}

/// What the acceptor counts, likewise.
pub(crate) fn flat_server(counts: &ServerCounts) -> Vec<(String, f64)> {
    let mut out = Vec::new();
    SERVER.flatten(&[], counts, &mut out);
    NO_POOL.flatten(&[("pool", "none")], counts, &mut out);
    out
}

/// The daemon's own metrics.
pub(super) fn list() -> Vec<Metric> {
    [POOL.metrics(), SERVER.metrics(), NO_POOL.metrics()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Kind;

    fn values<S>(table: &Table<S>, family: &str, stats: &S) -> Vec<(String, u64)> {
        let mut flat = Vec::new();
        table.flatten(&[], stats, &mut flat);
        let of = |(name, value): (String, f64)| {
            let label = name.strip_prefix(family)?.strip_prefix('{')?.split('"').nth(1)?.to_owned();
            Some((label, value as u64))
        };
        flat.into_iter().filter_map(of).collect()
    }

    /// Each label shows the place of its own.
    #[test]
    fn arrays_are_read_in_the_order_of_their_names() {
        let mut counts = PoolCounts::default();
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            (0..=number).for_each(|_| counts.message(kind));
        }
        for (number, limit) in Limit::ALL.into_iter().enumerate() {
            (0..=number).for_each(|_| counts.refuse(limit));
        }
        let snake = |name: String| {
            let mut snake = String::new();
            for (at, letter) in name.char_indices() {
                if letter.is_uppercase() && at > 0 {
                    snake.push('_');
                }
                snake.extend(letter.to_lowercase());
            }
            snake
        };
        let kinds: Vec<_> =
            Kind::ALL.iter().zip(1..).map(|(kind, number)| (snake(format!("{kind:?}")), number)).collect();
        assert_eq!(values(&POOL, "terrace_messages_total", &counts), kinds);
        let limits: Vec<_> =
            Limit::ALL.iter().zip(1..).map(|(limit, number)| (limit.name().to_owned(), number)).collect();
        assert_eq!(values(&POOL, REFUSED, &counts), limits);

        let server = ServerCounts { refused: counts.refused, ..ServerCounts::default() };
        for pair in values(&NO_POOL, REFUSED, &server) {
            assert!(limits.contains(&pair), "{pair:?}");
        }
    }
}
