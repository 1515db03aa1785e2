//! What must hold after every step, and at the end.

use std::collections::BTreeSet;

use terrace_primary::{BlockState, Key, SlotId};
use terrace_tiering::Event;
use terrace_tiers::{Clock, Medium, SecondaryTier};

use crate::disk::Kind;
use crate::failure::Reason;
use crate::world::World;

impl World {
    /// The bytes of a slot are those of the key.
    fn check_bytes(&mut self, key: &Key, slot: SlotId) -> Result<(), Reason> {
        if !self.model.was_stored(self.life.namespace, key) {
            return Err(Reason::NeverStored(format!("{key} in {slot:?}")));
        }
        let content = self.model.content(self.life.namespace, key);
        self.buffer.resize(content.len(), 0);
        if !self.region.read_slot(slot, &mut self.buffer) {
            return Err(Reason::Contract(format!("{slot:?} is not in the region")));
        }
        if self.buffer == content {
            return Ok(());
        }
        let at = self.buffer.iter().zip(content).position(|(is, must)| is != must).unwrap_or(0);
        Err(Reason::WrongBytes(format!("{key} in {slot:?}, from byte {at} on")))
    }

    /// A key that was answered `Hit`.
    pub(crate) fn check_hit(&mut self, key: &Key) -> Result<(), Reason> {
        let primary = self.life.manager.primary();
        let ready = primary.find(key).filter(|slot| matches!(primary.state(*slot), BlockState::Ready { .. }));
        match ready {
            Some(slot) => self.check_bytes(key, slot),
            None => Err(Reason::Contract(format!("{key} is a Hit and not readable"))),
        }
    }

    /// Slots that the engine was told to read.
    pub(crate) fn check_slots(&mut self, keys: &[Key], slots: &[SlotId]) -> Result<(), Reason> {
        keys.iter().zip(slots).try_for_each(|(key, slot)| self.check_bytes(key, *slot))
    }

    /// Everything that holds between two steps.
    pub(crate) fn check(&mut self) -> Result<(), Reason> {
        self.life.manager.check().map_err(Reason::Invariant)?;
        let mut readable = BTreeSet::new();
        for slot in (0..self.settings.config.primary.blocks).map(SlotId) {
            let primary = self.life.manager.primary();
            if let (BlockState::Ready { .. }, Some(key)) = (primary.state(slot), primary.key(slot)) {
                self.check_bytes(&key, slot)?;
                readable.insert(key);
            }
        }
        self.check_events(&readable)?;
        self.check_publication()?;
        self.check_pinned()?;
        self.check_capacity(self.slack_bytes())
    }

    /// Under its final name a file is whole, and what the tier says it has is there: where the device tells the truth and the
    /// power stays on, whenever a process is killed. But a store that was given up may be published with any bytes by a process
    /// that dies before it can remove it, or that the disk does not let remove it; and what a catalog tells of an unclean life, or a scan
    /// behind normal work, may be gone.
    fn check_publication(&self) -> Result<(), Reason> {
        if self.counts.power_losses > 0 || !self.settings.faults.are_honest() {
            return Ok(());
        }
        let damaged = self.counts.corrupt + self.life.tier.lock().stats().corrupt;
        if damaged > self.counts.abandoned + self.disk.removals_failed() {
            return Err(Reason::Contract(format!("{damaged} damaged copies on an honest disk")));
        }
        let missing = self.disk.reads_of_nothing();
        let late = self.scan_was_late || self.life.scan_is_late;
        // A store that is given up after it replaced a block's own file takes that file with it.
        let given_up = self.counts.expired + self.life.tier.lock().stats().expired;
        if missing > given_up && !late && !self.settings.catalog && self.disk.denied() == 0 {
            return Err(Reason::Contract(format!("{missing} copies missing on an honest disk")));
        }
        Ok(())
    }

    /// However sick the tier is, what it holds of the primary is no more than the configured shares, and is let go of at the
    /// deadlines; but for slots that an abandoned load may still write into, which are within the share of promotions.
    fn check_pinned(&self) -> Result<(), Reason> {
        self.life.tier.held().check(&self.settings.config, self.clock.now())
    }

