//! What the tests of ports and shards share: a directory on a real disk, a region, and a port that is driven to the end.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_config::Choice;
use terrace_primary::{Key, Region, RegionOptions, SlotId};
use terrace_tiers::nvme::{
    BlockName, Command, DirectoryOptions, Placed, PortEvent, ScannedBlock, ShardOptions, ShardPort, ThreadedPort,
    open_directory,
};
use terrace_tiers::{Fault, SystemClock, TierError, Time};

pub const NAMESPACE: [u8; 32] = [0x11; 32];
pub const NEVER: Time = Time(u64::MAX);

/// Both devices, by the choice that selects them.
pub const DEVICES: [Choice; 2] = [Choice::Require, Choice::Off];

pub fn region(slots: u32, block_bytes: u32) -> Arc<Region> {
    let options = RegionOptions {
        slots,
        slot_stride: block_bytes.next_multiple_of(4096),
        block_bytes,
        huge_pages: Choice::Off,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 1,
    };
    Region::create(&options, &|_, _| {}).expect("region")
}

pub fn key(number: u32) -> Key {
    let mut hash = [0x5a; 32];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    Key::new(&hash, 0).expect("key")
}

pub fn name(number: u32) -> BlockName {
    BlockName { namespace: NAMESPACE, key: key(number) }
}

/// Bytes that differ for each number.
pub fn payload(number: u32, block_bytes: u32) -> Vec<u8> {
    let mut state = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..block_bytes).map(|_| next()).collect()
}

pub fn options(root: &Path, io_uring: Choice, region: &Arc<Region>) -> DirectoryOptions {
    DirectoryOptions {
        tier: "nvme".into(),
        root: root.into(),
        index: 0,
        direct_io: Choice::Auto,
        io_uring,
        shard: ShardOptions { queue_depth: 16, ..ShardOptions::new(NAMESPACE) },
        region: Arc::clone(region),
        clock: Arc::new(SystemClock::new()),
    }
}

pub fn open(root: &Path, io_uring: Choice, region: &Arc<Region>) -> Result<ThreadedPort, TierError> {
    open_directory(options(root, io_uring, region))
}

/// A directory on the real disk, not on tmpfs.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::temp_dir()).expect("temporary directory")
}

/// A port and its region, with calls that wait.
pub struct Bench<P> {
    pub port: P,
    pub region: Arc<Region>,
    tickets: u64,
}

impl<P: ShardPort> Bench<P> {
    pub fn new(port: P, region: &Arc<Region>) -> Self {
        Self { port, region: Arc::clone(region), tickets: 0 }
    }

    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    pub fn fill(&self, slot: u32, number: u32) {
        assert!(self.region.write_slot(SlotId(slot), &payload(number, self.region.block_bytes())));
    }

    pub fn holds(&self, slot: u32, number: u32) -> bool {
        let mut bytes = vec![0; self.region.block_bytes() as usize];
        assert!(self.region.read_slot(SlotId(slot), &mut bytes));
        bytes == payload(number, self.region.block_bytes())
    }

    /// Pushes commands and waits for all; results in order.
    pub fn run(&mut self, commands: Vec<Command>) -> Vec<Result<Placed, Fault>> {
        let tickets: Vec<u64> = commands.iter().map(Command::ticket).collect();
        for command in commands {
            self.port.push(command).expect("room in the queue");
        }
        self.port.flush();
        let mut results = vec![None; tickets.len()];
        self.poll_until(|event| {
            if let PortEvent::Done { ticket, result } = event {
                let at = tickets.iter().position(|known| known == ticket).expect("a ticket of this batch");
                assert!(results[at].replace(*result).is_none(), "two events for ticket {ticket}");
            }
            results.iter().all(Option::is_some)
        });
        results.into_iter().map(|result| result.expect("done")).collect()
    }

    pub fn poll_until(&mut self, mut done: impl FnMut(&PortEvent) -> bool) {
        let start = Instant::now();
        let mut events = Vec::new();
        loop {
            self.port.poll(&mut events);
            let mut finished = false;
            for event in events.drain(..) {
                finished |= done(&event);
            }
            if finished {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "no event for a minute");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    pub fn store(&mut self, number: u32, slot: u32, recycle: Option<BlockName>) -> Result<Placed, Fault> {
        self.fill(slot, number);
        let ticket = self.ticket();
        let store =
            Command::Store { ticket, key: key(number), slot: SlotId(slot), crc32: None, recycle, deadline: NEVER };
        self.run(vec![store])[0]
    }

    pub fn load(&mut self, number: u32, slot: u32) -> Result<Placed, Fault> {
        // Whatever stood there must not pass for the block.
        assert!(self.region.write_slot(SlotId(slot), &vec![0xee; self.region.block_bytes() as usize]));
        let ticket = self.ticket();
        let load = Command::Load { ticket, key: key(number), slot: SlotId(slot), crc32: None, deadline: NEVER };
        self.run(vec![load])[0]
    }

    pub fn remove(&mut self, name: BlockName) -> Result<Placed, Fault> {
        let ticket = self.ticket();
        self.run(vec![Command::Remove { ticket, name }])[0]
    }

    pub fn scan(&mut self) -> (Vec<ScannedBlock>, bool) {
        self.port.scan();
        self.port.flush();
        let (mut found, mut complete) = (Vec::new(), false);
        self.poll_until(|event| match event {
            PortEvent::Scanned(blocks) => {
                found.extend_from_slice(blocks);
                false
            }
            PortEvent::ScanEnd { complete: whole } => {
                complete = *whole;
                true
            }
            PortEvent::Done { .. } => false,
        });
        (found, complete)
    }
}

pub fn file_of(root: &Path, number: u32) -> PathBuf {
    root.join(name(number).path().as_str())
}

pub fn count_files(dir: &Path) -> usize {
    std::fs::read_dir(dir).map(Iterator::count).unwrap_or(0)
}
