//! The CUDA engine over the scripted device: all of it but the driver itself.
#![allow(unsafe_code, reason = "submitting copies between arenas")]

use std::sync::Arc;

use terrace_kernels::cuda::scripted::{Fault, Script, Scripted};
use terrace_kernels::cuda::{
    CudaCopyEngine, CudaOptions, DeviceEvent, Driver, EventKind, ForeignMemory, PIECE_ALIGN_BYTES, Path, PathChoice,
    PinOptions, RegionPins, code, export_memory,
};
use terrace_kernels::{Arena, CopyDone, CopyEngine, CopyError, CopyId, CopyRun, Direction, Order, Token, conformance};

const CHOICES: [PathChoice; 5] = [
    PathChoice::Auto,
    PathChoice::Only(Path::Runs),
    PathChoice::Only(Path::Batch),
    PathChoice::Only(Path::Rects),
    PathChoice::Only(Path::Kernel),
];
const ALL: usize = 1 << 47;

fn script(seed: u64) -> Script {
    Script { seed, has_batch: true, has_kernel: true, unified: false }
}

fn options(path: PathChoice) -> CudaOptions {
    CudaOptions { path, calibrate_bytes: 0, cache_dir: None, nvrtc: Some("/nowhere".into()), ..CudaOptions::default() }
}

fn as_driver(device: &Arc<Scripted>) -> Arc<dyn Driver> {
    Arc::clone(device) as _
}

/// Registers memory and waits for it.
fn pin(device: &Arc<Scripted>, base: usize, len: usize, piece_bytes: usize) -> Arc<RegionPins> {
    let options = PinOptions { piece_bytes, threads: 2 };
    // SAFETY: arenas of the tests outlive engine and pins; what is beyond them is never touched.
    let mut pins = unsafe { RegionPins::start(&as_driver(device), base, len, Arc::new(()), options) }.expect("pins");
    pins.wait();
    Arc::new(pins)
}

fn clean(device: &Scripted) {
    assert_eq!(device.violations(), Vec::<String>::new());
    assert_eq!(device.left(), [0; 5], "streams, events, registrations, pinned, device memory");
}

#[test]
fn the_engine_passes_the_suite_on_every_path() {
    for (number, choice) in CHOICES.into_iter().enumerate() {
        let devices = std::cell::RefCell::new(Vec::new());
        let build = |queue_entries: usize, all_pinned: bool| {
            let mut devices = devices.borrow_mut();
            let seed = (number * 10 + devices.len()) as u64;
            let device = Scripted::new(Script { unified: true, ..script(seed) });
            devices.push(Arc::clone(&device));
            let pins = if all_pinned { vec![pin(&device, 4096, ALL - 4096, ALL)] } else { Vec::new() };
            let options = CudaOptions { queue_entries, ..options(choice) };
            let mut engine = CudaCopyEngine::new(&as_driver(&device), pins, &options).expect("an engine");
            engine.add_memory(4096, ALL - 4096).expect("all memory");
            Box::new(engine) as Box<dyn CopyEngine>
        };
        conformance::run(&|queue_entries| build(queue_entries, true), 31 + number as u64);
        if number == 0 {
            conformance::run(&|queue_entries| build(queue_entries, false), 30);
        }
        for device in devices.borrow().iter() {
            clean(device);
        }
        let devices = devices.borrow();
        let calls = |call| devices.iter().map(|device| device.calls(call)).sum::<u64>();
        match choice {
            PathChoice::Auto => assert!(calls("cuLaunchKernel") > 0 && calls("cuMemcpyBatchAsync") > 0),
            PathChoice::Only(Path::Runs) => assert!(calls("cuMemcpyAsync") > 0),
            PathChoice::Only(Path::Kernel) => assert!(calls("cuLaunchKernel") > 0),
            PathChoice::Only(_) => assert!(calls("cuMemcpyBatchAsync") > 0),
        }
    }
}

/// Device memory, host memory with pins in pieces of 2 MiB, and an engine on both.
struct Rig {
    engine: CudaCopyEngine,
    device: Arc<Scripted>,
    gpu: Arena,
    host: Arena,
}

const AREA: usize = 6 << 20;

