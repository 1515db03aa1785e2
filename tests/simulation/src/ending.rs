//! How a run ends: at rest, restarted, and read back.

use std::time::Duration;

use terrace_tiering::{Lookup, LookupMode, RequestContext, RequestId, TierFilter};

use crate::engine::Phase;
use crate::failure::Reason;
use crate::world::{End, World};

impl World {
    /// Ends every request, heals the disk, and lets every deadline pass: then nothing may be left.
    pub(crate) fn come_to_rest(&mut self) -> Result<(), Reason> {
        let release = self.rng.chance(500);
        self.disk.heal(release);
        while let Some(id) = self.requests.keys().next().copied() {
            if let Some(mut request) = self.requests.remove(&id) {
                if !request.finished {
                    self.finish(id, &mut request)?;
                }
                if matches!(request.phase, Phase::Loading { .. } | Phase::Storing { .. }) {
                    self.requests.insert(id, request);
                    self.advance_request(id)?;
                }
            }
        }
        // Longer than every deadline; then as long as cascades wait for a tier that does not know its files yet.
        for second in 0..600 {
            self.clock.advance(Duration::from_secs(1));
            self.disk.run();
            self.end_step()?;
            if second > 60 && !self.life.manager.has_pending_work() {
                break;
            }
        }
        self.check_quiet()
    }

    /// A restart on a healed disk with every file scanned: the capacity holds to the byte, and what is found has the right
    /// bytes.
    pub(crate) fn read_back(&mut self) -> Result<(), Reason> {
        if self.settings.catalog {
            self.restart_with_catalog()?;
        }
        self.catalog.lose();
        self.end_life(End::Shutdown);
        self.settle()?;
        self.check_capacity(0)?;
        let found = self.look_up_all()?;
        self.counts.read_back += found;
        self.come_to_rest()
    }

    /// With its catalog the tier knows its files after a clean stop too, but for what nobody told it.
    fn restart_with_catalog(&mut self) -> Result<(), Reason> {
        self.keep_catalog = true;
        self.end_life(End::Shutdown);
        self.keep_catalog = false;
        self.settle()?;
        let untold: u64 = self.disk.faults_struck().filter(|(kind, _)| kind.is_untold()).map(|(_, times)| times).sum();
        self.check_capacity((untold + self.disk.denied()) * self.file_bytes)?;
        self.look_up_all()?;
        self.come_to_rest()
    }

    /// Waits until the tier knows its files and has trimmed them.
    pub(crate) fn settle(&mut self) -> Result<(), Reason> {
        // One file a step at the least, then some steps to trim.
        for _ in 0..400 {
            self.clock.advance(Duration::from_millis(10));
            self.disk.run();
            self.life.manager.end_step();
        }
        if !self.life.tier.lock().is_known() {
            return Err(Reason::Unresolved(
                "the tier does not know its files 4 s after its start on a healed disk".into(),
            ));
        }
        self.life.inherited_bytes = 0;
        self.life.least_bytes = 0;
        Ok(())
    }

    /// Looks every block up that was ever stored in this namespace; how many were found.
    pub(crate) fn look_up_all(&mut self) -> Result<u64, Reason> {
        let mut found = 0;
        for key in self.model.all_stored(self.life.namespace) {
            let id = RequestId(self.next_request);
            self.next_request += 1;
            let begun = self.life.manager.begin_request(RequestContext { id, tiers: TierFilter::ALL });
            begun.map_err(|error| Reason::Contract(format!("begin_request: {error}")))?;
            let mut answers = Vec::new();
            for _ in 0..1000 {
                let looked = self.life.manager.lookup(id, &[key], LookupMode::Each, &mut answers);
                looked.map_err(|error| Reason::Contract(format!("lookup: {error}")))?;
                if !answers.iter().any(|answer| answer.is_unresolved()) {
                    break;
                }
                self.clock.advance(Duration::from_millis(5));
                self.disk.run();
                self.end_step()?;
            }
            match answers.first() {
                Some(Lookup::Hit) => {
                    self.check_hit(&key)?;
                    found += 1;
                }
                Some(Lookup::Miss) => {}
                _ => return Err(Reason::Unresolved(format!("{key} after 5 s on a healed disk"))),
            }
            self.life.manager.finish_request(id);
        }
        Ok(found)
    }
}
