//! The NVMe tier's logic over disks in memory: recency, room, starts, faults.

mod common;

use std::time::Duration;

use common::{FILE_BYTES, FakeCatalog, FakeDisk, NAMESPACE, config, key, tier};
use terrace_primary::{Key, Region, SlotId};
use terrace_tiers::catalog::NoCatalog;
use terrace_tiers::conformance::{Fixture, run};
use terrace_tiers::nvme::BlockName;
use terrace_tiers::{
    Clock, Fault, JobId, LoadBlock, LoadJob, ManualClock, NvmeTier, Refused, SecondaryTier, StoreBlock, StoreJob,
    TierEvent, TierLookup, Time,
};

fn store_job(id: u64, keys: &[u64]) -> StoreJob {
    let blocks = keys.iter().map(|n| StoreBlock { key: key(*n), slot: SlotId(0), crc32: Some(*n as u32) }).collect();
    StoreJob { id: JobId(id), blocks, deadline: Time(u64::MAX) }
}

fn load_job(id: u64, keys: &[u64]) -> LoadJob {
    let blocks = keys.iter().map(|n| LoadBlock { key: key(*n), slot: SlotId(0) }).collect();
    LoadJob { id: JobId(id), blocks, deadline: Time(u64::MAX) }
}

fn poll(tier: &mut NvmeTier) -> Vec<TierEvent> {
    let mut events = Vec::new();
    tier.poll(&mut events);
    tier.check().unwrap();
    events
}

/// Polls until the index is known and nothing is in flight.
fn settle(tier: &mut NvmeTier) -> Vec<TierEvent> {
    let mut events = Vec::new();
    for _ in 0..100 {
        events.extend(poll(tier));
        if tier.is_known() && tier.stats().in_flight == 0 {
            // Removals, and the rest of a scan.
            for _ in 0..20 {
                events.extend(poll(tier));
            }
            return events;
        }
    }
    panic!("the tier does not settle: {:?}", tier.stats());
}

fn store(tier: &mut NvmeTier, keys: &[u64]) -> Vec<TierEvent> {
    let mut events = settle(tier);
    tier.submit_store(store_job(u64::MAX, keys)).unwrap();
    events.extend(settle(tier));
    events
}

fn load(tier: &mut NvmeTier, keys: &[u64]) -> Vec<Result<u32, Fault>> {
    tier.submit_load(load_job(u64::MAX, keys)).unwrap();
    let mut outcomes = vec![Err(Fault::Closed); keys.len()];
    for event in settle(tier) {
        if let TierEvent::LoadDone { index, outcome, .. } = event {
            outcomes[index as usize] = outcome;
        }
    }
    outcomes
}

fn lookup(tier: &mut NvmeTier, keys: &[u64]) -> Vec<TierLookup> {
    let keys: Vec<Key> = keys.iter().map(|n| key(*n)).collect();
    let mut out = Vec::new();
    tier.lookup(&keys, &mut out);
    out
}

/// Which of `0..most` are found.
fn found(tier: &mut NvmeTier, most: u64) -> Vec<u64> {
    let all: Vec<u64> = (0..most).collect();
    let answers = lookup(tier, &all);
    assert!(!answers.contains(&TierLookup::Unknown));
    all.into_iter().zip(answers).filter(|(_, answer)| *answer == TierLookup::Found).map(|(n, _)| n).collect()
}

fn removed(events: &[TierEvent]) -> Vec<Key> {
    events.iter().filter_map(|event| if let TierEvent::Removed { key } = event { Some(*key) } else { None }).collect()
}

fn one_lane(blocks: u64) -> (NvmeTier, FakeDisk, FakeCatalog, ManualClock) {
    let (disk, catalog, clock) = (FakeDisk::default(), FakeCatalog::default(), ManualClock::default());
    (tier(&config(blocks, 1), std::slice::from_ref(&disk), catalog.open(), &clock), disk, catalog, clock)
}

fn reopen(blocks: u64, disk: &FakeDisk, catalog: &FakeCatalog) -> NvmeTier {
    let mut tier = tier(&config(blocks, 1), std::slice::from_ref(disk), catalog.open(), &ManualClock::default());
    settle(&mut tier);
    tier
}

