//! Tiers of tenants with keys: conformance of both layers over every kind of tier, what others see of the store, other keys, new keys,
//! and somebody who writes to the store by the book.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use terrace_config::{Choice, Config, Geometry, MemoryConfig};
use terrace_primary::{Key, Region, RegionOptions, SlotId};
use terrace_tiers::conformance::{Fixture, run};
use terrace_tiers::tenant::{ENVELOPE_BYTES, KeyedTier, Keyring, SealedTier, Sealer, TenantKey};
use terrace_tiers::{
    Fault, JobId, LoadBlock, LoadJob, MemoryTier, Refused, SecondaryTier, StoreBlock, StoreJob, SystemClock, TierEvent,
    TierLookup, TierNamespace, Time, open_tier,
};

const SLOTS: u32 = 64;
const BLOCK_BYTES: u32 = 8192;
/// What a sealed block takes in a directory: payload and envelope, rounded up, and a footer.
const SEALED_FILE_BYTES: u32 = 12288 + 4096;
const NAMESPACE: [u8; 32] = [7; 32];
const OLD: &[u8] = b"the old secret of acme";
const NEW: &[u8] = b"the new secret of acme";

fn region(slots: u32, block_bytes: u32) -> Arc<Region> {
    let options = RegionOptions {
        slots,
        slot_stride: block_bytes.next_multiple_of(4096),
        block_bytes,
        huge_pages: Choice::Off,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 1,
    };
    Region::create(&options, &|_, _| {}).expect("a small region")
}

fn ring(secrets: &[&[u8]], sealed: bool) -> Arc<Keyring> {
    let keys = secrets.iter().map(|secret| TenantKey::derive(secret, &NAMESPACE, sealed)).collect();
    Arc::new(Keyring::new(keys, sealed).expect("keys"))
}

fn pause() {
    std::thread::sleep(Duration::from_micros(200));
}

fn memory(region: &Arc<Region>, blocks: u32) -> Box<dyn SecondaryTier> {
    let config = MemoryConfig { capacity_bytes: u64::from(blocks) * u64::from(region.block_bytes()) };
    Box::new(MemoryTier::new("memory", config, Arc::clone(region)))
}

/// A memory tier with sealed blocks and `staging` slots.
fn sealed_memory(region: &Arc<Region>, staging: u32, secrets: &[&[u8]]) -> SealedTier {
    let staging = self::region(staging, BLOCK_BYTES + ENVELOPE_BYTES as u32);
    let sealer = Sealer::new(NAMESPACE, ring(secrets, true));
    let (inner, clock) = (memory(&staging, 40), Arc::new(SystemClock::new()));
    SealedTier::new(inner, sealer, Arc::clone(region), staging, clock).expect("a thread")
}

#[test]
fn conformance_over_memory() {
    type Wrap = fn(&Arc<Region>) -> Box<dyn SecondaryTier>;
    let tiers: [(&str, Wrap); 4] = [
        ("keyed", |region| Box::new(KeyedTier::new(memory(region, 40), ring(&[OLD], false)))),
        ("keyed, rotated", |region| Box::new(KeyedTier::new(memory(region, 40), ring(&[NEW, OLD], false)))),
        ("sealed", |region| Box::new(sealed_memory(region, 64, &[OLD]))),
        ("keyed and sealed, few slots", |region| {
            Box::new(KeyedTier::new(Box::new(sealed_memory(region, 5, &[NEW, OLD])), ring(&[NEW, OLD], true)))
        }),
    ];
    for (name, tier) in tiers {
        let make = || {
            let region = region(SLOTS, BLOCK_BYTES);
            let tier = tier(&region);
            Fixture { tier, region, capacity_blocks: 40, may_fail: false, pass_time: Box::new(pause) }
        };
        run(make).unwrap_or_else(|fault| panic!("{name}: {fault}"));
    }
}

/// Where a tenant's blocks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Directory,
    Bucket,
}

