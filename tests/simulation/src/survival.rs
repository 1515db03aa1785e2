//! Liveness: on a disk that does what it is told, what was stored is found again, whatever ended the process.

use std::time::Duration;

use terrace_tiering::{RequestContext, RequestId, StorePlan, TierFilter};

use crate::counts::Counts;
use crate::disk::Crash;
use crate::failure::Reason;
use crate::rng::Rng;
use crate::settings::Settings;
use crate::trace::SharedTrace;
use crate::world::{End, World};

/// Stores more blocks than the primary has slots, lets each cascade, then reads all of them back: from the running process,
/// after a clean restart, after a kill, and after a power loss of what had been flushed. Gives what happened.
pub fn survive(seed: u64) -> Result<Counts, Reason> {
    let mut rng = Rng::new(seed);
    let mut settings = Settings::draw(&mut rng.fork("settings"), false);
    settings.config.admission.store_threshold = 1;
    settings.config.limits.queued_cascades = 1024;
    settings.namespaces = 1;
    let blocks = 2 * u64::from(settings.config.primary.blocks) + 5;
    settings.nvme_mut().capacity_bytes = 2 * blocks * u64::from(settings.config.geometry.slot_stride() + 4096);
    let mut world = World::new(settings, rng.fork("world"), SharedTrace::new(false), true);
    world.settle()?;
    for depth in 0..blocks {
        world.store_block(depth)?;
    }
    world.find(blocks, "in the running process")?;
    world.end_life(End::Shutdown);
    world.settle()?;
    world.find(blocks, "after a clean restart")?;
    world.end_life(End::Crash(Crash::Kill));
    world.settle()?;
    world.find(blocks, "after a kill")?;
    world.disk.flush();
    world.end_life(End::Crash(Crash::PowerLoss));
    world.settle()?;
    world.find(blocks, "after a power loss")?;
    world.come_to_rest()?;
    let mut counts = std::mem::take(&mut world.counts);
    counts.add_life(&world.life.manager.stats());
    Ok(counts)
}

impl World {
    /// Stores one block and lets it cascade.
    fn store_block(&mut self, depth: u64) -> Result<(), Reason> {
        let contract = |what: &str, error: &dyn std::fmt::Display| Reason::Contract(format!("{what}: {error}"));
        let (id, key) = (RequestId(self.next_request), self.model.key(0, depth, 0, 0));
        self.next_request += 1;
        let manager = &mut self.life.manager;
        let begun = manager.begin_request(RequestContext { id, tiers: TierFilter::ALL });
        begun.map_err(|error| contract("begin_request", &error))?;
        let mut plan = StorePlan::default();
        let planned = manager.prepare_store(id, &[key], false, &mut plan);
        planned.map_err(|error| contract("prepare_store", &error))?;
        let Some(slot) = plan.slots.first() else { return Err(contract("prepare_store", &"no slot in a calm world")) };
        self.counts.evicted += plan.evicted.len() as u64;
        self.region.write_slot(*slot, self.model.content(self.life.namespace, &key));
        self.model.store(self.life.namespace, key);
        manager.complete_store(id, &[key], true).map_err(|error| contract("complete_store", &error))?;
        manager.finish_request(id);
        for _ in 0..1000 {
            self.clock.advance(Duration::from_millis(1));
            self.disk.run();
            self.end_step()?;
            if !self.life.manager.has_pending_work() {
                return Ok(());
            }
        }
        Err(Reason::Unresolved(format!("{key} did not cascade in a second")))
    }

    fn find(&mut self, blocks: u64, when: &str) -> Result<(), Reason> {
        match self.look_up_all()? {
            found if found == blocks => Ok(()),
            found => Err(Reason::Contract(format!("{found} of {blocks} blocks found {when}"))),
        }
    }
}
