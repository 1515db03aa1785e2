//! How a run ends: at rest, restarted, and what was stored is used again.

use std::time::Duration;

use terrace_connector::SchedulerHalf;

use super::requests::State;
use super::world::World;
use crate::disk::Crash;
use crate::failure::Reason;
use crate::world::End;

/// Steps after the last restart.
const LAST_STEPS: u32 = 60;

impl World {
    /// Ends every request, heals everything, and lets every deadline pass: then nothing may be left.
    pub(crate) fn come_to_rest(&mut self) -> Result<(), Reason> {
        let release = self.rng.chance(500);
        self.disk.heal(release);
        self.settings.heal();
        self.life.copies.heal();
        if self.life.copies.hangs() {
            // It never ends, and nobody but its process' end frees what it holds.
            self.end_life(End::Crash(Crash::Kill));
        }
        for id in self.requests.keys().copied().collect::<Vec<_>>() {
            if self.requests.get(&id).is_some_and(|request| request.state != State::Held) {
                self.end(id)?;
            }
        }
        // Longer than every deadline; then as long as cascades wait for a tier that does not know its files yet.
        for second in 0..600 {
            self.idle(Duration::from_secs(1))?;
            if second > 60 && !self.life.connector.has_pending_work() {
                break;
            }
        }
        self.check_quiet()
    }

    /// A restart on healed disks: requests that come again load what was stored.
    pub(crate) fn read_back(&mut self) -> Result<(), Reason> {
        self.end_life(End::Shutdown);
        let before = self.counts.loaded;
        for _ in 0..LAST_STEPS {
            self.arrive()?;
            self.idle(Duration::from_millis(5))?;
        }
        self.counts.read_back += self.counts.loaded - before;
        self.come_to_rest()
    }
}