#[test]
fn conformance_over_one_and_three_directories() {
    for lanes in [1, 3] {
        let make = || {
            let disks = vec![FakeDisk::default(); lanes];
            let clock = ManualClock::default();
            let tier = tier(&config(40, lanes), &disks, Box::new(NoCatalog), &clock);
            Fixture {
                tier: Box::new(tier),
                region: Region::null(64, common::BLOCK_BYTES, common::BLOCK_BYTES),
                capacity_blocks: 40,
                may_fail: false,
                pass_time: Box::new(move || clock.advance(Duration::from_millis(1))),
            }
        };
        run(make).unwrap();
    }
}

#[test]
fn a_port_that_takes_two_commands_at_a_time_gets_all_in_order() {
    let (mut tier, disk, ..) = one_lane(100);
    disk.lock().queue = 2;
    let keys: Vec<u64> = (0..60).collect();
    store(&mut tier, &keys);
    assert_eq!(found(&mut tier, 100), keys);
    assert!(load(&mut tier, &keys).iter().enumerate().all(|(n, outcome)| *outcome == Ok(n as u32)));
}

#[test]
fn eviction_is_least_recently_used_and_recycles_one_file_a_store() {
    let (mut tier, disk, ..) = one_lane(4);
    store(&mut tier, &[0, 1, 2, 3]);
    tier.touch(&[key(1), key(0)]);
    let events = store(&mut tier, &[4, 5]);
    assert_eq!(removed(&events), [key(2), key(3)]);
    assert_eq!(found(&mut tier, 9), [0, 1, 4, 5]);
    let events = store(&mut tier, &[6, 7, 8]);
    assert_eq!(removed(&events), [key(1), key(0), key(4)], "the last key touched is the most recent");
    let files = disk.lock();
    assert_eq!((files.removes, files.most_bytes), (0, 4 * FILE_BYTES));
}

#[test]
fn a_touch_that_overtakes_the_store_counts() {
    let (mut tier, disk, ..) = one_lane(3);
    settle(&mut tier);
    disk.lock().stopped = true;
    tier.submit_store(store_job(1, &[0, 1, 2])).unwrap();
    // The head of a prefix is to be the most recent, whatever order its blocks land in.
    tier.touch(&[key(2), key(1), key(0)]);
    disk.lock().stopped = false;
    settle(&mut tier);
    let events = store(&mut tier, &[3, 4]);
    assert_eq!(removed(&events), [key(2), key(1)]);
}

#[test]
fn a_block_that_is_being_loaded_is_not_evicted() {
    let (mut tier, disk, ..) = one_lane(3);
    store(&mut tier, &[0, 1, 2]);
    disk.lock().stopped = true;
    tier.submit_load(load_job(1, &[0])).unwrap();
    tier.submit_store(store_job(2, &[3])).unwrap();
    disk.lock().stopped = false;
    let events = settle(&mut tier);
    assert_eq!(removed(&events), [key(1)]);
    assert_eq!(found(&mut tier, 9), [0, 2, 3]);
}

#[test]
fn when_everything_is_being_loaded_a_store_is_full() {
    let (mut tier, disk, ..) = one_lane(2);
    store(&mut tier, &[0, 1]);
    disk.lock().stopped = true;
    tier.submit_load(load_job(1, &[0, 1])).unwrap();
    tier.submit_store(store_job(2, &[3])).unwrap();
    let done = TierEvent::StoreDone { job: JobId(2), index: 0, outcome: Err(Fault::Full) };
    assert!(poll(&mut tier).contains(&done));
    assert_eq!(tier.stats().full, 1);
}

