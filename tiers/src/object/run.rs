//! What the engine's thread does, from the probe to the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use super::collector::{CollectorHandle, collector};
use super::folder::{FolderHandle, SharedLogState, folder};
use super::id::{SegmentId, WriterId};
use super::load_job;
use super::port::{Changes, Command, LoadPlace, Report, StorePlace};
use super::publisher::{PublisherHandle, publisher};
use super::shared::Shared;
use super::writer::{WriteCommand, write};
use crate::clock::Time;
use crate::tier::{Fault, JobId};

/// How long one probe may take.
const PROBE_DEADLINE: Duration = Duration::from_secs(5);
/// Pause between two probes that failed, at first and at most.
const PROBE_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Part of a shutdown's time that uploads may use; the rest is the log's.
const UPLOADS_SHARE: f64 = 0.8;

/// Runs the tier until it is told to shut down, or nobody sends commands any more.
pub(super) async fn run(
    shared: Arc<Shared>,
    writer: WriterId,
    mut commands: UnboundedReceiver<Command>,
    reports: UnboundedSender<Report>,
    changes: Changes,
) {
    if !probe_until_it_answers(&shared, writer, &mut commands, &reports).await {
        return;
    }
    if shared.label.is_some() {
        tokio::spawn(super::label::write(Arc::clone(&shared)));
    }
    let state = SharedLogState::new(writer);
    let (publisher_handle, publishing) = publisher(Arc::clone(&shared), state.clone());
    let (folder_handle, folding) = folder(Arc::clone(&shared), state.clone(), changes, reports.clone());
    let (collector_handle, collecting) =
        collector(Arc::clone(&shared), state, folder_handle.clone(), publisher_handle.clone());
    let (write_commands, write_inbox) = unbounded_channel();
    let writing = write(Arc::clone(&shared), publisher_handle.clone(), reports.clone(), write_inbox);
    let tasks = Tasks {
        publishing: tokio::spawn(publishing),
        writing: tokio::spawn(writing),
        folding: tokio::spawn(folding),
        collecting: tokio::spawn(collecting),
    };
    let mut engine = Running {
        shared,
        reports,
        publisher: publisher_handle,
        folder: folder_handle,
        collector: collector_handle,
        writer: write_commands,
        loads: JoinSet::new(),
        cancels: BTreeMap::new(),
    };
    let within = engine.serve(&mut commands, &tasks).await;
    engine.finish(tasks, within).await;
}

/// Asks the store what it can do, again and again. Meanwhile stores fail. False: shut down before it answered.
async fn probe_until_it_answers(
    shared: &Arc<Shared>,
    writer: WriterId,
    commands: &mut UnboundedReceiver<Command>,
    reports: &UnboundedSender<Report>,
) -> bool {
    let (mut pause, most) = PROBE_PAUSE;
    loop {
        let rest = pause;
        let attempt = async {
            let deadline = shared.clock.now().plus(PROBE_DEADLINE);
            let answer = shared.requests.probe(shared.names.root(), writer, deadline).await;
            if let Err(why) = &answer {
                tracing::warn!(tier = %shared.tier, url = %shared.config.url, %why, "the store cannot be used now; trying again");
                let _ = reports.send(Report::Unreachable);
                tokio::time::sleep(rest).await;
            }
            answer.ok()
        };
        tokio::pin!(attempt);
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut attempt => break answer,
                command = commands.recv() => if !refuse(command, reports) { return false },
            }
        };
        match answer {
            Some(abilities) => {
                abilities.tell(&shared.tier, &shared.config);
                shared.requests.set_abilities(abilities);
                return true;
            }
            None => pause = pause.saturating_mul(2).min(most),
        }
    }
}

/// Ends what comes before the store has answered. False: nothing more will come.
fn refuse(command: Option<Command>, reports: &UnboundedSender<Report>) -> bool {
    match command {
        None | Some(Command::Shutdown { .. }) => return false,
        Some(Command::Store { job, blocks, .. }) => {
            for StorePlace { index, .. } in blocks {
                let _ = reports.send(Report::Stored { job, index, outcome: Err(Fault::Io) });
            }
        }
        Some(Command::Load { job, blocks, .. }) => {
            for LoadPlace { index, .. } in blocks {
                let _ = reports.send(Report::Loaded { job, index, outcome: Err(Fault::Io) });
            }
        }
        Some(Command::Abandon { .. } | Command::Used(_) | Command::Asked | Command::Full | Command::Discard(_)) => {}
    }
    true
}

