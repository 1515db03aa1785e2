//! The pool's side: `Attach` and `Copy` are checked here, and what the threads say is taken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use terrace_kernels::Direction;
use terrace_tiers::Time;

use super::shared::DeviceShare;
use super::thread::{CopyThread, News, Teller, What, Work};
use crate::protocol::{
    Attach, AttachReply, Copied, CopiedJob, Copy, CopyJob, DEVICE_COPIES, ErrorCode, FrameFlags, Kind, MAX_MEMORIES,
    MAX_PAGES, numbers_from_bytes,
};
use crate::server::counts::Limit;
use crate::server::dispatch::Call;
use crate::server::engine::{Begun, JobKind};
use crate::server::frames::{push_message, push_refusal};
use crate::server::pool::Pool;
use crate::server::refusal::Refusal;
use crate::server::session::{Role, SessionId};
use crate::server::wake::Wake;

/// How often it is looked whether threads have ended, where they are waited for.
const NAP: Duration = Duration::from_millis(1);
/// Pages of jobs that a session may have copied at once, in messages full of them.
const WANTED_MESSAGES: usize = 4;
/// Bytes of a [`CopiedJob`] on the wire, at most.
const COPIED_BYTES: usize = 32;

/// How far a session has handed its memory over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Attachment {
    /// One side does not have the feature.
    Unwanted,
    /// Not yet.
    Awaited,
    /// A thread opens it, in answer to the `Attach` of this sequence.
    Opening(u64),
    Open,
    /// It could not be opened: there are no copies in this session.
    Failed,
}

/// A job that a session wants copied.
struct Wanted {
    since: Time,
    /// Of its lists.
    bytes: usize,
    /// What waits for the `EndStep` that begins its load. `None`: the thread has it.
    work: Option<Work>,
}

/// A copy thread, from `Attach` until it has given everything back, which may be after its session's end.
struct Copier {
    engine: String,
    rank: u32,
    thread: CopyThread,
    /// Its session's connection is over: what is still copied is thrown away.
    closing: bool,
    /// By name: the next `Copied` tells of each.
    jobs: BTreeMap<u64, Wanted>,
    /// Of all their lists.
    bytes: usize,
}

/// All copy threads of a pool.
pub(in crate::server) struct Copiers {
    /// `None`: there is no device.
    share: Option<Arc<DeviceShare>>,
    wake: Wake,
    teller: Sender<News>,
    /// Bounded by the jobs that sessions may have copied at once.
    news: Receiver<News>,
    table: BTreeMap<SessionId, Copier>,
    /// Jobs that wait for their `EndStep`, of all sessions.
    awaited: usize,
}

impl Copiers {
    pub fn new(share: Option<Arc<DeviceShare>>, wake: Wake) -> Self {
        let (teller, news) = channel();
        Self { share, wake, teller, news, table: BTreeMap::new(), awaited: 0 }
    }

    /// The features that a session with these gets.
    pub fn features(&self, wanted: &[String]) -> Vec<String> {
        let has = self.share.is_some() && wanted.iter().any(|feature| feature == DEVICE_COPIES);
        if has { vec![DEVICE_COPIES.to_owned()] } else { Vec::new() }
    }

    /// Threads that run.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether something of an earlier session of this rank is still open.
    pub fn holds(&self, engine: &str, rank: u32) -> bool {
        self.table.values().any(|copier| copier.rank == rank && copier.engine == engine)
    }

    fn forget(&mut self, id: SessionId, job: u64) -> Option<Wanted> {
        let copier = self.table.get_mut(&id)?;
        let wanted = copier.jobs.remove(&job)?;
        copier.bytes = copier.bytes.saturating_sub(wanted.bytes);
        self.awaited = self.awaited.saturating_sub(usize::from(wanted.work.is_some()));
        Some(wanted)
    }
}

