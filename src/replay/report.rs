//! What a replay found, for people and for programs.

use std::time::Duration;

use serde::Serialize;
use terrace_tiering::BreakerState;

use super::engine::Engine;
use super::stack::Socket;
use super::waits::WaitTimes;

/// The report. Blocks are block references of the trace, unless the name of a tier stands before them.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub requests: u64,
    pub blocks_looked_up: u64,
    pub hits: Hits,
    pub misses: u64,
    pub block_hit_ratio: f64,
    pub bytes: Bytes,
    pub wrong_blocks: u64,
    pub retries: u64,
    pub dropped_cascades: u64,
    pub evicted: Evicted,
    pub wall_s: f64,
    /// Until the last request ended: without the time in which tiers finish what they have begun.
    pub served_s: f64,
    /// From a request's arrival in the engine to the end of its prompt, milliseconds: what a first token would have waited, its
    /// computation left out.
    pub first_token_ms: WaitTimes,
    pub steps: u64,
    pub lookup_ns_per_key: f64,
    pub preemptions: u64,
    pub failed_loads: u64,
    pub recomputed_blocks: u64,
    pub truncated_blocks: u64,
    pub unexpected: u64,
    pub leaks: Leaks,
    pub tiers: Vec<Tier>,
    /// Through a daemon: what the socket cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<SocketUse>,
}

/// What the socket cost, and how often a request was asked for.
#[derive(Clone, Debug, Serialize)]
pub struct SocketUse {
    /// Waiting requests, counted in each step.
    pub requests_and_steps: u64,
    /// Lookups over the socket for each of these: 1 at most.
    pub lookups_per_request_and_step: f64,
    #[serde(flatten)]
    pub socket: Socket,
}

/// Where hits came from.
#[derive(Clone, Debug, Serialize)]
pub struct Hits {
    pub gpu: u64,
    pub primary: u64,
    /// All secondary tiers.
    pub nvme: u64,
}

/// Payload bytes moved.
#[derive(Clone, Debug, Serialize)]
pub struct Bytes {
    pub stored: u64,
    pub loaded: u64,
    pub cascaded: u64,
    pub promoted: u64,
}

/// Blocks evicted.
#[derive(Clone, Debug, Serialize)]
pub struct Evicted {
    pub primary: u64,
    pub nvme: u64,
}

/// What was left when all was done; anything but zero is a fault.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Leaks {
    pub readers: u64,
    pub writing: u64,
    pub limbo: u64,
    pub jobs: u64,
}

impl Leaks {
    /// Whether something was left.
    pub const fn any(self) -> bool {
        self.readers + self.writing + self.limbo + self.jobs > 0
    }
}

/// One secondary tier.
#[derive(Clone, Debug, Serialize)]
pub struct Tier {
    pub name: String,
    pub breaker: &'static str,
    pub blocks: u64,
    pub allocated_bytes: u64,
    pub capacity_bytes: u64,
    pub stored: u64,
    pub loaded: u64,
    pub evicted: u64,
    pub recycled: u64,
    pub corrupt: u64,
    pub vanished: u64,
    pub io_errors: u64,
    pub expired: u64,
    pub refused: u64,
    pub promotions_failed: u64,
    pub promotions_expired: u64,
}

impl Report {
    /// What `engine` found in `wall`, everything being done.
    pub fn new(engine: &Engine, gpu_block_bytes: u64, wall: Duration) -> Self {
        let counts = &engine.counts;
        let connector = engine.connector();
        let (stats, transfers) = (connector.stats(), connector.counters());
        let tiers: Vec<_> = stats.tiers.iter().map(Tier::new).collect();
        // Loaded blocks are told by tier; hits of requests are shared out in that proportion, exactly where a loaded block is one
        // block of the trace.
        let from_below: u64 = stats.loaded_by_tier.iter().sum();
        let loaded = stats.loaded_primary + from_below;
        let nvme = (counts.hits_external as f64 * from_below as f64 / loaded.max(1) as f64).round() as u64;
        let hits = Hits { gpu: counts.hits_gpu, primary: counts.hits_external - nvme, nvme };
        let all_hits = counts.hits_gpu + counts.hits_external;
        let sum = |value: fn(&terrace_tiers::TierStats) -> u64| stats.tiers.iter().map(|tier| value(&tier.tier)).sum();
        let running = stats.tiers.iter().map(|tier| {
            let (promotions, cascades) = (&tier.promotions, &tier.cascades);
            promotions.queued + promotions.running + cascades.queued + cascades.running + tier.tier.in_flight
        });
        Self {
            requests: counts.requests,
            blocks_looked_up: counts.blocks_looked_up,
            misses: counts.blocks_looked_up - all_hits,
            block_hit_ratio: all_hits as f64 / counts.blocks_looked_up.max(1) as f64,
            hits,
            bytes: Bytes {
                stored: transfers.stored_blocks * gpu_block_bytes,
                loaded: transfers.loaded_blocks * gpu_block_bytes,
                cascaded: sum(|tier| tier.stored_bytes),
                promoted: sum(|tier| tier.loaded_bytes),
            },
            wrong_blocks: counts.wrong_blocks,
            retries: counts.retries,
            dropped_cascades: stats.dropped_cascades(),
            evicted: Evicted { primary: stats.evicted, nvme: sum(|tier| tier.evicted) },
            wall_s: wall.as_secs_f64(),
            served_s: engine.served.as_secs_f64(),
            first_token_ms: engine.waits.times(),
            steps: counts.steps,
            lookup_ns_per_key: counts.lookup_ns as f64 / counts.keys_asked.max(1) as f64,
            preemptions: counts.preemptions,
            failed_loads: counts.failed_loads,
            recomputed_blocks: counts.recomputed_blocks,
            truncated_blocks: counts.truncated_blocks,
            unexpected: transfers.inconsistencies + stats.tiers.iter().map(|tier| tier.protocol_faults).sum::<u64>(),
            leaks: Leaks {
                readers: stats.readers,
                writing: stats.writing,
                limbo: stats.limbo,
                jobs: running.sum::<u64>() + connector.transfers_in_flight() as u64,
            },
            tiers,
            socket: connector.socket().map(|socket| SocketUse {
                requests_and_steps: counts.lookup_calls,
                lookups_per_request_and_step: socket.lookups as f64 / counts.lookup_calls.max(1) as f64,
                socket,
            }),
        }
    }

