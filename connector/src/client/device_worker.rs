//! A worker whose GPU memory the daemon copies from and to: the feature `device-copies`.
#![expect(unsafe_code, reason = "events are recorded in streams that the caller names")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use terrace_kernels::cuda::{DeviceEvent, Driver, EventKind, IPC_HANDLE_BYTES, export_memory};
use terrace_kernels::layout::PageTensor;
use terrace_kernels::{CopyError, StreamHandle};

use super::connection::{Connection, Frame};
use super::dial::open_as;
use super::error::ClientError;
use super::host::wait_until;
use super::opening::Opened;
use super::options::ClientOptions;
use crate::protocol::{
    Attach, AttachReply, Complete, CompletedJob, Copied, CopiedJob, Copy, CopyJob, DEVICE_COPIES, ErrorReply,
    FrameFlags, Hello, HelloReply, Kind, Memory, Page, decode,
};

/// How long the daemon may take to open memory: it may have to make its context on the device.
const ATTACH: Duration = Duration::from_secs(60);

/// The KV memory of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// For each KV-cache group its tensors, in the order in which their pages lie in the worker's part of a slot. Each lies in one
    /// allocation that can be exported.
    pub groups: Vec<Vec<PageTensor>>,
    /// Where the worker's part of a slot starts, in bytes.
    pub part_offset: u32,
    /// Length of that part.
    pub part_bytes: u32,
    /// A block that counts but is not copied.
    pub null_block: Option<u32>,
}

/// A worker session that has the daemon copy. Driven by one thread. Lost connections are not opened again: what it owed is the
/// daemon's to take back, and a new session of the rank is refused with Retry until nothing is copied for this one.
#[derive(Debug)]
pub struct DeviceWorker {
    connection: Connection,
    reply: HelloReply,
    events: Option<Events>,
    /// Came, and nobody has taken it yet.
    copied: VecDeque<CopiedJob>,
}

/// The worker's and the daemon's, all of the worker's device.
#[derive(Debug)]
struct Events {
    store_ready: DeviceEvent,
    load_ready: DeviceEvent,
    stored: DeviceEvent,
    loaded: DeviceEvent,
}

impl DeviceWorker {
    /// Opens the session of a rank of the engine with exactly this name; of `options` socket, namespace, geometry and client are used.
    /// Blocks, 5 seconds at most.
    ///
    /// # Errors
    /// As for every session; [`ClientError::Unfit`] if the daemon has no device.
    pub fn open(options: &ClientOptions, engine: &str, rank: u32) -> Result<Self, ClientError> {
        let hello = Hello {
            features: vec![DEVICE_COPIES.to_owned()],
            role: "worker".to_owned(),
            rank,
            ..options.hello(engine.to_owned())
        };
        // The region is not mapped here: no byte of it goes through this process.
        let Opened { connection, reply, .. } = open_as(options, &hello, &AtomicBool::new(false))?;
        if !reply.features.iter().any(|feature| feature == DEVICE_COPIES) {
            return Err(ClientError::Unfit(format!("the daemon does not offer {DEVICE_COPIES:?}: it has no GPU")));
        }
        Ok(Self { connection, reply, events: None, copied: VecDeque::new() })
    }

    /// What the daemon said when the session was opened.
    pub const fn hello(&self) -> &HelloReply {
        &self.reply
    }

    /// Hands memory over, once. Waits until the daemon has opened it, a minute at most. The memory must stay what it is until the
    /// session is over and nothing is copied for it any more.
    ///
    /// # Errors
    /// [`ClientError::Device`]: it cannot be exported (virtual-memory allocators): then this process has to copy by itself.
    /// [`ClientError::Copies`]: the daemon cannot open it; the session goes on without copies.
    pub fn attach(&mut self, driver: &Arc<dyn Driver>, memory: &DeviceMemory) -> Result<(), ClientError> {
        let own = || DeviceEvent::new(driver, EventKind::Shared);
        let (store_ready, load_ready) = (own()?, own()?);
        let (memories, groups) = export(driver, &memory.groups)?;
        let attach = Attach {
            device: driver.facts().uuid.to_vec(),
            memories,
            groups,
            part_offset: memory.part_offset,
            part_bytes: memory.part_bytes,
            null_block: memory.null_block,
            store_ready: store_ready.export()?.to_vec(),
            load_ready: load_ready.export()?.to_vec(),
        };
        let sequence = self.connection.queue(Kind::Attach, FrameFlags::REQUEST, Some(&attach))?;
        let deadline = Instant::now() + ATTACH;
        let late = || ClientError::Unfit("no answer to Attach".to_owned());
        let frame = loop {
            let frame = self.receive(deadline)?.ok_or_else(late)?;
            if frame.header.sequence == sequence {
                break frame;
            }
        };
        let reply: AttachReply = decode("AttachReply", &frame.body)?;
        let open = |name: &str, bytes: Vec<u8>| {
            let handle: [u8; IPC_HANDLE_BYTES] =
                bytes.try_into().map_err(|_| ClientError::Unfit(format!("{name} is no event")))?;
            Ok::<_, ClientError>(DeviceEvent::open(driver, &handle)?)
        };
        let (stored, loaded) = (open("stored", reply.stored)?, open("loaded", reply.loaded)?);
        self.events = Some(Events { store_ready, load_ready, stored, loaded });
        Ok(())
    }

