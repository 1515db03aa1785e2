//! What the manager publishes: tables over [`Stats`] and [`TierReport`], and how long things took by the clock that it was given.

use std::time::Duration;

use metrics::Histogram;
use terrace_primary::metrics::{Family, Metric, Publisher, Table, histogram};
use terrace_tiers::{TierStats, Time};

use crate::breaker::BreakerState;
use crate::stats::{Stats, TierReport};

const HITS: &str = "terrace_tier_hits_total";
const HITS_HELP: &str = "Blocks that engines loaded, by the tier that had them: the primary if an engine stored them or loaded them \
                         before, else the tier that they were promoted from.";

/// The manager of a pool.
pub static TABLE: Table<Stats> = Table {
    labels: &["pool"],
    families: &[
        Family::one(
            "terrace_lookups_total",
            "Lookups; of those that clients do themselves in the block table, the ones that led to a load.",
            |stats| stats.lookups,
        ),
        Family::by(
            "terrace_lookup_keys_total",
            "Keys looked up, by the answer: hit (readable in the primary), pending (found, to be brought or on its way), retry (not known \
             yet), miss.",
            "answer",
            &[
                ("hit", |stats| stats.hits),
                ("pending", |stats| stats.pending),
                ("retry", |stats| stats.retries),
                ("miss", |stats| stats.misses),
            ],
        ),
        Family::one(
            "terrace_lookups_expired_total",
            "Lookups of requests that had waited until deadlines.lookup, so that only the primary counted.",
            |stats| stats.lookups_expired,
        ),
        Family::by(
            "terrace_found_not_given_total",
            "Blocks that were found and missed all the same: no_room (no slot for the promotion, or its share exhausted), no_reader (no \
             lease left, or as many readers as can be counted), no_hold (not kept for the waiting request: share exhausted).",
            "reason",
            &[
                ("no_room", |stats| stats.promotions_refused),
                ("no_reader", |stats| stats.leases_refused),
                ("no_hold", |stats| stats.holds_refused),
            ],
        ),
        Family::one(
            "terrace_promotions_deferred_total",
            "Blocks found in a tier whose promotion waits for room that others' promotions have taken or a primary does not have yet; each time they are \
             asked for.",
            |stats| stats.promotions_deferred,
        ),
        Family::by(HITS, HITS_HELP, "tier", &[("primary", |stats| stats.loaded_primary)]),
        Family::by(
            "terrace_stores_total",
            "Blocks that engines offered to store, by outcome: stored, failed (the copy failed, the engine died or a reset overtook it), \
             left_out (no room for it beside the leading part), not_admitted (not offered often enough yet).",
            "outcome",
            &[
                ("stored", |stats| stats.stored),
                ("failed", |stats| stats.stores_failed),
                ("left_out", |stats| stats.stores_left_out),
                ("not_admitted", |stats| stats.not_admitted),
            ],
        ),
        Family::one("terrace_stores_prepared_total", "Blocks for which slots were given out to be filled.", |stats| {
            stats.stores_prepared
        }),
        Family::one("terrace_stores_refused_total", "Calls to prepare a store that got nothing: no room.", |stats| {
            stats.stores_refused
        }),
        Family::by(
            "terrace_primary_checks_total",
            "Blocks in DRAM that primary.check_on_load looked at, by outcome: compared, damaged (also counted as compared; anything but 0: \
             this machine's memory, or a process that writes where it may not), deferred (left to the next lookup).",
            "outcome",
            &[
                ("compared", |stats| stats.checks),
                ("damaged", |stats| stats.checks_failed),
                ("deferred", |stats| stats.checks_deferred),
            ],
        ),
        Family::one("terrace_held_slots", "Slots held for waiting requests.", |stats| stats.holds),
        Family::one("terrace_holds_expired_total", "Requests whose holds ended at deadlines.hold.", |stats| {
            stats.holds_expired
        }),
        Family::one("terrace_pins", "Pins.", |stats| stats.pins),
        Family::one("terrace_pins_refused_total", "Pins refused: share exhausted.", |stats| stats.pins_refused),
        Family::one("terrace_pins_expired_total", "Pins that ended by themselves.", |stats| stats.pins_expired),
        Family::one("terrace_requests", "Open requests.", |stats| stats.requests),
        Family::one("terrace_requests_refused_total", "Requests refused: too many were open.", |stats| {
            stats.requests_refused
        }),
        Family::one("terrace_events_queued", "Events that wait to be taken.", |stats| stats.events_queued),
        Family::one("terrace_events_dropped_total", "Events dropped because nobody took them.", |stats| {
            stats.events_dropped
        }),
        Family::one(
            "terrace_completions_refused_total",
            "Completions of what was not running: each is a fault of the caller.",
            |stats| stats.completions_refused,
        ),
        Family::one(
            "terrace_lost_slots",
            "Slots that never come back: their tier panicked or was shut down.",
            |stats| stats.lost_slots,
        ),
    ],
};

