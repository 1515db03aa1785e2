//! The driver's calls, as the script plays them.

use super::super::driver::{
    DeviceFacts, Driver, DriverError, EventKind, IPC_HANDLE_BYTES, KernelHandle, MemoryHandle, PinnedMemory, code,
};
use super::super::plan::Rect;
use super::shared::{Handle, SharedMemory};
use super::work::{Event, Op};
use super::{Scripted, State, failed};
use crate::arena::Arena;
use crate::engine::{CopyRun, Direction, EventHandle, StreamHandle};

/// Memory of the device.
const DEVICE_BYTES: usize = 1 << 30;

const KERNEL: KernelHandle = KernelHandle { module: 77, function: 78 };

impl State {
    fn check_copy(&mut self, call: &'static str, run: &CopyRun) -> Result<(), DriverError> {
        if self.memory.is_whole(run.src, run.len) && self.memory.is_whole(run.dst, run.len) {
            return Ok(());
        }
        self.violations.push(format!("{call} crosses an allocation or a registration: {run:?}"));
        Err(failed(call, code::INVALID_VALUE))
    }

    fn give_back(&mut self, what: &str, base: usize, len: usize) {
        if self.lost.is_none() && self.uses(base, len) {
            self.violations.push(format!("{what} at {base:#x} was given back while work uses it"));
        }
    }
}

impl Driver for Scripted {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn create_stream(&self) -> Result<StreamHandle, DriverError> {
        let mut state = self.state();
        state.call("cuStreamCreateWithPriority")?;
        let id = state.handle();
        state.streams.insert(id, std::collections::VecDeque::new());
        Ok(StreamHandle(id))
    }

    unsafe fn destroy_stream(&self, stream: StreamHandle) {
        let mut state = self.state();
        if state.streams.remove(&stream.0).is_some_and(|queue| !queue.is_empty()) {
            state.violations.push("a stream was given back with work in it".to_owned());
        }
    }

    unsafe fn drain(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let mut state = self.state();
        state.call("cuStreamSynchronize")?;
        while state.streams.get(&stream.0).is_some_and(|queue| !queue.is_empty()) {
            if !state.go_on() {
                return Err(failed("cuStreamSynchronize", code::UNKNOWN));
            }
        }
        state.lost.map_or(Ok(()), |lost| Err(failed("cuStreamSynchronize", lost)))
    }

    fn create_event(&self, _kind: EventKind) -> Result<EventHandle, DriverError> {
        let mut state = self.state();
        state.call("cuEventCreate")?;
        let id = state.handle();
        state.events.insert(id, Event { holders: 1, ..Event::default() });
        Ok(EventHandle(id))
    }

    unsafe fn destroy_event(&self, event: EventHandle) {
        let mut state = self.state();
        match state.events.get_mut(&event.0) {
            Some(known) if known.holders > 0 => known.holders -= 1,
            _ => state.violations.push("an event was given back twice".to_owned()),
        }
        state.forget(event.0);
    }

    unsafe fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError> {
        let mut state = self.state();
        state.call("cuEventRecord")?;
        let Some(known) = state.events.get_mut(&event.0) else { return Err(failed("cuEventRecord", 400)) };
        known.latest += 1;
        let number = known.latest;
        state.push(stream, Op::Record { event: event.0, number });
        Ok(())
    }

    unsafe fn stream_wait(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        let mut state = self.state();
        state.call("cuStreamWaitEvent")?;
        let Some(known) = state.events.get(&event.0) else { return Err(failed("cuStreamWaitEvent", 400)) };
        let number = known.latest;
        state.push(stream, Op::Wait { event: event.0, number });
        Ok(())
    }

    unsafe fn is_done(&self, event: EventHandle) -> Result<bool, DriverError> {
        let mut state = self.state();
        state.call("cuEventQuery")?;
        let known = state.events.get(&event.0).ok_or_else(|| failed("cuEventQuery", 400))?;
        Ok(known.done >= known.latest)
    }

    unsafe fn wait(&self, event: EventHandle) -> Result<(), DriverError> {
        let mut state = self.state();
        state.call("cuEventSynchronize")?;
        loop {
            if let Some(lost) = state.lost {
                return Err(failed("cuEventSynchronize", lost));
            }
            if state.events.get(&event.0).is_none_or(|known| known.done >= known.latest) {
                return Ok(());
            }
            if !state.go_on() {
                state.violations.push("a wait that never ends".to_owned());
                return Err(failed("cuEventSynchronize", code::UNKNOWN));
            }
        }
    }

