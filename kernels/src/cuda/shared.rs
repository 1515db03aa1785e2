//! What processes share of a device: memory and events, by handles that are plain bytes.
#![expect(unsafe_code, reason = "giving handles back, and calls with them")]

use std::sync::Arc;

use super::driver::{Driver, EventKind, IPC_HANDLE_BYTES, MemoryHandle, code};
use crate::engine::{CopyError, EventHandle, StreamHandle, Token};

/// An event of a device. Given back when dropped; what waits for it goes on waiting.
#[derive(Debug)]
pub struct DeviceEvent {
    driver: Arc<dyn Driver>,
    handle: EventHandle,
}

impl DeviceEvent {
    /// A new event, never recorded.
    pub fn new(driver: &Arc<dyn Driver>, kind: EventKind) -> Result<Self, CopyError> {
        let handle = driver.create_event(kind)?;
        Ok(Self { driver: Arc::clone(driver), handle })
    }

    /// Another process's event on the same device.
    pub fn open(driver: &Arc<dyn Driver>, exported: &[u8; IPC_HANDLE_BYTES]) -> Result<Self, CopyError> {
        let handle = driver.open_event(exported)?;
        Ok(Self { driver: Arc::clone(driver), handle })
    }

    /// The bytes with which another process opens it. Only of a [`EventKind::Shared`] event that this process made.
    pub fn export(&self) -> Result<[u8; IPC_HANDLE_BYTES], CopyError> {
        // SAFETY: `self`'s event, alive.
        Ok(unsafe { self.driver.export_event(self.handle)? })
    }

    /// To order copies by. The event must live until the copy is submitted.
    pub const fn token(&self) -> Token {
        Token::Event(self.handle)
    }

    /// Records it behind the work that is in a stream.
    ///
    /// # Safety
    /// The stream is alive and belongs to the event's device.
    pub unsafe fn record(&self, stream: StreamHandle) -> Result<(), CopyError> {
        // SAFETY: passed on.
        unsafe { self.driver.record(self.handle, stream) }.map_err(CopyError::from)
    }

    /// Work put into the stream from now on waits for the latest record. The host does not wait.
    ///
    /// # Safety
    /// The stream is alive and belongs to the event's device.
    pub unsafe fn hold_back(&self, stream: StreamHandle) -> Result<(), CopyError> {
        // SAFETY: passed on.
        unsafe { self.driver.stream_wait(stream, self.handle) }.map_err(CopyError::from)
    }

    /// Whether the work before the latest record is done. Does not wait.
    pub fn is_done(&self) -> Result<bool, CopyError> {
        // SAFETY: `self`'s event, alive.
        Ok(unsafe { self.driver.is_done(self.handle)? })
    }
}

impl Drop for DeviceEvent {
    fn drop(&mut self) {
        // SAFETY: `self`'s event; the driver keeps what work still needs of it.
        unsafe { self.driver.destroy_event(self.handle) };
    }
}

/// The handle by which another process reaches device memory of this one. `Unsupported`: the allocator's memory cannot be exported
/// (virtual-memory allocators such as PyTorch's expandable segments): then this process has to copy itself.
pub fn export_memory(driver: &dyn Driver, address: usize) -> Result<MemoryHandle, CopyError> {
    driver.export_memory(address).map_err(|error| match error.code {
        code::INVALID_VALUE | code::NOT_SUPPORTED => CopyError::Unsupported(format!(
            "the memory at {address:#x} cannot be handed to another process (is it of a virtual-memory allocator?): {}",
            CopyError::from(error)
        )),
        _ => error.into(),
    })
}

/// Memory of another process, mapped here. Unmapped when dropped: whoever copies from or to it keeps it until its copies are done. What it
/// holds once that process has freed it or has ended is unspecified: copies of that time are to be thrown away.
#[derive(Debug)]
pub struct ForeignMemory {
    driver: Arc<dyn Driver>,
    mapped: usize,
    base: usize,
    len: usize,
}

impl ForeignMemory {
    /// Maps it. The same allocation opened again is the same mapping. `Invalid`: the handle contradicts itself.
    pub fn open(driver: &Arc<dyn Driver>, handle: &MemoryHandle) -> Result<Self, CopyError> {
        let len = handle.allocation_bytes.checked_sub(handle.offset).filter(|len| *len > 0);
        let Some(len) = len.and_then(|len| usize::try_from(len).ok()) else {
            return Err(CopyError::Invalid(format!(
                "memory at {} of an allocation of {} bytes",
                handle.offset, handle.allocation_bytes
            )));
        };
        let mapped = driver.open_memory(&handle.handle)?;
        let mut memory = Self { driver: Arc::clone(driver), mapped, base: mapped, len };
        let base = mapped.checked_add(handle.offset as usize).filter(|base| base.checked_add(len).is_some());
        memory.base =
            base.ok_or_else(|| CopyError::Invalid("foreign memory wraps around the address space".to_owned()))?;
        Ok(memory)
    }

    /// Address here of the byte that was exported.
    pub const fn base(&self) -> usize {
        self.base
    }

    /// Bytes from there to the end of the allocation, as the other process says. A driver call beyond the true end is refused by the
    /// driver, a kernel that goes beyond loses the device: believe only a process that could lose it anyway.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never: there is at least one byte.
    pub const fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for ForeignMemory {
    fn drop(&mut self) {
        // SAFETY: opened by `open`; no copy uses it, by the type's contract.
        unsafe { self.driver.close_memory(self.mapped) };
    }
}
