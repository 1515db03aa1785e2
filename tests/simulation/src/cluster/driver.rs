//! Runs the tasks of one life, as far as it is told to.

use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use terrace_tiers::object::{Host, OtherHalf};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, yield_now};

use super::clock::NodeClock;

/// The paused runtime of one life. Clones share it.
#[derive(Clone)]
pub(crate) struct Driver {
    runtime: Arc<Mutex<Option<Runtime>>>,
    clock: NodeClock,
}

impl Driver {
    /// A runtime that stands still. It looks at its timers after so many polls of tasks.
    pub fn new(world: Duration, off_ms: Arc<AtomicI64>, event_interval: u32) -> Self {
        let built =
            Builder::new_current_thread().enable_time().start_paused(true).event_interval(event_interval).build();
        let runtime = built.unwrap_or_else(|error| panic!("no runtime to simulate in: {error}"));
        let clock = NodeClock::new(runtime.handle().clone(), world, off_ms);
        Self { runtime: Arc::new(Mutex::new(Some(runtime))), clock }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Runtime>> {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its clocks.
    pub const fn clock(&self) -> &NodeClock {
        &self.clock
    }

    /// Lets everything happen that happens until this time of the world, each thing at its time.
    pub fn run_until(&self, world: Duration) {
        let until = self.clock.instant(world);
        if let Some(runtime) = &*self.lock() {
            runtime.block_on(async { tokio::time::sleep_until(until).await });
        }
    }

    /// Lets tasks run for some turns, without time going on.
    pub fn turns(&self, count: u64) {
        if let Some(runtime) = &*self.lock() {
            runtime.block_on(async {
                for _ in 0..count {
                    yield_now().await;
                }
            });
        }
    }

    /// As if the process had been stopped until this time of the world: all that was to happen meanwhile happens now.
    pub fn jump_to(&self, world: Duration) {
        let by = world.saturating_sub(self.clock.world());
        if let Some(runtime) = &*self.lock() {
            runtime.block_on(async { tokio::time::advance(by).await });
        }
    }

    /// Whether the other half of the tier has not ended.
    pub fn is_running(&self) -> bool {
        self.lock().is_some()
    }

    /// Drops every task where it stands.
    pub fn kill(&self) {
        drop(self.lock().take());
    }

    /// Runs the other half of a tier.
    pub fn host(&self, half: OtherHalf) -> Box<dyn Host> {
        let runtime = self.lock();
        let task = runtime.as_ref().map(|runtime| runtime.spawn(half));
        Box::new(Hosted { driver: self.clone(), task })
    }
}

struct Hosted {
    driver: Driver,
    task: Option<JoinHandle<()>>,
}

impl Host for Hosted {
    fn wait(&mut self, within: Duration) -> bool {
        let mut runtime = self.driver.lock();
        let (Some(running), Some(task)) = (runtime.as_ref(), &mut self.task) else { return true };
        let ended = running.block_on(async { tokio::time::timeout(within, task).await.is_ok() });
        if ended {
            drop(runtime.take());
        }
        ended
    }
}
