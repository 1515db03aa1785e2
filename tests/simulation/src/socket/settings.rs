//! What a seed decides once.

use std::time::Duration;

use crate::rng::Rng;

/// The settings of one seed. Rates are per mille of steps.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Of the daemon: its configuration and its disks; each namespace has disks like these of its own.
    pub disks: crate::settings::Settings,
    /// Engines, each with a name of its own.
    pub engines: usize,
    /// Engines that use the product's client.
    pub clients: usize,
    /// In which a connection carries nothing.
    pub delay_per_mille: u32,
    /// In which a connection breaks.
    pub cut_per_mille: u32,
    /// In which a process dies.
    pub death_per_mille: u32,
    /// In which a session begins to ask and not to read.
    pub stall_per_mille: u32,
    /// In which the daemon begins to hear nothing of a client.
    pub unheard_per_mille: u32,
    /// In which a request is given up.
    pub abort_per_mille: u32,
    /// Of copies.
    pub fail_per_mille: u32,
    /// In which a session breaks a rule.
    pub misuse_per_mille: u32,
    /// In which a copier does nothing.
    pub idle_per_mille: u32,
    /// Processes whose end nobody tells.
    pub unseen_per_mille: u32,
    /// Sessions that look for blocks in the daemon's table themselves, of 1000.
    pub readers_per_mille: u32,
    /// In which the memory of a pool is backed.
    pub backing: Duration,
    /// Of its slots, that are backed in the end.
    pub backed_per_mille: u32,
}

impl Settings {
    /// Draws everything. Without `faults` nothing goes wrong and nothing dies.
    pub fn draw(rng: &mut Rng, faults: bool) -> Self {
        let mut disks = crate::settings::Settings::draw(rng, faults);
        let config = &mut disks.config;
        config.geometry.groups = 1;
        config.primary.blocks = config.primary.blocks.max(6);
        config.server.session_share = [0.34, 0.5, 1.0][rng.index(3)];
        config.server.message_bytes = 1 << 20;
        config.server.jobs_per_session = [16, 64, 1024][rng.index(3)];
        config.server.pools = 1;
        disks.namespaces = rng.between(1, 2) as u8;
        let rate = |rng: &mut Rng, rates: [u32; 4]| if faults { rates[rng.index(4)] } else { 0 };
        Self {
            disks,
            engines: rng.between(1, 4) as usize,
            delay_per_mille: [0, 50, 200, 600][rng.index(4)],
            cut_per_mille: rate(rng, [0, 1, 3, 10]),
            death_per_mille: rate(rng, [0, 1, 3, 8]),
            stall_per_mille: rate(rng, [0, 0, 1, 3]),
            abort_per_mille: rate(rng, [0, 2, 5, 20]),
            fail_per_mille: rate(rng, [0, 2, 10, 50]),
            misuse_per_mille: rate(rng, [0, 2, 10, 30]),
            idle_per_mille: [50, 200, 400, 700][rng.index(4)],
            unseen_per_mille: [0, 0, 200, 1000][rng.index(4)],
            clients: [0, 1, 1, 2][rng.index(4)],
            unheard_per_mille: rate(rng, [0, 2, 10, 30]),
            readers_per_mille: [0, 500, 1000][rng.index(3)],
            backing: Duration::from_millis([0, 0, 30, 1_000, 20_000][rng.index(5)]),
            backed_per_mille: if faults && rng.chance(125) { rng.between(300, 999) as u32 } else { 1000 },
        }
    }

    /// Nothing goes wrong from now on.
    pub fn heal(&mut self) {
        let disks = &mut self.disks;
        (disks.crash_per_mille, disks.restart_per_mille, disks.weather_per_mille) = (0, 0, 0);
        (self.delay_per_mille, self.cut_per_mille, self.death_per_mille, self.stall_per_mille) = (0, 0, 0, 0);
        (self.abort_per_mille, self.fail_per_mille, self.misuse_per_mille, self.unheard_per_mille) = (0, 0, 0, 0);
        self.idle_per_mille = 100;
    }
}