/// A tenant whose key files hold these secrets, the first in front, and one tier of `capacity` bytes. No secret: it has no key.
fn config(place: &Path, store: Store, capacity: u64, secrets: &[&[u8]], encrypt: bool) -> Config {
    let mut files = Vec::new();
    for (at, secret) in secrets.iter().enumerate() {
        let file = place.join(format!("key{at}"));
        std::fs::write(&file, secret).expect("written");
        files.push(file.display().to_string());
    }
    let tenant = match files.is_empty() {
        true => String::new(),
        false => format!("[[tenant]]\nname = \"acme\"\nkey_files = {files:?}\nencrypt = {encrypt}\n"),
    };
    let root = place.join("store");
    let tier = match store {
        Store::Directory => format!("type = \"nvme\"\npaths = [{root:?}]\nlow_watermark = 1.0\nhigh_watermark = 1.0"),
        Store::Bucket => {
            std::fs::create_dir_all(&root).expect("made");
            format!(
                "type = \"object\"\nurl = \"file://{}\"\nlinger = \"1ms\"\npublish_interval = \"1ms\"\n\
                 fold_interval = \"5ms\"\ncollector = \"always\"",
                root.display()
            )
        }
    };
    let text = format!(
        "[primary]\nblocks = {SLOTS}\n[geometry]\nblock_bytes = {BLOCK_BYTES}\n[namespace]\nmodel = \"m\"\ntenant = \"acme\"\n\
         [[tier]]\n{tier}\ncapacity = {capacity}\n{tenant}"
    );
    Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn open(config: &Config, region: &Arc<Region>) -> Box<dyn SecondaryTier> {
    let namespace = TierNamespace::of(config).expect("keys");
    let clock = Arc::new(SystemClock::new());
    open_tier(&config.tiers[0], namespace, &config.geometry, Arc::clone(region), clock).expect("the tier opens")
}

#[test]
fn conformance_of_sealed_directories_and_buckets() {
    // A block that is alone in its segment takes three pages of a bucket.
    for (store, capacity_blocks, each) in [(Store::Directory, 40, SEALED_FILE_BYTES), (Store::Bucket, 96, 12288)] {
        let mut places = Vec::new();
        let make = || {
            let place = tempfile::tempdir().expect("a directory");
            let region = region(SLOTS, BLOCK_BYTES);
            let capacity = u64::from(capacity_blocks) * u64::from(each);
            let tier = open(&config(place.path(), store, capacity, &[NEW, OLD], true), &region);
            places.push(place);
            Fixture { tier, region, capacity_blocks, may_fail: false, pass_time: Box::new(pause) }
        };
        run(make).unwrap_or_else(|fault| panic!("{store:?}: {fault}"));
    }
}

fn key(n: u8) -> Key {
    Key::new(blake3::hash(&[n]).as_bytes(), 0).expect("a key")
}

fn payload(n: u8) -> Vec<u8> {
    (0..BLOCK_BYTES / 8)
        .flat_map(|at| (u64::from(n) << 32 | u64::from(at)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

/// A tier that is driven to the end of each call.
struct Driver {
    tier: Box<dyn SecondaryTier>,
    region: Arc<Region>,
    job: u64,
}

impl Driver {
    fn open(config: &Config) -> Self {
        let region = region(SLOTS, BLOCK_BYTES);
        Self { tier: open(config, &region), region, job: 0 }
    }

    /// A tier without keys over what a tenant has sealed: what somebody has who can write to the store.
    fn open_without_key(config: &Config) -> Self {
        let block_bytes = BLOCK_BYTES + ENVELOPE_BYTES as u32;
        let region = region(SLOTS, block_bytes);
        let digest = TierNamespace::of(config).expect("keys").digest;
        let geometry = Geometry { block_bytes, ..config.geometry };
        let clock = Arc::new(SystemClock::new());
        let tier = open_tier(&config.tiers[0], digest, &geometry, Arc::clone(&region), clock).expect("the tier opens");
        Self { tier, region, job: 0 }
    }

    fn finish(&mut self) -> Result<u32, Fault> {
        let mut events = Vec::new();
        for _ in 0..100_000 {
            self.tier.poll(&mut events);
            for event in events.drain(..) {
                if let TierEvent::StoreDone { job, outcome, .. } | TierEvent::LoadDone { job, outcome, .. } = event {
                    assert_eq!(job, JobId(self.job));
                    return outcome;
                }
            }
            pause();
        }
        panic!("not done: {:?}", self.tier.stats());
    }

    fn submit(&mut self, submit: impl Fn(&mut dyn SecondaryTier, JobId) -> Result<(), Refused>) -> Result<u32, Fault> {
        self.job += 1;
        while submit(&mut *self.tier, JobId(self.job)) == Err(Refused::Busy) {
            self.tier.poll(&mut Vec::new());
            pause();
        }
        self.finish()
    }

    fn store(&mut self, key: Key, bytes: &[u8]) {
        assert!(self.region.write_slot(SlotId(0), bytes));
        let block = StoreBlock { key, slot: SlotId(0), crc32: None };
        let stored =
            self.submit(|tier, id| tier.submit_store(StoreJob { id, blocks: vec![block], deadline: Time(u64::MAX) }));
        assert!(stored.is_ok(), "{stored:?}");
    }

    fn load(&mut self, key: Key) -> Result<Vec<u8>, Fault> {
        let block = LoadBlock { key, slot: SlotId(1) };
        let loaded =
            self.submit(|tier, id| tier.submit_load(LoadJob { id, blocks: vec![block], deadline: Time(u64::MAX) }));
        let mut bytes = vec![0; self.region.block_bytes() as usize];
        assert!(self.region.read_slot(SlotId(1), &mut bytes));
        assert!(loaded.is_err() || loaded == Ok(crc32fast::hash(&bytes)));
        loaded.map(|_| bytes)
    }

    fn is_found(&mut self, key: Key) -> bool {
        let mut answers = Vec::new();
        for _ in 0..100_000 {
            self.tier.poll(&mut Vec::new());
            self.tier.lookup(&[key], &mut answers);
            if answers != [TierLookup::Unknown] {
                return answers == [TierLookup::Found];
            }
            pause();
        }
        panic!("unknown for ever");
    }

    /// Of blocks 0 to `most`, which are found; they must have their bytes.
    fn sound(&mut self, most: u8) -> Vec<u8> {
        let found: Vec<u8> = (0..most).filter(|n| self.is_found(key(*n))).collect();
        for n in &found {
            assert!(self.load(key(*n)) == Ok(payload(*n)), "block {n}");
        }
        found
    }

    fn close(mut self) {
        self.tier.shutdown(Duration::from_secs(10));
    }
}

fn fill(config: &Config, blocks: std::ops::Range<u8>) {
    let mut driver = Driver::open(config);
    blocks.for_each(|n| driver.store(key(n), &payload(n)));
    driver.close();
}

/// Whether any name or file below `root` shows one of these.
fn shows(root: &Path, needles: &[Vec<u8>]) -> bool {
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()));
        }
        let bytes = if path.is_file() { std::fs::read(&path).expect("a file") } else { Vec::new() };
        let has = |hay: &[u8], needle: &[u8]| hay.windows(needle.len()).any(|window| window == needle);
        if needles.iter().any(|needle| has(path.as_os_str().as_encoded_bytes(), needle) || has(&bytes, needle)) {
            return true;
        }
    }
    false
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const ROOM: u64 = 16 << 20;

#[test]
fn a_store_shows_neither_hashes_nor_bytes() {
    for store in [Store::Directory, Store::Bucket] {
        // Hashes, bytes: what the store shows without a key, with one, with encryption.
        for (secrets, encrypt, shown) in
            [(&[][..], false, (true, true)), (&[OLD], false, (false, true)), (&[OLD], true, (false, false))]
        {
            let place = tempfile::tempdir().expect("a directory");
            let config = config(place.path(), store, ROOM, secrets, encrypt);
            fill(&config, 0..4);
            let root = place.path().join("store");
            // Of a hash already an end of it would do.
            let hashes = (0..4).flat_map(|n| {
                let key = key(n);
                let (head, tail) = key.hash().split_at(16);
                [head.to_vec(), tail.to_vec(), hex(head).into_bytes(), hex(tail).into_bytes()]
            });
            let bytes: Vec<_> = (0..4).map(|n| payload(n)[4096..4112].to_vec()).collect();
            let found = (shows(&root, &hashes.collect::<Vec<_>>()), shows(&root, &bytes));
            assert_eq!(found, shown, "{store:?}, encrypt = {encrypt}");
            assert!(!shows(&root, &[OLD.to_vec(), hex(OLD).into_bytes()]));
            assert_eq!(Driver::open(&config).sound(5), [0, 1, 2, 3], "{store:?}, encrypt = {encrypt}");
        }
    }
}

#[test]
fn keys_rotate_and_another_key_misses() {
    for store in [Store::Directory, Store::Bucket] {
        for encrypt in [false, true] {
            let place = tempfile::tempdir().expect("a directory");
            let config = |secrets: &[&[u8]]| config(place.path(), store, ROOM, secrets, encrypt);
            fill(&config(&[OLD]), 0..3);
            fill(&config(&[NEW, OLD]), 3..6);
            let sound = |secrets: &[&[u8]]| {
                let mut driver = Driver::open(&config(secrets));
                let sound = driver.sound(6);
                assert_eq!((driver.load(key(99)), driver.tier.stats().unopened), (Err(Fault::Absent), 0));
                driver.close();
                sound
            };
            // All under both; without the old key what it wrote is a miss, and nothing was written again.
            assert_eq!(sound(&[NEW, OLD]), [0, 1, 2, 3, 4, 5], "{store:?}, encrypt = {encrypt}");
            assert_eq!(sound(&[NEW]), [3, 4, 5]);
            assert_eq!(sound(&[OLD]), [0, 1, 2]);
            assert!(sound(&[b"neither of the two"]).is_empty());
            assert!(sound(&[]).is_empty());
        }
    }
}

#[test]
fn what_somebody_without_the_key_wrote_is_a_miss_and_counted() {
    for store in [Store::Directory, Store::Bucket] {
        let place = tempfile::tempdir().expect("a directory");
        let config = config(place.path(), store, ROOM, &[OLD], true);
        fill(&config, 0..1);
        let digest = TierNamespace::of(&config).expect("keys").digest;
        let name = |n| TenantKey::derive(OLD, &digest, true).name_of(&key(n));
        let other_id = TenantKey::derive(NEW, &digest, true).id();

        // Everything by the book: footers, logs and CRC32s are right.
        let mut writer = Driver::open_without_key(&config);
        assert!(writer.is_found(name(0)));
        let sealed = writer.load(name(0)).expect("it is there");
        writer.store(name(1), &sealed);
        let mut changed = sealed.clone();
        changed[100] ^= 1;
        writer.store(name(2), &changed);
        let mut others = sealed.clone();
        let id = sealed.len() - 16;
        others[id..id + 8].copy_from_slice(&other_id);
        writer.store(name(3), &others);
        writer.store(name(4), &[payload(4), vec![0; ENVELOPE_BYTES]].concat());
        writer.close();

        let mut driver = Driver::open(&config);
        for n in 1..5 {
            assert!(driver.is_found(key(n)), "{n}: the tier below takes it for sound");
            assert_eq!(driver.load(key(n)), Err(Fault::Corrupt), "{n}");
            assert!(!driver.is_found(key(n)), "{n}: it is not asked for again");
        }
        assert_eq!((driver.tier.stats().unopened, driver.sound(5)), (4, vec![0]));
        driver.close();
    }
}