    /// Has jobs of one step copied, pages to slots (`store`) or back: behind all work that is in `stream` now. Does not wait.
    /// Until [`DeviceWorker::copied`] has told of a job its pages are the daemon's.
    ///
    /// # Safety
    /// The stream is alive and belongs to the device of [`DeviceWorker::attach`].
    pub unsafe fn copy(&mut self, store: bool, jobs: Vec<CopyJob>, stream: StreamHandle) -> Result<(), ClientError> {
        let events = self.events()?;
        let ready = if store { &events.store_ready } else { &events.load_ready };
        // SAFETY: passed on.
        unsafe { ready.record(stream)? };
        self.connection.queue(Kind::Copy, FrameFlags::ONE_WAY, Some(&Copy { store, jobs }))?;
        Ok(self.connection.flush()?)
    }

    /// Jobs for which nothing is copied any more, since it was asked last. Waits for one, `within` at most. Before loaded pages are used:
    /// [`DeviceWorker::hold_back`].
    ///
    /// # Errors
    /// The connection is over, or a message was refused: what its jobs are is not known any more.
    pub fn copied(&mut self, within: Duration) -> Result<Vec<CopiedJob>, ClientError> {
        let deadline = Instant::now() + within;
        while self.copied.is_empty() && self.receive(deadline)?.is_some() {}
        Ok(self.copied.drain(..).collect())
    }

    /// Work put into the stream from now on waits for the copies that have been told of: `loads` into pages, or stores from them.
    ///
    /// # Safety
    /// As for [`DeviceWorker::copy`].
    pub unsafe fn hold_back(&self, loads: bool, stream: StreamHandle) -> Result<(), ClientError> {
        let events = self.events()?;
        let event = if loads { &events.loaded } else { &events.stored };
        // SAFETY: passed on.
        unsafe { event.hold_back(stream) }?;
        Ok(())
    }

    /// Reports jobs: `true` publishes a store.
    pub fn complete(&mut self, jobs: &[(u64, bool)]) -> Result<(), ClientError> {
        let jobs = jobs.iter().map(|(job, ok)| CompletedJob { job: *job, ok: *ok }).collect();
        self.connection.queue(Kind::Complete, FrameFlags::ONE_WAY, Some(&Complete { jobs }))?;
        Ok(self.connection.flush()?)
    }

    fn events(&self) -> Result<&Events, ClientError> {
        self.events.as_ref().ok_or_else(|| ClientError::Unfit("no memory is attached".to_owned()))
    }

    /// The next frame that is no `Copied` or `Goodbye`, or the first `Copied`; nothing by the deadline: `None`.
    fn receive(&mut self, deadline: Instant) -> Result<Option<Frame>, ClientError> {
        loop {
            self.connection.flush()?;
            let frame = match self.connection.next_frame()? {
                Some(frame) => frame,
                None if !wait_until(&self.connection, deadline)? => return Ok(None),
                None => {
                    self.connection.read()?;
                    continue;
                }
            };
            match (frame.header.kind, frame.header.flags) {
                (Kind::Goodbye, _) => {}
                (Kind::Copied, FrameFlags::ONE_WAY) => {
                    let Copied { jobs } = decode("Copied", &frame.body)?;
                    self.copied.extend(jobs);
                    return Ok(Some(frame));
                }
                (kind, FrameFlags::ERROR) => {
                    let ErrorReply { code, message } = decode("ErrorReply", &frame.body)?;
                    return Err(ClientError::Copies { kind, code, message });
                }
                _ => return Ok(Some(frame)),
            }
        }
    }
}

/// Each allocation once, and the tensors in them.
fn export(driver: &Arc<dyn Driver>, groups: &[Vec<PageTensor>]) -> Result<(Vec<Memory>, Vec<Vec<Page>>), ClientError> {
    let (mut memories, mut known) = (Vec::new(), BTreeMap::new());
    let mut page = |tensor: &PageTensor| {
        let exported = export_memory(&**driver, tensor.base)?;
        let number = *known.entry(exported.handle).or_insert_with(|| {
            // The whole allocation, so that places in it count from its start.
            let handle = exported.handle.to_vec();
            memories.push(Memory { handle, offset: 0, allocation_bytes: exported.allocation_bytes });
            memories.len() - 1
        });
        let wide = || CopyError::Invalid(format!("{tensor:?} is too large"));
        Ok(Page {
            memory: u32::try_from(number).map_err(|_| wide())?,
            offset: exported.offset,
            num_blocks: tensor.num_blocks,
            page_bytes: u32::try_from(tensor.page_bytes).map_err(|_| wide())?,
            page_stride: tensor.page_stride as u64,
        })
    };
    let groups = groups.iter().map(|group| group.iter().map(&mut page).collect());
    let groups = groups.collect::<Result<Vec<Vec<Page>>, CopyError>>()?;
    Ok((memories, groups))
}
