//! The whole NVMe tier on real files: conformance, and what a next life finds.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::{BLOCK_BYTES, FILE_BYTES, GEOMETRY, NAMESPACE, config, key};
use terrace_config::{Choice, NvmeConfig, TierConfig, TierKind};
use terrace_primary::{Region, RegionOptions, SlotId};
use terrace_tiers::conformance::{Fixture, run};
use terrace_tiers::{
    Fault, JobId, LoadBlock, LoadJob, Refused, SecondaryTier, StoreBlock, StoreJob, SystemClock, TierError, TierEvent,
    TierLookup, Time, open_tier,
};

const SLOTS: u32 = 64;

fn region() -> Arc<Region> {
    let options = RegionOptions {
        slots: SLOTS,
        slot_stride: BLOCK_BYTES,
        block_bytes: BLOCK_BYTES,
        huge_pages: Choice::Off,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 1,
    };
    Region::create(&options, &|_, _| {}).expect("a region of 512 KiB")
}

fn nvme(directory: &Path, blocks: u64, lanes: usize) -> NvmeConfig {
    let paths = (0..lanes).map(|lane| directory.join(format!("disk{lane}"))).collect();
    NvmeConfig { paths, ..config(blocks, lanes) }
}

fn open_with(
    config: NvmeConfig,
    namespace: [u8; 32],
    region: &Arc<Region>,
) -> Result<Box<dyn SecondaryTier>, TierError> {
    let config = TierConfig { name: "nvme".into(), backfill: false, kind: TierKind::Nvme(config) };
    open_tier(&config, namespace, &GEOMETRY, Arc::clone(region), Arc::new(SystemClock::new()))
}

/// A tier that is driven to the end of each call, over slots whose bytes follow from the key.
struct Driver {
    tier: Box<dyn SecondaryTier>,
    region: Arc<Region>,
    job: u64,
    removed: u64,
}

fn payload(n: u64) -> Vec<u8> {
    (0..u64::from(BLOCK_BYTES) / 8).flat_map(|i| (n.wrapping_mul(0x9e37_79b9) ^ i).to_le_bytes()).collect()
}

impl Driver {
    fn open(config: NvmeConfig) -> Self {
        let region = region();
        let tier = open_with(config, NAMESPACE, &region).expect("the tier opens");
        Self { tier, region, job: 0, removed: 0 }
    }

    fn pause() {
        std::thread::sleep(Duration::from_micros(200));
    }

    fn finish(&mut self, blocks: usize) -> Vec<Result<u32, Fault>> {
        let (mut outcomes, mut events) = (vec![None; blocks], Vec::new());
        for _ in 0..100_000 {
            if outcomes.iter().all(Option::is_some) {
                return outcomes.into_iter().flatten().collect();
            }
            Self::pause();
            self.tier.poll(&mut events);
            for event in events.drain(..) {
                match event {
                    TierEvent::StoreDone { job, index, outcome } | TierEvent::LoadDone { job, index, outcome } => {
                        assert_eq!(job, JobId(self.job));
                        assert!(outcomes[index as usize].replace(outcome).is_none(), "done twice");
                    }
                    TierEvent::Removed { .. } => self.removed += 1,
                }
            }
        }
        panic!("not done: {:?}", self.tier.stats());
    }

    fn store(&mut self, names: impl IntoIterator<Item = u64>) {
        let names: Vec<u64> = names.into_iter().collect();
        for part in names.chunks(SLOTS as usize / 4) {
            self.job += 1;
            let block = |(slot, n): (usize, &u64)| {
                let slot = SlotId(slot as u32);
                assert!(self.region.write_slot(slot, &payload(*n)));
                StoreBlock { key: key(*n), slot, crc32: None }
            };
            let blocks: Vec<_> = part.iter().enumerate().map(block).collect();
            let job = StoreJob { id: JobId(self.job), blocks, deadline: Time(u64::MAX) };
            while self.tier.submit_store(job.clone()) == Err(Refused::Busy) {
                self.tier.poll(&mut Vec::new());
                Self::pause();
            }
            for outcome in self.finish(part.len()) {
                assert!(outcome.is_ok(), "{outcome:?}, {:?}", self.tier.stats());
            }
        }
    }

    /// Polls until nothing is unknown, and a little longer; which of `0..most` are found.
    fn found(&mut self, most: u64) -> Vec<u64> {
        let keys: Vec<_> = (0..most).map(key).collect();
        let mut answers = Vec::new();
        for _ in 0..100_000 {
            self.tier.poll(&mut Vec::new());
            self.tier.lookup(&keys, &mut answers);
            if !answers.contains(&TierLookup::Unknown) {
                return (0..most).filter(|n| answers[*n as usize] == TierLookup::Found).collect();
            }
            Self::pause();
        }
        panic!("unknown for ever");
    }

