//! Stores through the whole writer, into a store in memory, and back through the reader.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use object_store::ObjectStoreExt;
use proptest::prelude::*;
use terrace_config::ObjectConfig;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinHandle;

use super::super::id::WriterId;
use super::super::port::LoadPlace;
use super::super::reader::load;
use super::super::reader::testing::{Heard, Rig, key};
use super::super::requests::testing::{Op, Wrong};
use super::super::segment::decode_index;
use super::sealed::{Sealed, Staged};
use super::*;
use crate::tier::StoreBlock;

const BLOCK: u32 = 4096;
/// Blocks of a full segment in these tests.
const FULL: u32 = 8;
const LINGER: Duration = Duration::from_millis(100);

/// A log that says what it is told to say, and remembers what it was told.
#[derive(Clone, Default)]
struct Log {
    last: Arc<AtomicU64>,
    named: Arc<Mutex<Vec<Arc<SegmentRecord>>>>,
    refuses: bool,
    hangs: bool,
}

impl Publish for Log {
    fn next_segment(&self) -> (SegmentId, Stamp) {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        (SegmentId { writer: WriterId(9), number }, Stamp(number))
    }

    async fn publish(&self, segment: Arc<SegmentRecord>) -> bool {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        self.named.lock().expect("no test panicked").push(segment);
        !self.refuses
    }
}

struct Bench {
    rig: Rig,
    log: Log,
    commands: Option<UnboundedSender<WriteCommand>>,
    reports: UnboundedReceiver<Report>,
    task: JoinHandle<()>,
}

impl Bench {
    fn new(block_bytes: u32, log: Log, tweak: impl FnOnce(&mut ObjectConfig)) -> Self {
        // The last is for what is read back.
        let slots = ((14 << 20) / block_bytes).min(64);
        let rig = Rig::new(block_bytes, slots, 1 << 20, |config| {
            config.linger = LINGER;
            // Also the index has to fit.
            config.segment_bytes = FULL * (block_bytes + 256 + 40) + 128;
            config.staging_bytes = 2 * u64::from(config.segment_bytes);
            tweak(config);
        });
        let (commands, inbox) = unbounded_channel();
        let (sender, reports) = unbounded_channel();
        let task = tokio::spawn(write(Arc::clone(&rig.shared), log.clone(), sender, inbox));
        Self { rig, log, commands: Some(commands), reports, task }
    }

    fn send(&self, command: WriteCommand) {
        self.commands.as_ref().expect("not closed").send(command).expect("the writer lives");
    }

    /// Puts the payload of each number into a slot of its own, from `slot` on, and stores it.
    fn store(&self, job: u64, numbers: &[u64], slot: u32, within: Duration) -> GivenUp {
        let place = |(index, number): (u32, &u64)| {
            let block = StoreBlock { key: key(*number), slot: SlotId(slot + index), crc32: None };
            assert!(self.rig.shared.region.write_slot(block.slot, &self.rig.payload(*number)));
            StorePlace { index, block }
        };
        self.store_places(job, (0..).zip(numbers).map(place).collect(), within)
    }

    fn store_places(&self, job: u64, blocks: Vec<StorePlace>, within: Duration) -> GivenUp {
        let given_up = GivenUp::default();
        let deadline = self.rig.shared.clock.now().plus(within);
        self.send(WriteCommand::Store { job: JobId(job), blocks, deadline, given_up: given_up.clone() });
        given_up
    }

    fn abandon(&self, job: u64, given_up: &GivenUp) {
        given_up.set();
        self.send(WriteCommand::Abandon { job: JobId(job) });
    }

    /// Outcomes until `count` of them came; each block's after its segment's.
    async fn outcomes(&mut self, count: usize) -> Vec<(u64, u32, Result<u32, Fault>)> {
        let mut outcomes = Vec::new();
        let mut published = 0;
        while outcomes.len() < count {
            match self.reports.recv().await.expect("the writer lives") {
                Report::Published(segment) => {
                    published += 1;
                    assert!(self.named().contains(&segment));
                }
                Report::Stored { job, index, outcome } => {
                    assert!(outcome.is_err() || published > 0, "stored before its segment was published");
                    outcomes.push((job.0, index, outcome));
                }
                other => panic!("a writer does not say {other:?}"),
            }
        }
        outcomes
    }

    fn named(&self) -> Vec<Arc<SegmentRecord>> {
        self.log.named.lock().expect("no test panicked").clone()
    }

