//! Device memory of one's own, with plain accesses from the host: for engines that model one, and for tests.
#![expect(unsafe_code, reason = "driver calls on memory of its own")]

use std::sync::Arc;

use super::driver::Driver;
use crate::engine::{CopyError, CopyRun, Direction, StreamHandle};

/// Device memory at a fixed address, given back when dropped. Its content is undefined at first.
///
/// [`DeviceArena::read`] and [`DeviceArena::write`] wait for the device, and are ordered with nothing else: the caller keeps them away from
/// bytes that a copy in flight touches. What a violation yields is unspecified bytes.
#[derive(Debug)]
pub struct DeviceArena {
    driver: Arc<dyn Driver>,
    stream: StreamHandle,
    base: usize,
    len: usize,
}

impl DeviceArena {
    /// `bytes` of device memory, at least 1. `OutOfMemory`: the device has not as much.
    pub fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self, CopyError> {
        if bytes == 0 {
            return Err(CopyError::Invalid("no bytes of device memory".to_owned()));
        }
        let stream = driver.create_stream()?;
        match driver.allocate(bytes) {
            Ok(base) => Ok(Self { driver: Arc::clone(driver), stream, base, len: bytes }),
            Err(error) => {
                // SAFETY: made above, empty.
                unsafe { driver.destroy_stream(stream) };
                Err(error.into())
            }
        }
    }

    /// Address of the first byte, for the device and for copies.
    pub const fn address(&self) -> usize {
        self.base
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never: there is at least one byte.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Address of the `len` bytes at `offset`; `None` if they are not all inside.
    pub fn span(&self, offset: usize, len: usize) -> Option<usize> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| self.base + offset)
    }

    /// Copies the bytes at `offset` to `out`. Waits. `Invalid` if they are not all inside.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), CopyError> {
        let src = self.inside(offset, out.len())?;
        self.copy(Direction::DeviceToHost, CopyRun { src, dst: out.as_mut_ptr().addr(), len: out.len() })
    }

    /// Copies `bytes` to `offset`. Waits. `Invalid` if they do not fit inside.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), CopyError> {
        let dst = self.inside(offset, bytes.len())?;
        self.copy(Direction::HostToDevice, CopyRun { src: bytes.as_ptr().addr(), dst, len: bytes.len() })
    }

    fn inside(&self, offset: usize, len: usize) -> Result<usize, CopyError> {
        self.span(offset, len).ok_or_else(|| {
            CopyError::Invalid(format!("{len} bytes at {offset} of device memory of {} bytes", self.len))
        })
    }

    fn copy(&self, direction: Direction, run: CopyRun) -> Result<(), CopyError> {
        if run.len == 0 {
            return Ok(());
        }
        // SAFETY: `inside` checked this memory, the other is a slice; both stay until the stream is drained.
        unsafe {
            self.driver.copy(self.stream, direction, &[run])?;
            self.driver.drain(self.stream).map_err(CopyError::from)
        }
    }
}

impl Drop for DeviceArena {
    fn drop(&mut self) {
        // SAFETY: the arena's own; each copy of it was waited for, and who copies from it keeps it.
        unsafe {
            self.driver.destroy_stream(self.stream);
            self.driver.free(self.base);
        }
    }
}
