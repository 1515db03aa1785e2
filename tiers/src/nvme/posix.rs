//! The device of blocking calls: for systems that deny io_uring, and as its plain twin in tests.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::device::{
    Buffer, Cause, Completion, Device, DeviceError, DirEntry, FileOp, FileStat, Outcome, ReadFile, Step, WriteFile,
};
use super::path::RelPath;
use super::sys::{self, Listing, at};
use super::wake::Waker;

/// Operations run one by one where they are submitted; a few are taken at a time so that a shard's loads wait for few stores.
const DEPTH: u32 = 4;

/// Does each operation with blocking calls inside [`Device::submit`].
#[derive(Debug)]
pub struct PosixDevice {
    root: OwnedFd,
    direct: bool,
    waker: Option<Arc<Waker>>,
    listing: Listing,
    /// Kept open as long as the device: the directory's lock.
    held: Option<OwnedFd>,
    done: Vec<Completion>,
}

impl PosixDevice {
    /// A device in the open directory `root`. `direct`: files are opened with O_DIRECT. `waker` ends a wait.
    pub fn new(root: OwnedFd, direct: bool, waker: Option<Arc<Waker>>) -> Self {
        Self { root, direct, waker, listing: Listing::default(), held: None, done: Vec::new() }
    }

    /// Keeps `lock` until the device is gone.
    #[must_use]
    pub fn holding(mut self, lock: OwnedFd) -> Self {
        self.held = Some(lock);
        self
    }

    fn write(&self, op: &WriteFile) -> Result<Outcome, DeviceError> {
        let recycled = match &op.recycle {
            None => false,
            Some(victim) => match rustix::fs::renameat(&self.root, victim.as_c_str(), &self.root, op.temp.as_c_str()) {
                Ok(()) => true,
                Err(Errno::NOENT) => false,
                Err(errno) => return Err(at(Step::Take)(errno)),
            },
        };
        let written = self.write_and_publish(op, recycled);
        if written.is_err() {
            // Best effort: what stays is overwritten by the next operation of this name, or swept by a scan.
            let _ = rustix::fs::unlinkat(&self.root, op.temp.as_c_str(), AtFlags::empty());
        }
        written?;
        let allocated_bytes = sys::stat(self.root.as_fd(), &op.target).map_or(0, |stat| stat.allocated_bytes);
        Ok(Outcome { stat: FileStat { allocated_bytes, ..FileStat::default() }, recycled })
    }

    fn write_and_publish(&self, op: &WriteFile, recycled: bool) -> Result<(), DeviceError> {
        let flags = sys::write_flags(recycled, self.direct);
        let file = rustix::fs::openat(&self.root, op.temp.as_c_str(), flags, sys::FILE_MODE).map_err(at(Step::Open))?;
        write_all(&file, &op.payload, 0)?;
        write_all(&file, &op.footer, u64::from(op.payload.len()))?;
        drop(file);
        rustix::fs::renameat(&self.root, op.temp.as_c_str(), &self.root, op.target.as_c_str())
            .map_err(at(Step::Publish))
    }

    fn read(&self, op: &mut ReadFile) -> Result<Outcome, DeviceError> {
        let flags = sys::read_flags(self.direct);
        let file = rustix::fs::openat(&self.root, op.path.as_c_str(), flags, sys::FILE_MODE).map_err(at(Step::Open))?;
        let payload_bytes = u64::from(op.payload.len());
        read_all(&file, &mut op.payload, 0)?;
        read_all(&file, &mut op.footer, payload_bytes)?;
        Ok(Outcome::default())
    }

    fn run(&self, op: FileOp) -> Result<Outcome, DeviceError> {
        let nothing = |()| Outcome::default();
        match op {
            FileOp::Write(op) => self.write(&op),
            FileOp::Read(mut op) => self.read(&mut op),
            FileOp::Remove(path) => rustix::fs::unlinkat(&self.root, path.as_c_str(), AtFlags::empty())
                .map(nothing)
                .map_err(at(Step::Remove)),
            FileOp::Rename { from, to } => rustix::fs::renameat(&self.root, from.as_c_str(), &self.root, to.as_c_str())
                .map(nothing)
                .map_err(at(Step::Rename)),
            FileOp::Stat(path) => sys::stat(self.root.as_fd(), &path)
                .map(|stat| Outcome { stat, recycled: false })
                .map_err(at(Step::Stat)),
        }
    }
}

fn write_all(file: &OwnedFd, buffer: &Buffer, offset: u64) -> Result<(), DeviceError> {
    // SAFETY: the operation that holds the buffer is being done.
    #[expect(unsafe_code, reason = "the operation's own memory")]
    let mut bytes = unsafe { buffer.as_slice() };
    let mut offset = offset;
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, offset) {
            Ok(0) => return Err(DeviceError::new(Step::Write, Cause::Short { got: offset })),
            Ok(taken) => {
                bytes = bytes.get(taken..).unwrap_or_default();
                offset += taken as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(at(Step::Write)(errno)),
        }
    }
    Ok(())
}

fn read_all(file: &OwnedFd, buffer: &mut Buffer, offset: u64) -> Result<(), DeviceError> {
    // SAFETY: the operation that holds the buffer is being done.
    #[expect(unsafe_code, reason = "the operation's own memory")]
    let mut bytes = unsafe { buffer.as_mut_slice() };
    let mut offset = offset;
    while !bytes.is_empty() {
        match rustix::io::pread(file, &mut *bytes, offset) {
            Ok(0) => return Err(DeviceError::new(Step::Read, Cause::Short { got: offset })),
            Ok(given) => {
                bytes = bytes.get_mut(given..).unwrap_or_default();
                offset += given as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(at(Step::Read)(errno)),
        }
    }
    Ok(())
}

impl Device for PosixDevice {
    fn depth(&self) -> u32 {
        DEPTH
    }

    fn submit(&mut self, tag: u64, op: FileOp) {
        let result = self.run(op);
        self.done.push(Completion { tag, result });
    }

    fn flush(&mut self) {}

    fn cancel(&mut self, _tag: u64) {}

    fn reap(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.done);
    }

    #[allow(clippy::disallowed_methods, reason = "a real device waits in real time")]
    fn wait(&mut self, timeout: Option<Duration>) {
        if !self.done.is_empty() {
            return;
        }
        let Some(waker) = &self.waker else {
            timeout.into_iter().for_each(std::thread::sleep);
            return;
        };
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        // An interrupted wait is an early return.
        let _ = poll(&mut [PollFd::new(waker, PollFlags::IN)], timeout.as_ref());
        waker.clear();
    }

    fn unfinished(&self) -> u32 {
        self.done.len() as u32
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
