//! One side of two processes that share device memory: the worker that owns it, and the daemon that copies from and to it. The suite starts
//! itself as either side; both talk by lines over pipes.
#![expect(unsafe_code, reason = "work on streams, and copies from and to memory of another process")]

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;

use terrace_kernels::cuda::{
    CudaCopyEngine, CudaOptions, DeviceEvent, Driver, EventKind, ForeignMemory, MemoryHandle, PinOptions, RegionPins,
    export_memory,
};
use terrace_kernels::{Arena, CopyEngine, CopyError, CopyId, CopyRun, Direction, Order, StreamHandle};

fn told(error: impl Into<CopyError>) -> String {
    error.into().to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<[u8; 64], String> {
    let bad = || format!("{text:?} is no handle");
    let mut bytes = [0; 64];
    if text.len() != 128 || !text.is_ascii() {
        return Err(bad());
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
    }
    Ok(bytes)
}

/// Device memory of a worker, with the event that it records behind its own work.
pub struct Held {
    driver: Arc<dyn Driver>,
    stream: StreamHandle,
    base: usize,
    bytes: usize,
    ready: DeviceEvent,
    /// Of the daemon.
    done: Option<DeviceEvent>,
}

impl Held {
    pub fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self, String> {
        let ready = DeviceEvent::new(driver, EventKind::Shared).map_err(told)?;
        let stream = driver.create_stream().map_err(told)?;
        let base = driver.allocate(bytes).map_err(told)?;
        Ok(Self { driver: Arc::clone(driver), stream, base, bytes, ready, done: None })
    }

    /// What the daemon has to know, in words.
    pub fn introduction(&self) -> Result<String, String> {
        let memory = export_memory(&*self.driver, self.base).map_err(told)?;
        let event = self.ready.export().map_err(told)?;
        Ok(format!("{} {} {} {}", hex(&memory.handle), memory.offset, memory.allocation_bytes, hex(&event)))
    }

    /// Takes the daemon's event.
    pub fn hear(&mut self, event: &str) -> Result<(), String> {
        self.done = Some(DeviceEvent::open(&self.driver, &unhex(event)?).map_err(told)?);
        Ok(())
    }

    /// Computes: sets all memory, in the stream. Waits only where the other process's events say nothing.
    pub fn fill(&self, value: u8, waits: bool) -> Result<(), String> {
        // SAFETY: own memory and stream; a copy of the daemon's is ordered by the event.
        unsafe {
            self.driver.fill(self.stream, self.base, self.bytes, value).map_err(told)?;
            self.ready.record(self.stream).map_err(told)?;
            if waits {
                self.driver.drain(self.stream).map_err(told)?;
            }
        }
        Ok(())
    }

    /// Whether all memory holds this, behind what the daemon has recorded.
    pub fn check(&self, value: u8) -> Result<String, String> {
        let mut found = vec![!value; self.bytes];
        let run = CopyRun { src: self.base, dst: found.as_mut_ptr().addr(), len: found.len() };
        // SAFETY: own memory and stream, and a vector of its length; waited for.
        unsafe {
            if let Some(done) = &self.done {
                done.hold_back(self.stream).map_err(told)?;
            }
            self.driver.copy(self.stream, Direction::DeviceToHost, &[run]).map_err(told)?;
            self.driver.drain(self.stream).map_err(told)?;
        }
        Ok(verdict(&found, value))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: own memory and stream; whoever copied from it has ended or is waited for.
        unsafe {
            let _ = self.driver.drain(self.stream);
            self.driver.destroy_stream(self.stream);
            self.driver.free(self.base);
        }
    }
}

fn verdict(found: &[u8], value: u8) -> String {
    found
        .iter()
        .position(|byte| *byte != value)
        .map_or_else(|| "right".to_owned(), |at| format!("wrong: byte {at} is {:?}, not {value}", found.get(at)))
}

/// A worker's memory as the daemon has it, and its engine.
pub struct Attached {
    // Dropped first: it drains its streams.
    pub engine: CudaCopyEngine,
    memory: ForeignMemory,
    ready: DeviceEvent,
    done: DeviceEvent,
    host: Arc<Arena>,
    bytes: usize,
}

impl Attached {
    /// Opens what a worker has told of.
    pub fn new(driver: &Arc<dyn Driver>, words: &[&str]) -> Result<Self, String> {
        let [handle, offset, bytes, event] = words else { return Err(format!("not an introduction: {words:?}")) };
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no number"));
        let handle = MemoryHandle { handle: unhex(handle)?, offset: number(offset)?, allocation_bytes: number(bytes)? };
        let memory = ForeignMemory::open(driver, &handle).map_err(told)?;
        let ready = DeviceEvent::open(driver, &unhex(event)?).map_err(told)?;
        let done = DeviceEvent::new(driver, EventKind::Shared).map_err(told)?;
        let bytes = memory.len();
        let host = Arc::new(Arena::new(bytes).map_err(told)?);
        let options = PinOptions { piece_bytes: 2 << 20, threads: 2 };
        // SAFETY: the pins keep the arena.
        let mut pins = unsafe { RegionPins::start(driver, host.address(), bytes, Arc::clone(&host) as _, options) }
            .map_err(told)?;
        pins.wait();
        let options = CudaOptions { calibrate_bytes: 0, ..CudaOptions::default() };
        let mut engine = CudaCopyEngine::new(driver, vec![Arc::new(pins)], &options).map_err(told)?;
        engine.add_memory(memory.base(), bytes).map_err(told)?;
        Ok(Self { engine, memory, ready, done, host, bytes })
    }

    /// The event that is recorded behind loads, for the worker.
    pub fn event(&self) -> Result<String, String> {
        Ok(hex(&self.done.export().map_err(told)?))
    }

    /// Small pages in the lower half, large ones above, in reverse order so that nothing is merged.
    fn runs(&self, direction: Direction) -> Vec<CopyRun> {
        let half = (self.bytes / 2).next_multiple_of(16 << 10).min(self.bytes);
        let pages = |from: usize, to: usize, page: usize| {
            let count = (to - from).div_ceil(page);
            (0..count).rev().map(move |index| {
                let at = from + index * page;
                (at, page.min(to - at))
            })
        };
        let (device, host) = (self.memory.base(), self.host.address());
        pages(0, half, 16 << 10)
            .chain(pages(half, self.bytes, 512 << 10))
            .map(|(at, len)| match direction {
                Direction::DeviceToHost => CopyRun { src: device + at, dst: host + at, len },
                Direction::HostToDevice => CopyRun { src: host + at, dst: device + at, len },
            })
            .collect()
    }

    /// Copies all of it one way, ordered with the worker.
    pub fn submit(&mut self, direction: Direction) -> Result<CopyId, String> {
        let order = match direction {
            Direction::DeviceToHost => Order { after: Some(self.ready.token()), ..Order::default() },
            Direction::HostToDevice => Order { before: Some(self.done.token()), ..Order::default() },
        };
        let runs = self.runs(direction);
        // SAFETY: the mapped memory and the arena, both kept until the engine is dropped; orders and waits keep copies apart, but where
        // a process is killed, whose bytes nobody looks at.
        unsafe { self.engine.submit(direction, &runs, order) }.map_err(told)
    }

    pub fn finish(&mut self, id: CopyId) -> Result<(), String> {
        self.engine.wait(&[id]).map_err(told)?;
        let mut done = Vec::new();
        self.engine.poll(&mut done);
        done.into_iter().find_map(|copy| copy.result.err()).map_or(Ok(()), |error| Err(told(error)))
    }

    /// Stores, and whether the slots hold this.
    pub fn store(&mut self, value: u8) -> Result<String, String> {
        let _ = self.host.fill(0, self.bytes, !value);
        let id = self.submit(Direction::DeviceToHost)?;
        self.finish(id)?;
        let mut found = vec![!value; self.bytes];
        let _ = self.host.read(0, &mut found);
        Ok(verdict(&found, value))
    }

    /// Loads this. Waits only where the other process's events say nothing.
    pub fn load(&mut self, value: u8, waits: bool) -> Result<CopyId, String> {
        let _ = self.host.fill(0, self.bytes, value);
        let id = self.submit(Direction::HostToDevice)?;
        if waits {
            self.engine.wait(&[id]).map_err(told)?;
        }
        Ok(id)
    }
}

/// The other side, as a process of its own: answers each line with one, until its input ends.
pub fn run(role: &str, driver: &Arc<dyn Driver>, bytes: usize, waits: bool) -> ExitCode {
    let (mut held, mut attached) = (None, None);
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match role {
            "worker" => work(driver, bytes, waits, &mut held, &words),
            _ => serve(driver, waits, &mut attached, &words),
        };
        let text = answer.unwrap_or_else(|why| format!("error: {why}"));
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
            break;
        }
        if text == "copying"
            && let Some(attached) = &mut attached
        {
            // Until it is killed.
            loop {
                let mut done = Vec::new();
                attached.engine.poll(&mut done);
                if attached.engine.in_flight() < 64 {
                    let _ = attached.submit(Direction::DeviceToHost);
                    let _ = attached.submit(Direction::HostToDevice);
                }
            }
        }
    }
    ExitCode::SUCCESS
}

