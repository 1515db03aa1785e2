//! Memory and events that other processes open: device memory is a memory file, and a handle says whose and which.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, Mode, OFlags, fstat, ftruncate, memfd_create, open};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::super::driver::IPC_HANDLE_BYTES;

/// A mapping of a memory file: an allocation of this process, or another's.
#[derive(Debug)]
pub(super) struct SharedMemory {
    /// Its number is in the handle. `None`: another process's.
    file: Option<OwnedFd>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address; what lies there is only accessed by raw copies.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Zeroed memory of this process. `None`: the system has none.
    pub fn new(len: usize) -> Option<Self> {
        let file = memfd_create("scripted-device", MemfdFlags::CLOEXEC).ok()?;
        ftruncate(&file, len as u64).ok()?;
        let mut memory = Self::map(&file, len)?;
        memory.file = Some(file);
        Some(memory)
    }

    /// Another process's. It stays what it is when that process ends.
    fn open(pid: u32, fd: u32, len: usize) -> Option<Self> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let is_whole = fstat(&file).is_ok_and(|stat| stat.st_size.cast_unsigned() >= len as u64);
        if is_whole { Self::map(&file, len) } else { None }
    }

    fn map(file: &OwnedFd, len: usize) -> Option<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }.ok()?;
        Some(Self { file: None, base: NonNull::new(base.cast())?, len })
    }

    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    fn number(&self) -> Option<u32> {
        self.file.as_ref().and_then(|file| u32::try_from(file.as_raw_fd()).ok())
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; the driver's caller gives back what no work uses.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// What 64 bytes of a handle say: `kind`, pid, file, then length and address, or the event's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    kind: u64,
    pub pid: u32,
    /// Of an allocation that is a file: its number in that process, and 1.
    pub file: u32,
    len: u64,
    /// Address of the allocation, or the event.
    pub value: u64,
}

const MEMORY: u64 = u64::from_le_bytes(*b"memory 1");
const EVENT: u64 = u64::from_le_bytes(*b"event  1");

impl Handle {
    /// Of an allocation of this process; without `shared` only this process can open it.
    pub fn of_memory(base: usize, len: usize, shared: Option<&SharedMemory>) -> Self {
        let file = shared.and_then(SharedMemory::number).map_or(0, |file| file + 1);
        Self { kind: MEMORY, pid: std::process::id(), file, len: len as u64, value: base as u64 }
    }

    /// Of an event of this process.
    pub fn of_event(event: u64) -> Self {
        Self { kind: EVENT, pid: std::process::id(), file: 0, len: 0, value: event }
    }

    pub fn to_bytes(self) -> [u8; IPC_HANDLE_BYTES] {
        let mut bytes = [0; IPC_HANDLE_BYTES];
        let process = u64::from(self.pid) | u64::from(self.file) << 32;
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([self.kind, process, self.len, self.value]) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; IPC_HANDLE_BYTES]) -> Self {
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut word = || words.next().unwrap_or(0);
        let (kind, process, len, value) = (word(), word(), word(), word());
        Self { kind, pid: process as u32, file: (process >> 32) as u32, len, value }
    }

    /// Of memory, or nothing.
    pub fn memory(bytes: &[u8; IPC_HANDLE_BYTES]) -> Option<Self> {
        Some(Self::from_bytes(bytes)).filter(|handle| handle.kind == MEMORY)
    }

    /// Of an event, or nothing.
    pub fn event(bytes: &[u8; IPC_HANDLE_BYTES]) -> Option<Self> {
        Some(Self::from_bytes(bytes)).filter(|handle| handle.kind == EVENT)
    }

    pub fn is_own(self) -> bool {
        self.pid == std::process::id()
    }

    /// Maps another process's memory.
    pub fn map(self) -> Option<SharedMemory> {
        SharedMemory::open(self.pid, self.file.checked_sub(1)?, usize::try_from(self.len).ok()?)
    }
}
