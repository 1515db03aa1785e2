//! A session: who it is, what it holds, and its connection.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use terrace_primary::Key;
use terrace_tiering::{RequestId, TierFilter};
use terrace_tiers::Time;

use super::connection::Connection;
use super::device::Attachment;
use super::foreign::Foreign;
use super::leases::Leases;
use crate::protocol::{JobOutcome, RowsDone};

/// Names a session of this daemon; never used again.
pub(super) type SessionId = u64;

/// What a session does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Scheduler,
    Worker,
    Tier,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::Scheduler, Self::Worker, Self::Tier];

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Worker => "worker",
            Self::Tier => "tier",
        }
    }
}

/// An open request.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenRequest {
    pub id: RequestId,
    pub tiers: TierFilter,
}

/// Blocks that the session has pinned in the name of a request.
#[derive(Debug)]
pub(super) struct PinnedKeys {
    pub request: u64,
    pub id: RequestId,
    pub keys: Vec<Key>,
    pub until: Time,
}

pub(super) struct Session {
    pub role: Role,
    pub engine: String,
    pub rank: u32,
    /// Workers that must report a store.
    pub store_workers: u32,
    /// Workers that must report a load.
    pub load_workers: u32,
    /// `None`: closed, and kept for what may still be copied to or from.
    pub connection: Option<Connection>,
    pub pidfd: Option<OwnedFd>,
    /// Its number, where its end is told. Numbers that nobody watches may be used again.
    pub process: Option<i32>,
    /// When its connection ended.
    pub closed_at: Option<Time>,
    pub strikes: u32,
    /// Whether more frames of it wait in memory.
    pub queued: bool,

    pub requests: HashMap<u64, OpenRequest>,
    pub leases: Leases,
    /// Jobs that have not ended, `StoreRows` and `LoadRows` included.
    pub jobs: u32,
    /// Slots leased, loading or being stored.
    pub slots: u32,
    pub outcomes: Vec<JobOutcome>,
    pub rows_done: Vec<RowsDone>,
    pub pins: VecDeque<PinnedKeys>,
    pub pinned_keys: usize,
    /// Place in the event log, from the first time that it asked.
    pub events_at: Option<u64>,
    pub events_lost: u64,
    /// Whether the daemon copies for it.
    pub attachment: Attachment,
    pub foreign: Option<Arc<Foreign>>,
    /// `StoreRows` and `LoadRows` that run, to their number in the pool.
    pub row_jobs: BTreeMap<u64, u64>,
}

impl Session {
    /// Workers that the scheduler announced.
    pub fn workers(&self) -> u32 {
        self.store_workers.max(self.load_workers)
    }

    /// Jobs, leases and untold outcomes: what `limits.jobs` bounds.
    pub fn load(&self) -> usize {
        self.jobs as usize + self.leases.len() + self.outcomes.len() + self.rows_done.len()
    }
}