    unsafe fn copy(&self, stream: StreamHandle, direction: Direction, runs: &[CopyRun]) -> Result<(), DriverError> {
        let mut state = self.state();
        for run in runs {
            state.call("cuMemcpyAsync")?;
            state.check_copy("cuMemcpyAsync", run)?;
            let CopyRun { src, dst, len } = *run;
            let host = if direction == Direction::DeviceToHost { dst } else { src };
            let pinned = state.memory.is_pinned(host);
            match direction {
                Direction::HostToDevice if !pinned => {
                    let mut bytes = vec![0; len];
                    // SAFETY: valid for reads by the caller's promise; the real driver reads pageable memory now too.
                    unsafe { std::ptr::copy_nonoverlapping(src as *const u8, bytes.as_mut_ptr(), len) };
                    state.push(stream, Op::Write { bytes, dst });
                }
                _ => state.push(stream, Op::Copy { src, dst, len }),
            }
            // A store to pageable memory returns when it is done, as far as the script lets it.
            while !pinned
                && direction == Direction::DeviceToHost
                && state.streams.get(&stream.0).is_some_and(|queue| !queue.is_empty())
                && state.go_on()
            {}
        }
        Ok(())
    }

    unsafe fn copy_batch(&self, stream: StreamHandle, runs: &[CopyRun]) -> Result<(), DriverError> {
        let mut state = self.state();
        state.call("cuMemcpyBatchAsync")?;
        for run in runs {
            state.check_copy("cuMemcpyBatchAsync", run)?;
            state.push(stream, Op::Copy { src: run.src, dst: run.dst, len: run.len });
        }
        Ok(())
    }

    unsafe fn copy_rect(&self, stream: StreamHandle, _direction: Direction, rect: &Rect) -> Result<(), DriverError> {
        let mut state = self.state();
        state.call("cuMemcpy2DAsync")?;
        let extent = |pitch: usize| pitch * (rect.rows - 1) + rect.width;
        let whole = |state: &State, address, pitch| state.memory.is_whole(address, extent(pitch));
        if rect.src_pitch < rect.width
            || rect.dst_pitch < rect.width
            || !whole(&state, rect.src, rect.src_pitch)
            || !whole(&state, rect.dst, rect.dst_pitch)
        {
            state.violations.push(format!("cuMemcpy2DAsync cannot copy {rect:?}"));
            return Err(failed("cuMemcpy2DAsync", code::INVALID_VALUE));
        }
        state.push(stream, Op::Rect(*rect));
        Ok(())
    }

    unsafe fn fill(&self, stream: StreamHandle, address: usize, len: usize, value: u8) -> Result<(), DriverError> {
        let mut state = self.state();
        state.call("cuMemsetD8Async")?;
        state.push(stream, Op::Fill { address, len, value });
        Ok(())
    }

    fn load_kernel(&self, _image: &[u8]) -> Result<KernelHandle, DriverError> {
        self.state().call("cuModuleLoadData")?;
        if self.has_kernel { Ok(KERNEL) } else { Err(failed("cuModuleLoadData", code::NOT_SUPPORTED)) }
    }

    unsafe fn unload_kernel(&self, _kernel: KernelHandle) {}

    unsafe fn launch(
        &self,
        _kernel: KernelHandle,
        stream: StreamHandle,
        table: u64,
        count: u32,
        _blocks: u32,
    ) -> Result<(), DriverError> {
        let mut state = self.state();
        state.call("cuLaunchKernel")?;
        let table = state.memory.host_of(table);
        if !state.memory.is_pinned(table) {
            state.violations.push("the kernel's table is not in pinned memory".to_owned());
            return Err(failed("cuLaunchKernel", code::INVALID_VALUE));
        }
        state.push(stream, Op::Gather { table, count: count as usize });
        Ok(())
    }

    unsafe fn register(&self, address: usize, len: usize) -> Result<u64, DriverError> {
        let mut state = self.state();
        state.call("cuMemHostRegister")?;
        if state.memory.register(address, len) {
            Ok(state.memory.as_device(address))
        } else {
            Err(failed("cuMemHostRegister", code::ALREADY_REGISTERED))
        }
    }

