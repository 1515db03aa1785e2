//! What every copy engine must do, as a function that each one's tests call.
//!
//! A failure panics with the seed and the step.
#![expect(unsafe_code, reason = "submitting copies between arenas")]

use crate::arena::Arena;
use crate::engine::{CopyDone, CopyEngine, CopyError, CopyId, CopyRun, Direction, Order};

const POISON: u8 = 0xA5;

/// Runs all checks on engines made by `build`, which is given the number of queue entries. An engine that moves no bytes is
/// checked in everything but the bytes.
pub fn run(build: &dyn Fn(usize) -> Box<dyn CopyEngine>, seed: u64) {
    random_batches(build(64), seed);
    ordered_copies(build(64), seed);
    full_queue(build(3));
    refusals(build(4));
    drop_finishes(build(8), seed);
}

/// SplitMix64: small, seeded, the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(len).collect()
    }
}

fn arena(bytes: usize) -> Arena {
    Arena::new(bytes).expect("memory for the test")
}

/// # Safety
/// As [`CopyEngine::submit`].
unsafe fn submit(engine: &mut dyn CopyEngine, d: Direction, runs: &[CopyRun], after_copy: Option<CopyId>) -> CopyId {
    // SAFETY: passed on.
    unsafe { engine.submit(d, runs, Order { after_copy, ..Order::default() }) }
        .expect("a copy within the queue's bound")
}

fn collect(engine: &mut dyn CopyEngine) -> Vec<CopyDone> {
    let mut done = Vec::new();
    engine.poll(&mut done);
    done
}

/// Batches of runs of all lengths and alignments, laid out without overlap, in both directions. Every byte of the target is
/// compared, so a byte written outside a run is seen too.
fn random_batches(mut engine: Box<dyn CopyEngine>, seed: u64) {
    const ARENA_BYTES: usize = 6 << 20;
    let mut random = Random(seed);
    let (source, target) = (arena(ARENA_BYTES), arena(ARENA_BYTES));
    let content = random.bytes(ARENA_BYTES);
    assert!(source.write(0, &content));
    for step in 0..40 {
        assert!(target.fill(0, ARENA_BYTES, POISON));
        let mut expected = vec![POISON; ARENA_BYTES];
        let direction = if step % 2 == 0 { Direction::DeviceToHost } else { Direction::HostToDevice };
        let longest = [1, 64, 700, 5000, 70_000, 300_000, 3 << 20][random.below(7)];
        let batches = 1 + random.below(6);
        let (mut at, mut ids, mut bytes) = (0, Vec::new(), 0);
        for _ in 0..batches {
            let mut runs = Vec::new();
            for _ in 0..1 + random.below(if longest < 10_000 { 400 } else { 12 }) {
                let len = random.below(longest + 1);
                at += random.below(130);
                if at + len > ARENA_BYTES {
                    break;
                }
                let from = random.below(ARENA_BYTES - len);
                if let Some(place) = expected.get_mut(at..at + len) {
                    place.copy_from_slice(&content[from..from + len]);
                }
                runs.push(CopyRun { src: source.address() + from, dst: target.address() + at, len });
                at += len;
                bytes += len as u64;
            }
            // SAFETY: sources are only read; targets follow each other; both arenas outlive the wait below.
            ids.push(unsafe { submit(engine.as_mut(), direction, &runs, None) });
        }
        assert_eq!(engine.in_flight(), batches, "seed {seed} step {step}");
        engine.wait(&ids).expect("waiting");
        let mut done = collect(engine.as_mut());
        done.sort_by_key(|copy| copy.id);
        assert_eq!(done.iter().map(|copy| copy.id).collect::<Vec<_>>(), ids, "each once: seed {seed} step {step}");
        assert!(done.iter().all(|copy| copy.result.is_ok()), "seed {seed} step {step}");
        assert_eq!(done.iter().map(|copy| copy.bytes).sum::<u64>(), bytes, "seed {seed} step {step}");
        assert_eq!(engine.in_flight(), 0);
        if engine.moves_bytes() {
            let mut found = vec![0; ARENA_BYTES];
            assert!(target.read(0, &mut found));
            assert!(found == expected, "bytes differ: seed {seed} step {step}");
        }
    }
    let stats = engine.stats();
    assert!(stats.bytes_to_host > 0 && stats.bytes_to_device > 0 && stats.refused == 0);
}

