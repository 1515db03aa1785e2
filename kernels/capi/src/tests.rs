//! CUDA engines behind the interface, over the scripted device.
#![expect(unsafe_code, reason = "calls through the C interface")]

use std::sync::Arc;

use terrace_kernels::cuda::scripted::{Script, Scripted};
use terrace_kernels::cuda::{Driver, PIECE_ALIGN_BYTES};
use terrace_kernels::{Arena, StreamHandle};

use crate::abi::{self, Ended, Job, Pages, Points, RegionState, Slots, code};
use crate::open::Plain;
use crate::registry::{self, keep};
use crate::*;

const PAGE: usize = 3000;
const BLOCKS: usize = 64;
const STRIDE: usize = 8192;
const SLOTS: usize = 1024;

/// An engine with a tensor, a region of two pieces and a layout of two blocks a chunk.
struct Rig {
    device: Arc<Scripted>,
    gpu: Arena,
    host: Arena,
    engine: u64,
    region: u64,
    layout: u64,
}

impl Rig {
    fn new(seed: u64, plain: Plain) -> Self {
        let device = Scripted::new(Script { seed, has_batch: true, has_kernel: true, unified: false });
        let driver: Arc<dyn Driver> = Arc::clone(&device) as _;
        // One path: nothing is measured.
        let plain = Plain {
            path: if seed.is_multiple_of(2) { abi::PATH_KERNEL } else { abi::PATH_BATCH },
            nvrtc: Some("/nowhere".into()),
            cache_dir: Some("".into()),
            piece_bytes: PIECE_ALIGN_BYTES as u64,
            ..plain
        };
        let engine = keep(plain.open_on(driver).expect("an engine"));
        let (gpu, host) = (Arena::new(PAGE * BLOCKS).expect("memory"), Arena::new(STRIDE * SLOTS).expect("memory"));
        device.declare(gpu.address(), gpu.len());
        let mut rig = Self { device, gpu, host, engine, region: 0, layout: 0 };
        if plain.flags == 0 {
            rig.tell();
        }
        rig
    }

    fn tell(&mut self) {
        let pages = Pages {
            base: self.gpu.address() as u64,
            page_bytes: PAGE as u64,
            page_stride: PAGE as u64,
            num_blocks: BLOCKS as u32,
            reserved: 0,
        };
        let host = self.host.address() as u64;
        // SAFETY: pointers to what lives here; memory that outlives the engine.
        unsafe {
            let region = terrace_copy_register_region(self.engine, host, self.host.len() as u64, &raw mut self.region);
            assert_eq!(region, code::OK);
            assert_eq!(terrace_copy_add_memory(self.engine, pages.base, self.gpu.len() as u64), code::OK);
            let layout = terrace_copy_add_layout(
                self.engine,
                &raw const pages,
                1,
                &raw const ONE,
                1,
                2,
                64,
                2 * PAGE as u64,
                -1,
                &raw mut self.layout,
            );
            assert_eq!(layout, code::OK);
        }
    }

    /// Submits a job of these blocks to slots from 3 on.
    fn submit(&self, direction: u32, id: u64, blocks: &[u32], order: &Points) -> i32 {
        let slots: Vec<u32> = (3..).take(blocks.len().div_ceil(2)).collect();
        let (size, zero) = (blocks.len() as u32, 0);
        let job = Job {
            id,
            block_ids: blocks.as_ptr(),
            group_sizes: &raw const size,
            block_indices: &raw const zero,
            slots: slots.as_ptr(),
            n_block_ids: size,
            n_groups: 1,
            n_slots: slots.len() as u32,
            reserved: 0,
        };
        let table = Slots { base: self.host.address() as u64, stride: STRIDE as u64, slots: SLOTS as u32, reserved: 0 };
        let mut result = -1;
        // SAFETY: pointers to what lives here; memory that outlives the engine; tests order what meets.
        let answer = unsafe {
            let (table, job) = (&raw const table, &raw const job);
            terrace_copy_submit(self.engine, self.layout, table, direction, job, 1, order, &raw mut result)
        };
        if answer == code::OK { result } else { answer }
    }

