//! What must hold after every step, and when all is over.

use terrace_connector::SchedulerHalf;
use terrace_primary::{BlockState, SlotId};

use super::content::Wrong;
use super::world::World;
use crate::failure::Reason;

impl World {
    /// Everything that holds between two steps.
    pub(crate) fn check(&mut self) -> Result<(), Reason> {
        let connector = &mut self.life.connector;
        connector.take_events(&mut Vec::new());
        if let Some(run) = self.life.copies.outside() {
            return Err(Reason::Contract(format!("a copy reaches outside: {run}")));
        }
        let stats = connector.manager().stats();
        if stats.tiers.iter().any(|tier| tier.panicked) {
            return Err(Reason::Panic("inside the tier".into()));
        }
        let (unexpected, refused) = (connector.counters().inconsistencies, stats.completions_refused);
        if unexpected + refused > 0 {
            return Err(Reason::Contract(format!("{unexpected} inconsistencies, {refused} completions refused")));
        }
        self.life.tier.lock().check().map_err(Reason::Invariant)?;
        connector.manager().check().map_err(Reason::Invariant)?;
        self.check_slots()?;
        self.life.tier.held().check(&self.settings.disks.config, self.stepped)
    }

    /// Every readable slot has the bytes of its key, which some engine of this namespace has computed.
    fn check_slots(&mut self) -> Result<(), Reason> {
        let primary = self.life.connector.manager().primary();
        for slot in (0..self.settings.disks.config.primary.blocks).map(SlotId) {
            let (BlockState::Ready { .. }, Some(key)) = (primary.state(slot), primary.key(slot)) else { continue };
            match self.content.check_slot(self.life.namespace, &self.life.region, slot, &key) {
                Ok(()) => {}
                Err(Wrong::NeverComputed) => return Err(Reason::NeverStored(format!("{key} in {slot:?}"))),
                Err(Wrong::Bytes { place }) => {
                    return Err(Reason::WrongBytes(format!("{key} in {slot:?}, at place {place} of the chunk")));
                }
            }
        }
        Ok(())
    }

    /// Nothing is left when every request has ended and every deadline has passed.
    pub(crate) fn check_quiet(&self) -> Result<(), Reason> {
        let connector = &self.life.connector;
        let (transfers, requests) = (connector.transfers_in_flight(), connector.requests_open());
        let stats = connector.manager().stats();
        let held = (stats.readers, stats.writing, stats.holds, stats.requests);
        if transfers + requests + self.life.copies.in_flight() > 0 || held != (0, 0, 0, 0) {
            return Err(Reason::Leak(format!(
                "{transfers} transfers, {requests} requests, readers, writing slots, holds, requests: {held:?}"
            )));
        }
        let (limbo, device) = (connector.manager().primary().limbo(), self.disk.reads_held());
        if limbo as usize > device {
            return Err(Reason::Leak(format!("{limbo} slots in limbo, the device holds {device} reads")));
        }
        for tier in stats.tiers {
            if tier.promotions.queued + tier.promotions.running + tier.cascades.running > 0 {
                return Err(Reason::Leak(format!("{tier:?}")));
            }
        }
        if self.gpu.free() != self.settings.gpu_blocks as usize {
            return Err(Reason::Leak(format!(
                "{} of {} GPU blocks are free",
                self.gpu.free(),
                self.settings.gpu_blocks
            )));
        }
        Ok(())
    }
}
