//! A tier whose jobs start late.

use std::sync::Arc;
use std::time::Duration;

use super::held_back::{Gate, HeldBack};
use crate::clock::{Clock, Time};
use crate::tier::SecondaryTier;

/// Passes each job on to the inner tier only some time after it was taken.
pub type Slow<T> = HeldBack<T, Delay>;

/// Lets a job pass some time after its arrival.
pub struct Delay {
    clock: Arc<dyn Clock>,
    delay: Duration,
}

impl Gate for Delay {
    fn opens_at(&self) -> Time {
        self.clock.now().plus(self.delay)
    }

    fn now(&self) -> Option<Time> {
        Some(self.clock.now())
    }
}

impl<T: SecondaryTier> Slow<T> {
    /// `inner`, with every job started `delay` late by `clock`.
    pub fn new(inner: T, clock: Arc<dyn Clock>, delay: Duration) -> Self {
        Self::behind(Delay { clock, delay }, inner)
    }
}
