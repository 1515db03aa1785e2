//! What all of a world's engines share.

use std::collections::BTreeMap;

use terrace_tiers::{Clock, ManualClock, Time};

use super::settings::Settings;
use crate::counts::Counts;
use crate::model::Model;
use crate::rng::Rng;
use crate::trace::SharedTrace;

/// Chance, time, and what is known.
pub(crate) struct Common {
    pub settings: Settings,
    pub rng: Rng,
    pub trace: SharedTrace,
    pub clock: ManualClock,
    pub model: Model,
    pub counts: Counts,
    /// When a reset of a namespace may have been served last.
    resets: BTreeMap<u8, Time>,
    next_pid: i32,
}

impl Common {
    pub fn new(settings: Settings, rng: Rng, trace: SharedTrace) -> Self {
        let geometry = settings.disks.config.geometry;
        let model = Model::new(geometry.block_bytes, geometry.hash_bytes);
        let (clock, counts) = (ManualClock::default(), Counts::default());
        Self { settings, rng, trace, clock, model, counts, resets: BTreeMap::new(), next_pid: 1 }
    }

    /// Counts something.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.others.entry(what).or_default() += 1;
    }

    /// A reset of this namespace may be served now: every wait begins anew.
    pub fn may_reset(&mut self, namespace: u8) {
        self.resets.insert(namespace, self.clock.now());
    }

    /// Whether none was served since.
    pub fn is_unreset_since(&self, namespace: u8, time: Time) -> bool {
        self.resets.get(&namespace).is_none_or(|reset| *reset < time)
    }

    /// The number of a new process.
    pub const fn pid(&mut self) -> i32 {
        self.next_pid += 1;
        self.next_pid
    }
}