impl Rig {
    fn new(seed: u64, options: &CudaOptions) -> Self {
        let device = Scripted::new(script(seed));
        let (gpu, host) = (Arena::new(AREA).expect("memory"), Arena::new(AREA).expect("memory"));
        device.declare(gpu.address(), AREA);
        let pins = pin(&device, host.address(), AREA, PIECE_ALIGN_BYTES);
        let mut engine = CudaCopyEngine::new(&as_driver(&device), vec![pins], options).expect("an engine");
        engine.add_memory(gpu.address(), AREA).expect("a tensor");
        Self { engine, device, gpu, host }
    }

    /// Pages at constant distances (store: from the device), with a page across a seam of the registration.
    fn runs(&self, direction: Direction, at: usize, page: usize, pages: usize) -> Vec<CopyRun> {
        let run = |index: usize| {
            let (gpu, host) = (self.gpu.address() + at + index * 2 * page, self.host.address() + at + index * page);
            let (src, dst) = if direction == Direction::DeviceToHost { (gpu, host) } else { (host, gpu) };
            CopyRun { src, dst, len: page }
        };
        (0..pages).map(run).collect()
    }

    fn submit(&mut self, direction: Direction, runs: &[CopyRun], order: Order) -> Result<CopyId, CopyError> {
        // SAFETY: inside both arenas, which outlive the engine's copies; tests keep targets apart or order them.
        unsafe { self.engine.submit(direction, runs, order) }
    }

    fn poll(&mut self) -> Vec<CopyDone> {
        let mut done = Vec::new();
        self.engine.poll(&mut done);
        done
    }

    fn finish(self) {
        let Self { engine, device, gpu, host } = self;
        drop(engine);
        clean(&device);
        drop((gpu, host));
    }
}

fn bytes(arena: &Arena, at: usize, len: usize) -> Vec<u8> {
    let mut found = vec![0; len];
    assert!(arena.read(at, &mut found));
    found
}

#[test]
fn a_store_waits_for_the_computing_stream_and_holds_back_what_overwrites_its_source() {
    for seed in 0..60 {
        let mut rig = Rig::new(seed, &options(CHOICES[seed as usize % 5]));
        let stream = rig.device.create_stream().unwrap();
        let at = (2 << 20) - 4096;
        rig.device.hold(stream, true);
        let source = rig.gpu.address();
        // SAFETY: inside the arena.
        unsafe { rig.device.fill(stream, source, AREA, 1).unwrap() };
        let runs = rig.runs(Direction::DeviceToHost, at, 3000, 8);
        let order = Order { after: Some(Token::Stream(stream)), before: Some(Token::Stream(stream)), after_copy: None };
        let id = rig.submit(Direction::DeviceToHost, &runs, order).unwrap();
        // SAFETY: as above; the order holds it back until the store is done.
        unsafe { rig.device.fill(stream, source, AREA, 2).unwrap() };
        rig.device.run_all();
        assert_eq!(rig.poll(), [], "the computing stream has not come that far");
        rig.device.hold(stream, false);
        rig.engine.wait(&[id]).unwrap();
        assert_eq!(rig.poll(), [CopyDone { id, result: Ok(()), bytes: 24_000 }]);
        assert!(bytes(&rig.host, at, 24_000).iter().all(|byte| *byte == 1), "seed {seed}");
        rig.device.run_all();
        assert_eq!(bytes(&rig.gpu, 0, 1), [2]);
        // SAFETY: nothing is in it.
        unsafe { rig.device.destroy_stream(stream) };
        rig.finish();
    }
}

#[test]
fn what_is_behind_a_load_waits_for_it_by_stream_and_by_event() {
    for seed in 0..60 {
        let mut rig = Rig::new(seed, &options(CHOICES[seed as usize % 5]));
        let driver = as_driver(&rig.device);
        let stream = rig.device.create_stream().unwrap();
        let event = DeviceEvent::new(&driver, EventKind::Shared).unwrap();
        // As the other process has it.
        let opened = DeviceEvent::open(&driver, &event.export().unwrap()).unwrap();
        assert!(rig.host.fill(0, AREA, 7) && rig.gpu.fill(0, AREA, 0));
        let runs = rig.runs(Direction::HostToDevice, 0, 64 * 1024, 16);
        let by_event = seed % 2 == 0;
        let before = if by_event { opened.token() } else { Token::Stream(stream) };
        let order = Order { before: Some(before), ..Order::default() };
        let id = rig.submit(Direction::HostToDevice, &runs, order).unwrap();
        if by_event {
            // SAFETY: the stream is alive.
            unsafe { event.hold_back(stream).unwrap() };
        }
        // SAFETY: inside the arena, behind the load.
        unsafe { rig.device.fill(stream, rig.gpu.address(), 40_000, 9).unwrap() };
        rig.device.run_all();
        assert!(rig.poll().iter().all(|done| done.id == id && done.result.is_ok()));
        let found = bytes(&rig.gpu, 0, 64 * 1024);
        assert!(
            found[..40_000].iter().all(|byte| *byte == 9) && found[40_000..].iter().all(|byte| *byte == 7),
            "seed {seed}"
        );
        // SAFETY: nothing is in it.
        unsafe { rig.device.destroy_stream(stream) };
        drop((event, opened));
        rig.finish();
    }
}

