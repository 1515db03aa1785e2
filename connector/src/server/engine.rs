//! An engine: one scheduler session and its workers, and the jobs that they copy for.

use std::collections::{BTreeMap, HashMap};

use terrace_primary::{Key, SlotId};
use terrace_tiering::RequestId;
use terrace_tiers::Time;

use super::session::SessionId;

/// Ranks that an engine may have: one bit each.
pub(super) const MAX_WORKERS: u32 = 128;

/// Who has to report a job: a bit for each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reporters {
    /// The scheduler session itself.
    Scheduler,
    /// These ranks.
    Ranks(u128),
}

impl Reporters {
    /// Ranks `0..workers`, or with none the scheduler.
    pub const fn new(workers: u32) -> Self {
        match workers {
            0 => Self::Scheduler,
            _ => Self::Ranks(first_bits(workers)),
        }
    }
}

/// Bits `0..count`.
const fn first_bits(count: u32) -> u128 {
    if count >= MAX_WORKERS { u128::MAX } else { (1 << count) - 1 }
}

/// The bit of a rank; none beyond the last.
pub(super) const fn bit(rank: u32) -> u128 {
    if rank < MAX_WORKERS { 1 << rank } else { 0 }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobKind {
    Store,
    Load,
}

/// One store or load of the engine.
#[derive(Debug)]
pub(super) struct Job {
    pub kind: JobKind,
    /// The scheduler session that began it.
    pub session: SessionId,
    pub id: RequestId,
    pub keys: Vec<Key>,
    /// Their slots.
    pub slots: Vec<SlotId>,
    /// Who still has to report it.
    pub left: Reporters,
    /// Ranks for which the daemon is copying it.
    pub copying: u128,
    pub ok: bool,
}

impl Job {
    /// Whether its slots may be given back: everybody has reported, and nobody copies.
    pub fn is_over(&self) -> bool {
        self.left == Reporters::Ranks(0) && self.copying == 0
    }

    /// Nobody reports it any more.
    pub const fn end(&mut self, ok: bool) {
        self.ok &= ok;
        self.left = Reporters::Ranks(0);
    }

    fn is_owed_by(&self, rank: u32) -> bool {
        matches!(self.left, Reporters::Ranks(left) if left & bit(rank) != 0)
    }
}

/// Reports of a job that is not known yet: its `EndStep` comes over another socket.
#[derive(Clone, Copy, Debug)]
struct Early {
    reported: u128,
    failed: u128,
    since: Time,
}

#[derive(Debug, Default)]
pub(super) struct Engine {
    /// The open scheduler or tier session.
    pub scheduler: Option<SessionId>,
    /// The last session of each rank.
    pub workers: HashMap<u32, SessionId>,
    /// Ranks with an open connection.
    pub attached: u128,
    /// Sessions that are not over.
    pub sessions: u32,
    pub jobs: HashMap<u64, Job>,
    early: BTreeMap<u64, Early>,
}

impl Engine {
    /// Workers among the first `announced` ranks that are attached.
    pub const fn attached_of(&self, announced: u32) -> u32 {
        (self.attached & first_bits(announced)).count_ones()
    }

    /// A report of `rank`: true if the job has ended with it. An unknown job is kept as an early report, `most` of them
    /// at most.
    pub fn report(&mut self, name: u64, rank: u32, ok: bool, now: Time, most: usize) -> Reported {
        let Some(job) = self.jobs.get_mut(&name) else { return self.report_early(name, rank, ok, now, most) };
        let Reporters::Ranks(left) = job.left else { return Reported::Ignored };
        if left & bit(rank) == 0 {
            return Reported::Ignored;
        }
        job.ok &= ok;
        job.left = Reporters::Ranks(left & !bit(rank));
        if job.left == Reporters::Ranks(0) { Reported::Ended } else { Reported::Counted }
    }

    fn report_early(&mut self, name: u64, rank: u32, ok: bool, now: Time, most: usize) -> Reported {
        let is_known = self.early.contains_key(&name);
        if !is_known && self.early.len() >= most {
            return Reported::Dropped;
        }
        let early = self.early.entry(name).or_insert(Early { reported: 0, failed: 0, since: now });
        early.reported |= bit(rank);
        early.failed |= if ok { 0 } else { bit(rank) };
        Reported::Early
    }

    /// Takes the early reports of a job into it, as it begins. True if it has ended with them.
    pub fn take_early(&mut self, name: u64) -> bool {
        let (Some(early), Some(job)) = (self.early.remove(&name), self.jobs.get_mut(&name)) else { return false };
        let Reporters::Ranks(left) = job.left else { return false };
        job.ok &= early.failed & left == 0;
        job.left = Reporters::Ranks(left & !early.reported);
        job.left == Reporters::Ranks(0)
    }

    /// Counts everything that `rank` has not reported as failed, and returns the jobs that ended with it.
    pub fn fail_rank(&mut self, rank: u32) -> Vec<u64> {
        let mut ended = Vec::new();
        for (name, job) in &mut self.jobs {
            if let Reporters::Ranks(left) = job.left
                && left & bit(rank) != 0
            {
                job.ok = false;
                job.left = Reporters::Ranks(left & !bit(rank));
                if job.left == Reporters::Ranks(0) {
                    ended.push(*name);
                }
            }
        }
        ended.sort_unstable();
        ended
    }

    /// The jobs that a scheduler copies for by itself.
    pub fn own_jobs(&self, session: SessionId) -> Vec<u64> {
        let own = |job: &Job| job.left == Reporters::Scheduler && job.session == session;
        let mut own: Vec<u64> = self.jobs.iter().filter(|(_, job)| own(job)).map(|(name, _)| *name).collect();
        own.sort_unstable();
        own
    }

    /// Whether a session of this engine may still copy to or from a slot.
    pub fn may_copy(&self, session: SessionId, rank: Option<u32>) -> bool {
        self.jobs.values().any(|job| match (job.left, rank) {
            (Reporters::Scheduler, None) => job.session == session,
            (Reporters::Ranks(left), Some(rank)) => left & bit(rank) != 0,
            _ => false,
        })
    }

    /// The daemon begins to copy a job's slots for a rank that has yet to report it.
    pub fn begin_copy(&mut self, name: u64, rank: u32, kind: JobKind, slots: &[u32]) -> Begun {
        let Some(job) = self.jobs.get_mut(&name) else { return Begun::Unknown };
        if job.kind != kind || !job.is_owed_by(rank) || job.copying & bit(rank) != 0 || !are_among(slots, job) {
            self.fail_copy(name, rank);
            return Begun::No;
        }
        job.copying |= bit(rank);
        Begun::Yes
    }

    /// It has ended. What failed is not published, whatever the rank reports.
    pub fn end_copy(&mut self, name: u64, rank: u32, ok: bool) -> Option<JobKind> {
        let job = self.jobs.get_mut(&name)?;
        job.copying &= !bit(rank);
        job.ok &= ok;
        Some(job.kind)
    }

    /// It does not begin.
    pub fn fail_copy(&mut self, name: u64, rank: u32) {
        if let Some(job) = self.jobs.get_mut(&name).filter(|job| job.is_owed_by(rank)) {
            job.ok = false;
        }
    }

    /// Forgets early reports from before `time`.
    pub fn forget_early(&mut self, time: Time) {
        self.early.retain(|_, early| early.since >= time);
    }
}

/// Whether each of `slots` is one of a job's, and none that is written is named twice.
fn are_among(slots: &[u32], job: &Job) -> bool {
    let mut own: Vec<u32> = job.slots.iter().map(|slot| slot.0).collect();
    let mut named = slots.to_vec();
    own.sort_unstable();
    named.sort_unstable();
    let is_once = job.kind == JobKind::Load || named.is_sorted_by(|a, b| a < b);
    is_once && named.iter().all(|slot| own.binary_search(slot).is_ok())
}

/// Whether a copy has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    Yes,
    /// There is no job of this name, yet or any more.
    Unknown,
    /// It is not this rank's to copy, or these are not its slots.
    No,
}

