//! What the daemon is told at the end of a step, and what was told and not confirmed yet.

use terrace_primary::Key;
use terrace_tiering::RequestId;

use crate::api::JobId;
use crate::protocol::{CompletedJob, EndStep, LeaseEnd, WANT_EVENTS, keys_to_bytes, numbers_to_bytes};

/// What waits to be told. Only what is open on the connection is in it, so it is bounded by what the daemon lets a
/// session have; `touched`, and what outlives a connection, have bounds of their own.
#[derive(Debug, Default)]
pub(super) struct PendingStep {
    leases: Vec<EndingLease>,
    completed: Vec<CompletedJob>,
    finished: Vec<u64>,
    /// Oldest first.
    touched: Vec<Vec<Key>>,
    touched_keys: usize,
}

#[derive(Debug)]
struct EndingLease {
    lease: u64,
    request: RequestId,
    load: Option<(JobId, Vec<u32>)>,
    wait: Vec<(u32, Key)>,
}

/// A step that was told and not confirmed.
#[derive(Debug)]
pub(super) struct SentStep {
    pub sequence: u64,
    /// Whether the daemon does anything for it. False: it only asked for events.
    pub tells: bool,
    /// Loads that begin with it.
    pub loads: Vec<JobId>,
    pub waits: Vec<SentWait>,
    completed: Vec<CompletedJob>,
    finished: Vec<u64>,
}

/// What a request said it waits for.
#[derive(Debug)]
pub(super) struct SentWait {
    pub lease: u64,
    pub request: RequestId,
    pub keys: Vec<(u32, Key)>,
}

/// Name of a job on the wire, where 0 is none.
pub(super) fn wire_job(job: JobId) -> u64 {
    job.0.saturating_add(1)
}

impl PendingStep {
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.completed.is_empty() && self.finished.is_empty() && self.touched.is_empty()
    }

    /// A lease ends: some of its keys are loaded or waited for.
    pub fn end_lease(
        &mut self,
        lease: u64,
        request: RequestId,
        load: Option<(JobId, Vec<u32>)>,
        wait: Vec<(u32, Key)>,
    ) {
        if load.is_some() || !wait.is_empty() {
            self.leases.push(EndingLease { lease, request, load, wait });
        }
    }

    /// Takes a load back of which the daemon was not told. False: it is not among these.
    pub fn cancel_load(&mut self, job: JobId) -> bool {
        let found = self.leases.iter_mut().find(|lease| lease.load.as_ref().is_some_and(|(load, _)| *load == job));
        found.is_some_and(|lease| lease.load.take().is_some())
    }

    pub fn complete(&mut self, job: u64, ok: bool) {
        self.completed.push(CompletedJob { job, ok });
    }

    pub fn finish(&mut self, request: u64) {
        self.finished.push(request);
    }

    /// Keys were used, later than all before. Beyond `most` the oldest are forgotten.
    pub fn touch(&mut self, keys: &[Key], most: usize) {
        let keys = keys.get(..most).unwrap_or(keys);
        self.touched_keys += keys.len();
        self.touched.push(keys.to_vec());
        let mut forgotten = 0;
        while self.touched_keys > most {
            self.touched_keys -= self.touched.get(forgotten).map_or(self.touched_keys, Vec::len);
            forgotten += 1;
        }
        self.touched.drain(..forgotten);
    }

    /// A step was refused whole: what ended is told again. Its loads and waits are not.
    pub fn tell_again(&mut self, sent: SentStep) {
        self.completed.extend(sent.completed);
        self.finished.extend(sent.finished);
    }

    /// The connection is another one: what is still to be told is which jobs ended, also those that `sent` told, perhaps
    /// in vain. Beyond `most` the oldest are forgotten; how many these are is returned.
    pub fn outlive(&mut self, sent: impl Iterator<Item = SentStep>, most: usize) -> usize {
        let mut completed: Vec<_> = sent.flat_map(|step| step.completed).collect();
        completed.append(&mut self.completed);
        let forgotten = completed.len().saturating_sub(most);
        completed.drain(..forgotten);
        *self = Self { completed, ..Self::default() };
        forgotten
    }

    /// The message, and what to remember of it. Afterwards nothing waits but ends of jobs beyond the first `most_jobs`.
    pub fn take(&mut self, events: bool, most_jobs: usize) -> (EndStep, SentStep) {
        let tells = !self.is_empty();
        let Self { leases, mut completed, finished, touched, .. } = std::mem::take(self);
        self.completed = completed.split_off(completed.len().min(most_jobs));
        let mut sent = SentStep {
            sequence: 0,
            tells,
            loads: Vec::new(),
            waits: Vec::new(),
            completed: completed.clone(),
            finished: finished.clone(),
        };
        let mut message =
            EndStep { completed, finished, want: if events { WANT_EVENTS } else { 0 }, ..EndStep::default() };
        for keys in touched.iter().rev() {
            keys_to_bytes(keys, &mut message.touched);
        }
        for EndingLease { lease, request, load, wait } in leases {
            let (job, load) = match load {
                Some((job, places)) => {
                    sent.loads.push(job);
                    (wire_job(job), numbers_to_bytes(places))
                }
                None => (0, Vec::new()),
            };
            let places = numbers_to_bytes(wait.iter().map(|(place, _)| *place));
            message.leases.push(LeaseEnd { lease, job, load, wait: places });
            if !wait.is_empty() {
                sent.waits.push(SentWait { lease, request, keys: wait });
            }
        }
        (message, sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(step: &EndStep) -> Vec<u64> {
        step.completed.iter().map(|completed| completed.job).collect()
    }

    #[test]
    fn ends_of_jobs_outlive_a_connection_and_are_bounded() {
        let mut pending = PendingStep::default();
        (1..4).for_each(|job| pending.complete(job, true));
        let (_, sent) = pending.take(false, 9);
        pending.complete(4, false);
        pending.finish(7);
        pending.touch(&[Key::new(&[1; 8], 0).expect("a key")], 5);
        assert_eq!(pending.outlive(std::iter::once(sent), 3), 1, "the oldest is forgotten");
        let (first, _) = pending.take(false, 2);
        assert_eq!(jobs(&first), [2, 3]);
        assert!(first.finished.is_empty() && first.touched.is_empty(), "of the lost connection");
        assert!(!pending.is_empty());
        assert_eq!(jobs(&pending.take(false, 2).0), [4]);
        assert!(pending.is_empty());
    }
}
