//! The device on io_uring: linked requests, direct descriptors, registered memory, one system call per batch.

mod chain;
mod memory;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use rustix::event::PollFlags;
use rustix::io::Errno;

use self::chain::{Chain, LINKS, Next, Place, link_of, user_data};
use self::memory::Registered;
use super::device::{Completion, Device, DeviceError, DirEntry, FileOp, MemoryRange, Registration};
use super::path::RelPath;
use super::sys::{self, Listing};
use super::wake::Waker;

/// User data of what is no chain.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;
/// Most operations in flight.
const MAX_DEPTH: u32 = 4096;
/// Requests beside the chains: the wake and some cancellations.
const SPARE_REQUESTS: u32 = 16;

/// Runs operations on a ring that belongs to the thread that made it.
///
/// `unfinished` operations hold memory that is not this device's: whoever drops it with some of them unfinished must
/// leak that memory.
pub struct UringDevice {
    ring: IoUring,
    root: OwnedFd,
    direct: bool,
    waker: Arc<Waker>,
    /// A request waits for the waker.
    wake_armed: bool,
    /// `None`: nothing was announced, or too much for a ring.
    registered: Option<Registered>,
    /// Never moves: requests point into it.
    chains: Box<[Chain]>,
    free: Vec<u32>,
    listing: Listing,
    /// Operations that failed before they reached the kernel.
    failed: Vec<Completion>,
    entries: Vec<Entry>,
    /// Kept open as long as the ring: the directory's lock.
    held: Option<OwnedFd>,
}

impl UringDevice {
    /// A ring in the open directory `root`, for `depth` operations at a time. `direct`: files are opened with
    /// O_DIRECT. `waker` ends a
    /// wait. Fails where the system denies io_uring or lacks what is used of it.
    pub fn new(root: OwnedFd, direct: bool, depth: u32, waker: Arc<Waker>) -> io::Result<Self> {
        let depth = depth.clamp(1, MAX_DEPTH);
        let ring = make_ring(depth * LINKS as u32 + SPARE_REQUESTS)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::OpenAt::CODE,
            opcode::Close::CODE,
            opcode::RenameAt::CODE,
            opcode::UnlinkAt::CODE,
            opcode::Statx::CODE,
            opcode::AsyncCancel::CODE,
        ];
        if !needed.into_iter().all(|code| probe.is_supported(code)) || !ring.params().is_feature_ext_arg() {
            return Err(io::Error::other("the kernel is older than 5.15"));
        }
        ring.submitter().register_files_sparse(depth)?;
        Ok(Self {
            ring,
            root,
            direct,
            waker,
            wake_armed: false,
            registered: None,
            chains: (0..depth).map(|_| Chain::idle()).collect(),
            free: (0..depth).rev().collect(),
            listing: Listing::default(),
            failed: Vec::new(),
            entries: Vec::with_capacity(LINKS),
            held: None,
        })
    }

    /// Keeps `lock` until the device is gone.
    #[must_use]
    pub fn holding(mut self, lock: OwnedFd) -> Self {
        self.held = Some(lock);
        self
    }

    /// Sends the requests of a chain. All of one chain go in one submission: a chain ends where a submission does.
    fn send(&mut self, index: u32) {
        let Some(chain) = self.chains.get_mut(index as usize) else { return };
        let registered = self.registered.as_ref();
        let place = Place { index, root: types::Fd(self.root.as_raw_fd()), direct: self.direct, registered };
        let mut entries = std::mem::take(&mut self.entries);
        chain.requests(&place, &mut entries);
        self.push(&entries);
        entries.clear();
        self.entries = entries;
    }

    fn push(&mut self, entries: &[Entry]) {
        // The queue has room for every request of every chain; what is in it beyond that is stale cancellations.
        let room = {
            let queue = self.ring.submission();
            queue.capacity() - queue.len()
        };
        if room < entries.len() {
            self.enter(0, None);
        }
        // SAFETY: paths, vectors and statx buffers lie in `chains`, which does not move and whose entry is not reused
        // before its last
        // result; payload and footer belong to the operation (`Buffer::new`).
        #[expect(unsafe_code, reason = "the kernel keeps the addresses in these requests")]
        let pushed = unsafe { self.ring.submission().push_multiple(entries) };
        if pushed.is_err() {
            tracing::error!("the submission queue is full: a request is lost");
        }
    }

    /// One system call: submits what was pushed, runs what the kernel put off, waits for `want` completions at most
    /// `timeout`.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) {
        let submitter = self.ring.submitter();
        let entered = match timeout {
            Some(timeout) => {
                let timespec = types::Timespec::from(timeout);
                submitter.submit_with_args(want, &types::SubmitArgs::new().timespec(&timespec))
            }
            None => submitter.submit_and_wait(want),
        };
        match entered {
            Ok(_) => {}
            Err(error) => match Errno::from_io_error(&error) {
                // Nothing to say: the wait ended, or completions must be reaped before more is taken.
                Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN) => {}
                _ => tracing::error!("io_uring_enter failed: {error}"),
            },
        }
    }

    /// Says that memory cannot be registered, or no more of it.
    fn unregistered(&self, error: &io::Error) -> Registration {
        tracing::warn!(
            registered_bytes = self.registered.as_ref().map_or(0, Registered::bytes),
            "the region cannot be registered with io_uring ({error}): operations pin its pages anew, which is slower; \
             raise the limit of locked memory (ulimit -l, LimitMEMLOCK=infinity) above the region's size"
        );
        Registration::Done
    }

    fn arm_wake(&mut self) {
        if !self.wake_armed {
            self.wake_armed = true;
            // By way of libc, as sanitizers need it, the flags are signed.
            let poll = opcode::PollAdd::new(types::Fd(self.waker.as_fd().as_raw_fd()), PollFlags::IN.bits() as u32);
            self.push(&[poll.build().user_data(WAKE)]);
        }
    }
}