#[test]
fn the_second_store_of_a_block_shares_the_first() {
    let (mut tier, disk, ..) = one_lane(10);
    settle(&mut tier);
    tier.submit_store(store_job(1, &[5])).unwrap();
    tier.submit_store(store_job(2, &[5])).unwrap();
    tier.submit_store(store_job(3, &[5])).unwrap();
    tier.abandon(JobId(3));
    let events = settle(&mut tier);
    for (job, outcome) in [(1, Ok(5)), (2, Ok(5)), (3, Err(Fault::Expired))] {
        assert!(events.contains(&TierEvent::StoreDone { job: JobId(job), index: 0, outcome }), "{job}");
    }
    assert_eq!(events.len(), 3);
    assert_eq!(disk.lock().writes, 1);
}

#[test]
fn an_abandoned_store_is_never_found() {
    for (queue, name) in [(0, "with the port"), (1, "waiting for the port")] {
        let (mut tier, disk, ..) = one_lane(2);
        store(&mut tier, &[0, 1]);
        (disk.lock().stopped, disk.lock().queue) = (true, queue);
        tier.submit_store(store_job(1, &[2])).unwrap();
        tier.submit_store(store_job(2, &[3])).unwrap();
        tier.abandon(JobId(2));
        (disk.lock().stopped, disk.lock().queue) = (false, 0);
        let events = settle(&mut tier);
        assert!(events.contains(&TierEvent::StoreDone { job: JobId(2), index: 0, outcome: Err(Fault::Expired) }));
        assert_eq!(found(&mut tier, 9), [2], "{name}");
        let files: Vec<Key> = disk.lock().files.keys().map(|name| name.key).collect();
        assert_eq!(files, [key(2)], "{name}: the victim whose file was to be taken over is gone too");
        assert_eq!(tier.stats().allocated_bytes, FILE_BYTES);
    }
}

#[test]
fn faults_of_loads_end_as_misses() {
    for fault in [Fault::Absent, Fault::Corrupt, Fault::Io] {
        let (mut tier, disk, ..) = one_lane(4);
        store(&mut tier, &[0, 1]);
        disk.lock().faults.push_back(fault);
        assert_eq!(load(&mut tier, &[0]), [Err(fault)]);
        assert_eq!(found(&mut tier, 4), [1], "{fault:?}");
        assert_eq!(tier.stats().allocated_bytes, FILE_BYTES);
        let stats = tier.stats();
        let counted = match fault {
            Fault::Absent => stats.vanished,
            Fault::Corrupt => stats.corrupt,
            _ => stats.io_errors,
        };
        assert_eq!(counted, 1, "{fault:?}");
    }
}

#[test]
fn a_full_disk_is_counted_and_makes_room_without_a_storm() {
    let (mut tier, disk, _, clock) = one_lane(100);
    disk.lock().disk_bytes = Some(10 * FILE_BYTES);
    let keys: Vec<u64> = (0..20).collect();
    store(&mut tier, &keys);
    let stats = tier.stats();
    assert_eq!(stats.full, 10);
    assert!((8..10).contains(&stats.blocks), "{stats:?}");
    // From here on stores recycle within what the disk has.
    let more: Vec<u64> = (20..60).collect();
    for part in more.chunks(4) {
        store(&mut tier, part);
    }
    assert_eq!(tier.stats().full, 10);
    assert_eq!(tier.stats().stored, 50);
    // After a while growing is tried again.
    disk.lock().disk_bytes = None;
    clock.advance(Duration::from_secs(100));
    store(&mut tier, &(100..140).collect::<Vec<_>>());
    assert!(tier.stats().blocks > 40);
}

/// Of two victims that were missed one is gone for good, and one is stored again before anybody could remove its file.
#[test]
fn a_victim_whose_file_was_not_found_is_removed_and_counted_until_then() {
    let (mut tier, disk, ..) = one_lane(4);
    store(&mut tier, &[0, 1, 2, 3]);
    disk.lock().missed = 2;
    tier.submit_store(store_job(7, &[4, 5])).unwrap();
    poll(&mut tier);
    assert_eq!(tier.stats().allocated_bytes, disk.lock().bytes(), "what was missed still takes room");
    tier.submit_store(store_job(8, &[1])).unwrap();
    settle(&mut tier);
    assert_eq!(found(&mut tier, 9), [1, 3, 4, 5]);
    assert_eq!((disk.lock().bytes(), tier.stats().allocated_bytes), (4 * FILE_BYTES, 4 * FILE_BYTES));
    assert_eq!(load(&mut tier, &[1, 3, 4, 5]), [Ok(1), Ok(3), Ok(4), Ok(5)]);
}