    /// Loads each block: all must come, and with the right bytes.
    fn load(&mut self, names: &[u64]) {
        assert_eq!(self.load_what_is_there(names), names.len());
    }

    /// Loads each block and says how many came; the others must be absent.
    fn load_what_is_there(&mut self, names: &[u64]) -> usize {
        let mut came = 0;
        for part in names.chunks(SLOTS as usize) {
            self.job += 1;
            let blocks = part.iter().enumerate().map(|(slot, n)| LoadBlock { key: key(*n), slot: SlotId(slot as u32) });
            for slot in 0..part.len() as u32 {
                assert!(self.region.write_slot(SlotId(slot), &[0xa5; BLOCK_BYTES as usize]));
            }
            let job = LoadJob { id: JobId(self.job), blocks: blocks.collect(), deadline: Time(u64::MAX) };
            self.tier.submit_load(job).expect("the queue is empty");
            for (slot, outcome) in self.finish(part.len()).into_iter().enumerate() {
                if outcome == Err(Fault::Absent) {
                    continue;
                }
                assert!(outcome.is_ok(), "block {}: {outcome:?}", part[slot]);
                came += 1;
                let mut bytes = vec![0; BLOCK_BYTES as usize];
                assert!(self.region.read_slot(SlotId(slot as u32), &mut bytes));
                assert!(bytes == payload(part[slot]), "block {}: wrong bytes", part[slot]);
            }
        }
        came
    }

    /// Waits for what goes on behind, removals and scans: until the tier counts what the disk has, within the capacity.
    fn rest(&mut self, directory: &Path) {
        for _ in 0..4000 {
            Self::pause();
            self.tier.poll(&mut Vec::new());
            let stats = self.tier.stats();
            if stats.allocated_bytes <= stats.capacity_bytes && bytes_on_disk(directory) == stats.allocated_bytes {
                return;
            }
        }
        panic!("{} bytes on disk, {:?}", bytes_on_disk(directory), self.tier.stats());
    }

    fn close(mut self) {
        self.tier.shutdown(Duration::from_secs(20));
    }
}

/// Bytes that the block files below `directory` take.
fn bytes_on_disk(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let mut bytes = 0;
    let mut waiting: Vec<PathBuf> = vec![directory.into()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).expect("readable").flatten() {
            let path = entry.path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "blk") {
                bytes += entry.metadata().map_or(0, |meta| meta.blocks() * 512);
            }
        }
    }
    bytes
}

#[test]
fn conformance_on_files() {
    for (io_uring, lanes) in [(Choice::Auto, 1), (Choice::Off, 1), (Choice::Auto, 2)] {
        let mut directories = Vec::new();
        let make = || {
            let directory = tempfile::tempdir().expect("a directory");
            let region = region();
            let config = NvmeConfig { io_uring, ..nvme(directory.path(), 40, lanes) };
            let tier = open_with(config, NAMESPACE, &region).expect("the tier opens");
            directories.push(directory);
            Fixture { tier, region, capacity_blocks: 40, may_fail: false, pass_time: Box::new(Driver::pause) }
        };
        run(make).unwrap_or_else(|fault| panic!("io_uring {io_uring:?}, {lanes} directories: {fault}"));
    }
}