/// A chain of copies, each reading what the one before wrote: any that starts early carries poison on.
fn ordered_copies(mut engine: Box<dyn CopyEngine>, seed: u64) {
    const LINK_BYTES: usize = 1_500_000;
    const LINKS: usize = 12;
    let mut random = Random(seed ^ 1);
    let memory = arena(LINK_BYTES * (LINKS + 1));
    let content = random.bytes(LINK_BYTES);
    for _ in 0..3 {
        assert!(memory.fill(0, memory.len(), POISON));
        assert!(memory.write(0, &content));
        let (mut after, mut ids) = (None, Vec::new());
        for link in 0..LINKS {
            let src = memory.address() + link * LINK_BYTES;
            let direction = if link % 2 == 0 { Direction::DeviceToHost } else { Direction::HostToDevice };
            let runs = [CopyRun { src, dst: src + LINK_BYTES, len: LINK_BYTES }];
            // SAFETY: the order keeps each link's target unread until it is written; the arena outlives the wait below.
            let id = unsafe { submit(engine.as_mut(), direction, &runs, after) };
            ids.push(id);
            after = Some(id);
        }
        engine.wait(&ids[LINKS - 1..]).expect("waiting");
        assert_eq!(collect(engine.as_mut()).len(), LINKS, "the last one done means all are");
        if engine.moves_bytes() {
            let mut found = vec![0; LINK_BYTES];
            assert!(memory.read(LINKS * LINK_BYTES, &mut found));
            assert!(found == content, "a copy overtook the one it was ordered after: seed {seed}");
        }
    }
}

/// A full queue takes nothing, counts it, and takes again once polled. Done and not polled counts as in the queue.
fn full_queue(mut engine: Box<dyn CopyEngine>) {
    if !engine.moves_bytes() {
        return;
    }
    let memory = arena(8192);
    let run = |at: usize| [CopyRun { src: memory.address(), dst: memory.address() + 4096 + at * 64, len: 64 }];
    // SAFETY: small runs inside the arena, targets apart; all are waited for before it is dropped.
    let ids: Vec<CopyId> =
        (0..3).map(|at| unsafe { submit(engine.as_mut(), Direction::DeviceToHost, &run(at), None) }).collect();
    engine.wait(&ids).expect("waiting");
    // SAFETY: as above, and refused.
    let refused = unsafe { engine.submit(Direction::DeviceToHost, &run(3), Order::default()) };
    assert_eq!(refused, Err(CopyError::QueueFull { limit: 3 }));
    assert_eq!((engine.in_flight(), engine.stats().refused), (3, 1));
    assert_eq!(collect(engine.as_mut()).len(), 3);
    // SAFETY: as above.
    let id = unsafe { submit(engine.as_mut(), Direction::DeviceToHost, &run(3), None) };
    engine.wait(&[id]).expect("waiting");
    assert_eq!(collect(engine.as_mut()).len(), 1);
}

/// What cannot be carried out is refused as a whole; nothing to copy is done at once.
fn refusals(mut engine: Box<dyn CopyEngine>) {
    let memory = arena(4096);
    let good = CopyRun { src: memory.address(), dst: memory.address() + 2048, len: 2048 };
    // SAFETY: no bytes.
    let empty = unsafe { submit(engine.as_mut(), Direction::HostToDevice, &[], None) };
    // SAFETY: no bytes; address zero is not looked at.
    let none = unsafe { submit(engine.as_mut(), Direction::HostToDevice, &[CopyRun { src: 0, dst: 0, len: 0 }], None) };
    engine.wait(&[empty, none, CopyId(u64::MAX)]).expect("unknown copies are not waited for");
    assert_eq!(collect(engine.as_mut()).len(), 2);
    if engine.moves_bytes() {
        assert!(memory.fill(0, 4096, POISON));
        for bad in [
            CopyRun { src: memory.address(), dst: memory.address() + 1, len: 2 },
            CopyRun { src: usize::MAX - 1, dst: memory.address(), len: 16 },
        ] {
            // SAFETY: refused before any byte is touched.
            let refused = unsafe { engine.submit(Direction::DeviceToHost, &[good, bad], Order::default()) };
            assert!(matches!(refused, Err(CopyError::Invalid(_))), "{refused:?}");
        }
        // SAFETY: refused: ordered after a copy of the future.
        let refused = unsafe { engine.submit(Direction::DeviceToHost, &[good], Order::behind(CopyId(u64::MAX))) };
        assert!(matches!(refused, Err(CopyError::Invalid(_))), "{refused:?}");
        assert_eq!(engine.in_flight(), 0);
    }
}

/// An engine that is dropped finishes what it accepted: afterwards nobody touches the memory.
fn drop_finishes(mut engine: Box<dyn CopyEngine>, seed: u64) {
    const BYTES: usize = 2 << 20;
    let memory = arena(8 * BYTES);
    let content = Random(seed ^ 2).bytes(BYTES);
    assert!(memory.write(0, &content));
    let moves = engine.moves_bytes();
    for copy in 1..8 {
        let runs = [CopyRun { src: memory.address(), dst: memory.address() + copy * BYTES, len: BYTES }];
        // SAFETY: targets apart, the source only read, and the arena lives beyond the drop.
        unsafe { submit(engine.as_mut(), Direction::DeviceToHost, &runs, None) };
    }
    drop(engine);
    if moves {
        let mut found = vec![0; BYTES];
        for copy in 1..8 {
            assert!(memory.read(copy * BYTES, &mut found));
            assert!(found == content, "copy {copy} was lost");
        }
    }
}
