//! Secondary tiers: what lies below the primary, behind one trait.
pub mod clock;
pub mod tier;

pub use clock::{Clock, ManualClock, SystemClock, Time};
pub use tier::*;
