//! What a run can fail with, and how it is told.

use std::fmt;

use crate::run::Run;

/// What was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A readable block does not have the bytes of its key.
    WrongBytes(String),
    /// A block is readable that nobody ever stored in this namespace.
    NeverStored(String),
    /// An answer stayed unresolved beyond its deadline.
    Unresolved(String),
    /// A reader, a slot, a job is left.
    Leak(String),
    /// A tier holds more of the primary than its share, or longer than its deadline.
    Pinned(String),
    /// The files take more than the capacity.
    Capacity(String),
    /// The manager's own invariants.
    Invariant(String),
    /// A call did what its documentation excludes.
    Contract(String),
    /// Something panicked.
    Panic(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, text) = match self {
            Self::WrongBytes(text) => ("wrong bytes", text),
            Self::NeverStored(text) => ("readable and never stored", text),
            Self::Unresolved(text) => ("unresolved beyond the deadline", text),
            Self::Leak(text) => ("leak", text),
            Self::Pinned(text) => ("primary pinned", text),
            Self::Capacity(text) => ("capacity exceeded", text),
            Self::Invariant(text) => ("invariant broken", text),
            Self::Contract(text) => ("contract broken", text),
            Self::Panic(text) => ("panic", text),
        };
        write!(f, "{what}: {text}")
    }
}

/// A failed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was run.
    pub run: Run,
    /// The step in which it failed.
    pub step: u32,
    /// What was broken.
    pub reason: Reason,
}

impl Failure {
    /// Whether the other broke the same kind of thing.
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(&self.reason) == std::mem::discriminant(&other.reason)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, step, reason } = self;
        write!(
            f,
            "seed {}, step {step}: {reason}\n  replay: cargo run --release -p terrace-simulation -- {run}",
            run.seed
        )
    }
}