#[test]
fn a_file_that_cannot_be_removed_stays_counted_and_is_looked_for_at_the_next_start() {
    let (mut tier, disk, catalog, _) = one_lane(10);
    store(&mut tier, &[0, 1]);
    disk.lock().faults.extend([Fault::Io; 4]);
    assert_eq!(load(&mut tier, &[0]), [Err(Fault::Io)]);
    assert_eq!((tier.stats().blocks, tier.stats().allocated_bytes), (1, 2 * FILE_BYTES));
    tier.shutdown(Duration::from_secs(1));
    let mut tier = reopen(10, &disk, &catalog);
    assert_eq!(found(&mut tier, 4), [0, 1], "the scan found it again");
}

#[test]
fn a_clean_restart_brings_index_and_order_back() {
    let (mut tier, disk, catalog, _) = one_lane(6);
    store(&mut tier, &[0, 1, 2, 3, 4, 5]);
    tier.touch(&[key(1), key(0)]);
    tier.shutdown(Duration::from_secs(1));
    drop(tier);
    let mut tier = reopen(6, &disk, &catalog);
    assert_eq!(found(&mut tier, 9), [0, 1, 2, 3, 4, 5]);
    assert_eq!(load(&mut tier, &[3, 0]), [Ok(3), Ok(0)]);
    let events = store(&mut tier, &[6, 7, 8, 9, 10]);
    assert_eq!(removed(&events), [key(2), key(3), key(4), key(5), key(1)]);
}

#[test]
fn until_the_files_are_known_nothing_is_absent_and_stores_wait() {
    let (mut tier, disk, ..) = one_lane(6);
    store(&mut tier, &[0, 1]);
    drop(tier);
    let mut tier = tier_without_catalog(6, &disk);
    assert_eq!(lookup(&mut tier, &[0, 9]), [TierLookup::Unknown; 2]);
    assert_eq!(tier.submit_store(store_job(1, &[4])), Err(Refused::Busy));
    settle(&mut tier);
    assert_eq!(lookup(&mut tier, &[0, 9]), [TierLookup::Found, TierLookup::Absent]);
}

#[test]
fn a_scan_that_hangs_does_not_hold_requests_up_for_ever() {
    let (mut tier, disk, _, clock) = one_lane(6);
    disk.lock().stopped = true;
    poll(&mut tier);
    assert_eq!(lookup(&mut tier, &[0]), [TierLookup::Unknown]);
    clock.advance(Duration::from_secs(31));
    poll(&mut tier);
    assert_eq!(lookup(&mut tier, &[0]), [TierLookup::Absent]);
    disk.put(BlockName { namespace: NAMESPACE, key: key(0) }, FILE_BYTES, 1);
    disk.lock().stopped = false;
    settle(&mut tier);
    assert_eq!(lookup(&mut tier, &[0]), [TierLookup::Found], "what comes late is taken");
}

fn tier_without_catalog(blocks: u64, disk: &FakeDisk) -> NvmeTier {
    tier(&config(blocks, 1), std::slice::from_ref(disk), Box::new(NoCatalog), &ManualClock::default())
}

#[test]
fn without_a_catalog_the_order_is_that_of_the_files() {
    let (mut tier, disk, ..) = one_lane(4);
    store(&mut tier, &[3, 1, 0, 2]);
    drop(tier);
    let mut tier = tier_without_catalog(4, &disk);
    let events = store(&mut tier, &[4, 5, 6]);
    assert_eq!(removed(&events), [key(3), key(1), key(0)]);
}