/// Random copies with one call that fails: each accepted copy is reported once, those that are reported whole are right,
/// nothing leaks and no rule is broken.
#[test]
fn any_call_may_fail_at_any_time() {
    const CALLS: [&str; 8] = [
        "cuEventCreate",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuEventQuery",
        "cuMemcpyAsync",
        "cuMemcpyBatchAsync",
        "cuMemcpy2DAsync",
        "cuLaunchKernel",
    ];
    let (mut failed, mut whole, mut lost) = (0, 0, 0);
    for seed in 0..240_u64 {
        let call = CALLS[seed as usize % CALLS.len()];
        let sticky = seed % 3 == 0;
        let mut rig = Rig::new(seed, &options(CHOICES[seed as usize / 8 % 5]));
        let stream = rig.device.create_stream().unwrap();
        let code = if sticky { code::LAUNCH_FAILED } else { code::OUT_OF_MEMORY };
        rig.device.fail(Fault { call, after: rig.device.calls(call) + seed / 24, code });
        assert!(rig.gpu.fill(0, AREA, 5) && rig.host.fill(0, AREA, 0));
        let mut accepted = Vec::new();
        let mut done = Vec::new();
        let mut after_copy = None;
        for step in 0..12_usize {
            let direction = if step % 3 == 2 { Direction::HostToDevice } else { Direction::DeviceToHost };
            // Stores write a place each; loads bring it back to where it came from.
            let at = step / 3 * 3 * 100_000 + step % 2 * 100_000;
            let page = [700, 4096, 9000][step % 3];
            let order = Order { after: (step % 4 == 0).then_some(Token::Stream(stream)), before: None, after_copy };
            match rig.submit(direction, &rig.runs(direction, at, page, 10), order) {
                Ok(id) => {
                    accepted.push((id, direction, at, page));
                    after_copy = Some(id);
                }
                Err(error) => assert!(
                    matches!(error, CopyError::OutOfMemory(_) | CopyError::DeviceLost(_)),
                    "seed {seed} {call}: {error}"
                ),
            }
            done.extend(rig.poll());
        }
        rig.engine.drain();
        done.extend(rig.poll());
        let mut ids: Vec<CopyId> = done.iter().map(|done| done.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, accepted.iter().map(|copy| copy.0).collect::<Vec<_>>(), "seed {seed} {call}");
        for (id, direction, at, page) in accepted {
            let result = &done.iter().find(|done| done.id == id).expect("reported").result;
            match result {
                Ok(()) if direction == Direction::DeviceToHost => {
                    whole += 1;
                    assert!(bytes(&rig.host, at, 10 * page).iter().all(|byte| *byte == 5), "seed {seed} {call} {id:?}");
                }
                Ok(()) => {}
                Err(_) => failed += 1,
            }
        }
        lost += u64::from(rig.engine.is_lost());
        // SAFETY: nothing of the engine's is in it, or the device is lost.
        unsafe { rig.device.destroy_stream(stream) };
        let Rig { engine, device, .. } = rig;
        drop(engine);
        assert_eq!(device.violations(), Vec::<String>::new(), "seed {seed} {call}");
        if !sticky {
            assert_eq!(device.left(), [0; 5], "seed {seed} {call}");
        }
    }
    assert!(failed > 50 && whole > 500 && lost > 20, "failed {failed}, whole {whole}, lost {lost}");
}