/// The long-lived tasks.
struct Tasks {
    publishing: JoinHandle<()>,
    writing: JoinHandle<()>,
    folding: JoinHandle<()>,
    collecting: JoinHandle<()>,
}

impl Tasks {
    /// Whether one has ended, which none does by itself: it panicked.
    fn has_ended(&self) -> bool {
        [&self.publishing, &self.writing, &self.folding, &self.collecting].iter().any(|task| task.is_finished())
    }
}

/// How often the tasks are looked at.
const WATCH: Duration = Duration::from_secs(1);

struct Running {
    shared: Arc<Shared>,
    reports: UnboundedSender<Report>,
    publisher: PublisherHandle,
    folder: FolderHandle,
    collector: CollectorHandle,
    writer: UnboundedSender<WriteCommand>,
    loads: JoinSet<(JobId, Vec<SegmentId>)>,
    cancels: BTreeMap<JobId, oneshot::Sender<()>>,
}

impl Running {
    /// Takes commands until the last. Answers the time that is left for the end.
    async fn serve(&mut self, commands: &mut UnboundedReceiver<Command>, tasks: &Tasks) -> Duration {
        let mut watch = tokio::time::interval(WATCH);
        watch.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    None => return Duration::ZERO,
                    Some(Command::Shutdown { within }) => return within,
                    Some(command) => self.take(command),
                },
                Some(ended) = self.loads.join_next() => self.loaded(ended),
                _ = watch.tick() => if tasks.has_ended() {
                    tracing::error!(tier = %self.shared.tier, "a task of the tier has ended; the tier closes");
                    return Duration::ZERO;
                },
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Store { job, blocks, deadline, given_up } => {
                let _ = self.writer.send(WriteCommand::Store { job, blocks, deadline, given_up });
            }
            Command::Load { job, blocks, deadline } => self.load(job, blocks, deadline),
            Command::Abandon { job } => match self.cancels.remove(&job) {
                Some(cancel) => drop(cancel.send(())),
                None => drop(self.writer.send(WriteCommand::Abandon { job })),
            },
            Command::Used(ids) => self.publisher.used(ids),
            Command::Asked => self.folder.asked(),
            Command::Full => self.collector.full(),
            Command::Discard(blocks) => drop(blocks),
            // Taken by `serve`.
            Command::Shutdown { .. } => {}
        }
    }

    fn load(&mut self, job: JobId, places: Vec<LoadPlace>, deadline: Time) {
        let (cancel, cancelled) = oneshot::channel();
        self.cancels.insert(job, cancel);
        self.loads.spawn(load_job::run(
            Arc::clone(&self.shared),
            job,
            places,
            deadline,
            self.reports.clone(),
            cancelled,
        ));
    }

    /// A load job has ended: what it found gone is taken out of the log, for all nodes.
    fn loaded(&mut self, ended: Result<(JobId, Vec<SegmentId>), tokio::task::JoinError>) {
        // A job that panicked outside of its own guard is told by the manager's side at its deadline.
        let Ok((job, lost)) = ended else { return };
        self.cancels.remove(&job);
        if !lost.is_empty() {
            drop(self.publisher.remove(lost));
        }
    }

    /// Gives loads up, lets uploads finish and be published, within the time.
    async fn finish(self, mut tasks: Tasks, within: Duration) {
        let Self { shared, publisher, writer, mut loads, cancels, .. } = self;
        drop(cancels);
        while loads.join_next().await.is_some() {}
        let by = shared.clock.now().plus(within.mul_f64(UPLOADS_SHARE));
        let _ = writer.send(WriteCommand::Finish { by });
        let publishing = async {
            let _ = (&mut tasks.writing).await;
            tasks.collecting.abort();
            tasks.folding.abort();
            let _ = (&mut tasks.collecting).await;
            // The last handles: what was appended is published, then the task ends.
            drop(publisher);
            let _ = (&mut tasks.publishing).await;
        };
        if tokio::time::timeout(within, publishing).await.is_err() {
            tracing::warn!(tier = %shared.tier, "not everything was published by the end");
        }
        // Aborted tasks are dropped with the runtime, before the thread is said to have ended.
        for task in [tasks.publishing, tasks.writing, tasks.folding, tasks.collecting] {
            task.abort();
        }
    }
}