/// What a report did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reported {
    Counted,
    Ended,
    Early,
    /// Too many early ones.
    Dropped,
    /// This rank has reported it, or need not.
    Ignored,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(workers: u32) -> Job {
        Job {
            kind: JobKind::Load,
            session: 1,
            id: RequestId(1),
            keys: Vec::new(),
            slots: [5, 3, 8, 4].map(SlotId).to_vec(),
            left: Reporters::new(workers),
            copying: 0,
            ok: true,
        }
    }

    fn engine(workers: u32) -> Engine {
        Engine { jobs: HashMap::from([(7, job(workers))]), ..Engine::default() }
    }

    #[test]
    fn a_job_ends_with_the_last_report_and_one_failure_fails_it() {
        let mut engine = engine(3);
        assert_eq!(engine.report(7, 0, true, Time(0), 8), Reported::Counted);
        assert_eq!(engine.report(7, 0, true, Time(0), 8), Reported::Ignored);
        assert_eq!(engine.report(7, 3, true, Time(0), 8), Reported::Ignored, "a rank that need not report");
        assert_eq!(engine.report(7, 2, false, Time(0), 8), Reported::Counted);
        assert_eq!(engine.report(7, 1, true, Time(0), 8), Reported::Ended);
        assert!(!engine.jobs[&7].ok);
    }

    #[test]
    fn early_reports_are_bounded_age_and_count_when_the_job_begins() {
        let mut engine = Engine::default();
        assert_eq!(engine.report(7, 0, true, Time(5), 2), Reported::Early);
        assert_eq!(engine.report(7, 1, false, Time(5), 2), Reported::Early);
        assert_eq!(engine.report(8, 0, true, Time(9), 2), Reported::Early);
        assert_eq!(engine.report(9, 0, true, Time(9), 2), Reported::Dropped);
        engine.jobs.insert(7, job(2));
        assert!(engine.take_early(7) && !engine.jobs[&7].ok);
        engine.forget_early(Time(10));
        engine.jobs.insert(8, job(2));
        assert!(!engine.take_early(8));
        assert_eq!(engine.jobs[&8].left, Reporters::Ranks(3), "nothing of it was kept");
    }

    #[test]
    fn a_rank_that_is_gone_fails_what_it_owes_and_nothing_else() {
        let mut engine = engine(2);
        engine.jobs.insert(8, job(1));
        engine.jobs.insert(9, job(0));
        assert_eq!(engine.fail_rank(1), [0_u64; 0]);
        assert_eq!(engine.fail_rank(0), [7, 8]);
        assert!(engine.jobs[&9].ok && !engine.jobs[&7].ok);
        assert_eq!(engine.own_jobs(1), [9]);
        assert_eq!(engine.own_jobs(2), [0_u64; 0]);
        assert!(engine.may_copy(1, None) && !engine.may_copy(2, None) && !engine.may_copy(2, Some(0)));
    }

    #[test]
    fn a_job_is_over_when_it_is_reported_and_not_copied() {
        let mut engine = engine(2);
        assert_eq!(engine.begin_copy(7, 0, JobKind::Load, &[8, 5, 8]), Begun::Yes);
        assert_eq!(engine.begin_copy(7, 1, JobKind::Load, &[]), Begun::Yes);
        assert_eq!(engine.report(7, 0, true, Time(0), 8), Reported::Counted);
        assert_eq!(engine.report(7, 1, true, Time(0), 8), Reported::Ended);
        assert_eq!(engine.end_copy(7, 1, true), Some(JobKind::Load));
        assert!(!engine.jobs[&7].is_over(), "rank 0 reads");
        engine.end_copy(7, 0, true);
        assert!(engine.jobs[&7].is_over() && engine.jobs[&7].ok);
        // Given up by its scheduler, and lost with a rank: the slots wait for the copies all the same.
        for give_up in [
            |engine: &mut Engine| engine.jobs.get_mut(&7).expect("it").end(false),
            |engine: &mut Engine| {
                assert_eq!(engine.fail_rank(0), [7]);
            },
        ] {
            engine.jobs.insert(7, job(1));
            assert_eq!(engine.begin_copy(7, 0, JobKind::Load, &[3]), Begun::Yes);
            give_up(&mut engine);
            assert!(!engine.jobs[&7].is_over() && !engine.jobs[&7].ok);
            engine.end_copy(7, 0, true);
            assert!(engine.jobs[&7].is_over() && !engine.jobs[&7].ok);
        }
    }

    #[test]
    fn only_what_a_rank_owes_is_copied_and_only_its_slots() {
        let store = || Job { kind: JobKind::Store, ..job(1) };
        for (rank, kind, slots, begun) in [
            (0, JobKind::Store, [4, 8, 3].as_slice(), Begun::Yes),
            (0, JobKind::Store, &[], Begun::Yes),
            (1, JobKind::Store, &[3], Begun::No),
            (0, JobKind::Load, &[3], Begun::No),
            (0, JobKind::Store, &[6], Begun::No),
            (0, JobKind::Store, &[3, 3], Begun::No),
        ] {
            let mut engine = Engine { jobs: HashMap::from([(7, store())]), ..Engine::default() };
            assert_eq!(engine.begin_copy(8, rank, kind, slots), Begun::Unknown);
            assert_eq!(engine.begin_copy(7, rank, kind, slots), begun, "{rank} {kind:?} {slots:?}");
            assert_eq!(engine.jobs[&7].ok, rank == 1 || begun == Begun::Yes, "what is refused is not published");
            let again = engine.begin_copy(7, rank, kind, slots);
            assert_eq!(again, Begun::No, "once at a time");
        }
        let mut engine = engine(1);
        engine.report(7, 0, true, Time(0), 8);
        assert_eq!(engine.begin_copy(7, 0, JobKind::Load, &[3]), Begun::No, "it has reported it");
    }

    #[test]
    fn all_ranks_fit() {
        assert_eq!(Reporters::new(MAX_WORKERS), Reporters::Ranks(u128::MAX));
        assert_eq!((bit(127) >> 127, bit(128)), (1, 0));
    }
}
