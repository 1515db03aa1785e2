//! A directory over a region that is still being backed: usable at once, and registered with the kernel as it becomes
//! ready.

mod shard_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use shard_support::{Bench, DEVICES, directory, open};
use terrace_config::Choice;
use terrace_primary::{Region, RegionOptions};
use terrace_tiers::nvme::{ShardPort as _, ThreadedPort};

const BLOCK_BYTES: u32 = 1 << 20;
const SLOTS: u32 = 320;

fn behind() -> Arc<Region> {
    let options = RegionOptions {
        slots: SLOTS,
        slot_stride: BLOCK_BYTES,
        block_bytes: BLOCK_BYTES,
        huge_pages: Choice::Off,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 1,
    };
    Arc::new(Region::start_behind(&options).expect("a region"))
}

/// Bytes of this process that the kernel has pinned for rings.
fn pinned_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let kib = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("a line on pinned memory");
    kib.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Whether this process may pin so much.
fn may_pin(bytes: u64) -> bool {
    let is_free = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    is_free || getrlimit(Resource::Memlock).current.is_none_or(|limit| limit >= bytes)
}

/// Stores and loads in the first and the last slots that are ready until `done`; says how many blocks.
fn round_trips(bench: &mut Bench<ThreadedPort>, mut done: impl FnMut(&Region) -> bool) -> u32 {
    let start = Instant::now();
    let mut number = 0;
    loop {
        let last = done(&bench.region);
        let ready = bench.region.ready_slots();
        if ready >= 2 {
            let (from, to) = if number % 2 == 0 { (0, ready - 1) } else { (ready - 1, 0) };
            bench.store(number, from, None).expect("stored");
            bench.load(number, to).expect("loaded");
            assert!(bench.holds(to, number), "block {number} with {ready} slots ready");
            bench.remove(shard_support::name(number)).expect("removed");
            number += 1;
        }
        if last {
            return number;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {:?}", bench.region.backing_failure());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One after the other: they look at what the process has pinned, and change its limits.
#[test]
fn a_region_in_the_making() {
    blocks_move_before_during_and_after();
    what_becomes_ready_while_nobody_asks_is_registered();
    what_may_not_be_pinned_is_used_without();
}

fn blocks_move_before_during_and_after() {
    for device in DEVICES {
        let (dir, region) = (directory(), behind());
        let mut bench = Bench::new(open(dir.path(), device, &region).expect("it opens"), &region);
        assert!(region.ready_slots() < SLOTS, "opening waited for the region");
        assert!(pinned_bytes() <= region.ready_bytes() + (1 << 20), "pages that are not ready were pinned");
        round_trips(&mut bench, |region| region.ready_slots() == SLOTS);
        if device == Choice::Require {
            if may_pin(region.ready_bytes() + (1 << 20)) {
                // All of it, and the footers.
                round_trips(&mut bench, |region| pinned_bytes() > region.ready_bytes());
            } else {
                eprintln!("*** NOT RUN in full: RLIMIT_MEMLOCK is too low to register a region ***");
            }
        } else {
            assert_eq!(pinned_bytes(), 0);
        }
        round_trips(&mut bench, |_| true);
        bench.port.shutdown(Duration::from_secs(10));
        assert_eq!(bench.port.counters().io_errors, 0);
        drop((bench, region));
        wait_until("unpinned", || pinned_bytes() == 0);
    }
}

fn what_becomes_ready_while_nobody_asks_is_registered() {
    let (dir, region) = (directory(), behind());
    if !may_pin(u64::from(SLOTS + 1) * u64::from(BLOCK_BYTES)) {
        return eprintln!("*** NOT RUN: RLIMIT_MEMLOCK is too low to register a region ***");
    }
    let port = open(dir.path(), Choice::Require, &region).expect("it opens");
    wait_until("registered", || pinned_bytes() > u64::from(SLOTS) * u64::from(BLOCK_BYTES));
    drop((port, region));
    wait_until("unpinned", || pinned_bytes() == 0);
}

/// The kernel takes rings apart behind their owner's back, and a shard fills them behind it.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "not {what} within a minute: {} bytes", pinned_bytes());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The limit on locked memory covers the footers and not one piece of the region.
fn what_may_not_be_pinned_is_used_without() {
    let limit = Some(getrlimit(Resource::Memlock).maximum.unwrap_or(u64::MAX).min(8 << 20));
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).expect("a lower limit is always allowed");
    // Whoever may lock all has no limit: the ring's thread, which inherits from this one, may not.
    let mut sets = capabilities(None).expect("capabilities");
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).expect("fewer are always allowed");

    let (dir, region) = (directory(), behind());
    let mut bench = Bench::new(open(dir.path(), Choice::Require, &region).expect("it opens"), &region);
    round_trips(&mut bench, |region| region.ready_slots() == SLOTS);
    assert!(!may_pin(region.ready_bytes()));
    round_trips(&mut bench, |_| true);
    assert!(pinned_bytes() <= 8 << 20);
    assert_eq!(bench.port.counters().io_errors, 0);
}
