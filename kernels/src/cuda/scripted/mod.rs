//! A device that exists only in host memory: for tests, here and in crates above.
//!
//! Calls are queued in streams as on a GPU. What is queued is executed later, whenever any call is made, in an order that a seed
//! picks: streams overtake each other wherever events allow it, so a missing order shows as wrong bytes. Addresses are those of
//! host memory. Rules of the real driver that are easy to break are checked: a copy that crosses from one allocation or
//! registration into the next, a kernel that touches host memory that is not registered, memory that is given back
//! while work uses it. Any call can be made to fail, and the device can be lost.
//!
//! Processes share memory as they do on a GPU: each has a device of its own that the script plays, and what one allocates the other can open
//! by its handle. Events of another process count as done. Memory of a process that has ended stays as it was.
#![expect(unsafe_code, reason = "copies between addresses and mappings, as the driver does")]

mod calls;
mod memory;
mod shared;
mod work;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::{DeviceFacts, DriverError, code};
use crate::engine::StreamHandle;
use memory::Memory;
use work::{Event, Op};

/// What a device that the script plays can do.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// Picks the order of execution.
    pub seed: u64,
    /// Whether there are batched copies.
    pub has_batch: bool,
    /// Whether a kernel can be loaded.
    pub has_kernel: bool,
    /// Whether the device uses the host's addresses for pinned memory, as most machines do. If not, a kernel that is given the
    /// host's address is found out.
    pub unified: bool,
}

/// Of every device that the script plays: processes that share one find it by this.
pub const UUID: [u8; 16] = *b"scripted device!";

/// A call that fails.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Name of the driver's call, such as `cuEventRecord`.
    pub call: &'static str,
    /// How many of these calls succeed before.
    pub after: u64,
    /// The result. A sticky one loses the device.
    pub code: i32,
}

/// The device.
#[derive(Debug)]
pub struct Scripted {
    facts: DeviceFacts,
    has_kernel: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    random: u64,
    next_handle: u64,
    streams: BTreeMap<u64, VecDeque<Op>>,
    /// Streams whose work does not go on.
    held: Vec<u64>,
    /// No stream's work goes on.
    held_all: bool,
    events: HashMap<u64, Event>,
    memory: Memory,
    faults: Vec<Fault>,
    lost: Option<i32>,
    calls: BTreeMap<&'static str, u64>,
    violations: Vec<String>,
}

impl State {
    fn random(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.random >> 33) as usize) % below.max(1)
    }

    fn handle(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle
    }

    /// Counts a call, lets some work go on, and answers what the script has for the call.
    fn call(&mut self, call: &'static str) -> Result<(), DriverError> {
        let made = self.calls.entry(call).or_default();
        *made += 1;
        let made = *made;
        if self.lost.is_none() {
            for _ in 0..self.random(4) {
                self.go_on();
            }
            let fault = self.faults.iter().position(|fault| fault.call == call && made > fault.after);
            if let Some(at) = fault {
                let fault = self.faults.remove(at);
                let error = failed(call, fault.code);
                if error.is_sticky() {
                    self.lose(fault.code);
                }
                return Err(error);
            }
        }
        self.lost.map_or(Ok(()), |lost| Err(failed(call, lost)))
    }

    /// Ends all work: nothing that is queued touches memory any more.
    fn lose(&mut self, code: i32) {
        self.lost = Some(code);
        self.streams.values_mut().for_each(VecDeque::clear);
    }
}

fn failed(call: &'static str, code: i32) -> DriverError {
    DriverError { call, code, name: "SCRIPTED".to_owned() }
}

impl Scripted {
    /// A device with nothing queued.
    pub fn new(script: Script) -> Arc<Self> {
        let facts = DeviceFacts {
            bus_id: "0000:00:00.0".to_owned(),
            name: "scripted".to_owned(),
            capability: (9, 0),
            driver_version: 12_080,
            multiprocessors: 4,
            copy_engines: 2,
            max_pitch: i32::MAX as usize,
            uuid: UUID,
            has_batch: script.has_batch,
            ..DeviceFacts::default()
        };
        let state = State { random: script.seed, memory: Memory::new(script.unified), ..State::default() };
        Arc::new(Self { facts, has_kernel: script.has_kernel, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a call fail, once.
    pub fn fail(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// Loses the device now.
    pub fn lose(&self) {
        self.state().lose(code::LAUNCH_FAILED);
    }

    /// Tells of an allocation on the device: copies must not leave it.
    pub fn declare(&self, base: usize, len: usize) {
        self.state().memory.declare(base, len);
    }

    /// Stops the work of a stream, or lets it go on: a long kernel of the model.
    pub fn hold(&self, stream: StreamHandle, hold: bool) {
        let mut state = self.state();
        state.held.retain(|held| *held != stream.0);
        if hold {
            state.held.push(stream.0);
        }
    }

    /// Stops the work of all streams, present and future, or lets it go on.
    pub fn hold_all(&self, hold: bool) {
        self.state().held_all = hold;
    }

    /// Lets all work go on that can.
    pub fn run_all(&self) {
        let mut state = self.state();
        while state.go_on() {}
    }

    /// How often a call was made.
    pub fn calls(&self, call: &str) -> u64 {
        self.state().calls.get(call).copied().unwrap_or(0)
    }

    /// Rules of the driver that were broken.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// What was not given back: streams, events, registrations, pinned and device memory, that of other processes included.
    pub fn left(&self) -> [usize; 5] {
        let state = self.state();
        let (registered, pinned, device) = state.memory.left();
        [state.streams.len(), state.events.len(), registered, pinned, device]
    }
}
