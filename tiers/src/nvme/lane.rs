//! One directory as the tier sees it: its port, what the port has not taken yet, and files that are not in the index.

use std::collections::VecDeque;

use super::port::{BlockName, Command, PortEvent, ScannedBlock, ShardPort};

/// How far the scan of a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// None was asked for.
    Idle,
    /// Running.
    Running,
    /// Over.
    Ended {
        /// Everything was listed.
        complete: bool,
    },
}

/// One directory.
pub(crate) struct Lane {
    pub(crate) port: Box<dyn ShardPort>,
    /// Commands that the port refused; in order, and all later ones behind them. Bounded by the operations in flight.
    pub(crate) waiting: VecDeque<Command>,
    /// Files of other namespaces, and of blocks that have no row: the first to go. With their allocated bytes.
    pub(crate) strangers: VecDeque<(BlockName, u64)>,
    /// What the scan found and the index has not taken yet.
    pub(crate) found: VecDeque<ScannedBlock>,
    pub(crate) scan: Scan,
}

impl Lane {
    pub(crate) fn new(port: Box<dyn ShardPort>) -> Self {
        Self { port, waiting: VecDeque::new(), strangers: VecDeque::new(), found: VecDeque::new(), scan: Scan::Idle }
    }

    /// Hands a command to the port, or keeps it until the port takes it. True: the port has it.
    pub(crate) fn push(&mut self, command: Command) -> bool {
        if self.waiting.is_empty() {
            match self.port.push(command) {
                Ok(()) => return true,
                Err(back) => self.waiting.push_back(back),
            }
        } else {
            self.waiting.push_back(command);
        }
        false
    }

    pub(crate) fn start_scan(&mut self) {
        if self.scan == Scan::Idle {
            self.scan = Scan::Running;
            self.port.scan();
        }
    }

    /// Takes the port's events: `done` gets completions, the rest is kept here.
    pub(crate) fn poll(&mut self, scratch: &mut Vec<PortEvent>) {
        let from = scratch.len();
        self.port.poll(scratch);
        let mut at = from;
        while at < scratch.len() {
            match scratch.get_mut(at) {
                Some(PortEvent::Scanned(blocks)) => {
                    self.found.extend(std::mem::take(blocks));
                    scratch.swap_remove(at);
                }
                Some(PortEvent::ScanEnd { complete }) => {
                    self.scan = Scan::Ended { complete: *complete };
                    scratch.swap_remove(at);
                }
                _ => at += 1,
            }
        }
    }
}
