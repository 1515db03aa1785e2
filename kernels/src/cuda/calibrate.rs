//! Measures each path at run lengths, with pages that lie apart in both memories.
#![expect(unsafe_code, reason = "driver calls on memory of its own")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::driver::{Driver, DriverError, EventKind, KernelHandle, PinnedMemory};
use super::kernel::Kernel;
use super::plan::{Curves, Path, Point, Rect, Tile, cut};
use super::ring::Ring;
use crate::engine::{CopyError, CopyRun, Direction, EventHandle, StreamHandle};

/// Lengths that are measured, as far as they fit.
const RUN_BYTES: [usize; 7] = [2 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Runs of a point at most.
const POINT_RUNS: usize = 4096;
/// Rounds: the first warms up, the best of the others counts.
const ROUNDS: usize = 4;
/// A copy that takes longer is given up.
const DEADLINE: Duration = Duration::from_secs(10);

/// Memory, stream and event of a measurement, given back at its end.
struct Bench<'a> {
    /// On either side: twice what is copied, for each page has a gap of its length behind it.
    area_bytes: usize,
    driver: &'a Arc<dyn Driver>,
    kernel: Option<(KernelHandle, u32)>,
    ring: Option<Ring>,
    host: Option<PinnedMemory>,
    device: Option<usize>,
    stream: Option<StreamHandle>,
    event: Option<EventHandle>,
}

/// GB/s of every path that the device has, for runs of 2 KiB to 4 MiB, both directions, with `area_bytes` of memory on either
/// side. Blocks for some ten milliseconds a length and direction.
pub(super) fn measure(
    driver: &Arc<dyn Driver>,
    kernel: Option<&Kernel>,
    blocks: u32,
    area_bytes: usize,
) -> Result<Curves, CopyError> {
    let mut bench = Bench {
        area_bytes,
        driver,
        kernel: kernel.map(|kernel| (kernel.handle, blocks)),
        ring: None,
        host: None,
        device: None,
        stream: None,
        event: None,
    };
    bench.open()?;
    let mut curves = Curves::default();
    for len in RUN_BYTES.into_iter().filter(|len| *len <= area_bytes / 2) {
        curves.to_host.push(bench.point(Direction::DeviceToHost, len)?);
        curves.to_device.push(bench.point(Direction::HostToDevice, len)?);
    }
    Ok(curves)
}

impl Bench<'_> {
    fn open(&mut self) -> Result<(), DriverError> {
        if self.kernel.is_some() {
            // A point's tiles: one per 4 KiB, one more for a run that does not begin aligned.
            self.ring = Some(Ring::new(self.driver, self.area_bytes / 2 / super::plan::TILE_BYTES + POINT_RUNS)?);
        }
        self.host = Some(self.driver.allocate_pinned(self.area_bytes)?);
        self.device = Some(self.driver.allocate(self.area_bytes)?);
        self.stream = Some(self.driver.create_stream()?);
        self.event = Some(self.driver.create_event(EventKind::Private)?);
        Ok(())
    }

    fn point(&mut self, direction: Direction, run_bytes: usize) -> Result<Point, CopyError> {
        let mut rate = |path| self.rate(direction, path, run_bytes);
        Ok(Point {
            run_bytes,
            runs: rate(Path::Runs)?.unwrap_or(0.0),
            batch: rate(Path::Batch)?,
            rects: rate(Path::Rects)?,
            kernel: rate(Path::Kernel)?,
        })
    }

    /// GB/s of a path. `None`: the device does not have it.
    fn rate(&mut self, direction: Direction, path: Path, run_bytes: usize) -> Result<Option<f64>, CopyError> {
        let (Some(host), Some(device), Some(stream), Some(event)) = (self.host, self.device, self.stream, self.event)
        else {
            return Ok(None);
        };
        let has = match path {
            Path::Batch => self.driver.facts().has_batch,
            Path::Kernel => self.kernel.is_some(),
            Path::Runs | Path::Rects => true,
        };
        if !has {
            return Ok(None);
        }
        let rows = (self.area_bytes / 2 / run_bytes).min(POINT_RUNS);
        // The kernel needs the device's address of host memory, the driver's copies take either.
        let host_base = if path == Path::Kernel { host.device as usize } else { host.host };
        let pitch = 2 * run_bytes;
        // A prime that does not divide the number of rows goes through them all, and no two neighbours meet.
        let step = if rows.is_multiple_of(37) { 41 } else { 37 };
        let run = |row: usize| {
            let (here, there) = (device + row * pitch, host_base + (row * step % rows) * pitch);
            let (src, dst) = if direction == Direction::DeviceToHost { (here, there) } else { (there, here) };
            CopyRun { src, dst, len: run_bytes }
        };
        let runs: Vec<CopyRun> = (0..rows).map(run).collect();
        let (src, dst) = if direction == Direction::DeviceToHost { (device, host_base) } else { (host_base, device) };
        let rect = Rect { src, dst, width: run_bytes, rows, src_pitch: pitch, dst_pitch: pitch };
        let mut tiles: Vec<Tile> = Vec::new();
        if path == Path::Kernel {
            runs.iter().for_each(|run| cut(*run, &mut tiles));
        }
        let mut best = Duration::MAX;
        for round in 0..ROUNDS {
            let began = Instant::now();
            // SAFETY: all addresses lie inside the bench's memory, which lives until the stream is drained in `drop`.
            unsafe {
                match path {
                    Path::Runs => self.driver.copy(stream, direction, &runs)?,
                    Path::Batch => self.driver.copy_batch(stream, &runs)?,
                    Path::Rects => self.driver.copy_rect(stream, direction, &rect)?,
                    Path::Kernel => self.launch(stream, &tiles)?,
                }
                self.driver.record(event, stream)?;
                // Spinning: to sleep and to be woken takes as long as a small batch.
                while !self.driver.is_done(event)? {
                    if began.elapsed() > DEADLINE {
                        return Err(CopyError::Failed(format!("{path:?} took longer than {DEADLINE:?}")));
                    }
                    std::hint::spin_loop();
                }
            }
            if round > 0 {
                best = best.min(began.elapsed());
            }
            if let Some(ring) = &mut self.ring {
                ring.give_back(usize::MAX);
            }
        }
        Ok(Some((rows * run_bytes) as f64 / best.as_secs_f64().max(1e-9) / 1e9))
    }

    /// # Safety
    /// As [`Driver::launch`].
    unsafe fn launch(&mut self, stream: StreamHandle, tiles: &[Tile]) -> Result<(), CopyError> {
        let table = self.ring.as_mut().and_then(|ring| ring.put(tiles));
        let (Some(table), Some((kernel, blocks))) = (table, self.kernel) else {
            return Err(CopyError::Failed("no room for the kernel's table".to_owned()));
        };
        // SAFETY: passed on; the table lies in the ring until the round's end.
        unsafe { self.driver.launch(kernel, stream, table.device, tiles.len() as u32, blocks) }.map_err(CopyError::from)
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // SAFETY: all of it is the bench's own. The stream is drained first; if that fails the context is gone.
        unsafe {
            if let Some(stream) = self.stream {
                let _ = self.driver.drain(stream);
                self.driver.destroy_stream(stream);
            }
            if let Some(event) = self.event {
                self.driver.destroy_event(event);
            }
            if let Some(device) = self.device {
                self.driver.free(device);
            }
            if let Some(host) = self.host {
                self.driver.free_pinned(host);
            }
        }
    }
}