    /// Whether something happened that must never happen.
    pub const fn is_faulty(&self) -> bool {
        self.wrong_blocks > 0 || self.leaks.any() || self.unexpected > 0
    }

    /// Prints a table for people.
    pub fn print_table(&self) {
        let percent = |blocks: u64| 100.0 * blocks as f64 / self.blocks_looked_up.max(1) as f64;
        let rate = |bytes: u64| bytes as f64 / self.wall_s.max(1e-9) / 1e6;
        println!("requests        {:>12}   in {:.1} s, {} steps", self.requests, self.wall_s, self.steps);
        println!("blocks asked    {:>12}", self.blocks_looked_up);
        for (name, blocks) in [
            ("hits in GPU", self.hits.gpu),
            ("hits in primary", self.hits.primary),
            ("hits below", self.hits.nvme),
            ("misses", self.misses),
        ] {
            println!("{name:<15} {blocks:>12}   {:>6.2} %", percent(blocks));
        }
        for (name, bytes) in [
            ("stored", self.bytes.stored),
            ("loaded", self.bytes.loaded),
            ("cascaded", self.bytes.cascaded),
            ("promoted", self.bytes.promoted),
        ] {
            println!("{name:<15} {:>9.1} MB   {:>6.0} MB/s", bytes as f64 / 1e6, rate(bytes));
        }
        println!("evicted         {:>12}   in primary, {} below", self.evicted.primary, self.evicted.nvme);
        println!("lookup          {:>9.1} ns   a key; {} asked again", self.lookup_ns_per_key, self.retries);
        println!("preempted       {:>12}   requests", self.preemptions);
        println!("dropped         {:>12}   cascades", self.dropped_cascades);
        println!("failed loads    {:>12}   {} blocks computed instead", self.failed_loads, self.recomputed_blocks);
        for tier in &self.tiers {
            println!(
                "tier {:<10} {:>12} blocks, {:.1} of {:.1} MB; corrupt {}, vanished {}, I/O errors {}, expired {}; breaker {}",
                tier.name,
                tier.blocks,
                tier.allocated_bytes as f64 / 1e6,
                tier.capacity_bytes as f64 / 1e6,
                tier.corrupt,
                tier.vanished,
                tier.io_errors,
                tier.expired,
                tier.breaker
            );
        }
        if let Some(SocketUse { lookups_per_request_and_step, socket, .. }) = &self.socket {
            println!(
                "socket          {:>12}   round trips; {lookups_per_request_and_step:.2} lookups a request and step, {} more without one, {} leases refused",
                socket.round_trips, socket.lookups_seen, socket.leases_refused
            );
            println!(
                "                {:>12}   timeouts, {} calls that did not wait, {} reconnects, {} stores dropped",
                socket.timeouts, socket.stalled_calls, socket.reconnects, socket.dropped_stores
            );
        }
        let Leaks { readers, writing, limbo, jobs } = self.leaks;
        println!("left behind     {readers} readers, {writing} writing, {limbo} limbo, {jobs} jobs");
        println!("wrong blocks    {:>12}", self.wrong_blocks);
    }
}

impl Tier {
    fn new(report: &terrace_tiering::TierReport) -> Self {
        let stats = &report.tier;
        Self {
            name: report.name.clone(),
            breaker: match report.breaker {
                BreakerState::Closed => "closed",
                BreakerState::Open => "open",
                BreakerState::HalfOpen => "half-open",
            },
            blocks: stats.blocks,
            allocated_bytes: stats.allocated_bytes,
            capacity_bytes: stats.capacity_bytes,
            stored: stats.stored,
            loaded: stats.loaded,
            evicted: stats.evicted,
            recycled: stats.recycled,
            corrupt: stats.corrupt,
            vanished: stats.vanished,
            io_errors: stats.io_errors,
            expired: stats.expired,
            refused: stats.refused,
            promotions_failed: report.promotions.failed,
            promotions_expired: report.promotions.expired,
        }
    }
}