fn value(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| format!("{text:?} is no byte"))
}

fn work(
    driver: &Arc<dyn Driver>,
    bytes: usize,
    waits: bool,
    held: &mut Option<Held>,
    words: &[&str],
) -> Result<String, String> {
    if words == ["introduce"] {
        return held.insert(Held::new(driver, bytes)?).introduction();
    }
    let held = held.as_mut().ok_or("not introduced")?;
    match words {
        ["hear", event] => held.hear(event).map(|()| "heard".to_owned()),
        ["fill", byte] => held.fill(value(byte)?, waits).map(|()| "filled".to_owned()),
        ["check", byte] => held.check(value(byte)?),
        _ => Err(format!("a worker does not know {words:?}")),
    }
}

fn serve(
    driver: &Arc<dyn Driver>,
    waits: bool,
    attached: &mut Option<Attached>,
    words: &[&str],
) -> Result<String, String> {
    if let ["attach", introduction @ ..] = words {
        return attached.insert(Attached::new(driver, introduction)?).event();
    }
    let attached = attached.as_mut().ok_or("not attached")?;
    match words {
        ["store", byte] => attached.store(value(byte)?),
        ["load", byte] => attached.load(value(byte)?, waits).map(|_| "loaded".to_owned()),
        ["run"] => {
            attached.submit(Direction::DeviceToHost)?;
            Ok("copying".to_owned())
        }
        _ => Err(format!("a daemon does not know {words:?}")),
    }
}
