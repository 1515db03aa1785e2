//! One load job as a task: it owns the slots that it fills until each is reported.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use terrace_primary::Key;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::id::SegmentId;
use super::port::{LoadPlace, Report};
use super::reader::{self, LoadSink};
use super::shared::Shared;
use crate::clock::Time;
use crate::tier::{Fault, JobId};

/// Passes outcomes on, each place once.
struct Sink {
    job: JobId,
    reports: UnboundedSender<Report>,
    /// Places that are not reported.
    open: Vec<u32>,
    lost: Vec<SegmentId>,
}

impl LoadSink for Sink {
    fn done(&mut self, index: u32, outcome: Result<u32, Fault>) {
        if let Some(at) = self.open.iter().position(|open| *open == index) {
            self.open.swap_remove(at);
            let _ = self.reports.send(Report::Loaded { job: self.job, index, outcome });
        }
    }

    fn lost_block(&mut self, segment: SegmentId, position: u32, key: Key) {
        let _ = self.reports.send(Report::Lost { segment, position, key });
    }

    fn lost_segment(&mut self, id: SegmentId) {
        if !self.lost.contains(&id) {
            self.lost.push(id);
        }
    }
}

/// Loads until all places are done, or `cancel` fires or is dropped. Then no slot is touched any more, and all are
/// reported. Answers the segments that were found gone.
pub(super) async fn run(
    shared: Arc<Shared>,
    job: JobId,
    places: Vec<LoadPlace>,
    deadline: Time,
    reports: UnboundedSender<Report>,
    cancel: oneshot::Receiver<()>,
) -> (JobId, Vec<SegmentId>) {
    let open = places.iter().map(|place| place.index).collect();
    let mut sink = Sink { job, reports, open, lost: Vec::new() };
    let rest = {
        let work = AssertUnwindSafe(reader::load(&shared, &places, deadline, &mut sink)).catch_unwind();
        tokio::select! {
            biased;
            _ = cancel => Fault::Expired,
            ended = work => match ended {
                Ok(()) => Fault::Io,
                Err(_) => {
                    tracing::error!(tier = %shared.tier, "a load panicked; its blocks are misses");
                    Fault::Io
                }
            },
        }
    };
    // The future that filled slots is gone.
    for index in std::mem::take(&mut sink.open) {
        let _ = sink.reports.send(Report::Loaded { job, index, outcome: Err(rest) });
    }
    (job, sink.lost)
}
