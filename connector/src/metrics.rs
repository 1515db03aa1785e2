//! What the connector and the daemon publish through the `metrics` facade, and the list of all metrics of Terrace.
//!
//! Counters and gauges are published from plain statistics, about once a second, by whoever owns them ([`ManagerPublisher`],
//! [`ConnectorPublisher`]; the daemon's threads do it by themselves); times are recorded where they end. Histograms stay with the recorder
//! that is in force when their owner is made, so a recorder is installed before managers, tiers and copy engines are.

mod daemon;

use terrace_kernels::CopyStats;
use terrace_primary::metrics::{Family, Publisher, Table};
use terrace_tiering::Stats;

use crate::OffloadingConnector;
use crate::counters::Counters;

pub(crate) use daemon::{PoolPublisher, ServerPublisher, flat_pool, flat_server};
pub use terrace_primary::metrics::{Metric, MetricKind};
pub use terrace_tiering::metrics::ManagerPublisher;

/// What a connector does in its engine's process.
static CONNECTOR: Table<Counters> = Table {
    labels: &[],
    families: &[
        Family::one("terrace_connector_loads_total", "Loads handed to the worker.", |connector| connector.loads),
        Family::one("terrace_connector_loaded_blocks_total", "GPU blocks of loads that landed.", |connector| {
            connector.loaded_blocks
        }),
        Family::one(
            "terrace_connector_failed_loads_total",
            "Loads that failed: a copy failed, or blocks were evicted between lookup and allocation.",
            |connector| connector.failed_loads,
        ),
        Family::one("terrace_connector_stores_total", "Stores handed to the worker.", |connector| connector.stores),
        Family::one("terrace_connector_stored_blocks_total", "GPU blocks of stores that landed.", |connector| {
            connector.stored_blocks
        }),
        Family::one("terrace_connector_failed_stores_total", "Stores whose copy failed.", |connector| {
            connector.failed_stores
        }),
        Family::one(
            "terrace_connector_not_offered_total",
            "Blocks not offered, because a sliding-window group no longer kept their GPU blocks.",
            |connector| connector.not_offered,
        ),
        Family::one(
            "terrace_connector_refused_offers_total",
            "Offers that the manager refused with an error.",
            |connector| connector.refused_offers,
        ),
        Family::one(
            "terrace_connector_waits_total",
            "Lookups answered \"not yet\" because another request was loading a block of the match.",
            |connector| connector.waits_for_other_load,
        ),
        Family::one(
            "terrace_connector_flushes_total",
            "Jobs that had to be flushed because GPU blocks changed owner.",
            |connector| connector.flushes,
        ),
        Family::one("terrace_connector_preemptions_total", "Requests preempted.", |connector| connector.preemptions),
        Family::one(
            "terrace_connector_inconsistencies_total",
            "Completions that the manager did not expect; anything but 0 is a fault of Terrace.",
            |connector| connector.inconsistencies,
        ),
    ],
};

/// What a copy engine does. Of a host's, all that is told of a GPU is 0.
static COPIES: Table<CopyStats> = Table {
    labels: &[],
    families: &[
        Family::one("terrace_copies_total", "Batches that the copy engine took.", |copies| copies.copies),
        Family::one("terrace_copy_runs_total", "Runs of contiguous bytes in them.", |copies| copies.runs),
        Family::by(
            "terrace_copy_bytes_total",
            "Bytes of them: to_host (stores), to_device (loads).",
            "direction",
            &[("to_host", |copies| copies.bytes_to_host), ("to_device", |copies| copies.bytes_to_device)],
        ),
        Family::one(
            "terrace_copies_refused_total",
            "Batches refused because the copy engine's queue was full.",
            |copies| copies.refused,
        ),
        Family::by(
            "terrace_copy_path_bytes_total",
            "Bytes between a GPU and the region by the way they went: pageable (memory that was not registered), runs (copies of one \
             dimension, batched or not), rects (of two dimensions), kernel (the gather kernel).",
            "path",
            &[
                ("pageable", |copies| copies.cuda.pageable_bytes),
                ("runs", |copies| copies.cuda.run_bytes),
                ("rects", |copies| copies.cuda.rect_bytes),
                ("kernel", |copies| copies.cuda.kernel_bytes),
            ],
        ),
        Family::one(
            "terrace_copy_full_tables_total",
            "Batches that did not go by the gather kernel because its tables had no room.",
            |copies| copies.cuda.full_tables,
        ),
        Family::one("terrace_copies_failed_total", "Batches that a GPU's engine took and that failed.", |copies| {
            copies.cuda.failed
        }),
        Family::one(
            "terrace_region_pinned_bytes",
            "Bytes of the region that are registered with the GPU's driver.",
            |copies| copies.cuda.pins.bytes,
        ),
        Family::by(
            "terrace_region_pieces",
            "Pieces of the region by their registration: pinned, refused (by the driver; their copies are slow), waiting.",
            "state",
            &[
                ("pinned", |copies| copies.cuda.pins.registered as u64),
                ("refused", |copies| copies.cuda.pins.refused as u64),
                ("waiting", |copies| copies.cuda.pins.waiting() as u64),
            ],
        ),
    ],
};

