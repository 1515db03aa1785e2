//! Virtual time: one time of the world, a monotonic clock and a wall clock for each life of a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use terrace_tiers::object::WallClock;
use terrace_tiers::{Clock, Time};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// Wall time at which worlds begin: 2020.
const EPOCH_MS: u64 = 1_577_836_800_000;

/// Milliseconds since 1970 at this time of the world.
pub(crate) const fn wall_ms(world: Duration) -> u64 {
    EPOCH_MS + world.as_millis() as u64
}

/// The clocks of one life: those of its paused runtime. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct NodeClock {
    runtime: Handle,
    began: Instant,
    /// Time of the world when the life began.
    base: Duration,
    /// By which the wall clock is off, in milliseconds.
    off_ms: Arc<AtomicI64>,
}

impl NodeClock {
    /// The clocks of a life that begins on this runtime at this time of the world.
    pub fn new(runtime: Handle, base: Duration, off_ms: Arc<AtomicI64>) -> Self {
        let began = {
            let _context = runtime.enter();
            Instant::now()
        };
        Self { runtime, began, base, off_ms }
    }

    fn elapsed(&self) -> Duration {
        let _context = self.runtime.enter();
        self.began.elapsed()
    }

    /// The time of the world, as far as this node has come.
    pub fn world(&self) -> Duration {
        self.base + self.elapsed()
    }

    /// When the runtime has come to this time of the world.
    pub fn instant(&self, world: Duration) -> Instant {
        self.began + world.saturating_sub(self.base)
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Time {
        Time(self.world().as_nanos() as u64)
    }
}

impl WallClock for NodeClock {
    fn now_ms(&self) -> u64 {
        wall_ms(self.world()).saturating_add_signed(self.off_ms.load(Ordering::Relaxed))
    }
}
