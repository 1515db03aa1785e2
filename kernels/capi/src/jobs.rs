//! Jobs between their submission and the poll that reports them.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use terrace_kernels::{CopyDone, CopyId};

use crate::abi::{Ended, code};
use crate::refusal::code_of;

/// The jobs of an engine that were not reported yet.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// In flight: the engine's name, the caller's, and when it was submitted.
    running: HashMap<CopyId, (u64, Instant)>,
    /// The same by the caller's name.
    names: HashMap<u64, CopyId>,
    ended: VecDeque<Ended>,
}

impl Jobs {
    /// In flight, or ended and not reported.
    pub fn len(&self) -> usize {
        self.running.len() + self.ended.len()
    }

    pub fn is_running(&self, id: u64) -> bool {
        self.names.contains_key(&id)
    }

    pub fn running(&self) -> Vec<CopyId> {
        self.running.keys().copied().collect()
    }

    pub fn in_flight(&self) -> usize {
        self.running.len()
    }

    pub fn begin(&mut self, copy: CopyId, id: u64) {
        self.running.insert(copy, (id, Instant::now()));
        self.names.insert(id, copy);
    }

    pub fn end(&mut self, done: &CopyDone) {
        let Some((id, submitted)) = self.running.remove(&done.id) else { return };
        self.names.remove(&id);
        if let Err(error) = &done.result {
            tracing::warn!("copy {id} failed: {error}");
        }
        self.ended.push_back(Ended {
            id,
            bytes: done.bytes,
            micros: u64::try_from(submitted.elapsed().as_micros()).unwrap_or(u64::MAX),
            code: done.result.as_ref().map_or_else(code_of, |()| code::OK),
            reserved: 0,
        });
    }

    pub fn take(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }
}