    fn wait(&self, id: u64, timeout_ms: u32) -> i32 {
        // SAFETY: a pointer to what lives here.
        unsafe { terrace_copy_wait(self.engine, &raw const id, 1, timeout_ms) }
    }

    fn poll(&self) -> Vec<Ended> {
        let mut ended = [Ended { id: 0, bytes: 0, micros: 0, code: -1, reserved: 0 }; 8];
        let mut n = 0;
        // SAFETY: room for 8.
        assert_eq!(unsafe { terrace_copy_poll(self.engine, ended.as_mut_ptr(), 8, &raw mut n) }, code::OK);
        ended[..n as usize].to_vec()
    }

    fn state(&self) -> RegionState {
        let mut state = RegionState::default();
        // SAFETY: a pointer to what lives here.
        assert_eq!(unsafe { terrace_copy_region_progress(self.engine, self.region, &raw mut state) }, code::OK);
        state
    }

    fn finish(self) {
        assert_eq!(terrace_copy_close(self.engine), code::OK);
        assert_eq!(self.device.violations(), Vec::<String>::new());
        assert_eq!(self.device.left(), [0; 5]);
    }
}

static ONE: u32 = 1;

fn message() -> String {
    // SAFETY: a text of this thread that ends with zero.
    unsafe { std::ffi::CStr::from_ptr(terrace_copy_message()) }.to_string_lossy().into_owned()
}

fn byte(arena: &Arena, at: usize) -> u8 {
    let mut found = [0];
    assert!(arena.read(at, &mut found));
    found[0]
}

#[test]
fn a_step_waits_for_the_stream_and_a_flush_for_the_step() {
    for seed in 0..20 {
        let rig = Rig::new(seed, Plain::default());
        let stream = rig.device.create_stream().expect("a stream");
        rig.device.hold(stream, true);
        // SAFETY: inside the arena.
        unsafe { rig.device.fill(stream, rig.gpu.address(), rig.gpu.len(), 1).expect("queued") };
        let point = Points { after_kind: abi::STREAM, before_kind: abi::STREAM, after: stream.0, before: stream.0 };
        assert_eq!(rig.submit(abi::STORE, 7, &[4, 9, 60], &point), code::OK);
        assert_eq!(rig.submit(abi::STORE, 7, &[4], &point), code::INVALID, "the name is taken");
        assert_eq!(rig.wait(7, 2), code::TIMEOUT);
        assert!(message().contains("2 ms"), "{}", message());
        assert_eq!(rig.wait(8, 0), code::OK, "not known");
        rig.device.hold(stream, false);
        assert_eq!(rig.wait(7, 10_000), code::OK);
        // The flush is over: the blocks are written by somebody else.
        assert!(rig.gpu.fill(0, rig.gpu.len(), 2));
        let ended = rig.poll();
        assert_eq!((ended.len(), ended[0].id, ended[0].bytes, ended[0].code), (1, 7, 3 * PAGE as u64, code::OK));
        for (slot, at) in [(3, 64), (3, 64 + PAGE), (4, 64)] {
            assert_eq!(byte(&rig.host, slot * STRIDE + at), 1, "seed {seed}");
        }
        assert_eq!((byte(&rig.host, 3 * STRIDE + 63), byte(&rig.host, 4 * STRIDE + 64 + PAGE)), (0, 0));
        rig.device.run_all();
        // SAFETY: nothing is in it.
        unsafe { rig.device.destroy_stream(stream) };
        rig.finish();
    }
}

