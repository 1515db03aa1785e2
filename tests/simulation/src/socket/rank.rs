//! A worker: a process with a session of its own, which copies and reports.

use terrace_connector::protocol::{
    Complete, CompletedJob, ErrorCode, ErrorReply, FrameFlags, Hello, Kind, Lookup, decode,
};
use terrace_connector::server::InlineServer;

use super::common::Common;
use super::copier::{Copier, Task};
use super::engine::{JOBS_OF_AN_ENGINE, hello};
use super::wire::{Process, Wire};
use crate::failure::Reason;

/// A worker and its connection.
pub(crate) struct Rank {
    pub copier: Copier,
    pub process: Option<Process>,
    wire: Option<Wire>,
    is_open: bool,
    /// Sessions that it has opened.
    pub epoch: u64,
    /// Jobs that it could not report.
    unreported: Vec<u64>,
}

impl Rank {
    pub const fn new(copier: Copier) -> Self {
        Self { copier, process: None, wire: None, is_open: false, epoch: 0, unreported: Vec::new() }
    }

    pub const fn is_connected(&self) -> bool {
        self.is_open
    }

    /// A job is handed to it. What comes while its `Hello` is on its way is void: with that the daemon counts as failed what it owes, and when
    /// that is, it cannot know.
    pub fn take(&mut self, task: Task) {
        if self.wire.is_some() && !self.is_open {
            self.unreported.push(task.job);
        } else {
            self.copier.tasks.push_back(task);
        }
    }

    /// Copies something, reports what is over, and connects again when it may. What it reports goes to `reports` too.
    pub fn step(
        &mut self,
        (engine, number): (&str, u64),
        server: &mut InlineServer,
        common: &mut Common,
        reports: &mut Vec<(u64, u32, bool)>,
    ) -> Result<(), Reason> {
        self.hear(common)?;
        let rank = self.copier.rank;
        while !common.rng.chance(common.settings.idle_per_mille) {
            let Some((job, ok)) = self.copier.work(common)? else { break };
            match self.wire.as_mut().filter(|_| self.is_open) {
                Some(wire) => {
                    let jobs = vec![CompletedJob { job, ok }];
                    wire.send(Kind::Complete, FrameFlags::ONE_WAY, &Complete { jobs });
                    reports.push((job, rank, ok));
                }
                None => self.unreported.push(job),
            }
        }
        if self.process.is_none() && common.rng.chance(200) {
            let is_seen = !common.rng.chance(common.settings.unseen_per_mille);
            self.process = Some(Process::start(common.pid(), is_seen));
        }
        if self.wire.is_none() && common.rng.chance(300) {
            // What ran is over before it says Hello again.
            if common.rng.chance(300) {
                self.break_off();
            }
            if self.copier.tasks.is_empty()
                && let Some(process) = &mut self.process
            {
                let mut wire = Wire::connect(server, process);
                let message = Hello { rank, ..hello("worker", engine, self.copier.namespace, common) };
                wire.send(Kind::Hello, FrameFlags::REQUEST, &message);
                self.wire = Some(wire);
            }
        }
        self.misuse(number, common);
        if let Some(wire) = &mut self.wire {
            wire.carry(&mut common.rng, common.settings.delay_per_mille);
        }
        Ok(())
    }

    fn hear(&mut self, common: &mut Common) -> Result<(), Reason> {
        let Some(wire) = &mut self.wire else { return Ok(()) };
        while let Some((header, body)) = wire.next()? {
            common.trace.add(format_args!("rank {} hears {header:?}", self.copier.rank));
            match (header.kind, header.flags.error) {
                (Kind::Hello, false) => {
                    self.is_open = true;
                    self.epoch += 1;
                    let jobs: Vec<_> = self.unreported.drain(..).map(|job| CompletedJob { job, ok: false }).collect();
                    if !jobs.is_empty() {
                        wire.send(Kind::Complete, FrameFlags::ONE_WAY, &Complete { jobs });
                    }
                }
                (_, true) => {
                    let error: ErrorReply = decode("ErrorReply", &body)
                        .map_err(|error| Reason::Contract(format!("an error that cannot be read: {error}")))?;
                    let code = ErrorCode::from_number(error.code);
                    let is_expected = matches!(
                        code,
                        ErrorCode::NotAdmitted | ErrorCode::Retry | ErrorCode::Limit | ErrorCode::Closing
                    ) || (header.kind == Kind::Lookup && code == ErrorCode::Role);
                    if !is_expected {
                        return Err(Reason::Contract(format!("a worker is refused: {code:?} {}", error.message)));
                    }
                    common.count("refusals");
                }
                _ => {}
            }
        }
        if !wire.is_open() {
            self.lose();
        }
        Ok(())
    }

    fn lose(&mut self) {
        (self.wire, self.is_open) = (None, false);
    }

    /// Nothing is copied any more.
    pub fn break_off(&mut self) {
        self.unreported.extend(self.copier.break_off());
    }

    fn misuse(&mut self, number: u64, common: &mut Common) {
        if self.is_open
            && common.rng.chance(common.settings.misuse_per_mille)
            && let Some(wire) = &mut self.wire
        {
            common.count("broken rules");
            if common.rng.chance(500) {
                wire.send(
                    Kind::Lookup,
                    FrameFlags::REQUEST,
                    &Lookup { request: 1, tiers: u32::MAX, lease: true, queries: Vec::new() },
                );
            } else {
                // A job of another engine, if there is such a one. Names of engines' jobs begin with the engine's number.
                let stranger = common.rng.below(5) * JOBS_OF_AN_ENGINE + common.rng.between(1, 50);
                let job = if stranger / JOBS_OF_AN_ENGINE == number { u64::MAX } else { stranger };
                wire.send(
                    Kind::Complete,
                    FrameFlags::ONE_WAY,
                    &Complete { jobs: vec![CompletedJob { job, ok: true }] },
                );
            }
        }
    }

    /// The connection breaks.
    pub fn cut(&mut self, common: &mut Common) {
        if let Some(wire) = &mut self.wire {
            wire.cut(&mut common.rng);
        }
    }

    /// The process is gone, with whatever it was at.
    pub fn die(&mut self, common: &mut Common) {
        self.cut(common);
        self.lose();
        self.process = None;
        self.copier.tasks.clear();
        self.unreported.clear();
    }
}
