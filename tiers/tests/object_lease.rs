//! Two whole tiers on one store. The one that collects is stopped for an hour, with requests on their way; the other takes over; then the
//! first goes on, and what it had sent arrives. Nobody loses anything.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};
use terrace_config::{Choice, Geometry, ObjectConfig};
use terrace_primary::{Key, Region, RegionOptions, SlotId};
use terrace_tiers::object::{ObjectOptions, ObjectTier, WallClock, WriterId};
use terrace_tiers::{
    Clock, JobId, LoadBlock, LoadJob, SecondaryTier, StoreBlock, StoreJob, SystemClock, TierEvent, TierLookup, Time,
};
use tokio::sync::watch;

const BLOCK_BYTES: u32 = 4096;
const SLOTS: u32 = 16;
/// Blocks of one store.
const BATCH: u64 = 8;
const HOUR: Duration = Duration::from_secs(3_600);
/// 2020, in milliseconds.
const EPOCH_MS: u64 = 1_577_836_800_000;
/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time that all nodes and the store have: the machine's, and what was added.
#[derive(Clone)]
struct Hours(Arc<(SystemClock, AtomicU64)>);

impl Hours {
    fn new() -> Self {
        Self(Arc::new((SystemClock::new(), AtomicU64::new(0))))
    }