impl Pool {
    /// [`Attach`]. The reply comes when the memory is open.
    pub fn attach_memory(&mut self, call: Call, message: Attach) -> Result<(), Refusal> {
        let pages: usize = message.groups.iter().map(Vec::len).sum();
        let session = self.session(call.id)?;
        match session.attachment {
            Attachment::Awaited => {}
            Attachment::Unwanted => return Err(unwanted()),
            _ => return Err(Refusal::invalid("a second Attach: memory is handed over once in a session")),
        }
        let (engine, rank) = (session.engine.clone(), session.rank);
        let Some(share) = self.copiers.share.clone() else { return Err(unwanted()) };
        if self.closing.is_some() {
            return Err(Refusal::new(ErrorCode::Closing, "the daemon is closing"));
        }
        if message.memories.len() > MAX_MEMORIES || pages > MAX_PAGES || message.groups.len() > MAX_PAGES {
            self.counts.refuse(Limit::Attach);
            return Err(Refusal::limit(format!(
                "{} memories and {pages} pages in {} groups: at most {MAX_MEMORIES} and {MAX_PAGES} are taken",
                message.memories.len(),
                message.groups.len()
            )));
        }
        let most = self.config.server.sessions as usize;
        if self.copiers.len() >= most {
            self.counts.refuse(Limit::Attach);
            return Err(Refusal::limit(format!("{most} workers have memory open, some that are gone among them")));
        }
        let teller = Teller { session: call.id, to: self.copiers.teller.clone(), wake: self.copiers.wake.clone() };
        let thread = CopyThread::start(share, message, teller)
            .map_err(|error| Refusal::new(ErrorCode::Internal, format!("no thread to copy on: {error}")))?;
        self.session(call.id)?.attachment = Attachment::Opening(call.sequence);
        let copier = Copier { engine, rank, thread, closing: false, jobs: BTreeMap::new(), bytes: 0 };
        self.copiers.table.insert(call.id, copier);
        Ok(())
    }

    /// [`struct@Copy`]. What cannot be copied is told at once; the rest goes to the session's thread.
    pub fn copy(&mut self, call: Call, message: &Copy) -> Result<(), Refusal> {
        self.check_length("jobs", message.jobs.len(), self.limits.jobs, Limit::Jobs)?;
        match self.session(call.id)?.attachment {
            Attachment::Open => {}
            Attachment::Unwanted => return Err(unwanted()),
            _ => return Err(Refusal::role("Copy before memory was attached: wait for the reply to Attach")),
        }
        let direction = if message.store { Direction::DeviceToHost } else { Direction::HostToDevice };
        let work = message.jobs.iter().map(|job| work(job, direction)).collect::<Result<Vec<_>, _>>()?;
        let now = self.clock.now();
        let mut refused = Vec::new();
        for work in work {
            let job = work.job;
            if !self.want(call.id, work, now) {
                refused.push(CopiedJob { job, ok: false, bytes: 0, micros: 0 });
            }
        }
        self.reply_empty(call);
        self.tell_copied(call.id, &refused);
        Ok(())
    }

    /// Takes a job's copy if there is room for it. False: it is refused, and the job fails for this rank.
    fn want(&mut self, id: SessionId, work: Work, now: Time) -> bool {
        let most_bytes = (self.limits.message_bytes as usize).saturating_mul(WANTED_MESSAGES);
        let (job, bytes) = (work.job, work.bytes());
        let Some(copier) = self.copiers.table.get_mut(&id) else { return false };
        let is_full = copier.jobs.len() >= self.limits.jobs as usize || copier.bytes.saturating_add(bytes) > most_bytes;
        if is_full || copier.jobs.contains_key(&job) {
            if is_full {
                self.counts.refuse(Limit::Copies);
            }
            let (engine, rank) = (copier.engine.clone(), copier.rank);
            self.refuse_copy(&engine, job, rank);
            return false;
        }
        copier.jobs.insert(job, Wanted { since: now, bytes, work: Some(work) });
        copier.bytes += bytes;
        self.copiers.awaited += 1;
        match self.start_copy(id, job) {
            Begun::Yes => true,
            // Its `EndStep` comes over another socket. A store was prepared before its worker heard of it.
            Begun::Unknown if self.is_awaited_load(id, job) => {
                self.counts.copies_early += 1;
                true
            }
            begun => {
                self.counts.copies_refused += u64::from(begun == Begun::Unknown);
                self.copiers.forget(id, job);
                false
            }
        }
    }

    fn is_awaited_load(&self, id: SessionId, job: u64) -> bool {
        let wanted = self.copiers.table.get(&id).and_then(|copier| copier.jobs.get(&job));
        wanted.and_then(|wanted| wanted.work.as_ref()).is_some_and(|work| work.direction == Direction::HostToDevice)
    }

    /// Hands a wanted job to its thread, if the engine has begun it and it may be copied.
    fn start_copy(&mut self, id: SessionId, job: u64) -> Begun {
        let Some(copier) = self.copiers.table.get_mut(&id) else { return Begun::No };
        let Some(wanted) = copier.jobs.get_mut(&job) else { return Begun::No };
        let (Some(work), Some(engine)) = (&wanted.work, self.engines.get_mut(&copier.engine)) else { return Begun::No };
        let kind = match work.direction {
            Direction::DeviceToHost => JobKind::Store,
            Direction::HostToDevice => JobKind::Load,
        };
        let begun = engine.begin_copy(job, copier.rank, kind, &work.slots);
        match begun {
            Begun::Yes => {
                if let Some(work) = wanted.work.take() {
                    self.copiers.awaited = self.copiers.awaited.saturating_sub(1);
                    copier.thread.send(work);
                }
            }
            Begun::No => self.counts.copies_refused += 1,
            Begun::Unknown => {}
        }
        begun
    }