#[test]
fn regions_are_pinned_behind_and_come_and_go() {
    let mut rig = Rig::new(2, Plain::default());
    while rig.state().is_over == 0 {
        std::thread::yield_now();
    }
    assert_eq!(rig.state(), RegionState { bytes: 8 << 20, pieces: 4, registered: 4, refused: 0, is_over: 1 });
    assert!(rig.host.fill(0, rig.host.len(), 6));
    assert_eq!(rig.submit(abi::LOAD, 1, &[0, 1], &Points::default()), code::OK);
    // Waits for the load, and forgets the memory.
    assert_eq!(terrace_copy_unregister_region(rig.engine, rig.region), code::OK);
    assert_eq!((byte(&rig.gpu, 0), byte(&rig.gpu, 2 * PAGE - 1), byte(&rig.gpu, 2 * PAGE)), (6, 6, 0));
    assert_eq!(rig.submit(abi::LOAD, 2, &[0], &Points::default()), code::INVALID);
    assert_eq!(rig.device.left()[2], 0, "registrations");
    // And again, half of it.
    let base = rig.host.address() as u64;
    // SAFETY: a pointer to what lives here; memory that outlives the engine.
    unsafe {
        assert_eq!(
            terrace_copy_register_region(rig.engine, base, rig.host.len() as u64, &raw mut rig.region),
            code::OK
        );
    }
    assert_eq!(rig.submit(abi::STORE, 3, &[5], &Points::default()), code::OK);
    assert_eq!(terrace_copy_remove_memory(rig.engine, rig.gpu.address() as u64), code::OK);
    assert_eq!(rig.submit(abi::STORE, 4, &[5], &Points::default()), code::INVALID, "memory that is not known any more");
    assert_eq!(rig.poll().iter().map(|job| (job.id, job.code)).collect::<Vec<_>>(), [(1, code::OK), (3, code::OK)]);
    rig.finish();
}

#[test]
fn events_and_memory_go_to_another_process() {
    let worker = Rig::new(3, Plain { flags: abi::NO_COPIES, ..Plain::default() });
    assert_eq!(worker.submit(abi::STORE, 1, &[1], &Points::default()), code::UNSUPPORTED);
    let (mut handle, mut offset, mut bytes, mut event, mut opened) = ([0; 64], 0, 0, 0, 0);
    let mut exported = [0; 64];
    let stream = worker.device.create_stream().expect("a stream");
    worker.device.hold(stream, true);
    // SAFETY: pointers to what lives here, and a stream that is alive.
    unsafe {
        let address = worker.gpu.address() as u64 + 100;
        let answer =
            terrace_copy_export_memory(worker.engine, address, &raw mut handle, &raw mut offset, &raw mut bytes);
        assert_eq!((answer, offset, bytes), (code::OK, 100, worker.gpu.len() as u64));
        let nowhere = terrace_copy_export_memory(worker.engine, 4096, &raw mut handle, &raw mut offset, &raw mut bytes);
        assert_eq!(nowhere, code::UNSUPPORTED);
        assert_eq!(terrace_copy_event_create(worker.engine, &raw mut event), code::OK);
        assert_eq!(terrace_copy_event_export(worker.engine, event, &raw mut exported), code::OK);
        assert_eq!(terrace_copy_event_open(worker.engine, &raw const exported, &raw mut opened), code::OK);
        assert_eq!(terrace_copy_event_record(worker.engine, event, stream.0), code::OK);
        let held_back = worker.device.create_stream().expect("a stream");
        assert_eq!(terrace_copy_event_hold_back(worker.engine, opened, held_back.0), code::OK);
        worker.device.fill(held_back, worker.gpu.address(), 1, 9).expect("queued");
        worker.device.run_all();
        assert_eq!(byte(&worker.gpu, 0), 0, "the event was not reached");
        worker.device.hold(stream, false);
        worker.device.run_all();
        assert_eq!(byte(&worker.gpu, 0), 9);
        for stream in [stream, held_back] {
            worker.device.destroy_stream(stream);
        }
        assert_eq!(terrace_copy_event_destroy(worker.engine, event), code::OK);
        assert_eq!(terrace_copy_event_destroy(worker.engine, event), code::HANDLE);
        assert_eq!(terrace_copy_event_record(worker.engine, event, stream.0), code::HANDLE);
    }
    let (mut kind, mut uuid) = (9, [9; 16]);
    // SAFETY: pointers to what lives here.
    unsafe {
        assert_eq!(terrace_copy_kind(worker.engine, &raw mut kind), code::OK);
        assert_eq!(terrace_copy_device_uuid(worker.engine, &raw mut uuid), code::OK);
    }
    assert_eq!((kind, uuid), (abi::CUDA, worker.device.facts().uuid));
    worker.finish();
}