    unsafe fn unregister(&self, address: usize) -> Result<(), DriverError> {
        let mut state = self.state();
        state.call("cuMemHostUnregister")?;
        match state.memory.unregister(address) {
            Some(len) => {
                state.give_back("registered memory", address, len);
                Ok(())
            }
            None => Err(failed("cuMemHostUnregister", code::NOT_REGISTERED)),
        }
    }

    fn allocate_pinned(&self, len: usize) -> Result<PinnedMemory, DriverError> {
        let mut state = self.state();
        state.call("cuMemHostAlloc")?;
        let arena = Arena::new(len).map_err(|_| failed("cuMemHostAlloc", code::OUT_OF_MEMORY))?;
        let host = state.memory.add_pinned(arena);
        Ok(PinnedMemory { host, device: state.memory.as_device(host), len })
    }

    unsafe fn free_pinned(&self, memory: PinnedMemory) {
        let mut state = self.state();
        state.give_back("pinned memory", memory.host, memory.len);
        if state.memory.remove_pinned(memory.host).is_none() {
            state.violations.push("pinned memory was given back twice".to_owned());
        }
    }

    fn allocate(&self, len: usize) -> Result<usize, DriverError> {
        let mut state = self.state();
        state.call("cuMemAlloc")?;
        if state.memory.device_bytes().saturating_add(len) > DEVICE_BYTES {
            return Err(failed("cuMemAlloc", code::OUT_OF_MEMORY));
        }
        let memory = SharedMemory::new(len).ok_or_else(|| failed("cuMemAlloc", code::OUT_OF_MEMORY))?;
        Ok(state.memory.add_device(memory))
    }

    unsafe fn free(&self, address: usize) {
        let mut state = self.state();
        match state.memory.allocation(address) {
            Some((base, len)) if base == address => {
                state.give_back("device memory", base, len);
                state.memory.remove_device(base);
            }
            _ => state.violations.push("device memory was given back twice".to_owned()),
        }
    }

    fn export_memory(&self, address: usize) -> Result<MemoryHandle, DriverError> {
        let mut state = self.state();
        state.call("cuIpcGetMemHandle")?;
        let (base, len) =
            state.memory.allocation(address).ok_or_else(|| failed("cuIpcGetMemHandle", code::INVALID_VALUE))?;
        Ok(MemoryHandle {
            handle: state.memory.handle(base, len).to_bytes(),
            offset: (address - base) as u64,
            allocation_bytes: len as u64,
        })
    }

    fn open_memory(&self, handle: &[u8; IPC_HANDLE_BYTES]) -> Result<usize, DriverError> {
        let mut state = self.state();
        state.call("cuIpcOpenMemHandle")?;
        let refused = || failed("cuIpcOpenMemHandle", code::INVALID_VALUE);
        let handle = Handle::memory(handle).ok_or_else(refused)?;
        if handle.is_own() {
            return Ok(handle.value as usize);
        }
        state.memory.open(handle).ok_or_else(refused)
    }

    unsafe fn close_memory(&self, address: usize) {
        let mut state = self.state();
        let made = state.calls.entry("cuIpcCloseMemHandle").or_default();
        *made += 1;
        if let Some((base, len)) = state.memory.allocation(address) {
            state.give_back("another process's memory", base, len);
        }
        drop(state.memory.close(address));
    }

    unsafe fn export_event(&self, event: EventHandle) -> Result<[u8; IPC_HANDLE_BYTES], DriverError> {
        self.state().call("cuIpcGetEventHandle")?;
        Ok(Handle::of_event(event.0).to_bytes())
    }

    fn open_event(&self, handle: &[u8; IPC_HANDLE_BYTES]) -> Result<EventHandle, DriverError> {
        let mut state = self.state();
        state.call("cuIpcOpenEventHandle")?;
        let handle = Handle::event(handle).ok_or_else(|| failed("cuIpcOpenEventHandle", code::INVALID_VALUE))?;
        if !handle.is_own() {
            // What another process put before it counts as done.
            let id = state.handle();
            state.events.insert(id, Event { holders: 1, ..Event::default() });
            return Ok(EventHandle(id));
        }
        let id = handle.value;
        let known = state.events.get_mut(&id).ok_or_else(|| failed("cuIpcOpenEventHandle", 400))?;
        known.holders += 1;
        Ok(EventHandle(id))
    }
}
