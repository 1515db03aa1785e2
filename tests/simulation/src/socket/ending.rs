//! How a run ends: engines gone, nothing held; and what was stored is found by those who come after.

use std::collections::BTreeMap;
use std::time::Duration;

use super::client::Client;
use super::engine::Engine;
use super::world::World;
use crate::disk::{Crash, Kind};
use crate::failure::Reason;

/// Steps in which clients end what they have begun.
const STEPS_TO_REST: u32 = 5_000;
/// Seconds after which nothing may be held for a client that has nothing left to do: longer than the daemon keeps leases
/// of a lost connection.
const REST_OF_CLIENTS: u32 = 75;
/// Steps of the engines that come after the last restart.
const LAST_STEPS: u32 = 80;

impl World {
    /// Everything heals, every engine ends, and every deadline passes: then nothing may be left.
    pub fn come_to_rest(&mut self) -> Result<(), Reason> {
        let release = self.common.rng.chance(500);
        self.below.borrow().iter().for_each(|below| below.disk.heal(release));
        self.common.settings.heal();
        for engine in &mut self.engines {
            engine.die(&mut self.common);
            engine.ranks.iter_mut().for_each(|rank| rank.die(&mut self.common));
            engine.is_over = true;
        }
        self.clients.iter_mut().for_each(|client| client.is_over = true);
        for _ in 0..STEPS_TO_REST {
            if self.clients.iter().all(Client::is_idle) {
                break;
            }
            self.idle(Duration::from_millis(5))?;
        }
        for _ in 0..if self.clients.is_empty() { 0 } else { REST_OF_CLIENTS } {
            self.idle(Duration::from_secs(1))?;
        }
        for client in &mut self.clients {
            client.check_at_rest()?;
            client.die(&mut self.common);
        }
        // Longer than every deadline; then as long as cascades wait for a tier that does not know its files yet.
        for second in 0..600 {
            self.idle(Duration::from_secs(1))?;
            if second > 60 && !self.server.borrow().pools().any(|pool| pool.manager().has_pending_work()) {
                break;
            }
        }
        self.check_quiet()
    }

    /// A restart on healed disks, and engines that ask for what was stored.
    pub fn read_back(&mut self) -> Result<(), Reason> {
        self.end_daemon(None);
        let before = self.common.counts.loaded;
        let engines =
            self.engines.iter().map(|engine| Engine::new(engine.number, engine.namespace, engine.ranks.len() as u32));
        self.engines = engines.collect();
        self.clients = self.clients.iter().map(|client| Client::new(client.number, client.namespace)).collect();
        for _ in 0..LAST_STEPS {
            self.idle(Duration::from_millis(5))?;
        }
        self.common.counts.read_back += self.common.counts.loaded - before;
        self.come_to_rest()
    }

    /// How often each fault of the disks struck.
    pub fn faults_struck(&self) -> BTreeMap<Kind, u64> {
        let mut all = BTreeMap::new();
        for below in self.below.borrow().iter() {
            for (kind, times) in below.disk.faults_struck().filter(|(_, times)| *times > 0) {
                *all.entry(kind).or_default() += times;
            }
        }
        all
    }

    /// Lets go of the daemon as a killed process' memory is: its operations touch nothing any more.
    pub fn let_go(self) {
        self.below.borrow().iter().for_each(|below| below.disk.crash(Crash::Kill));
        drop(self.clients);
        drop(self.server);
    }
}