#[test]
fn a_file_with_an_absurd_date_leaves_the_order_of_all_others() {
    let (mut tier, disk, catalog, _) = one_lane(4);
    settle(&mut tier);
    drop(tier);
    disk.put(BlockName { namespace: NAMESPACE, key: key(9) }, FILE_BYTES, u64::MAX);
    let mut tier = reopen(4, &disk, &catalog);
    assert_eq!(found(&mut tier, 10), [9]);
    store(&mut tier, &[2, 0, 1]);
    tier.touch(&[key(9), key(1), key(2), key(0)]);
    tier.shutdown(Duration::from_secs(1));
    drop(tier);
    let mut tier = reopen(4, &disk, &catalog);
    let events = store(&mut tier, &[4, 5, 6]);
    assert_eq!(removed(&events), [key(9), key(1), key(2)]);
}

#[test]
fn a_block_whose_crc_nobody_knows_is_written_again() {
    for capacity in [1, 2, 4] {
        let (mut tier, disk, ..) = one_lane(capacity);
        store(&mut tier, &[0]);
        store(&mut tier, &(1..capacity).collect::<Vec<_>>());
        drop(tier);
        let mut tier = tier_without_catalog(capacity, &disk);
        settle(&mut tier);
        let mut job = store_job(7, &[0]);
        job.blocks[0].crc32 = None;
        tier.submit_store(job).unwrap();
        assert_eq!(lookup(&mut tier, &[0]), [TierLookup::Found], "the old file is there until the new one is");
        let events = settle(&mut tier);
        // A full tier gives another block up for it; a tier of one block has none.
        let outcome = if capacity == 1 { Err(Fault::Full) } else { Ok(9) };
        assert!(events.contains(&TierEvent::StoreDone { job: JobId(7), index: 0, outcome }), "{events:?}");
        assert_eq!(found(&mut tier, 9).len() as u64, if capacity == 1 { 1 } else { capacity - 1 });
        assert_eq!(disk.lock().bytes(), tier.stats().allocated_bytes);
        assert_eq!(load(&mut tier, &[0]), [Ok(if capacity == 1 { 0 } else { 9 })]);
    }
}

#[test]
fn after_a_crash_catalog_and_files_are_reconciled() {
    let (mut tier, disk, catalog, _) = one_lane(8);
    store(&mut tier, &[0, 1, 2]);
    // What the catalog does not hear: two stores, and the loss of a file.
    catalog.lock().deaf = true;
    store(&mut tier, &[3, 4]);
    disk.lock().files.remove(&BlockName { namespace: NAMESPACE, key: key(1) });
    drop(tier);
    catalog.lock().deaf = false;
    let mut tier = tier_of(8, &disk, &catalog);
    let mut events = Vec::new();
    while !tier.is_known() {
        events.extend(poll(&mut tier));
    }
    events.extend(settle(&mut tier));
    assert_eq!(found(&mut tier, 9), [0, 2, 3, 4]);
    assert_eq!(removed(&events), [key(1)]);
    assert_eq!((tier.stats().orphans, tier.stats().vanished), (2, 1));
    assert_eq!(tier.stats().allocated_bytes, 4 * FILE_BYTES);
    // Now the catalog knows all: the next start needs no scan.
    tier.shutdown(Duration::from_secs(1));
    assert!(catalog.lock().clean);
    let mut tier = reopen(8, &disk, &catalog);
    assert_eq!(found(&mut tier, 9), [0, 2, 3, 4]);
    let events = store(&mut tier, &[10, 11, 12, 13, 14, 15, 16]);
    assert_eq!(removed(&events), [key(0), key(2), key(3)], "what the catalog had not heard of ranks as newer");
}

fn tier_of(blocks: u64, disk: &FakeDisk, catalog: &FakeCatalog) -> NvmeTier {
    tier(&config(blocks, 1), std::slice::from_ref(disk), catalog.open(), &ManualClock::default())
}

