//! Accepted jobs that have not been passed on to the inner tier yet.

use std::collections::VecDeque;

use crate::clock::Time;
use crate::tier::{Fault, JobId, LoadJob, Refused, SecondaryTier, StoreJob, TierEvent};

/// Jobs kept back; beyond, the wrapper answers busy.
const JOBS: usize = 65_536;

/// A store or a load.
pub(super) enum Job {
    Store(StoreJob),
    Load(LoadJob),
}

impl Job {
    const fn id(&self) -> JobId {
        match self {
            Self::Store(job) => job.id,
            Self::Load(job) => job.id,
        }
    }

    /// Reports every block as failed.
    fn fail(&self, fault: Fault, out: &mut Vec<TierEvent>) {
        match self {
            Self::Store(job) => out.extend((0..job.blocks.len() as u32).map(|index| TierEvent::StoreDone {
                job: job.id,
                index,
                outcome: Err(fault),
            })),
            Self::Load(job) => out.extend((0..job.blocks.len() as u32).map(|index| TierEvent::LoadDone {
                job: job.id,
                index,
                outcome: Err(fault),
            })),
        }
    }

    const fn blocks(&self) -> usize {
        match self {
            Self::Store(job) => job.blocks.len(),
            Self::Load(job) => job.blocks.len(),
        }
    }
}

/// Jobs in the order of their arrival, each with the time from which it may be passed on.
#[derive(Default)]
pub(super) struct Backlog {
    jobs: VecDeque<(Time, Job)>,
    events: Vec<TierEvent>,
    closed: bool,
    pub(super) refused: u64,
    pub(super) expired: u64,
}

impl Backlog {
    /// Takes a job that may be passed on from `from`.
    pub(super) fn accept(&mut self, from: Time, job: Job) -> Result<(), Refused> {
        if self.closed {
            return Err(Refused::Closed);
        }
        if self.jobs.len() >= JOBS {
            self.refused += 1;
            return Err(Refused::Busy);
        }
        self.jobs.push_back((from, job));
        Ok(())
    }

    /// Gives a kept job up. False: it is not here.
    pub(super) fn abandon(&mut self, id: JobId) -> bool {
        let Some(place) = self.jobs.iter().position(|(_, job)| job.id() == id) else { return false };
        if let Some((_, job)) = self.jobs.remove(place) {
            job.fail(Fault::Expired, &mut self.events);
            self.expired += job.blocks() as u64;
        }
        true
    }

    /// Passes on what may be passed on at `now`, in order, until the inner tier is busy.
    pub(super) fn pass_on(&mut self, now: Time, inner: &mut impl SecondaryTier) {
        while self.jobs.front().is_some_and(|(from, _)| *from <= now) {
            let Some((from, job)) = self.jobs.pop_front() else { return };
            let answer = match &job {
                Job::Store(job) => inner.submit_store(job.clone()),
                Job::Load(job) => inner.submit_load(job.clone()),
            };
            match answer {
                Ok(()) => {}
                Err(Refused::Busy) => return self.jobs.push_front((from, job)),
                Err(Refused::Closed) => job.fail(Fault::Closed, &mut self.events),
            }
        }
    }

    /// Fails everything that is kept and takes no more.
    pub(super) fn close(&mut self) {
        self.closed = true;
        for (_, job) in self.jobs.drain(..) {
            job.fail(Fault::Closed, &mut self.events);
        }
    }

    pub(super) fn poll(&mut self, out: &mut Vec<TierEvent>) {
        out.append(&mut self.events);
    }

    /// Blocks of the kept jobs.
    pub(super) fn blocks(&self) -> u64 {
        self.jobs.iter().map(|(_, job)| job.blocks() as u64).sum()
    }
}
