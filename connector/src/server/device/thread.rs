//! The copy thread of one worker: opens what it hands over, submits, polls, and gives everything back.
#![expect(unsafe_code, reason = "submitting copies between addresses of other processes' memory and slots")]

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use terrace_kernels::layout::JobPages;
use terrace_kernels::{CopyDone, CopyEngine, CopyError, CopyId, CopyRun, Direction, Order};

use super::attach::{self, Attached};
use super::shared::DeviceShare;
use crate::protocol::{Attach, AttachReply};
use crate::server::refusal::Refusal;
use crate::server::session::SessionId;
use crate::server::wake::Wake;

/// How often it is looked whether copies have ended: at first, and when they take long.
const NAPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];

/// A job's pages, whose slots have been checked.
pub(super) struct Work {
    pub job: u64,
    pub direction: Direction,
    pub blocks: Vec<u32>,
    pub sizes: Vec<u32>,
    pub firsts: Vec<u32>,
    pub slots: Vec<u32>,
}

impl Work {
    /// What its lists take.
    pub fn bytes(&self) -> usize {
        4 * [&self.blocks, &self.sizes, &self.firsts, &self.slots].iter().map(|list| list.len()).sum::<usize>()
    }
}

/// What a thread has to say.
pub(super) enum What {
    Attached(Result<AttachReply, Refusal>),
    /// Nothing is copied for this job any more.
    Ended {
        job: u64,
        ok: bool,
        bytes: u64,
    },
    /// Bytes that went as pageable since it was said last.
    Pageable(u64),
    /// The device is lost: each later job fails.
    Lost,
    /// Everything is given back: nothing is copied for any job of this worker, and the thread ends.
    Over {
        panicked: bool,
    },
}

/// From the thread of a session.
pub(super) struct News {
    pub session: SessionId,
    pub what: What,
}

/// Where news go.
#[derive(Clone)]
pub(super) struct Teller {
    pub session: SessionId,
    pub to: Sender<News>,
    pub wake: Wake,
}

impl Teller {
    fn tell(&self, what: What) {
        // A pool that is gone does not want to know.
        let _ = self.to.send(News { session: self.session, what });
        self.wake.wake();
    }
}

/// A running thread. Dropped, it is left to end by itself: it holds what it copies to.
pub(super) struct CopyThread {
    work: Option<Sender<Work>>,
    closed: Arc<AtomicBool>,
    handle: JoinHandle<()>,
}

impl CopyThread {
    /// Starts it; it opens what `attach` names.
    pub fn start(share: Arc<DeviceShare>, attach: Attach, teller: Teller) -> std::io::Result<Self> {
        let (work, inbox) = channel();
        let closed = Arc::new(AtomicBool::new(false));
        let name = format!("terrace-gpu-{}", teller.session);
        let handle = {
            let closed = Arc::clone(&closed);
            std::thread::Builder::new().name(name).spawn(move || {
                let ended = catch_unwind(AssertUnwindSafe(|| run(&share, attach, &inbox, &closed, &teller)));
                drop(share);
                teller.tell(What::Over { panicked: ended.is_err() });
            })?
        };
        Ok(Self { work: Some(work), closed, handle })
    }

    /// Hands work over. The caller bounds how much.
    pub fn send(&self, work: Work) {
        if let Some(to) = &self.work {
            // A thread that is over has told so.
            let _ = to.send(work);
        }
    }

    /// Nothing new is submitted; what runs is waited for, then everything is given back.
    pub fn close(&mut self) {
        self.closed.store(true, Ordering::Release);
        self.work = None;
    }

    /// After [`What::Over`].
    pub fn join(self) {
        let _ = self.handle.join();
    }
}

fn run(share: &DeviceShare, attach: Attach, inbox: &Receiver<Work>, closed: &AtomicBool, teller: &Teller) {
    let attached = match attach::open(share, &attach) {
        Ok((attached, reply)) => {
            teller.tell(What::Attached(Ok(reply)));
            attached
        }
        Err(refusal) => return teller.tell(What::Attached(Err(refusal))),
    };
    drop(attach);
    let mut copier = Copier {
        attached,
        share,
        closed,
        teller,
        waiting: VecDeque::new(),
        running: BTreeMap::new(),
        runs: Vec::new(),
        done: Vec::new(),
        pageable: 0,
        lost: false,
    };
    copier.serve(inbox);
}