    fn refuse_copy(&mut self, engine: &str, job: u64, rank: u32) {
        self.counts.copies_refused += 1;
        if let Some(engine) = self.engines.get_mut(engine) {
            engine.fail_copy(job, rank);
        }
    }

    /// A load has begun: copies that came before it are handed over.
    pub fn start_awaited_copies(&mut self, engine: &str, job: u64) {
        if self.copiers.awaited == 0 {
            return;
        }
        let is_of =
            |copier: &Copier| copier.engine == engine && copier.jobs.get(&job).is_some_and(|w| w.work.is_some());
        let waiting = self.copiers.table.iter().filter(|(_, copier)| is_of(copier));
        let waiting: Vec<SessionId> = waiting.map(|(id, _)| *id).collect();
        for id in waiting {
            if self.start_copy(id, job) != Begun::Yes {
                self.drop_wanted(id, job);
            }
        }
    }

    /// Tells that a job that waited will not be copied.
    fn drop_wanted(&mut self, id: SessionId, job: u64) {
        let Some(wanted) = self.copiers.forget(id, job) else { return };
        let micros = self.micros_since(wanted.since);
        self.tell_copied(id, &[CopiedJob { job, ok: false, bytes: 0, micros }]);
        self.flush(id);
    }

    /// Copies that have waited for the step that begins their load since before `time`.
    pub fn forget_awaited_copies(&mut self, time: Time) {
        let copiers = self.copiers.table.iter();
        let old = copiers.flat_map(|(id, copier)| {
            let old = copier.jobs.iter().filter(|(_, wanted)| wanted.work.is_some() && wanted.since < time);
            old.map(|(job, _)| (*id, *job))
        });
        let old: Vec<(SessionId, u64)> = old.collect();
        for (id, job) in old {
            self.counts.copies_refused += 1;
            self.drop_wanted(id, job);
        }
    }

    /// Takes what the threads have to say.
    pub fn copies_landed(&mut self) {
        let mut copied: BTreeMap<SessionId, Vec<CopiedJob>> = BTreeMap::new();
        while let Ok(News { session, what }) = self.copiers.news.try_recv() {
            match what {
                What::Attached(reply) => self.attached(session, reply),
                What::Ended { job, ok, bytes } => {
                    if let Some(ended) = self.copy_ended(session, job, ok, bytes) {
                        copied.entry(session).or_default().push(ended);
                    }
                }
                What::Pageable(bytes) => self.counts.pageable_bytes += bytes,
                What::Lost => {
                    self.counts.devices_lost += 1;
                    tracing::error!(session, "a device is lost: nothing is copied for this worker any more");
                }
                What::Over { panicked } => {
                    copied.entry(session).or_default().extend(self.copier_over(session, panicked));
                }
            }
        }
        for (session, jobs) in copied {
            self.tell_copied(session, &jobs);
            self.flush(session);
        }
    }

    /// A thread has opened what was handed over, or could not.
    fn attached(&mut self, id: SessionId, reply: Result<AttachReply, Refusal>) {
        let most = self.limits.message_bytes;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let (Attachment::Opening(sequence), Some(connection)) = (session.attachment, &mut session.connection) else {
            return;
        };
        match reply {
            Ok(reply) => {
                session.attachment = Attachment::Open;
                self.counts.attached += 1;
                let frame = (Kind::Attach, FrameFlags::REPLY, sequence);
                push_message(&mut connection.output, frame, &reply, 0, most);
            }
            Err(refusal) => {
                session.attachment = Attachment::Failed;
                session.strikes += u32::from(refusal.is_strike());
                self.counts.attach_failed += 1;
                tracing::warn!(session = id, engine = session.engine, "no copies for a worker: {}", refusal.message);
                push_refusal(&mut connection.output, Kind::Attach, sequence, &refusal);
            }
        }
        self.flush(id);
    }