/// The best ring that this kernel makes.
fn make_ring(requests: u32) -> io::Result<IoUring> {
    let mut best = IoUring::builder();
    best.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
    match best.setup_clamp().build(requests) {
        // An older kernel does not know all of these.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
            IoUring::builder().setup_clamp().build(requests)
        }
        ring => ring,
    }
}

impl Device for UringDevice {
    fn depth(&self) -> u32 {
        self.chains.len() as u32
    }

    fn submit(&mut self, tag: u64, op: FileOp) {
        let Some(index) = self.free.pop() else {
            let busy = DeviceError::new(super::device::Step::Open, sys::cause_of(Errno::AGAIN));
            self.failed.push(Completion { tag, result: Err(busy) });
            return;
        };
        if let Some(chain) = self.chains.get_mut(index as usize) {
            chain.start(tag, op);
        }
        self.send(index);
    }

    fn flush(&mut self) {
        if !self.ring.submission().is_empty() {
            self.enter(0, None);
        }
    }

    fn cancel(&mut self, tag: u64) {
        let Some(index) = self.chains.iter().position(|chain| !chain.is_idle() && chain.tag == tag) else { return };
        let mut entries = Vec::with_capacity(LINKS);
        if let Some(chain) = self.chains.get_mut(index) {
            chain.cancelled = true;
            for link in chain.unfinished_links() {
                let entry = opcode::AsyncCancel::new(user_data(index as u32, link)).build();
                entries.push(entry.user_data(CANCEL));
            }
        }
        // Sent at once: a hung device is when many of these come.
        self.push(&entries);
        self.flush();
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.failed);
        if self.ring.completion().is_empty() && self.free.len() < self.chains.len() {
            // Completions may be put off until the next system call.
            self.enter(0, None);
        }
        loop {
            let Some(result) = self.ring.completion().next() else { break };
            let (data, result) = (result.user_data(), result.result());
            match data {
                WAKE => {
                    self.wake_armed = false;
                    self.waker.clear();
                }
                CANCEL => {}
                _ => {
                    let (index, link) = link_of(data);
                    let Some(chain) = self.chains.get_mut(index as usize) else { continue };
                    if !chain.result(link, result) {
                        continue;
                    }
                    match chain.next() {
                        Next::Wait => {}
                        Next::Send => self.send(index as u32),
                        Next::Done(result) => {
                            out.push(Completion { tag: chain.tag, result });
                            self.free.push(index as u32);
                        }
                    }
                }
            }
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.arm_wake();
        if !self.failed.is_empty() || !self.ring.completion().is_empty() || timeout == Some(Duration::ZERO) {
            self.enter(0, None);
        } else {
            self.enter(1, timeout);
        }
    }

    #[expect(unsafe_code, reason = "the kernel keeps these addresses")]
    unsafe fn announce(&mut self, backed: MemoryRange, slots: Option<MemoryRange>) -> Registration {
        let plan = Registered::plan(backed, slots);
        // SAFETY: the caller keeps it mapped as long as this device.
        let started = plan.and_then(|plan| unsafe { self.registered.insert(plan).start(&self.ring.submitter()) });
        started.unwrap_or_else(|error| self.unregistered(&error))
    }

    fn register_next(&mut self, ready_bytes: u64) -> Registration {
        let Some(registered) = &mut self.registered else { return Registration::Done };
        let ready_bytes = usize::try_from(ready_bytes).unwrap_or(usize::MAX);
        // SAFETY: what was announced stays mapped as long as this device, by the contract of `announce`.
        #[expect(unsafe_code, reason = "the kernel keeps these addresses")]
        let next = unsafe { registered.next(&self.ring.submitter(), ready_bytes) };
        if matches!(next, Ok(Registration::Done)) {
            tracing::debug!(bytes = registered.bytes(), "memory is registered with io_uring");
        }
        next.unwrap_or_else(|error| self.unregistered(&error))
    }

    fn unfinished(&self) -> u32 {
        (self.chains.len() - self.free.len() + self.failed.len()) as u32
    }

    fn make_dir(&mut self, path: &RelPath) -> Result<(), DeviceError> {
        sys::make_dir(self.root.as_fd(), path)
    }

    fn list_start(&mut self, path: &RelPath) -> Result<(), DeviceError> {
        self.listing.start(self.root.as_fd(), path)
    }

    fn list_next(&mut self, max: usize, out: &mut Vec<DirEntry>) -> Result<bool, DeviceError> {
        self.listing.next(max, out)
    }
}
