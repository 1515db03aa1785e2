//! The object tier passes the conformance suite: over a store in memory, over a directory, and over a real S3 server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use terrace_config::{Choice, Config, Geometry, ObjectConfig, TierKind};
use terrace_primary::{Region, RegionOptions};
use terrace_test_s3::SeaweedFs;
use terrace_tiers::conformance::{Fixture, run};
use terrace_tiers::object::{ObjectOptions, ObjectTier, SystemWallClock, WriterId};
use terrace_tiers::{Clock, SystemClock};

const BLOCK_BYTES: u32 = 4096;
/// What one block takes of the capacity when it is alone in its segment.
const ALONE_BYTES: u64 = 8192;
const CAPACITY_BLOCKS: u32 = 96;
const GEOMETRY: Geometry =
    Geometry { block_bytes: BLOCK_BYTES, tokens_per_block: 16, blocks_per_chunk: 1, groups: 1, hash_bytes: 32 };

/// The defaults, but small and quick: a suite of many little tiers should not wait for timers.
fn config() -> ObjectConfig {
    let text = "[primary]\nblocks = 64\n[geometry]\nblock_bytes = 4096\n[[tier]]\ntype = \"object\"\nurl = \"s3://bucket\"\ncapacity = \"1GiB\"\n";
    let mut config = Config::parse(text, "test").unwrap();
    let TierKind::Object(object) = config.tiers.remove(0).kind else { panic!("an object tier was asked for") };
    ObjectConfig {
        capacity_bytes: u64::from(CAPACITY_BLOCKS) * ALONE_BYTES,
        linger: Duration::from_millis(1),
        publish_interval: Duration::from_millis(1),
        fold_interval: Duration::from_millis(5),
        collector: terrace_config::Collector::Always,
        ..object
    }
}

fn region() -> Arc<Region> {
    let options = RegionOptions {
        slots: 64,
        slot_stride: BLOCK_BYTES,
        block_bytes: BLOCK_BYTES,
        huge_pages: Choice::Off,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 1,
    };
    Region::create(&options, &|_, _| {}).expect("a region of 256 KiB")
}

/// A tier of its own prefix in `store`: empty.
fn fixture(store: Arc<dyn ObjectStore>) -> Fixture {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let region = region();
    let options = ObjectOptions {
        config: &config(),
        name: "object".to_owned(),
        namespace: [7; 32],
        geometry: GEOMETRY,
        region: Arc::clone(&region),
        clock: Arc::new(SystemClock::new()) as Arc<dyn Clock>,
        wall: Arc::new(SystemWallClock),
    };
    let prefix = Path::from(format!("test-{number}"));
    let tier = ObjectTier::with_store(options, store, &prefix, WriterId(number), number).unwrap();
    let pass_time = Box::new(|| std::thread::sleep(Duration::from_millis(1)));
    Fixture { tier: Box::new(tier), region, capacity_blocks: CAPACITY_BLOCKS, may_fail: false, pass_time }
}

#[test]
fn in_memory() {
    run(|| fixture(Arc::new(InMemory::new()))).unwrap();
}

#[test]
fn in_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(LocalFileSystem::new_with_prefix(directory.path()).unwrap());
    run(|| fixture(Arc::clone(&store) as Arc<dyn ObjectStore>)).unwrap();
}

/// SeaweedFS; or the server that `TERRACE_S3_ENDPOINT` names, with the keys of `scripts/ceph` and an empty bucket `conformance`.
#[test]
fn in_a_real_server() {
    let directory = tempfile::tempdir().unwrap();
    let (endpoint, _server) = match std::env::var("TERRACE_S3_ENDPOINT") {
        Ok(endpoint) => (endpoint, None),
        Err(_) => {
            let server = SeaweedFs::start(directory.path()).unwrap();
            server.create_bucket("conformance").unwrap();
            (server.endpoint(), Some(server))
        }
    };
    let store: Arc<dyn ObjectStore> = Arc::new(terrace_test_s3::client(&endpoint, "conformance").unwrap());
    run(|| fixture(Arc::clone(&store))).unwrap();
}