    fn puts(&self) -> usize {
        self.rig.liar.store.seen(Op::Put).len()
    }

    /// No report waits, and the writer is at rest.
    async fn silent(&mut self) {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert!(self.reports.try_recv().is_err());
    }

    /// Every segment is whole, and its blocks come back as they were stored.
    async fn check_segments(&self) {
        for segment in self.named() {
            let path = self.rig.shared.names.segment(segment.id);
            let bytes = self.rig.liar.store.inner.get(&path).await.expect("it is there").bytes().await.expect("memory");
            let decoded = decode_index(&self.rig.shared.shape, segment.id, &bytes, bytes.len() as u64);
            assert_eq!(decoded.as_ref(), Ok(&*segment));
            let slot = SlotId(self.rig.shared.region.slots() - 1);
            for position in 0..segment.blocks() {
                let place = LoadPlace {
                    index: 0,
                    key: segment.key(position).expect("a position"),
                    slot,
                    segment: Arc::clone(&segment),
                    position,
                };
                let number = place.key.hash().first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
                let mut heard = Heard::default();
                load(&self.rig.shared, &[place], Time(u64::MAX), &mut heard).await;
                assert!(heard.done[0].1.is_ok(), "{heard:?}");
                assert_eq!(self.rig.slot(slot), self.rig.payload(number.expect("of a test")));
            }
        }
    }