    fn pass(&self, time: Duration) {
        self.0.1.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for Hours {
    fn now(&self) -> Time {
        Time(self.0.0.now().0 + self.0.1.load(Ordering::Relaxed))
    }
}

impl WallClock for Hours {
    fn now_ms(&self) -> u64 {
        EPOCH_MS + self.now().0 / 1_000_000
    }
}

/// A bucket in memory, by its nodes' time.
struct Bucket {
    objects: InMemory,
    written: Mutex<HashMap<Path, u64>>,
    hours: Hours,
}

/// A node's way to the bucket, which can be stopped: what was sent stays on its way until it is opened again.
#[derive(Clone)]
struct Way {
    bucket: Arc<Bucket>,
    /// Stops itself before the first request that writes below such a name.
    stops_at: Arc<Mutex<Option<&'static str>>>,
    stopped: Arc<watch::Sender<bool>>,
}

impl Way {
    fn new(bucket: &Arc<Bucket>) -> Self {
        Self { bucket: Arc::clone(bucket), stops_at: Arc::default(), stopped: Arc::new(watch::Sender::new(false)) }
    }

    fn stop_at(&self, part: &'static str) {
        *self.stops_at.lock().unwrap() = Some(part);
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    async fn pass(&self, written: Option<&Path>) {
        let mut stops_at = self.stops_at.lock().unwrap().take();
        if let (Some(part), Some(path)) = (stops_at, written)
            && path.as_ref().contains(part)
        {
            self.stopped.send_replace(true);
            stops_at = None;
        }
        if stops_at.is_some() {
            *self.stops_at.lock().unwrap() = stops_at;
        }
        let _ = self.stopped.subscribe().wait_for(|stopped| !stopped).await;
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Way")
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Way")
    }
}

#[async_trait]
impl ObjectStore for Way {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.pass(Some(location)).await;
        let done = self.bucket.objects.put_opts(location, payload, opts).await?;
        self.bucket.written.lock().unwrap().insert(location.clone(), self.bucket.hours.now_ms());
        Ok(done)
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.bucket.objects.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.pass(None).await;
        self.bucket.objects.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let way = self.clone();
        let delete = move |path: Result<Path>| {
            let way = way.clone();
            async move {
                let path = path?;
                way.pass(Some(&path)).await;
                let one = futures_util::stream::iter([Ok(path)]).boxed();
                way.bucket.objects.delete_stream(one).try_collect::<Vec<_>>().await?.pop().ok_or(
                    object_store::Error::NotImplemented {
                        operation: "delete".to_owned(),
                        implementer: "Way".to_owned(),
                    },
                )
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (way, prefix) = (self.clone(), prefix.cloned());
        let listing = async move {
            way.pass(None).await;
            let mut objects: Vec<ObjectMeta> = way.bucket.objects.list(prefix.as_ref()).try_collect().await?;
            objects.sort_by(|a, b| a.location.cmp(&b.location));
            let written = way.bucket.written.lock().unwrap();
            for object in &mut objects {
                // The type's own default is the epoch, and takes a duration.
                object.last_modified = Default::default();
                object.last_modified +=
                    Duration::from_millis(written.get(&object.location).copied().unwrap_or(EPOCH_MS));
            }
            Ok::<_, object_store::Error>(futures_util::stream::iter(objects.into_iter().map(Ok)))
        };
        futures_util::stream::once(listing).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.pass(None).await;
        self.bucket.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.bucket.objects.copy_opts(from, to, options).await
    }
}

/// A tier, driven as a manager does.
struct Node {
    tier: ObjectTier,
    region: Arc<Region>,
    hours: Hours,
    jobs: u64,
}

fn key(number: u64) -> Key {
    Key::new(&[&number.to_be_bytes()[..], &[7; 24]].concat(), 0).unwrap()
}

fn bytes(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK_BYTES as usize / 8)
}

impl Node {
    fn start(way: &Way, name: u64) -> Self {
        let region = Region::create(
            &RegionOptions {
                slots: SLOTS,
                slot_stride: BLOCK_BYTES,
                block_bytes: BLOCK_BYTES,
                huge_pages: Choice::Off,
                lock_memory: false,
                numa_node: None,
                prefault_threads: 1,
            },
            &|_, _| {},
        )
        .unwrap();
        let config = ObjectConfig {
            lease: Duration::from_millis(900),
            compaction_interval: Duration::from_secs(1),
            // Within the hour it may go: what a snapshot covers, and segments that no log names.
            log_retention: HOUR / 2,
            orphan_age: HOUR / 2,
            publish_interval: Duration::from_millis(10),
            fold_interval: Duration::from_millis(50),
            linger: Duration::from_millis(5),
            ..ObjectConfig::new("s3://bucket", 1 << 30)
        };
        let hours = way.bucket.hours.clone();
        let options = ObjectOptions {
            config: &config,
            name: format!("node {name}"),
            namespace: [7; 32],
            geometry: Geometry {
                block_bytes: BLOCK_BYTES,
                tokens_per_block: 16,
                blocks_per_chunk: 1,
                groups: 1,
                hash_bytes: 32,
            },
            region: Arc::clone(&region),
            clock: Arc::new(hours.clone()),
            wall: Arc::new(hours.clone()),
        };
        let tier =
            ObjectTier::with_store(options, Arc::new(way.clone()), &Path::from(""), WriterId(name), name).unwrap();
        let mut node = Self { tier, region, hours, jobs: 0 };
        node.until("the log is read", |node| node.tier.is_known());
        node
    }

    fn poll(&mut self) -> Vec<TierEvent> {
        let mut events = Vec::new();
        self.tier.poll(&mut events);
        events
    }

    fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.poll();
            if condition(self) {
                return;
            }
            assert!(Instant::now() < deadline, "waited in vain: {what}");
            sleep(Duration::from_millis(2));
        }
    }

    fn job(&mut self) -> (JobId, Time) {
        self.jobs += 1;
        (JobId(self.jobs), self.hours.now().plus(PATIENCE))
    }

    /// Waits until all [`BATCH`] blocks of a job have gone well. False: `until` was true before.
    fn ended(&mut self, id: JobId, until: impl Fn() -> bool) -> bool {
        let (deadline, mut done) = (Instant::now() + PATIENCE, 0);
        while done < BATCH {
            for event in self.poll() {
                match event {
                    TierEvent::StoreDone { job, outcome, .. } | TierEvent::LoadDone { job, outcome, .. }
                        if job == id =>
                    {
                        assert!(outcome.is_ok(), "{outcome:?}");
                        done += 1;
                    }
                    // Of a store that was not waited for.
                    TierEvent::StoreDone { .. } | TierEvent::LoadDone { .. } => {}
                    TierEvent::Removed { key } => panic!("{key:?} is gone"),
                }
            }
            if until() {
                return false;
            }
            assert!(Instant::now() < deadline, "a job does not end");
            sleep(Duration::from_millis(1));
        }
        true
    }

    /// Stores blocks `first..first + BATCH` and waits until they are acknowledged. False: `until` was true before.
    fn store_until(&mut self, first: u64, until: impl Fn() -> bool) -> bool {
        let (id, deadline) = self.job();
        let block = |i: u64| StoreBlock { key: key(first + i), slot: SlotId(i as u32), crc32: None };
        (0..BATCH).for_each(|i| assert!(self.region.write_slot(SlotId(i as u32), &bytes(first + i))));
        self.tier.submit_store(StoreJob { id, blocks: (0..BATCH).map(block).collect(), deadline }).unwrap();
        self.ended(id, until)
    }

    fn store(&mut self, first: u64) {
        assert!(self.store_until(first, || false));
    }

    fn knows(&mut self, first: u64) -> bool {
        let keys: Vec<Key> = (first..first + BATCH).map(key).collect();
        let mut found = Vec::new();
        self.tier.lookup(&keys, &mut found);
        found.iter().all(|found| *found == TierLookup::Found)
    }

    /// Waits until blocks are found, loads them and compares their bytes.
    fn has(&mut self, first: u64) {
        self.until("blocks that are found", |node| node.knows(first));
        let (id, deadline) = self.job();
        let block = |i: u64| LoadBlock { key: key(first + i), slot: SlotId(i as u32) };
        (0..BATCH).for_each(|i| assert!(self.region.write_slot(SlotId(i as u32), &bytes(u64::MAX))));
        self.tier.submit_load(LoadJob { id, blocks: (0..BATCH).map(block).collect(), deadline }).unwrap();
        assert!(self.ended(id, || false));
        for i in 0..BATCH {
            let mut got = bytes(0);
            assert!(self.region.read_slot(SlotId(i as u32), &mut got));
            assert!(got == bytes(first + i), "block {} has wrong bytes", first + i);
        }
    }

    fn collects(&self) -> bool {
        self.tier.stats().object.is_collector == 1
    }

    fn snapshots(&self) -> u64 {
        self.tier.stats().object.snapshots
    }
}

/// The holder is stopped when it is about to write below `stopped_at`.
fn stop_for_an_hour(stopped_at: &'static str) {
    let hours = Hours::new();
    let bucket = Arc::new(Bucket { objects: InMemory::new(), written: Mutex::default(), hours: hours.clone() });
    let (way_a, way_b) = (Way::new(&bucket), Way::new(&bucket));
    let mut a = Node::start(&way_a, 1);
    a.until("the first node collects", |a| a.collects() && a.snapshots() > 0);
    a.store(0);
    let mut b = Node::start(&way_b, 2);
    b.has(0);
    b.store(100);
    a.has(100);
    assert!(!b.collects());

    way_a.stop_at(stopped_at);
    let mut acknowledged = vec![0, 100];
    if a.store_until(200, || way_a.is_stopped()) {
        acknowledged.push(200);
    }
    b.until("the holder is stopped", |_| way_a.is_stopped());
    hours.pass(HOUR);
    b.until("the other takes over", |b| b.collects());
    b.store(300);
    b.until("it compacts", |b| b.snapshots() > 0);
    b.store(400);

    way_a.stopped.send_replace(false);
    a.until("the first has seen what it missed", |a| a.knows(300) && a.knows(400));
    // A lease and more: whatever it meant to do an hour ago it has done or given up.
    let settled = Instant::now() + Duration::from_secs(3);
    a.until("it settles", |_| Instant::now() > settled);
    a.store(500);
    b.poll();
    assert!(!(a.collects() && b.collects()), "one holder, stopped at {stopped_at}");
    let mut fresh = Node::start(&Way::new(&bucket), 3);
    acknowledged.extend([300, 400, 500]);
    for first in acknowledged {
        for node in [&mut a, &mut b, &mut fresh] {
            node.has(first);
        }
    }
    for node in [&mut a, &mut b, &mut fresh] {
        assert_eq!(node.tier.stats().corrupt + node.tier.stats().vanished, 0, "stopped at {stopped_at}");
        node.tier.shutdown(Duration::from_secs(2));
    }
}

#[test]
#[ignore = "16 s, as a collector looks every 5 s: cargo test --release -p terrace-tiers --test object_lease -- --ignored"]
fn a_holder_that_was_stopped_in_a_snapshot_does_no_harm() {
    stop_for_an_hour("/snapshots/");
}

#[test]
#[ignore = "16 s, as a collector looks every 5 s: cargo test --release -p terrace-tiers --test object_lease -- --ignored"]
fn a_holder_that_was_stopped_in_a_part_of_one_does_no_harm() {
    stop_for_an_hour("/parts/");
}

#[test]
#[ignore = "16 s, as a collector looks every 5 s: cargo test --release -p terrace-tiers --test object_lease -- --ignored"]
fn a_holder_that_was_stopped_in_its_next_term_does_no_harm() {
    stop_for_an_hour("/lease/");
}