#[test]
fn a_lost_device_fails_what_is_in_flight_and_takes_nothing_more() {
    let mut rig = Rig::new(5, &options(PathChoice::Auto));
    let stream = rig.device.create_stream().unwrap();
    rig.device.hold(stream, true);
    // SAFETY: inside the arena.
    unsafe { rig.device.fill(stream, rig.gpu.address(), 16, 1).unwrap() };
    let order = Order { after: Some(Token::Stream(stream)), ..Order::default() };
    let runs = rig.runs(Direction::DeviceToHost, 0, 4096, 4);
    let ids = [
        rig.submit(Direction::DeviceToHost, &runs, order).unwrap(),
        rig.submit(Direction::DeviceToHost, &[], order).unwrap(),
    ];
    rig.device.lose();
    rig.engine.wait(&ids).unwrap();
    let done = rig.poll();
    assert_eq!(done.iter().map(|done| done.id).collect::<Vec<_>>(), ids);
    assert!(done.iter().all(|done| matches!(done.result, Err(CopyError::DeviceLost(_)))), "{done:?}");
    assert!(matches!(rig.submit(Direction::DeviceToHost, &runs, Order::default()), Err(CopyError::DeviceLost(_))));
    assert!(rig.engine.is_lost());
    assert_eq!((rig.engine.in_flight(), rig.engine.cuda_stats().failed), (0, 2));
}

#[test]
fn an_engine_that_cannot_be_built_leaves_nothing() {
    for (call, path) in [
        ("cuMemHostAlloc", PathChoice::Auto),
        ("cuStreamCreateWithPriority", PathChoice::Auto),
        ("cuModuleLoadData", PathChoice::Only(Path::Kernel)),
    ] {
        for after in 0..2 {
            let device = Scripted::new(script(1));
            for _ in 0..2 {
                device.fail(Fault { call, after, code: code::OUT_OF_MEMORY });
            }
            let built = CudaCopyEngine::new(&as_driver(&device), Vec::new(), &options(path));
            match built {
                Err(CopyError::OutOfMemory(text)) => assert!(text.contains(call), "{text}"),
                Err(CopyError::Unsupported(text)) => assert!(text.contains("Kernel"), "{text}"),
                Err(other) => panic!("{other}"),
                Ok(engine) => {
                    assert_eq!((call, after), ("cuModuleLoadData", 1), "only one image is tried without a cache");
                    drop(engine);
                }
            }
            clean(&device);
        }
    }
    let bare = Scripted::new(Script { has_batch: false, has_kernel: false, ..script(1) });
    for path in [Path::Batch, Path::Kernel] {
        let refused = CudaCopyEngine::new(&as_driver(&bare), Vec::new(), &options(PathChoice::Only(path)));
        assert!(matches!(refused, Err(CopyError::Unsupported(_))));
    }
    for bad in [
        CudaOptions { queue_entries: 0, ..options(PathChoice::Auto) },
        CudaOptions { kernel_blocks: 0, ..options(PathChoice::Auto) },
        CudaOptions { table_bytes: usize::MAX, ..options(PathChoice::Auto) },
    ] {
        assert!(matches!(CudaCopyEngine::new(&as_driver(&bare), Vec::new(), &bad), Err(CopyError::Invalid(_))));
    }
    clean(&bare);
}

#[test]
fn memory_that_is_not_registered_is_copied_and_counted() {
    let device = Scripted::new(script(9));
    let (gpu, host) = (Arena::new(AREA).unwrap(), Arena::new(AREA).unwrap());
    // The second of three pieces is refused.
    device.fail(Fault { call: "cuMemHostRegister", after: 1, code: code::OUT_OF_MEMORY });
    let one_by_one = PinOptions { piece_bytes: PIECE_ALIGN_BYTES, threads: 1 };
    // SAFETY: the arena outlives the pins.
    let pins = unsafe { RegionPins::start(&as_driver(&device), host.address(), AREA, Arc::new(()), one_by_one) };
    let mut pins = pins.unwrap();
    pins.wait();
    let progress = pins.progress();
    assert_eq!((progress.pieces, progress.registered, progress.refused, progress.bytes), (3, 2, 1, 4 << 20));
    assert!(progress.is_over());
    let mut engine =
        CudaCopyEngine::new(&as_driver(&device), vec![Arc::new(pins)], &options(PathChoice::Auto)).unwrap();
    assert!(gpu.fill(0, AREA, 3));
    let run = CopyRun { src: gpu.address(), dst: host.address(), len: AREA };
    // SAFETY: both arenas outlive the engine.
    let id = unsafe { engine.submit(Direction::DeviceToHost, &[run], Order::default()) }.unwrap();
    engine.wait(&[id]).unwrap();
    let mut done = Vec::new();
    engine.poll(&mut done);
    assert!(done.iter().all(|done| done.result.is_ok()) && done.len() == 1);
    assert!(bytes(&host, 0, AREA).iter().all(|byte| *byte == 3));
    let stats = engine.cuda_stats();
    assert_eq!((stats.pageable_bytes, stats.run_bytes), (2 << 20, 4 << 20));
    assert_eq!((engine.stats().cuda, stats.pins), (stats, progress));
    drop(engine);
    clean(&device);
    for (base, len, piece_bytes, threads) in [
        (0, 4096, PIECE_ALIGN_BYTES, 1),
        (4096, 0, PIECE_ALIGN_BYTES, 1),
        (4096, 1, 4096, 1),
        (4096, 1, PIECE_ALIGN_BYTES, 0),
    ] {
        // SAFETY: refused.
        let refused = unsafe {
            RegionPins::start(&as_driver(&device), base, len, Arc::new(()), PinOptions { piece_bytes, threads })
        };
        assert!(matches!(refused, Err(CopyError::Invalid(_))));
    }
}

