//! Registering the region with the kernel behind normal work, as it becomes ready.

use std::time::Duration;

use super::Shard;
use crate::nvme::device::{Device, Registration};

/// How often a shard with nothing to do looks whether more of the region is ready.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl<D: Device> Shard<D> {
    /// Registers one more piece, if one is ready.
    pub(super) fn step_registration(&mut self) {
        if self.registration == Registration::Done {
            return;
        }
        if let Some(device) = &mut self.device {
            // What was started goes on in the kernel meanwhile.
            device.flush();
            self.registration = self.memory.register_next(device);
        }
    }

    /// How long the shard may sleep before it must look again. `None`: nothing is left to register.
    pub(super) const fn registration_wait(&self) -> Option<Duration> {
        match self.registration {
            Registration::Done => None,
            Registration::More => Some(Duration::ZERO),
            Registration::Waits => Some(LOOK_EVERY),
        }
    }
}
