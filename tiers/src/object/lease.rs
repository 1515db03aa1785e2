//! The collector's lease: who holds the highest term holds it, for a while. Pure; [`keeper`] does the requests.
//!
//! A term is an object that is created only if it is not there, so each has one holder. The holder makes the next one before its own
//! ends; whoever has seen the highest term unchanged for a whole lease, by its own clock, makes the next one too, and then
//! it is the holder. Clocks are never compared, only their pace: a holder stops a fifth earlier than others would take over.
//!
//! It is an economy. What collectors do is harmless when two do it at once.
pub(super) mod keeper;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::clock::Time;

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing: look again later.
    Rest,
    /// Try to create this term.
    Take(u64),
}

#[derive(Clone, Copy, Debug)]
struct Held {
    term: u64,
    /// When its object was asked for, by the monotonic clock and by the wall clock in milliseconds.
    asked: Time,
    asked_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The highest term; 0: there is none.
    term: u64,
    since: Time,
}

/// What a node knows of the lease.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    length: Duration,
    held: Option<Held>,
    seen: Option<Seen>,
}

impl Lease {
    /// Nothing seen. A term lasts for `length`.
    pub fn new(length: Duration) -> Self {
        Self { length, held: None, seen: None }
    }

    /// Whether this node holds it. The wall clock counts too: the other one stands still while a machine sleeps.
    pub fn holds(&self, now: Time, wall_ms: u64) -> bool {
        let safe = self.length * 4 / 5;
        self.held.is_some_and(|held| {
            let wall = Duration::from_millis(wall_ms.saturating_sub(held.asked_ms));
            now.since(held.asked) < safe && wall < safe
        })
    }

    /// A listing that ended `now` shows this as the highest term.
    pub fn saw(&mut self, highest: Option<u64>, now: Time) {
        let term = highest.unwrap_or(0);
        if self.seen.is_none_or(|seen| seen.term != term) {
            self.seen = Some(Seen { term, since: now });
        }
        if self.held.is_some_and(|held| held.term < term) {
            self.held = None;
        }
    }

    /// What to do now.
    pub fn step(&self, now: Time, wall_ms: u64) -> Step {
        let seen = self.seen.map_or(0, |seen| seen.term);
        if let Some(held) = self.held
            && self.holds(now, wall_ms)
        {
            let due = now.since(held.asked) >= self.length / 3;
            return if due { Step::Take(held.term.max(seen).saturating_add(1)) } else { Step::Rest };
        }
        let Some(Seen { term, since }) = self.seen else { return Step::Rest };
        // Nobody holds what does not exist: whoever creates it first does.
        let free = term == 0 || now.since(since) >= self.length;
        if free { Step::Take(term.max(self.held.map_or(0, |held| held.term)).saturating_add(1)) } else { Step::Rest }
    }

    /// This node has created the term; it began to ask at `asked`.
    pub fn took(&mut self, term: u64, asked: Time, asked_ms: u64) {
        self.held = Some(Held { term, asked, asked_ms });
        self.seen = Some(Seen { term, since: asked });
    }

    /// Another has created the term.
    pub fn missed(&mut self, term: u64, now: Time) {
        self.held = None;
        self.seen = Some(Seen { term, since: now });
    }

    /// The term that this node took last, if none was seen since.
    #[cfg(test)]
    pub fn term(&self) -> Option<u64> {
        self.held.map(|held| held.term)
    }
}
