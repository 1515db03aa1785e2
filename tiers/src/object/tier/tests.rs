use std::sync::atomic::AtomicBool;
use std::time::Instant;

use object_store::path::Path;
use terrace_config::{Collector, Geometry, ObjectConfig};
use terrace_primary::{Region, SlotId};

use super::*;
use crate::clock::SystemClock;
use crate::object::folder::rig::{Bucket, Fate, Verb};
use crate::object::id::WriterId;
use crate::object::open::ObjectOptions;
use crate::object::requests::testing::test_config;
use crate::object::wall::SystemWallClock;
use crate::tier::{LoadBlock, StoreBlock};

const BLOCK_BYTES: u32 = 4096;
/// Blocks that the capacity holds, each in a segment of its own.
const ROOM: u64 = 2;

fn tier(bucket: &Bucket, writer: u64) -> ObjectTier {
    let geometry =
        Geometry { block_bytes: BLOCK_BYTES, tokens_per_block: 16, blocks_per_chunk: 1, groups: 1, hash_bytes: 32 };
    let config = ObjectConfig {
        capacity_bytes: ROOM * 8_192,
        linger: Duration::from_millis(1),
        publish_interval: Duration::from_millis(1),
        collector: Collector::Never,
        ..test_config()
    };
    let options = ObjectOptions {
        config: &config,
        name: "object".to_owned(),
        namespace: [7; 32],
        geometry,
        region: Region::null(4, BLOCK_BYTES, BLOCK_BYTES),
        clock: Arc::new(SystemClock::new()),
        wall: Arc::new(SystemWallClock),
    };
    ObjectTier::with_store(options, Arc::new(bucket.clone()), &Path::from("x"), WriterId(writer), writer).unwrap()
}

fn key(number: u8) -> Key {
    Key::new(&[number; 32], 0).unwrap()
}

/// Polls until `done` says so, and answers all events.
fn until(tier: &mut ObjectTier, mut done: impl FnMut(&mut ObjectTier, &[TierEvent]) -> bool) -> Vec<TierEvent> {
    let (since, mut events) = (Instant::now(), Vec::new());
    while !done(tier, &events) {
        assert!(since.elapsed() < Duration::from_secs(60), "nothing came: {events:?}");
        std::thread::sleep(Duration::from_millis(1));
        tier.poll(&mut events);
    }
    events
}

fn store(tier: &mut ObjectTier, id: u64, number: u8) -> Result<u32, Fault> {
    let block = StoreBlock { key: key(number), slot: SlotId(0), crc32: None };
    tier.submit_store(StoreJob { id: JobId(id), blocks: vec![block], deadline: Time(u64::MAX) }).unwrap();
    match until(tier, |_, events| !events.is_empty())[..] {
        [TierEvent::StoreDone { outcome, .. }] => outcome,
        ref others => panic!("{others:?}"),
    }
}

fn lookup(tier: &mut ObjectTier, number: u8) -> TierLookup {
    let mut answers = Vec::new();
    tier.lookup(&[key(number)], &mut answers);
    answers[0]
}

#[test]
fn nothing_is_stored_before_it_is_known_how_full_the_bucket_is() {
    let bucket = Bucket::new();
    let mut before = tier(&bucket, 1);
    until(&mut before, |tier, _| tier.is_known());
    for number in 0..ROOM as u8 {
        store(&mut before, u64::from(number), number).unwrap();
    }
    before.shutdown(Duration::from_secs(5));

    let cut = Arc::new(AtomicBool::new(true));
    let is_cut = Arc::clone(&cut);
    bucket.set_fates(move |verb, path| {
        let log = verb == Verb::List && path.as_ref().ends_with("/log");
        if log && is_cut.load(std::sync::atomic::Ordering::SeqCst) { Fate::Failed } else { Fate::Served }
    });
    let mut tier = tier(&bucket, 2);
    let early = StoreJob { id: JobId(8), blocks: Vec::new(), deadline: Time(u64::MAX) };
    assert_eq!(tier.submit_store(early), Err(Refused::Busy));
    until(&mut tier, |tier, _| lookup(tier, 0) == TierLookup::Absent);
    assert_eq!(store(&mut tier, 9, 9), Err(Fault::Full));
    assert_eq!((tier.stats().full, tier.stats().blocks), (1, 0));

    cut.store(false, std::sync::atomic::Ordering::SeqCst);
    until(&mut tier, |tier, _| tier.is_known());
    assert_eq!(lookup(&mut tier, 0), TierLookup::Found);
    let block = LoadBlock { key: key(1), slot: SlotId(1) };
    tier.submit_load(LoadJob { id: JobId(10), blocks: vec![block], deadline: Time(u64::MAX) }).unwrap();
    let events = until(&mut tier, |_, events| !events.is_empty());
    assert!(matches!(events[..], [TierEvent::LoadDone { outcome: Ok(_), .. }]), "{events:?}");
    assert!(tier.stats().allocated_bytes <= tier.stats().capacity_bytes);
}
