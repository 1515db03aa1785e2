//! A tier that can be made to hang: it takes work and never answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::held_back::{Gate, HeldBack};
use crate::clock::Time;
use crate::tier::SecondaryTier;

/// Passes jobs on to the inner tier only while its switch is off.
pub type Hanging<T> = HeldBack<T, HangSwitch>;

/// Turns the hanging of a [`Hanging`] tier on and off from anywhere.
#[derive(Clone, Debug)]
pub struct HangSwitch(Arc<AtomicBool>);

impl HangSwitch {
    /// A switch that stands at `on`.
    pub fn new(on: bool) -> Self {
        Self(Arc::new(AtomicBool::new(on)))
    }

    /// While `on`, accepted jobs stay where they are; after, they go on.
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }
}

impl Gate for HangSwitch {
    fn opens_at(&self) -> Time {
        Time::default()
    }

    fn now(&self) -> Option<Time> {
        (!self.0.load(Ordering::Relaxed)).then_some(Time::default())
    }
}

impl<T: SecondaryTier> Hanging<T> {
    /// `inner`, behind `switch`.
    pub fn new(inner: T, switch: HangSwitch) -> Self {
        Self::behind(switch, inner)
    }
}
