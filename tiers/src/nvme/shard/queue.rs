//! Commands that wait for their turn: loads in one line, stores and removals in another.

use std::collections::{HashSet, VecDeque};

use terrace_primary::{Key, SlotId};

use crate::clock::Time;
use crate::nvme::port::{BlockName, Command};

/// A command in the shard's own form.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Store {
        ticket: u64,
        key: Key,
        slot: SlotId,
        crc32: Option<u32>,
        recycle: Option<BlockName>,
        deadline: Time,
    },
    Load {
        ticket: u64,
        key: Key,
        slot: SlotId,
        crc32: Option<u32>,
        deadline: Time,
    },
    /// Without a ticket: the victim of a store that never started.
    Remove {
        ticket: Option<u64>,
        name: BlockName,
    },
}

impl From<Command> for Work {
    fn from(command: Command) -> Self {
        match command {
            Command::Store { ticket, key, slot, crc32, recycle, deadline } => {
                Self::Store { ticket, key, slot, crc32, recycle, deadline }
            }
            Command::Load { ticket, key, slot, crc32, deadline } => Self::Load { ticket, key, slot, crc32, deadline },
            Command::Remove { ticket, name } => Self::Remove { ticket: Some(ticket), name },
        }
    }
}

impl Work {
    fn deadline(&self) -> Time {
        match self {
            Self::Store { deadline, .. } | Self::Load { deadline, .. } => *deadline,
            Self::Remove { .. } => Time(u64::MAX),
        }
    }

    pub(super) fn ticket(&self) -> Option<u64> {
        match self {
            Self::Store { ticket, .. } | Self::Load { ticket, .. } => Some(*ticket),
            Self::Remove { ticket, .. } => *ticket,
        }
    }
}

/// Which line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Loads,
    Stores,
}

/// Both lines, first in first out each.
#[derive(Debug)]
pub(super) struct Queue {
    loads: VecDeque<Work>,
    stores: VecDeque<Work>,
    bound: usize,
    /// Removals without a ticket among `stores`; not counted against the bound, but bounded by it.
    victims: usize,
    /// No waiting command has an earlier deadline.
    earliest: Time,
}

impl Queue {
    pub(super) fn new(bound: u32) -> Self {
        Self {
            loads: VecDeque::new(),
            stores: VecDeque::new(),
            bound: bound as usize,
            victims: 0,
            earliest: Time(u64::MAX),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.loads.len() + self.stores.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() - self.victims >= self.bound
    }

    pub(super) fn push(&mut self, work: Work) {
        self.earliest = self.earliest.min(work.deadline());
        match work {
            Work::Load { .. } => self.loads.push_back(work),
            _ => self.stores.push_back(work),
        }
    }

    /// Queues the removal of a victim whose store does not take it. On a device that hangs these pile up while their stores
    /// expire: beyond the bound the file stays for the next scan.
    pub(super) fn push_victim(&mut self, name: BlockName) {
        if self.victims < self.bound {
            self.victims += 1;
            self.stores.push_back(Work::Remove { ticket: None, name });
        }
    }

    pub(super) fn front(&self, line: Line) -> Option<&Work> {
        match line {
            Line::Loads => self.loads.front(),
            Line::Stores => self.stores.front(),
        }
    }

    pub(super) fn pop(&mut self, line: Line) -> Option<Work> {
        let work = match line {
            Line::Loads => self.loads.pop_front(),
            Line::Stores => self.stores.pop_front(),
        };
        self.victims -= usize::from(matches!(work, Some(Work::Remove { ticket: None, .. })));
        if self.len() == 0 {
            self.earliest = Time(u64::MAX);
        }
        work
    }

    /// No waiting command has an earlier deadline.
    pub(super) fn earliest(&self) -> Time {
        self.earliest
    }

    /// Drops what expired by `now`, telling `gone` the tickets. A dropped store's victim stays in line for removal.
    pub(super) fn expire(&mut self, now: Time, mut gone: impl FnMut(u64)) {
        if self.earliest <= now {
            self.drop_where(|work| work.deadline() <= now, &mut gone);
        }
    }

    /// Drops what was given up, as [`Queue::expire`] does.
    pub(super) fn abandon(&mut self, tickets: &HashSet<u64>, mut gone: impl FnMut(u64)) {
        // A removal touches no slot: it goes on.
        self.drop_where(
            |work| {
                !matches!(work, Work::Remove { .. }) && work.ticket().is_some_and(|ticket| tickets.contains(&ticket))
            },
            &mut gone,
        );
    }

    /// Empties the queue, telling `gone` the tickets.
    pub(super) fn clear(&mut self, mut gone: impl FnMut(u64)) {
        self.earliest = Time(u64::MAX);
        self.victims = 0;
        for work in self.loads.drain(..).chain(self.stores.drain(..)) {
            work.ticket().into_iter().for_each(&mut gone);
        }
    }

    fn drop_where(&mut self, mut dropped: impl FnMut(&Work) -> bool, gone: &mut impl FnMut(u64)) {
        let mut earliest = Time(u64::MAX);
        for line in [&mut self.loads, &mut self.stores] {
            line.retain_mut(|work| {
                if !dropped(work) {
                    earliest = earliest.min(work.deadline());
                    return true;
                }
                work.ticket().into_iter().for_each(&mut *gone);
                match *work {
                    // As in `push_victim`.
                    Work::Store { recycle: Some(name), .. } if self.victims < self.bound => {
                        self.victims += 1;
                        *work = Work::Remove { ticket: None, name };
                        true
                    }
                    _ => false,
                }
            });
        }
        self.earliest = earliest;
    }
}