struct Copier<'a> {
    attached: Attached,
    share: &'a DeviceShare,
    closed: &'a AtomicBool,
    teller: &'a Teller,
    /// What the engine has no room for yet.
    waiting: VecDeque<Work>,
    /// Jobs of copies in flight.
    running: BTreeMap<CopyId, u64>,
    runs: Vec<CopyRun>,
    done: Vec<CopyDone>,
    pageable: u64,
    lost: bool,
}

impl Copier<'_> {
    /// Until the worker is over and nothing is copied for it.
    fn serve(&mut self, inbox: &Receiver<Work>) {
        let mut open = true;
        let mut nap = NAPS[0];
        while open || !self.running.is_empty() || !self.waiting.is_empty() {
            if open {
                open = self.take(inbox, nap);
            } else {
                std::thread::sleep(nap);
            }
            let moved = self.submit_all() | self.poll();
            nap = if moved { NAPS[0] } else { (nap * 2).min(NAPS[1]) };
        }
    }

    /// Takes what came. Waits for it: as long as it takes if there is nothing else to do. False: nothing more comes.
    fn take(&mut self, inbox: &Receiver<Work>, nap: Duration) -> bool {
        let idle = self.running.is_empty() && self.waiting.is_empty();
        let first =
            if idle { inbox.recv().map_err(|_| RecvTimeoutError::Disconnected) } else { inbox.recv_timeout(nap) };
        match first {
            Ok(work) => {
                self.waiting.push_back(work);
                self.waiting.extend(inbox.try_iter());
                true
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    /// Submits what the engine has room for, in order. True: something was done.
    fn submit_all(&mut self) -> bool {
        let mut moved = false;
        while let Some(work) = self.waiting.front() {
            let submitted = if self.closed.load(Ordering::Acquire) {
                Err(CopyError::Closed)
            } else {
                submit(&mut self.attached, self.share, work, &mut self.runs)
            };
            match submitted {
                Err(CopyError::QueueFull { .. }) if !self.running.is_empty() => return moved,
                Ok(id) => {
                    self.running.insert(id, work.job);
                }
                Err(error) => {
                    let job = work.job;
                    self.failed(job, &error);
                }
            }
            self.waiting.pop_front();
            moved = true;
        }
        moved
    }

    /// Tells what has ended. True: something has.
    fn poll(&mut self) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.attached.engine.poll(&mut done);
        let moved = !done.is_empty();
        for copy in done.drain(..) {
            let Some(job) = self.running.remove(&copy.id) else { continue };
            match &copy.result {
                Ok(()) => self.teller.tell(What::Ended { job, ok: true, bytes: copy.bytes }),
                Err(error) => self.failed(job, error),
            }
        }
        self.done = done;
        let pageable = self.attached.engine.cuda_stats().pageable_bytes;
        if pageable > self.pageable {
            self.teller.tell(What::Pageable(pageable - self.pageable));
            self.pageable = pageable;
        }
        if !self.lost && self.attached.engine.is_lost() {
            self.lost = true;
            self.teller.tell(What::Lost);
        }
        moved
    }

    fn failed(&self, job: u64, error: &CopyError) {
        if !self.lost && *error != CopyError::Closed {
            tracing::warn!(session = self.teller.session, job, "a job is not copied: {error}");
        }
        self.teller.tell(What::Ended { job, ok: false, bytes: 0 });
    }
}

fn submit(
    attached: &mut Attached,
    share: &DeviceShare,
    work: &Work,
    runs: &mut Vec<CopyRun>,
) -> Result<CopyId, CopyError> {
    let pages = JobPages {
        block_ids: &work.blocks,
        group_sizes: &work.sizes,
        block_indices: &work.firsts,
        slots: &work.slots,
        null_block: attached.null_block,
    };
    runs.clear();
    attached.layout.job_runs(&pages, &share.slots(), work.direction, runs)?;
    let (after, before) = match work.direction {
        Direction::DeviceToHost => (&attached.store_ready, &attached.stored),
        Direction::HostToDevice => (&attached.load_ready, &attached.loaded),
    };
    let order = Order { after: Some(after.token()), before: Some(before.token()), ..Order::default() };
    // SAFETY: pages lie in memory that `attached` keeps mapped until its engine has drained, and slots in the region, which the
    // engine's `RegionPins` keep. The job's slots are *writing* (a store) or have readers (a load) until the pool has heard of the copy's
    // end, and each is named once. The pages are the worker's to leave alone until then; one that does not, or names a page
    // twice, gets unspecified bytes in its own pages and slots. The events are `attached`'s.
    unsafe { attached.engine.submit(work.direction, runs, order) }
}
