//! Device memory, pinned host memory, and an engine between them.
#![expect(unsafe_code, reason = "device memory of its own, and submitting copies from and to it")]

use std::sync::Arc;

use terrace_kernels::cuda::{CudaCopyEngine, CudaOptions, Driver, PathChoice, PinOptions, RegionPins};
use terrace_kernels::{Arena, CopyEngine, CopyError, CopyId, CopyRun, Direction, Order, StreamHandle};

/// An engine on memory of its own, all of it pinned but the last quarter.
pub struct Rig {
    // Dropped first: it drains its streams.
    pub engine: CudaCopyEngine,
    pub driver: Arc<dyn Driver>,
    pub host: Arc<Arena>,
    pub device: usize,
    pub bytes: usize,
    /// Of the rig's own work: the model's stream in tests.
    pub stream: StreamHandle,
}

/// Bytes of a run, and where it begins in device and host memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub device: usize,
    pub host: usize,
    pub len: usize,
}

impl Rig {
    /// `bytes` on either side, a multiple of 4 MiB; pieces of 2 MiB for `seams` and nothing measured, else one piece.
    pub fn new(driver: &Arc<dyn Driver>, path: PathChoice, bytes: usize, seams: bool) -> Result<Self, CopyError> {
        let host = Arc::new(Arena::new(bytes)?);
        let pinned = bytes - bytes / 4;
        let options = PinOptions { piece_bytes: if seams { 2 << 20 } else { bytes }, threads: 2 };
        // SAFETY: the pins keep the arena.
        let mut pins = unsafe { RegionPins::start(driver, host.address(), pinned, Arc::clone(&host) as _, options)? };
        pins.wait();
        let progress = pins.progress();
        if progress.bytes != pinned as u64 {
            return Err(CopyError::Failed(format!("only {progress:?} of {pinned} bytes are pinned")));
        }
        let options = CudaOptions {
            path,
            calibrate_bytes: if seams { 0 } else { bytes.min(64 << 20) },
            ..CudaOptions::default()
        };
        let mut engine = CudaCopyEngine::new(driver, vec![Arc::new(pins)], &options)?;
        let stream = driver.create_stream()?;
        let device = match driver.allocate(bytes) {
            Ok(device) => device,
            Err(error) => {
                // SAFETY: made above, empty.
                unsafe { driver.destroy_stream(stream) };
                return Err(error.into());
            }
        };
        let added = engine.add_memory(device, bytes);
        let rig = Self { engine, driver: Arc::clone(driver), host, device, bytes, stream };
        added.map(|()| rig)
    }

    /// Sets all device memory. Waits.
    pub fn fill_device(&self, value: u8) -> Result<(), CopyError> {
        // SAFETY: the rig's memory and stream; no copy is in flight when cases call this.
        unsafe {
            self.driver.fill(self.stream, self.device, self.bytes, value)?;
            self.driver.drain(self.stream).map_err(CopyError::from)
        }
    }

    /// Copies bytes to the start of device memory. Waits.
    pub fn write_device(&self, bytes: &[u8]) -> Result<(), CopyError> {
        let run = CopyRun { src: bytes.as_ptr().addr(), dst: self.device, len: bytes.len().min(self.bytes) };
        self.copy_plainly(Direction::HostToDevice, run)
    }

    /// Copies bytes from the start of device memory. Waits.
    pub fn read_device(&self, out: &mut [u8]) -> Result<(), CopyError> {
        let run = CopyRun { src: self.device, dst: out.as_mut_ptr().addr(), len: out.len().min(self.bytes) };
        self.copy_plainly(Direction::DeviceToHost, run)
    }

    fn copy_plainly(&self, direction: Direction, run: CopyRun) -> Result<(), CopyError> {
        // SAFETY: the caller's bytes and the rig's memory, both longer than the run; waited for.
        unsafe {
            self.driver.copy(self.stream, direction, &[run])?;
            self.driver.drain(self.stream).map_err(CopyError::from)
        }
    }

    /// Submits runs at these places. `Invalid` if one lies outside.
    pub fn submit(&mut self, direction: Direction, places: &[Place], order: Order) -> Result<CopyId, CopyError> {
        let mut runs = Vec::with_capacity(places.len());
        for place in places {
            let host = self.host.span(place.host, place.len);
            let inside = place.device.checked_add(place.len).is_some_and(|end| end <= self.bytes);
            let (Some(host), true) = (host, inside) else {
                return Err(CopyError::Invalid(format!("{place:?} in {} bytes", self.bytes)));
            };
            let device = self.device + place.device;
            let (src, dst) = if direction == Direction::DeviceToHost { (device, host) } else { (host, device) };
            runs.push(CopyRun { src, dst, len: place.len });
        }
        // SAFETY: checked above; the rig's memory outlives its engine's copies; cases keep targets apart or order them.
        unsafe { self.engine.submit(direction, &runs, order) }
    }

    /// Waits for a copy and takes its result.
    pub fn finish(&mut self, id: CopyId) -> Result<(), CopyError> {
        self.engine.wait(&[id])?;
        let mut done = Vec::new();
        self.engine.poll(&mut done);
        let copy = done.into_iter().find(|copy| copy.id == id);
        copy.map_or_else(
            || Err(CopyError::Failed("a copy that was waited for is not reported".to_owned())),
            |copy| copy.result,
        )
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.engine.drain();
        // SAFETY: the rig's own; the engine has no copy in flight and this stream is drained.
        unsafe {
            let _ = self.driver.drain(self.stream);
            self.driver.destroy_stream(self.stream);
            self.driver.free(self.device);
        }
    }
}