/// Publishes what a connector in this process counts, with its manager and copy engine.
pub struct ConnectorPublisher {
    manager: ManagerPublisher,
    connector: Publisher<Counters>,
    copies: Publisher<CopyStats>,
}

impl ConnectorPublisher {
    /// A publisher that has published nothing; `pool` is the label of the manager's metrics.
    pub fn new(pool: &str) -> Self {
        Self {
            manager: ManagerPublisher::new(pool),
            connector: Publisher::new(&CONNECTOR, &[]),
            copies: Publisher::new(&COPIES, &[]),
        }
    }

    /// Tells the recorder in force. Takes some tens of microseconds: about once a second is often enough.
    pub fn publish(&mut self, connector: &OffloadingConnector) {
        self.manager.publish(&connector.manager().stats());
        self.connector.publish(&connector.counters());
        self.copies.publish(&connector.copy_stats());
    }
}

/// The label of a pool: the first eight hexadecimal digits of its namespace's digest.
pub fn pool_label(digest: &[u8; 32]) -> String {
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// What a manager and its tiers count, as names of `docs/metrics.md` (with labels, less `pool`) and values. Histograms are not in it.
pub fn flat(stats: &Stats) -> Vec<(String, f64)> {
    let mut out = Vec::new();
    terrace_tiering::metrics::flatten(stats, &mut out);
    out
}

/// The metrics of the daemon, by name: those of its managers, tiers and regions among them.
pub fn daemon_list() -> Vec<Metric> {
    let mut list = terrace_primary::metrics::TABLE.metrics();
    list.extend(terrace_tiers::metrics::list());
    list.extend(terrace_tiering::metrics::list());
    list.extend(daemon::list());
    list.sort();
    // Some stand in two tables: the hits of the primary in the manager's, those of a tier in the tier's.
    list.dedup();
    list
}

/// The metrics that only an engine's process has, by name.
pub fn engine_list() -> Vec<Metric> {
    let (name, label, help) = terrace_kernels::metrics::COPY_SECONDS;
    let mut list = CONNECTOR.metrics();
    list.extend(COPIES.metrics());
    list.push(Metric::histogram(name, &[label], help));
    list.sort();
    list
}

/// Every metric that some crate of Terrace has.
pub fn list() -> Vec<Metric> {
    [daemon_list(), engine_list()].concat()
}

/// Tells the recorder in force what each metric is.
pub fn describe() {
    list().iter().for_each(Metric::describe);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_end_as_their_type_wants() {
        let list = list();
        let names: BTreeSet<_> = list.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), list.len(), "one name, one meaning");
        for Metric { name, kind, labels, help } in &list {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(name.starts_with("terrace_") && name.bytes().all(plain), "{name}");
            let right = match kind {
                MetricKind::Counter => name.ends_with("_total"),
                MetricKind::Gauge => !name.ends_with("_total") && !name.ends_with("_seconds"),
                MetricKind::Histogram => name.ends_with("_seconds"),
            };
            assert!(right, "{name} is a {kind:?}");
            assert_eq!(labels.iter().collect::<BTreeSet<_>>().len(), labels.len(), "labels of {name}");
            assert!(help.ends_with('.') && !help.contains("  "), "{name}: {help:?}");
        }
    }

    #[test]
    fn a_pool_is_named_by_the_start_of_its_digest() {
        let mut digest = [0xab; 32];
        digest[1] = 0x01;
        assert_eq!(pool_label(&digest), "ab01abab");
    }
}