    /// Nothing is copied for a job any more: its slots are given back if it has been reported, too.
    fn copy_ended(&mut self, id: SessionId, job: u64, ok: bool, bytes: u64) -> Option<CopiedJob> {
        let wanted = self.copiers.forget(id, job)?;
        let copier = self.copiers.table.get(&id)?;
        // What was read from memory that may be gone is thrown away.
        let ok = ok && !copier.closing;
        let (name, rank) = (copier.engine.clone(), copier.rank);
        let kind = self.engines.get_mut(&name).and_then(|engine| engine.end_copy(job, rank, ok));
        match kind {
            Some(JobKind::Store) if ok => {
                self.counts.copies_stored += 1;
                self.counts.copied_to_host += bytes;
            }
            Some(JobKind::Load) if ok => {
                self.counts.copies_loaded += 1;
                self.counts.copied_to_device += bytes;
            }
            _ => self.counts.copies_failed += 1,
        }
        self.finish_job(&name, job);
        Some(CopiedJob { job, ok, bytes, micros: self.micros_since(wanted.since) })
    }

    /// A thread has given everything back.
    fn copier_over(&mut self, id: SessionId, panicked: bool) -> Vec<CopiedJob> {
        let jobs = self.copiers.table.get(&id).map(|copier| copier.jobs.keys().copied().collect::<Vec<_>>());
        let jobs = jobs.unwrap_or_default();
        let ended = jobs.into_iter().filter_map(|job| self.copy_ended(id, job, false, 0)).collect();
        if let Some(copier) = self.copiers.table.remove(&id) {
            copier.thread.join();
        }
        if panicked {
            tracing::error!(session = id, "a copy thread panicked: its worker has no copies any more");
            if let Some(session) = self.sessions.get_mut(&id) {
                session.attachment = match session.attachment {
                    Attachment::Opening(sequence) => {
                        let refusal = Refusal::new(ErrorCode::Internal, "opening the memory failed");
                        if let Some(connection) = &mut session.connection {
                            push_refusal(&mut connection.output, Kind::Attach, sequence, &refusal);
                        }
                        Attachment::Failed
                    }
                    _ => Attachment::Failed,
                };
            }
        }
        ended
    }

    /// The connection of a session is over: nothing new is copied for it, and what runs is thrown away when it has ended.
    pub fn close_copies(&mut self, id: SessionId) {
        let Some(copier) = self.copiers.table.get_mut(&id) else { return };
        copier.closing = true;
        copier.thread.close();
        let awaited = copier.jobs.iter().filter(|(_, wanted)| wanted.work.is_some());
        let awaited: Vec<u64> = awaited.map(|(job, _)| *job).collect();
        for job in awaited {
            self.copiers.forget(id, job);
        }
    }

    /// Ends all copies, and waits for what runs, as long as `within`. False: something still runs; its thread keeps what it needs.
    pub fn end_copies(&mut self, within: Duration) -> bool {
        let until = self.clock.now().plus(within);
        let ids: Vec<SessionId> = self.copiers.table.keys().copied().collect();
        ids.into_iter().for_each(|id| self.close_copies(id));
        self.copies_landed();
        while self.copiers.len() > 0 && self.clock.now() < until {
            std::thread::sleep(NAP);
            self.copies_landed();
        }
        if self.copiers.len() > 0 {
            tracing::warn!(workers = self.copiers.len(), "copies on a GPU have not ended within their time");
        }
        self.copiers.len() == 0
    }

    fn tell_copied(&mut self, id: SessionId, jobs: &[CopiedJob]) {
        let most = self.limits.message_bytes;
        let Some(session) = self.sessions.get_mut(&id).filter(|session| session.role == Role::Worker) else { return };
        let Some(connection) = &mut session.connection else { return };
        let at_once = (most as usize / COPIED_BYTES).saturating_sub(1).max(1);
        for jobs in jobs.chunks(at_once) {
            let frame = (Kind::Copied, FrameFlags::ONE_WAY, 0);
            push_message(&mut connection.output, frame, &Copied { jobs: jobs.to_vec() }, 0, most);
        }
    }

    fn micros_since(&self, since: Time) -> u64 {
        u64::try_from(self.clock.now().since(since).as_micros()).unwrap_or(u64::MAX)
    }
}

fn unwanted() -> Refusal {
    Refusal::role(format!("this session does not have the feature {DEVICE_COPIES:?}"))
}

fn work(job: &CopyJob, direction: Direction) -> Result<Work, Refusal> {
    let list = |bytes: &[u8]| {
        let mut numbers = Vec::new();
        numbers_from_bytes(bytes, &mut numbers).map(|()| numbers)
    };
    Ok(Work {
        job: job.job,
        direction,
        blocks: list(&job.blocks)?,
        sizes: list(&job.sizes)?,
        firsts: list(&job.firsts)?,
        slots: list(&job.slots)?,
    })
}