#[test]
fn copies_are_ordered_by_events_of_the_engine_only() {
    let rig = Rig::new(4, Plain::default());
    let mut event = 0;
    // SAFETY: a pointer to what lives here.
    assert_eq!(unsafe { terrace_copy_event_create(rig.engine, &raw mut event) }, code::OK);
    let by = |after_kind, after| Points { after_kind, after, ..Points::default() };
    assert_eq!(rig.submit(abi::STORE, 1, &[1], &by(abi::EVENT, event)), code::OK);
    assert_eq!(rig.submit(abi::STORE, 2, &[1], &by(abi::EVENT, event + 1000)), code::HANDLE);
    assert_eq!(rig.submit(abi::STORE, 2, &[1], &by(3, 0)), code::INVALID);
    assert_eq!(rig.wait(1, 10_000), code::OK);
    rig.finish();
}

#[test]
fn a_lost_device_ends_jobs_and_takes_none() {
    let rig = Rig::new(6, Plain::default());
    let stream = rig.device.create_stream().expect("a stream");
    rig.device.hold(stream, true);
    // SAFETY: inside the arena.
    unsafe { rig.device.fill(stream, rig.gpu.address(), 1, 1).expect("queued") };
    let behind = Points { after_kind: abi::STREAM, after: stream.0, ..Points::default() };
    assert_eq!(rig.submit(abi::STORE, 1, &[1], &behind), code::OK);
    rig.device.lose();
    assert_eq!(rig.wait(1, 10_000), code::OK, "it has ended, though not well");
    assert_eq!(rig.poll().iter().map(|job| job.code).collect::<Vec<_>>(), [code::DEVICE_LOST]);
    assert_eq!(rig.submit(abi::STORE, 2, &[1], &Points::default()), code::DEVICE_LOST);
    assert_eq!(terrace_copy_close(rig.engine), code::OK);
}

#[test]
fn a_panic_is_a_code_and_the_engine_can_be_closed() {
    let rig = Rig::new(8, Plain::default());
    let answer = entry::call(|| registry::with(rig.engine, |_| -> Result<(), _> { panic!("on {}", "purpose") }));
    assert_eq!((answer, message()), (code::INTERNAL, "a fault of Terrace: on purpose".to_owned()));
    assert_eq!(rig.wait(1, 0), code::INTERNAL);
    rig.finish();
}

#[test]
fn another_thread_may_call_while_one_waits() {
    let rig = Rig::new(10, Plain::default());
    let stream = rig.device.create_stream().expect("a stream");
    rig.device.hold(stream, true);
    // SAFETY: inside the arena.
    unsafe { rig.device.fill(stream, rig.gpu.address(), 1, 1).expect("queued") };
    let behind = Points { after_kind: abi::STREAM, after: stream.0, ..Points::default() };
    assert_eq!(rig.submit(abi::STORE, 1, &[1], &behind), code::OK);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| rig.wait(1, 60_000));
        // Not behind the stream: this thread's calls go on.
        assert_eq!(rig.submit(abi::LOAD, 2, &[9], &Points::default()), code::OK);
        assert_eq!(rig.wait(2, 10_000), code::OK);
        rig.device.hold(stream, false);
        assert_eq!(waiting.join().expect("no panic"), code::OK);
    });
    rig.device.run_all();
    // SAFETY: nothing is in it.
    unsafe { rig.device.destroy_stream(StreamHandle(stream.0)) };
    rig.finish();
}
