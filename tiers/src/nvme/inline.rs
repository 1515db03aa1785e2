//! A shard without a thread, for simulation and tests.

use std::sync::Arc;
use std::time::Duration;

use terrace_primary::Region;

use super::device::Device;
use super::port::{Command, PortCounters, PortEvent, ShardPort};
use super::shard::{Shard, ShardOptions};
use crate::clock::Clock;

/// Runs a shard inside [`ShardPort::poll`]. Everything happens there, in an order that the device alone decides.
pub struct InlinePort<D: Device> {
    shard: Shard<D>,
    events: Vec<PortEvent>,
}

impl<D: Device> InlinePort<D> {
    /// A shard over `device`.
    pub fn new(device: D, region: Arc<Region>, clock: Arc<dyn Clock>, options: ShardOptions) -> Self {
        Self { shard: Shard::new(device, region, clock, options), events: Vec::new() }
    }

    /// The device, to move its time or its faults.
    pub const fn device_mut(&mut self) -> Option<&mut D> {
        self.shard.device_mut()
    }

    /// Ends the port as a crash would, and gives the device back.
    pub fn into_device(self) -> Option<D> {
        self.shard.into_device()
    }

    fn step(&mut self) {
        self.shard.take_abandoned();
        self.shard.step(&mut self.events);
        self.shard.flush();
    }
}

impl<D: Device + Send> ShardPort for InlinePort<D> {
    fn push(&mut self, command: Command) -> Result<(), Command> {
        self.shard.push(command)
    }

    fn abandon(&mut self, ticket: u64) {
        self.shard.abandons().add(ticket);
    }

    fn scan(&mut self) {
        self.shard.scan();
    }

    fn flush(&mut self) {}

    fn poll(&mut self, out: &mut Vec<PortEvent>) {
        self.step();
        out.append(&mut self.events);
    }

    /// Waits for the device at most once for each unfinished operation; `within` is the device's to keep.
    fn shutdown(&mut self, within: Duration) {
        self.step();
        self.shard.close(&mut self.events);
        for _ in 0..2 * self.shard.unfinished() {
            if self.shard.is_quiet() {
                break;
            }
            self.shard.wait(Some(within));
            self.step();
        }
    }

    fn counters(&self) -> PortCounters {
        self.shard.counters()
    }
}