/// What the manager keeps of one secondary tier.
pub static TIER_TABLE: Table<TierReport> = Table {
    labels: &["pool", "tier"],
    families: &[
        Family::one(HITS, HITS_HELP, |tier| tier.hits),
        Family::by(
            "terrace_tier_lookup_keys_total",
            "Keys that lookups asked the tier for, which the primary and faster tiers did not have, by the answer: found, absent, unknown \
             (its index is not complete yet), suspect (there, but a load of it failed a moment ago).",
            "answer",
            &[
                ("found", |tier| tier.keys.found),
                ("absent", |tier| tier.keys.absent),
                ("unknown", |tier| tier.keys.unknown),
                ("suspect", |tier| tier.keys.suspect),
            ],
        ),
        Family::one(
            "terrace_tier_unknown_expired_total",
            "Lookups in which the tier had not known what it holds for longer than deadlines.lookup, which counted as absent.",
            |tier| tier.unknown_expired,
        ),
        Family::by(
            "terrace_promotion_blocks",
            "Depth of the promotion queue: blocks queued, running (with the tier), abandoned (given up, the tier has not let go).",
            "state",
            &[
                ("queued", |tier| tier.promotions.queued),
                ("running", |tier| tier.promotions.running),
                ("abandoned", |tier| tier.promotions.abandoned),
            ],
        ),
        Family::by(
            "terrace_promotions_total",
            "Blocks to be promoted from the tier, by outcome: landed, failed (the tier failed), expired (deadlines.promotion, or the tier was switched off meanwhile), cancelled \
             (their request ended, the tier was switched off, or a reset).",
            "outcome",
            &[
                ("landed", |tier| tier.promotions.landed),
                ("failed", |tier| tier.promotions.failed),
                ("expired", |tier| tier.promotions.expired),
                ("cancelled", |tier| tier.promotions.cancelled),
            ],
        ),
        Family::by(
            "terrace_scrubbed_total",
            "Blocks that the scrubber read from the tier, by outcome: sound, corrupt (quarantined), unread (evicted meanwhile, out of \
             time, or the device failed).",
            "outcome",
            &[
                ("sound", |tier| tier.scrubs.sound),
                ("corrupt", |tier| tier.scrubs.corrupt),
                ("unread", |tier| tier.scrubs.unread),
            ],
        ),
        Family::one("terrace_promotions_reserved_total", "Blocks for whose promotion a slot was reserved.", |tier| {
            tier.promotions.reserved
        }),
        Family::one("terrace_promotion_jobs_total", "Load jobs that the tier took.", |tier| tier.promotions.jobs),
        Family::one(
            "terrace_promotion_retries_total",
            "Load jobs that the tier refused; their blocks are offered again in a later step.",
            |tier| tier.promotions.jobs_refused,
        ),
        Family::by(
            "terrace_cascade_blocks",
            "Depth of the cascade queue: blocks queued (holding no reader), running (with the tier), abandoned (given up, the tier has \
             not let go).",
            "state",
            &[
                ("queued", |tier| tier.cascades.queued),
                ("running", |tier| tier.cascades.running),
                ("abandoned", |tier| tier.cascades.abandoned),
            ],
        ),
        Family::one("terrace_cascades_offered_total", "Blocks offered to the tier.", |tier| tier.cascades.offered),
        Family::by(
            "terrace_cascades_total",
            "Blocks offered to the tier, by outcome: present (the tier had them), stored, failed (the tier failed), expired \
             (deadlines.cascade).",
            "outcome",
            &[
                ("present", |tier| tier.cascades.present),
                ("stored", |tier| tier.cascades.stored),
                ("failed", |tier| tier.cascades.failed),
                ("expired", |tier| tier.cascades.expired),
            ],
        ),
        Family::by(
            "terrace_cascade_drops_total",
            "Blocks dropped before the tier got them: evicted (from the primary, before their turn), full (the queue was), off (the tier is \
             switched off, closed or panicked), reset (by a reset or at shutdown).",
            "reason",
            &[
                ("evicted", |tier| tier.cascades.dropped_evicted),
                ("full", |tier| tier.cascades.dropped_full),
                ("off", |tier| tier.cascades.dropped_off),
                ("reset", |tier| tier.cascades.dropped_reset),
            ],
        ),
        Family::one("terrace_cascade_jobs_total", "Store jobs that the tier took.", |tier| tier.cascades.jobs),
        Family::one(
            "terrace_cascade_retries_total",
            "Store jobs that the tier refused; their blocks are offered again in a later step.",
            |tier| tier.cascades.jobs_refused,
        ),
        Family::one(
            "terrace_tier_breaker",
            "Whether the tier is in use: 0 it is, 1 one job may go to find out, 2 switched off until its cooldown is over.",
            |tier| match tier.breaker {
                BreakerState::Closed => 0,
                BreakerState::HalfOpen => 1,
                BreakerState::Open => 2,
            },
        ),
        Family::by(
            "terrace_tier_breaker_opened_total",
            "Times that the tier was switched off, by reason: failing (its jobs failed or ran out of time), hung (it answered nothing while it \
             loaded), slow (its loads took far longer than they used to).",
            "reason",
            &[
                ("failing", |tier| tier.breaker_opened - tier.hung - tier.slow),
                ("hung", |tier| tier.hung),
                ("slow", |tier| tier.slow),
            ],
        ),
        Family::one("terrace_tier_panicked", "1 once a call into the tier panicked: it is closed for good.", |tier| {
            u64::from(tier.panicked)
        }),
        Family::one(
            "terrace_tier_contract_faults_total",
            "Answers and events of the tier that broke its contract and were ignored; anything but 0 is a fault of Terrace.",
            |tier| tier.protocol_faults,
        ),
    ],
};