    /// Who follows the events knows what is readable in the primary.
    fn check_events(&mut self, readable: &BTreeSet<Key>) -> Result<(), Reason> {
        let mut events = Vec::new();
        self.life.manager.take_events(&mut events);
        for event in events {
            match event {
                Event::BlockStored { key, medium: Medium::Cpu, .. } => {
                    self.life.told.insert(key);
                }
                Event::BlockRemoved { key, medium: Medium::Cpu, .. } => {
                    self.life.told.remove(&key);
                }
                Event::AllBlocksCleared => {
                    self.life.told.clear();
                    self.life.reset_pending = true;
                }
                Event::BlockStored { key, .. } if !self.model.was_stored(self.life.namespace, &key) => {
                    return Err(Reason::NeverStored(format!("{key} is said to be in a tier")));
                }
                Event::BlockStored { .. } | Event::BlockRemoved { .. } => {}
            }
        }
        // A memory tier's events look like the primary's.
        if self.settings.config.tiers.len() > 1 {
            return Ok(());
        }
        // After a reset blocks that the engine reads stay until it is done, and nobody finds them.
        self.life.reset_pending &= !readable.is_subset(&self.life.told);
        if self.life.told.is_subset(readable) && (self.life.reset_pending || readable.is_subset(&self.life.told)) {
            return Ok(());
        }
        let difference: Vec<_> = self.life.told.symmetric_difference(readable).collect();
        Err(Reason::Contract(format!("events and the primary differ in {difference:?}")))
    }

    /// What may be on the disk beyond the capacity for a while: each fault can leave one file that nobody counts until the
    /// next start looks, the victim of a store that failed goes a little later than the store, and a scan that is taken for hung or cannot list everything leaves what earlier lives wrote.
    fn slack_bytes(&self) -> u64 {
        let faults = self.disk.failures() - self.life.old_faults;
        let unlisted = self.disk.faults_struck().any(|(kind, times)| kind == Kind::FolderError && times > 0);
        let unscanned = unlisted || self.life.scan_is_late || self.counts.foul_weather > 0;
        let files = faults + self.disk.removals_held() + self.life.unseen_files;
        let inherited_bytes = if unscanned { self.life.inherited_bytes } else { 0 };
        files * self.file_bytes + inherited_bytes
    }

    /// The files take no more than the capacity and `slack_bytes`; quarantine has a bound of its own. A life that began with more is trimmed
    /// bit by bit, and never gets more again.
    pub(crate) fn check_capacity(&mut self, slack_bytes: u64) -> Result<(), Reason> {
        let used = self.disk.used().bytes;
        let counted = self.life.tier.lock().stats().allocated_bytes;
        let capacity = self.life.capacity_bytes.max(self.life.least_bytes) + slack_bytes;
        self.life.least_bytes = self.life.least_bytes.min(used.max(counted));
        if used > capacity {
            self.disk.trace_files();
            let keys = self.model.all_stored(self.life.namespace);
            let mut known = Vec::new();
            self.life.tier.lock().lookup(&keys, &mut known);
            for (key, found) in keys.iter().zip(known) {
                self.trace.add(format_args!("the tier says of {key}: {found:?}"));
            }
            return Err(Reason::Capacity(format!(
                "{used} bytes in files, {capacity} allowed, the tier counts {counted}"
            )));
        }
        Ok(())
    }

    /// Nothing is left when every request is finished and every deadline has passed.
    pub(crate) fn check_quiet(&self) -> Result<(), Reason> {
        let primary = self.life.manager.primary();
        let (readers, writing, limbo) = (primary.readers(), primary.writing(), primary.limbo());
        if readers > 0 || writing > 0 {
            return Err(Reason::Leak(format!("{readers} readers, {writing} writing slots")));
        }
        let held = self.disk.reads_held();
        if limbo as usize > held {
            return Err(Reason::Leak(format!("{limbo} slots in limbo, the device holds {held} reads")));
        }
        for tier in self.life.manager.stats().tiers {
            let jobs = tier.promotions.queued + tier.promotions.running + tier.cascades.running;
            if jobs > 0 {
                return Err(Reason::Leak(format!("{tier:?}")));
            }
        }
        Ok(())
    }
}
