//! Wrappers that make any tier slow, hanging, faulty or counted. They keep the whole contract of
//! [`SecondaryTier`](crate::SecondaryTier) and pass its conformance suite.

mod backlog;
mod counted;
mod faulty;
mod hanging;
mod held_back;
mod slow;

pub use counted::{CallCounts, Counted};
pub use faulty::{FaultRates, Faulty};
pub use hanging::{HangSwitch, Hanging};
pub use held_back::{Gate, HeldBack};
pub use slow::{Delay, Slow};