#[test]
fn a_table_without_room_sends_a_batch_another_way() {
    // Room for 64 tiles: batches of 30 go round in it, one of 100 never fits.
    let options = CudaOptions { table_bytes: 64 * 24, ..options(PathChoice::Auto) };
    let mut rig = Rig::new(3, &options);
    assert!(rig.gpu.fill(0, AREA, 4));
    let mut ids = Vec::new();
    for batch in 0..40 {
        let runs = rig.runs(Direction::DeviceToHost, batch * 30 * 512, 512, 30);
        ids.push(rig.submit(Direction::DeviceToHost, &runs, Order::default()).unwrap());
        assert!(rig.poll().iter().all(|done| done.result.is_ok()));
    }
    let runs = rig.runs(Direction::DeviceToHost, 40 * 30 * 512, 512, 100);
    ids.push(rig.submit(Direction::DeviceToHost, &runs, Order::default()).unwrap());
    rig.engine.wait(&ids).unwrap();
    assert!(rig.poll().iter().all(|done| done.result.is_ok()));
    assert!(bytes(&rig.host, 0, 1300 * 512).iter().all(|byte| *byte == 4));
    let stats = rig.engine.cuda_stats();
    assert!(stats.full_tables > 0 && stats.kernel_bytes > 0 && stats.run_bytes >= 100 * 512, "{stats:?}");
    rig.finish();
}

#[test]
fn paths_are_measured_when_an_engine_is_built() {
    let device = Scripted::new(script(4));
    let options = CudaOptions { calibrate_bytes: 1 << 20, ..options(PathChoice::Auto) };
    let engine = CudaCopyEngine::new(&as_driver(&device), Vec::new(), &options).unwrap();
    assert!(engine.describe().contains("to host: from 0 KiB"), "{}", engine.describe());
    for call in ["cuLaunchKernel", "cuMemcpyBatchAsync", "cuMemcpy2DAsync", "cuMemcpyAsync"] {
        assert!(device.calls(call) > 0, "{call} was not measured");
    }
    drop(engine);
    clean(&device);
    // No memory for it: the engine is built all the same.
    device.fail(Fault { call: "cuMemAlloc", after: 0, code: code::OUT_OF_MEMORY });
    drop(CudaCopyEngine::new(&as_driver(&device), Vec::new(), &options).unwrap());
    clean(&device);
}

#[test]
fn memory_of_another_process_is_opened_and_closed() {
    let device = Scripted::new(script(6));
    let driver = as_driver(&device);
    let gpu = Arena::new(1 << 20).unwrap();
    assert!(
        matches!(export_memory(&*driver, gpu.address()), Err(CopyError::Unsupported(_))),
        "no allocation the driver knows"
    );
    device.declare(gpu.address(), 1 << 20);
    let handle = export_memory(&*driver, gpu.address() + 4096).unwrap();
    let memory = ForeignMemory::open(&driver, &handle).unwrap();
    assert_eq!((memory.base(), memory.len()), (gpu.address() + 4096, (1 << 20) - 4096));
    drop(memory);
    let mut bad = handle;
    bad.offset = bad.allocation_bytes;
    assert!(matches!(ForeignMemory::open(&driver, &bad), Err(CopyError::Invalid(_))));
    bad = handle;
    (bad.offset, bad.allocation_bytes) = (u64::MAX - 8, u64::MAX);
    assert!(ForeignMemory::open(&driver, &bad).is_err());
    assert_eq!(device.calls("cuIpcCloseMemHandle"), device.calls("cuIpcOpenMemHandle"));
}
