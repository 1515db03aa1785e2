//! What happened over one run or many: a simulation in which nothing happens proves nothing.

use std::collections::BTreeMap;
use std::fmt;

use terrace_tiering::Stats;

use crate::disk::Kind;

/// Counters. They add up over lives and over seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Seeds.
    pub seeds: u64,
    /// Steps.
    pub steps: u64,
    /// Keys answered `Hit` when a lookup was resolved.
    pub hits: u64,
    /// Keys answered `Miss` when a lookup was resolved.
    pub misses: u64,
    /// Lookups that ended unresolved.
    pub unresolved: u64,
    /// Blocks that the engine loaded, checked when it began and when it ended.
    pub loaded: u64,
    /// Blocks found again after everything was healed and restarted.
    pub read_back: u64,
    /// Blocks evicted from the primary.
    pub evicted: u64,
    /// Processes killed.
    pub kills: u64,
    /// Power losses.
    pub power_losses: u64,
    /// Clean restarts.
    pub restarts: u64,
    /// Times that a directory's weather turned foul.
    pub foul_weather: u64,
    /// Stores given up, and files to be removed, whose process ended before the device had let go of them.
    pub abandoned: u64,
    /// Resets of the manager.
    pub resets: u64,
    /// Blocks promoted.
    pub promoted: u64,
    /// Promotions given up at their deadline.
    pub promotions_expired: u64,
    /// Blocks cascaded.
    pub cascaded: u64,
    /// Cascades given up at their deadline.
    pub cascades_expired: u64,
    /// Cascades dropped before they began.
    pub cascades_dropped: u64,
    /// Blocks evicted from the tier.
    pub tier_evicted: u64,
    /// Stores that took over a victim's file.
    pub recycled: u64,
    /// Copies that did not check out.
    pub corrupt: u64,
    /// Copies that were gone.
    pub vanished: u64,
    /// Operations that the device failed.
    pub io_errors: u64,
    /// Operations given up.
    pub expired: u64,
    /// Jobs that the tier refused.
    pub refused: u64,
    /// Times that a breaker opened.
    pub breaker_opened: u64,
    /// Most slots in limbo at a time.
    pub most_limbo: u64,
    /// Faults by kind.
    pub faults: BTreeMap<Kind, u64>,
    /// What only clusters count, faults of their buckets among them.
    pub others: BTreeMap<&'static str, u64>,
}

impl Counts {
    /// Adds what a manager counted over its life.
    pub(crate) fn add_life(&mut self, stats: &Stats) {
        for report in &stats.tiers {
            self.promoted += report.promotions.landed;
            self.promotions_expired += report.promotions.expired;
            self.cascaded += report.cascades.stored;
            self.cascades_expired += report.cascades.expired;
            self.cascades_dropped += report.cascades.dropped();
            self.tier_evicted += report.tier.evicted;
            self.recycled += report.tier.recycled;
            self.corrupt += report.tier.corrupt;
            self.vanished += report.tier.vanished;
            self.io_errors += report.tier.io_errors;
            self.expired += report.tier.expired;
            self.refused += report.tier.refused;
            self.breaker_opened += report.breaker_opened;
        }
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        for ((_, mine), (_, theirs)) in self.fields_mut().into_iter().zip(other.fields()) {
            *mine += theirs;
        }
        self.most_limbo = self.most_limbo.max(other.most_limbo);
        for (kind, times) in &other.faults {
            *self.faults.entry(*kind).or_default() += times;
        }
        for (name, count) in &other.others {
            *self.others.entry(name).or_default() += count;
        }
    }

    /// Crashes of both kinds.
    pub const fn crashes(&self) -> u64 {
        self.kills + self.power_losses
    }

    fn fields(&self) -> Vec<(&'static str, u64)> {
        self.clone().fields_mut().into_iter().map(|(name, value)| (name, *value)).collect()
    }

    fn fields_mut(&mut self) -> Vec<(&'static str, &mut u64)> {
        vec![
            ("seeds", &mut self.seeds),
            ("steps", &mut self.steps),
            ("hits", &mut self.hits),
            ("misses", &mut self.misses),
            ("unresolved", &mut self.unresolved),
            ("loaded", &mut self.loaded),
            ("read_back", &mut self.read_back),
            ("evicted", &mut self.evicted),
            ("kills", &mut self.kills),
            ("power_losses", &mut self.power_losses),
            ("restarts", &mut self.restarts),
            ("foul_weather", &mut self.foul_weather),
            ("abandoned", &mut self.abandoned),
            ("resets", &mut self.resets),
            ("promoted", &mut self.promoted),
            ("promotions_expired", &mut self.promotions_expired),
            ("cascaded", &mut self.cascaded),
            ("cascades_expired", &mut self.cascades_expired),
            ("cascades_dropped", &mut self.cascades_dropped),
            ("tier_evicted", &mut self.tier_evicted),
            ("recycled", &mut self.recycled),
            ("corrupt", &mut self.corrupt),
            ("vanished", &mut self.vanished),
            ("io_errors", &mut self.io_errors),
            ("expired", &mut self.expired),
            ("refused", &mut self.refused),
            ("breaker_opened", &mut self.breaker_opened),
        ]
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.fields() {
            writeln!(f, "{name:>20} {value}")?;
        }
        writeln!(f, "{:>20} {}", "most_limbo", self.most_limbo)?;
        writeln!(f, "faults:")?;
        for (kind, times) in &self.faults {
            writeln!(f, "{:>20} {times}", format!("{kind:?}"))?;
        }
        for (name, count) in &self.others {
            writeln!(f, "{name:>20} {count}")?;
        }
        Ok(())
    }
}