    /// The numbers of the blocks in each segment.
    fn numbers(&self) -> Vec<Vec<u64>> {
        let numbers = |segment: &Arc<SegmentRecord>| {
            let keys =
                segment.keys().chunks(36).map(|key| key.first_chunk::<8>().map(|number| u64::from_le_bytes(*number)));
            keys.map(|number| number.expect("8 bytes")).collect()
        };
        self.named().iter().map(numbers).collect()
    }
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn blocks_go_together_and_come_back() {
    let mut bench = Bench::new(BLOCK, Log::default(), |_| {});
    let numbers: Vec<_> = (0..20).collect();
    bench.store(1, &numbers, 0, LONG);
    bench.store(2, &[20], 20, LONG);
    let outcomes = bench.outcomes(21).await;
    for (job, index, outcome) in outcomes {
        let number = if job == 1 { index.into() } else { 20 };
        assert_eq!(outcome, Ok(crc32fast::hash(&bench.rig.payload(number))));
    }
    // Two full ones at once, the rest together; in the order in which they were given.
    assert_eq!(bench.numbers(), [(0..8).collect::<Vec<_>>(), (8..16).collect(), (16..21).collect()]);
    assert_eq!((bench.puts(), bench.rig.shared.counters.segments_stored.get()), (3, 3));
    bench.check_segments().await;
}

#[tokio::test(start_paused = true)]
async fn few_blocks_wait_for_others_and_many_do_not() {
    let mut bench = Bench::new(BLOCK, Log::default(), |_| {});
    bench.store(1, &[1], 0, LONG);
    tokio::time::sleep(LINGER - Duration::from_millis(5)).await;
    bench.silent().await;
    bench.store(2, &[2], 1, LONG);
    bench.silent().await;
    assert_eq!(bench.puts(), 0);
    assert_eq!(bench.outcomes(2).await.len(), 2);
    assert_eq!(bench.numbers(), [[1, 2]]);
    // A quarter of a segment by one job: no time has to pass.
    let before = tokio::time::Instant::now();
    bench.store(3, &[3, 4], 2, LONG);
    assert_eq!(bench.outcomes(2).await.len(), 2);
    assert_eq!(tokio::time::Instant::now(), before);
    assert_eq!(bench.numbers(), [[1, 2], [3, 4]]);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_stored_once_and_told_to_all_who_stored_it() {
    let mut bench = Bench::new(BLOCK, Log::default(), |_| {});
    bench.store(1, &[1, 1], 0, LONG);
    bench.store(2, &[1], 2, LONG);
    // While it is on its way as well.
    bench.rig.liar.store.plan(Op::Put, Wrong::Late(Duration::from_secs(1)), 1);
    tokio::time::sleep(LINGER * 2).await;
    assert_eq!(bench.puts(), 1);
    bench.store(3, &[1], 3, LONG);
    let mut outcomes = bench.outcomes(4).await;
    outcomes.sort_by_key(|(job, index, _)| (*job, *index));
    let crc = Ok(crc32fast::hash(&bench.rig.payload(1)));
    assert_eq!(outcomes, [(1, 0, crc), (1, 1, crc), (2, 0, crc), (3, 0, crc)]);
    assert_eq!(bench.numbers(), [[1]]);
    // Later it is stored anew: whether it is there already is not the writer's to know.
    bench.store(4, &[1], 4, LONG);
    assert_eq!(bench.outcomes(1).await, [(4, 0, crc)]);
    assert_eq!(bench.numbers(), [[1], [1]]);
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_before_it_is_sealed_never_gets_out() {
    let mut bench = Bench::new(BLOCK, Log::default(), |_| {});
    // Staged, waiting for others.
    let staged = bench.store(1, &[1], 0, LONG);
    bench.silent().await;
    bench.abandon(1, &staged);
    bench.rig.poison(SlotId(0));
    assert_eq!(bench.outcomes(1).await, [(1, 0, Err(Fault::Expired))]);
    // Not copied yet, and the writer has not heard of the end.
    let waiting = bench.store(2, &[2, 3, 4], 1, LONG);
    waiting.set();
    (1..4).for_each(|slot| bench.rig.poison(SlotId(slot)));
    let outcomes = bench.outcomes(3).await;
    assert!(outcomes.iter().all(|(job, _, outcome)| (*job, *outcome) == (2, Err(Fault::Expired))));
    bench.abandon(2, &waiting);
    // Another job has the same key in a slot of its own, before and after.
    let first = bench.store(3, &[5], 4, LONG);
    bench.store(4, &[5, 6], 5, LONG);
    bench.abandon(3, &first);
    bench.rig.poison(SlotId(4));
    let outcomes = bench.outcomes(3).await;
    assert_eq!(outcomes[0], (3, 0, Err(Fault::Expired)));
    assert!(outcomes[1..].iter().all(|(job, _, outcome)| *job == 4 && outcome.is_ok()));
    assert_eq!(bench.numbers(), [[5, 6]]);
    bench.check_segments().await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_changes_while_it_is_copied_is_not_stored() {
    // One block is copied in several turns: the job is given up in each of them.
    let mut outcomes = Vec::new();
    for turns in 0..16 {
        let mut bench = Bench::new(3 << 20, Log::default(), |config| config.staging_bytes = 28 << 20);
        let given_up = bench.store(1, &[1, 2], 0, LONG);
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        bench.abandon(1, &given_up);
        bench.rig.poison(SlotId(0));
        bench.rig.poison(SlotId(1));
        outcomes.extend(bench.outcomes(2).await.into_iter().map(|(_, _, outcome)| outcome));
        for segment in bench.named() {
            for (position, number) in [(0, 1), (1, 2)] {
                let crc32 = crc32fast::hash(&bench.rig.payload(number));
                assert_eq!(segment.crc32(position), Some(crc32), "after {turns} turns");
            }
        }
    }
    assert!(outcomes.iter().any(|outcome| outcome.is_ok()) && outcomes.contains(&Err(Fault::Expired)), "{outcomes:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_sealed_ends_as_its_segment_does() {
    let mut bench = Bench::new(BLOCK, Log::default(), |_| {});
    bench.rig.liar.store.plan(Op::Put, Wrong::Late(Duration::from_secs(1)), 1);
    let given_up = bench.store(1, &[1], 0, LONG);
    tokio::time::sleep(LINGER * 2).await;
    assert_eq!(bench.puts(), 1);
    bench.abandon(1, &given_up);
    bench.rig.poison(SlotId(0));
    assert_eq!(bench.outcomes(1).await, [(1, 0, Ok(crc32fast::hash(&bench.rig.payload(1))))]);
    bench.check_segments().await;

    // A store that hangs: at the deadline.
    bench.rig.liar.store.plan(Op::Put, Wrong::Hang, 100);
    bench.store(2, &[2], 1, Duration::from_secs(2));
    let before = tokio::time::Instant::now();
    assert_eq!(bench.outcomes(1).await, [(2, 0, Err(Fault::Expired))]);
    assert!(before.elapsed() >= Duration::from_secs(2) && before.elapsed() < Duration::from_millis(2_100));
}

#[tokio::test(start_paused = true)]
async fn a_job_ends_at_its_deadline_wherever_its_blocks_are() {
    let mut bench = Bench::new(BLOCK, Log::default(), |config| {
        config.staging_bytes = config.segment_bytes.into();
        config.linger = Duration::from_secs(3);
    });
    // Staged and not sealed.
    bench.store(1, &[1], 0, Duration::from_secs(1));
    assert_eq!(bench.outcomes(1).await, [(1, 0, Err(Fault::Expired))]);
    // Too late already.
    bench.store(2, &[2], 1, Duration::ZERO);
    assert_eq!(bench.outcomes(1).await, [(2, 0, Err(Fault::Expired))]);
    // All memory is on its way: what waits keeps its slot until its deadline, and is not read later.
    bench.rig.liar.store.plan(Op::Put, Wrong::Late(Duration::from_secs(2)), 1);
    bench.store(3, &(10..18).collect::<Vec<_>>(), 10, LONG);
    bench.store(4, &(20..24).collect::<Vec<_>>(), 20, Duration::from_secs(1));
    bench.store(5, &[30, 31], 30, LONG);
    let outcomes = bench.outcomes(4).await;
    assert!(outcomes.iter().all(|(job, _, outcome)| (*job, *outcome) == (4, Err(Fault::Expired))), "{outcomes:?}");
    (20..24).for_each(|slot| bench.rig.poison(SlotId(slot)));
    let outcomes = bench.outcomes(10).await;
    assert!(outcomes.iter().all(|(_, _, outcome)| outcome.is_ok()), "{outcomes:?}");
    assert_eq!(bench.numbers(), [(10..18).collect::<Vec<_>>(), vec![30, 31]]);
    bench.check_segments().await;
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_not_what_the_manager_knows_are_refused() {
    let mut bench = Bench::new(BLOCK, Log::default(), |_| {});
    assert!(bench.rig.shared.region.write_slot(SlotId(1), &bench.rig.payload(1)));
    let known = crc32fast::hash(&bench.rig.payload(1));
    // Slot 0 is poisoned; slot 1 is not; slot 64 is not there; and one key is no key of the namespace.
    let block = |number, slot, crc32| StoreBlock { key: key(number), slot: SlotId(slot), crc32 };
    let blocks = [
        block(1, 0, Some(known)),
        block(1, 1, Some(known)),
        block(2, 64, None),
        StoreBlock { key: terrace_primary::Key::new(&[1; 8], 0).expect("a key"), slot: SlotId(1), crc32: None },
    ];
    let place = |(index, block)| StorePlace { index, block };
    bench.store_places(1, (0..).zip(blocks).map(place).collect(), LONG);
    let mut outcomes: Vec<_> =
        bench.outcomes(4).await.into_iter().map(|(_, index, outcome)| (index, outcome)).collect();
    outcomes.sort_by_key(|(index, _)| *index);
    assert_eq!(outcomes, [(0, Err(Fault::Corrupt)), (1, Ok(known)), (2, Err(Fault::Io)), (3, Err(Fault::Corrupt))]);
    bench.check_segments().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_store_or_the_log_refuses_fails() {
    for (log, refused) in [(Log { refuses: true, ..Log::default() }, false), (Log::default(), true)] {
        let mut bench = Bench::new(BLOCK, log, |_| {});
        if refused {
            bench.rig.liar.store.plan(Op::Put, Wrong::Status(403), 1);
        }
        bench.store(1, &[1, 2, 3], 0, LONG);
        let outcomes = bench.outcomes(3).await;
        assert!(outcomes.iter().all(|(_, _, outcome)| *outcome == Err(Fault::Io)), "{outcomes:?}");
        assert_eq!(bench.rig.shared.counters.segments_stored.get(), 0);
        // And the next may go well; the key is not taken for one on its way.
        if refused {
            bench.store(2, &[1, 2, 3], 0, LONG);
            assert!(bench.outcomes(3).await.iter().all(|(_, _, outcome)| outcome.is_ok()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_is_waited_for_and_bounded() {
    // Nothing lingers.
    let mut bench = Bench::new(BLOCK, Log::default(), |config| config.linger = Duration::from_secs(1_000));
    bench.store(1, &[1], 0, LONG);
    bench.commands = None;
    assert!(bench.outcomes(1).await[0].2.is_ok());
    (&mut bench.task).await.expect("no panic");

    let log = Log { hangs: true, ..Log::default() };
    let mut bench = Bench::new(BLOCK, log, |config| config.staging_bytes = config.segment_bytes.into());
    bench.rig.liar.store.plan(Op::Put, Wrong::Hang, 1);
    bench.store(1, &(0..8).collect::<Vec<_>>(), 0, LONG);
    bench.store(2, &(10..20).collect::<Vec<_>>(), 10, LONG);
    let by = bench.rig.shared.clock.now().plus(Duration::from_secs(1));
    bench.send(WriteCommand::Finish { by });
    let outcomes = bench.outcomes(18).await;
    assert!(outcomes.iter().all(|(_, _, outcome)| *outcome == Err(Fault::Closed)), "{outcomes:?}");
    (&mut bench.task).await.expect("no panic");
    assert!(bench.rig.shared.clock.now().since(by) < Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_and_comes_back() {
    let mut bench = Bench::new(BLOCK, Log::default(), |config| config.connections = 64);
    bench.rig.liar.store.plan(Op::Put, Wrong::Late(Duration::from_secs(1)), 100);
    let numbers: Vec<_> = (0..40).collect();
    bench.store(1, &numbers, 0, LONG);
    bench.silent().await;
    // Two segments fit into the memory.
    assert_eq!((bench.puts(), bench.rig.liar.store.peak()), (2, 2));
    assert!(bench.outcomes(40).await.iter().all(|(_, _, outcome)| outcome.is_ok()));
    assert_eq!(bench.rig.liar.store.peak(), 2);
    bench.check_segments().await;
}

#[tokio::test(start_paused = true)]
async fn large_segments_go_up_in_parts() {
    let mut bench = Bench::new(1 << 20, Log::default(), |config| {
        config.segment_bytes = 32 << 20;
        config.staging_bytes = 32 << 20;
        config.part_bytes = 5 << 20;
    });
    let numbers: Vec<_> = (0..13).collect();
    bench.store(1, &numbers, 0, LONG);
    assert!(bench.outcomes(13).await.iter().all(|(_, _, outcome)| outcome.is_ok()));
    assert_eq!((bench.puts(), bench.rig.liar.store.seen(Op::Part).len()), (0, 3));
    bench.check_segments().await;
}

#[test]
fn a_pool_makes_no_more_than_it_may() {
    let pool = Pool::new(16, 2);
    let (first, second) = (pool.take(), pool.take());
    assert!(first.is_some() && second.is_some() && pool.take().is_none());
    let bytes = bytes::Bytes::from_owner(first.expect("a buffer"));
    let half = bytes.slice(..8);
    drop(bytes);
    assert!(pool.take().is_none(), "somebody still sends it");
    drop(half);
    assert_eq!(pool.out(), 1);
    assert!(pool.take().is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn parts_are_the_segment(blocks in 1_usize..32, block_bytes in 1_u32..900_000, part_bytes in (5_u64 << 20)..(20 << 20)) {
        let shape = super::super::record::Shape { namespace: [7; 32], block_bytes, key_bytes: 36 };
        let pool = Pool::new(shape.stride() as usize, blocks);
        let staged = (0..blocks).map(|number| {
            let mut buffer = pool.take().expect("enough");
            buffer.as_mut().fill(number as u8);
            Staged { key: key(number as u64), crc32: 0, buffer }
        });
        let id = SegmentId { writer: WriterId(1), number: 1 };
        let sealed = Sealed::new(&shape, id, Stamp(1), staged.collect(), Time(1)).expect("a segment");
        let record = Arc::clone(&sealed.record);
        let parts = sealed.into_parts(part_bytes);
        let sizes: Vec<_> = parts.iter().map(|part| part.content_length() as u64).collect();
        prop_assert_eq!(sizes.iter().sum::<u64>(), record.bytes);
        if let Some((last, others)) = sizes.split_last() {
            prop_assert!(*last > 0 && *last <= part_bytes + part_bytes / 4);
            prop_assert!(others.iter().all(|size| *size == sizes[0] && *size >= 5 << 20 && *size >= *last));
        }
        let bytes = parts.iter().flatten().map(|bytes| &bytes[..]).collect::<Vec<_>>().concat();
        for block in 0..blocks {
            let range = shape.blocks_range(block as u32, 1);
            let payload = &bytes[range.start as usize + HEADER_BYTES..range.end as usize];
            prop_assert!(payload.iter().all(|byte| *byte == block as u8));
        }
        drop((parts, bytes));
        prop_assert_eq!(pool.out(), 0);
    }
}