#[test]
fn a_next_life_finds_and_loads_what_was_stored() {
    let catalogs: &[Choice] = if cfg!(feature = "rocksdb") { &[Choice::Require, Choice::Off] } else { &[Choice::Auto] };
    for catalog in catalogs {
        for stop in ["shutdown", "drop"] {
            let directory = tempfile::tempdir().expect("a directory");
            let config = NvmeConfig { catalog: *catalog, ..nvme(directory.path(), 100, 2) };
            let mut driver = Driver::open(config.clone());
            driver.store(0..60);
            if stop == "shutdown" {
                driver.close()
            } else {
                drop(driver)
            }
            let mut driver = Driver::open(config);
            let all: Vec<u64> = (0..60).collect();
            assert_eq!(driver.found(200), all, "catalog {catalog:?}, {stop}");
            driver.load(&all);
            driver.rest(directory.path());
            driver.store(60..80);
            driver.load(&(60..80).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_lost_or_damaged_catalog_costs_a_scan() {
    for damage in ["removed", "rubbish", "a file", "without it in between"] {
        let directory = tempfile::tempdir().expect("a directory");
        let config = nvme(directory.path(), 100, 1);
        let mut driver = Driver::open(config.clone());
        driver.store(0..30);
        driver.close();
        let catalog = directory.path().join("disk0/catalog");
        let mut all: Vec<u64> = (0..30).collect();
        match damage {
            "removed" => {
                let _ = fs::remove_dir_all(&catalog);
            }
            "rubbish" => {
                for entry in fs::read_dir(&catalog).into_iter().flatten().flatten() {
                    fs::write(entry.path(), vec![0x5a; 3000]).expect("writable");
                }
            }
            "a file" => {
                let _ = fs::remove_dir_all(&catalog);
                fs::write(&catalog, b"rubbish").expect("writable");
            }
            _ => {
                let mut driver = Driver::open(NvmeConfig { catalog: Choice::Off, ..config.clone() });
                driver.store(30..40);
                driver.close();
                all.extend(30..40);
            }
        }
        let mut driver = Driver::open(config);
        assert_eq!(driver.found(100), all, "{damage}");
        driver.load(&all);
        driver.rest(directory.path());
    }
}

#[test]
fn a_smaller_capacity_holds_in_the_next_life() {
    for catalog in [Choice::Auto, Choice::Off] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut driver = Driver::open(NvmeConfig { catalog, ..nvme(directory.path(), 100, 2) });
        driver.store(0..100);
        driver.close();
        let mut driver = Driver::open(NvmeConfig { catalog, ..nvme(directory.path(), 20, 2) });
        driver.found(100);
        driver.rest(directory.path());
        assert_eq!(driver.tier.stats().capacity_bytes, 20 * FILE_BYTES);
        driver.store(200..260);
        driver.rest(directory.path());
        assert!(bytes_on_disk(directory.path()) <= 20 * FILE_BYTES);
        let found = driver.found(300);
        driver.load(&found);
    }
}

#[test]
fn a_full_tier_keeps_its_capacity_and_recycles() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut driver = Driver::open(nvme(directory.path(), 32, 1));
    driver.store(0..400);
    let stats = driver.tier.stats();
    assert!(stats.recycled >= 300 && stats.allocated_bytes <= stats.capacity_bytes, "{stats:?}");
    assert_eq!(stats.evicted, driver.removed);
    driver.rest(directory.path());
    let found = driver.found(400);
    assert_eq!(found.len() as u64, stats.blocks);
    driver.load(&found);
}

#[test]
fn namespaces_share_the_capacity_and_nothing_else() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = nvme(directory.path(), 40, 1);
    let mut driver = Driver::open(config.clone());
    driver.store(0..30);
    driver.close();
    let region = region();
    let tier = open_with(config.clone(), [8; 32], &region).expect("the tier opens");
    let mut other = Driver { tier, region, job: 0, removed: 0 };
    assert_eq!(other.found(100), [] as [u64; 0]);
    other.store(50..85);
    other.rest(directory.path());
    assert!(bytes_on_disk(directory.path()) <= 40 * FILE_BYTES);
    other.close();
    let mut driver = Driver::open(config);
    let found = driver.found(100);
    assert!(found.len() <= 5 && found.iter().all(|n| *n < 30), "{found:?}");
    driver.load(&found);
}

#[test]
fn two_tiers_cannot_share_a_directory_and_bad_directories_are_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let region = region();
    let config = nvme(directory.path(), 40, 1);
    let first = open_with(config.clone(), NAMESPACE, &region).expect("the tier opens");
    let Err(error) = open_with(config.clone(), NAMESPACE, &region) else { panic!("two tiers in one directory") };
    assert!(error.to_string().contains("disk0"), "{error}");
    drop(first);
    fs::write(directory.path().join("file"), b"").expect("writable");
    let paths = vec![directory.path().join("file")];
    let Err(error) = open_with(NvmeConfig { paths, ..config }, NAMESPACE, &region) else {
        panic!("a file as directory")
    };
    assert!(error.to_string().contains("file"), "{error}");
}

/// Not a test by itself: stores until it is killed.
#[test]
#[ignore = "the child of the next test"]
fn child() {
    let Ok(directory) = std::env::var("TERRACE_TEST_DIRECTORY") else { return };
    let mut driver = Driver::open(nvme(Path::new(&directory), 64, 2));
    for n in 0.. {
        driver.store([n % 1000]);
    }
}

#[test]
fn a_killed_process_leaves_a_tier_that_opens() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut survivors = 0;
    for round in 0..6 {
        let mut child = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env("TERRACE_TEST_DIRECTORY", directory.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("this test starts");
        std::thread::sleep(Duration::from_millis(120 + 37 * round));
        child.kill().expect("alive");
        let end = child.wait().expect("dead");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&end), Some(9), "round {round}: it ended by itself");
        let mut driver = Driver::open(nvme(directory.path(), 64, 2));
        // The catalog may name a block whose file was just taken over; the scan behind normal work finds out.
        let found = driver.found(1000);
        let came = driver.load_what_is_there(&found);
        assert!(found.len() - came <= 32, "{came} of {} came", found.len());
        driver.rest(directory.path());
        assert!(bytes_on_disk(directory.path()) <= 64 * FILE_BYTES);
        assert_eq!(driver.tier.stats().corrupt, 0, "what is published is whole");
        survivors += came;
        // Every second round ends as a crash as well.
        if round % 2 == 0 {
            driver.close()
        }
    }
    assert!(survivors > 0, "nothing was ever found");
}