const LOOKUP_SECONDS: &str = "terrace_lookup_seconds";
const STEP_SECONDS: &str = "terrace_step_seconds";
const PROMOTION_SECONDS: &str = "terrace_promotion_seconds";
const CASCADE_SECONDS: &str = "terrace_cascade_seconds";

/// All metrics of this crate.
pub fn list() -> Vec<Metric> {
    let mut list = TABLE.metrics();
    list.extend(TIER_TABLE.metrics());
    list.extend([
        Metric::histogram(LOOKUP_SECONDS, &[], "Time of a lookup in the manager, the poll of the tiers included."),
        Metric::histogram(STEP_SECONDS, &[], "Time that the end of a step takes in the manager."),
        Metric::histogram(
            PROMOTION_SECONDS,
            &["tier"],
            "Time from the reservation of a request's first block until a promoted block is readable in the primary.",
        ),
        Metric::histogram(
            CASCADE_SECONDS,
            &["tier"],
            "Time from the submission of a cascade to the tier until a block of it is stored.",
        ),
    ]);
    list
}

/// Times of calls.
pub(crate) struct CallTimes {
    pub lookup: Histogram,
    pub step: Histogram,
}

impl CallTimes {
    pub fn new() -> Self {
        Self { lookup: histogram(LOOKUP_SECONDS, None), step: histogram(STEP_SECONDS, None) }
    }
}

/// Times of what a tier does.
pub(crate) struct TierTimes {
    promotion: Histogram,
    cascade: Histogram,
}

impl TierTimes {
    pub fn new(tier: &str) -> Self {
        let label = Some(("tier", tier));
        Self { promotion: histogram(PROMOTION_SECONDS, label), cascade: histogram(CASCADE_SECONDS, label) }
    }

    /// A block landed whose deadline was `deadline`, `within` after its beginning.
    pub fn landed(&self, deadline: Time, within: Duration, now: Time) {
        self.promotion.record(since_start(deadline, within, now));
    }

    /// A block was stored; as [`Self::landed`].
    pub fn stored(&self, deadline: Time, within: Duration, now: Time) {
        self.cascade.record(since_start(deadline, within, now));
    }
}

/// How long ago something began that has to be over `within` later, at `deadline`: the beginning is kept nowhere else.
fn since_start(deadline: Time, within: Duration, now: Time) -> Duration {
    now.since(Time(deadline.0.saturating_sub(within.as_nanos() as u64)))
}

/// Publishes what a manager and its tiers count, for one pool.
pub struct ManagerPublisher {
    pool: String,
    manager: Publisher<Stats>,
    tiers: Vec<(Publisher<TierReport>, Publisher<TierStats>)>,
}

impl ManagerPublisher {
    /// A publisher that has published nothing.
    pub fn new(pool: &str) -> Self {
        Self { pool: pool.to_owned(), manager: Publisher::new(&TABLE, &[("pool", pool)]), tiers: Vec::new() }
    }

    /// Tells the recorder in force. For one manager: the tiers are those of the first call.
    pub fn publish(&mut self, stats: &Stats) {
        self.manager.publish(stats);
        for report in stats.tiers.iter().skip(self.tiers.len()) {
            let labels = [("pool", self.pool.as_str()), ("tier", report.name.as_str())];
            self.tiers
                .push((Publisher::new(&TIER_TABLE, &labels), Publisher::new(&terrace_tiers::metrics::TABLE, &labels)));
        }
        for ((report, tier), stats) in self.tiers.iter_mut().zip(&stats.tiers) {
            report.publish(stats);
            tier.publish(&stats.tier);
        }
    }
}

/// Names with labels, as in `docs/metrics.md` less the label `pool`, and values.
pub fn flatten(stats: &Stats, out: &mut Vec<(String, f64)>) {
    TABLE.flatten(&[], stats, out);
    for report in &stats.tiers {
        let labels = [("tier", report.name.as_str())];
        TIER_TABLE.flatten(&labels, report, out);
        terrace_tiers::metrics::TABLE.flatten(&labels, &report.tier, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_follows_from_the_deadline() {
        let within = Duration::from_secs(5);
        let deadline = Time(1_000).plus(within);
        assert_eq!(since_start(deadline, within, Time(1_700)), Duration::from_nanos(700));
        assert_eq!(since_start(deadline, within, Time(900)), Duration::ZERO);
    }
}