#[test]
fn a_smaller_capacity_holds_after_the_start() {
    for with_catalog in [true, false] {
        let (mut tier, disk, catalog, _) = one_lane(40);
        store(&mut tier, &(0..40).collect::<Vec<_>>());
        tier.shutdown(Duration::from_secs(1));
        let mut tier = if with_catalog { tier_of(10, &disk, &catalog) } else { tier_without_catalog(10, &disk) };
        settle(&mut tier);
        settle(&mut tier);
        let stats = tier.stats();
        assert!(stats.allocated_bytes <= 10 * FILE_BYTES, "{stats:?}");
        assert!(stats.blocks >= 8, "{stats:?}");
        assert_eq!(disk.lock().bytes(), stats.allocated_bytes);
        store(&mut tier, &(50..80).collect::<Vec<_>>());
        assert_eq!(disk.lock().bytes(), tier.stats().allocated_bytes);
        assert!(tier.stats().allocated_bytes <= 10 * FILE_BYTES);
    }
}

#[test]
fn files_of_other_namespaces_count_and_go_first() {
    let (disk, catalog) = (FakeDisk::default(), FakeCatalog::default());
    for n in 0..5 {
        disk.put(BlockName { namespace: [1; 32], key: key(n) }, 2 * FILE_BYTES, n);
    }
    // Their sizes are their own; ours are stored in their place.
    let mut tier = reopen(12, &disk, &catalog);
    assert_eq!((tier.stats().blocks, tier.stats().allocated_bytes), (0, 10 * FILE_BYTES));
    assert_eq!(found(&mut tier, 9), [] as [u64; 0], "isolation");
    tier.shutdown(Duration::from_secs(1));
    let mut tier = reopen(12, &disk, &catalog);
    assert_eq!(tier.stats().allocated_bytes, 10 * FILE_BYTES, "the catalog knows them as well");
    for n in 0..12 {
        store(&mut tier, &[n]);
        assert!(disk.lock().bytes() <= 12 * FILE_BYTES);
        assert_eq!(disk.lock().bytes(), tier.stats().allocated_bytes);
    }
    assert_eq!(found(&mut tier, 20).len(), 12);
}

#[test]
fn a_block_in_two_directories_is_kept_once() {
    let disks = [FakeDisk::default(), FakeDisk::default()];
    for disk in &disks {
        disk.put(BlockName { namespace: NAMESPACE, key: key(1) }, FILE_BYTES, 1);
    }
    let mut tier = tier(&config(4, 2), &disks, Box::new(NoCatalog), &ManualClock::default());
    settle(&mut tier);
    assert_eq!((tier.stats().blocks, tier.stats().allocated_bytes), (1, FILE_BYTES));
    assert_eq!(disks.iter().map(|disk| disk.lock().files.len()).sum::<usize>(), 1);
    store(&mut tier, &[2, 3, 4]);
    assert_eq!(found(&mut tier, 9), [1, 2, 3, 4]);
    assert_eq!(load(&mut tier, &[1]), [Ok(0)]);
}

#[test]
fn queues_are_bounded_and_refusals_counted() {
    let (mut tier, disk, ..) = one_lane(1000);
    settle(&mut tier);
    disk.lock().stopped = true;
    let mut refused = 0;
    for id in 0..30 {
        if tier.submit_store(store_job(id, &[3 * id, 3 * id + 1, 3 * id + 2])) == Err(Refused::Busy) {
            refused += 1;
        }
    }
    assert_eq!((refused, tier.stats().in_flight), (9, 63));
    let busy = tier.submit_load(load_job(99, &[0, 1]));
    assert_eq!(busy, Err(Refused::Busy));
    assert_eq!(tier.stats().refused, 10);
    disk.lock().stopped = false;
    settle(&mut tier);
}

#[test]
fn watermarks_leave_the_share_above_the_high_one_free() {
    let (disk, clock) = (FakeDisk::default(), ManualClock::default());
    let config = terrace_config::NvmeConfig { high_watermark: 0.8, low_watermark: 0.5, ..config(10, 1) };
    let mut tier = tier(&config, std::slice::from_ref(&disk), Box::new(NoCatalog), &clock);
    for part in (0..30).collect::<Vec<_>>().chunks(3) {
        store(&mut tier, part);
    }
    assert_eq!(tier.stats().blocks, 8);
    assert_eq!(disk.lock().removes, 0, "recycled, not trimmed");
    assert_eq!(clock.now(), Time(0));
}
