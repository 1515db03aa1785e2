//! For tests: nodes on one bucket in memory, all clocks tokio's.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use terrace_config::ObjectConfig;
use terrace_primary::Region;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{FolderHandle, SharedLogState, folder};
use crate::clock::{Clock, Time};
use crate::object::collector::{CollectorHandle, collector};
use crate::object::counters::Counters;
use crate::object::id::{SegmentId, Stamp, WriterId};
use crate::object::log::LogRecord;
use crate::object::names::Names;
use crate::object::port::{ChangesReceiver, Report, changes};
use crate::object::publisher::{PublisherHandle, publisher};
use crate::object::record::{SegmentRecord, Shape};
use crate::object::requests::Requests;
use crate::object::shared::Shared;
use crate::object::wall::WallClock;

pub(crate) const SHAPE: Shape = Shape { namespace: [7; 32], block_bytes: 4_096, key_bytes: 36 };
/// Wall time at which tests begin: 2020.
const EPOCH_MS: u64 = 1_577_836_800_000;

/// Tokio's time, and a wall clock that is off by `skew_ms`.
#[derive(Clone, Debug)]
pub(crate) struct TokioTime {
    started: Instant,
    skew_ms: i64,
    /// How long the node was stopped.
    stopped_ms: Arc<AtomicU64>,
}

impl TokioTime {
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed() + Duration::from_millis(self.stopped_ms.load(Ordering::Relaxed))
    }

    /// As if the process had been stopped for so long.
    pub fn stop_for(&self, stopped: Duration) {
        self.stopped_ms.fetch_add(stopped.as_millis() as u64, Ordering::Relaxed);
    }
}

impl Clock for TokioTime {
    fn now(&self) -> Time {
        Time(self.elapsed().as_nanos() as u64)
    }
}

impl WallClock for TokioTime {
    fn now_ms(&self) -> u64 {
        (EPOCH_MS + self.elapsed().as_millis() as u64).saturating_add_signed(self.skew_ms)
    }
}

/// What a store is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Put,
    Get,
    List,
    Delete,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Served,
    /// Refused before it does anything.
    Failed,
    /// Done, and then said to have failed.
    DoneButFailed,
    /// Said not to be there, whether it is or not.
    Missing,
    Hangs,
}

type Fates = Box<dyn FnMut(Verb, &Path) -> Fate + Send>;

struct Inner {
    objects: InMemory,
    written: Mutex<HashMap<Path, u64>>,
    time: TokioTime,
}

/// A bucket in memory that dates objects by tokio's time, and fails as it is told to.
#[derive(Clone)]
pub(crate) struct Bucket(Arc<Inner>, Arc<Mutex<Fates>>);

impl Bucket {
    pub fn new() -> Self {
        let time = TokioTime { started: Instant::now(), skew_ms: 0, stopped_ms: Arc::default() };
        let inner = Inner { objects: InMemory::new(), written: Mutex::default(), time };
        Self(Arc::new(inner), Arc::new(Mutex::new(Box::new(|_, _| Fate::Served))))
    }

    /// The same bucket, with fates of its own.
    pub fn view(&self) -> Self {
        Self(Arc::clone(&self.0), Arc::new(Mutex::new(Box::new(|_, _| Fate::Served))))
    }

    /// The clock of a node.
    fn time(&self, skew_ms: i64) -> TokioTime {
        TokioTime { skew_ms, stopped_ms: Arc::default(), ..self.0.time.clone() }
    }

    pub fn set_fates(&self, fates: impl FnMut(Verb, &Path) -> Fate + Send + 'static) {
        *self.1.lock().unwrap() = Box::new(fates);
    }

    async fn fate(&self, verb: Verb, path: &Path) -> Result<Fate> {
        let fate = (self.1.lock().unwrap())(verb, path);
        match fate {
            Fate::Failed => Err(failure()),
            Fate::Missing => {
                Err(object_store::Error::NotFound { path: path.to_string(), source: "made by the test".into() })
            }
            Fate::Hangs => std::future::pending().await,
            fate => Ok(fate),
        }
    }

    /// All names below the namespace that contain `part`, sorted.
    pub async fn paths(&self, part: &str) -> Vec<Path> {
        let all: Vec<ObjectMeta> = self.0.objects.list(None).try_collect().await.unwrap();
        let mut paths: Vec<Path> =
            all.into_iter().map(|object| object.location).filter(|path| path.as_ref().contains(part)).collect();
        paths.sort();
        paths
    }

    pub async fn get(&self, path: &Path) -> Bytes {
        self.0.objects.get(path).await.unwrap().bytes().await.unwrap()
    }

    pub async fn put(&self, path: &Path, bytes: impl Into<PutPayload>) {
        self.0.objects.put(path, bytes.into()).await.unwrap();
        self.0.written.lock().unwrap().insert(path.clone(), self.0.time.now_ms());
    }

    pub async fn delete(&self, part: &str) {
        for path in self.paths(part).await {
            self.0.objects.delete(&path).await.unwrap();
        }
    }

    pub async fn has(&self, path: &Path) -> bool {
        self.0.objects.head(path).await.is_ok()
    }
}

fn failure() -> object_store::Error {
    object_store::Error::Generic { store: "test", source: "made by the test".into() }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bucket")
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bucket")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let fate = self.fate(Verb::Put, location).await?;
        let result = self.0.objects.put_opts(location, payload, opts).await?;
        self.0.written.lock().unwrap().insert(location.clone(), self.0.time.now_ms());
        if fate == Fate::DoneButFailed { Err(failure()) } else { Ok(result) }
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.0.objects.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.fate(Verb::Get, location).await?;
        self.0.objects.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.fate(Verb::Get, location).await?;
        self.0.objects.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let bucket = self.clone();
        locations
            .then(move |path| {
                let bucket = bucket.clone();
                async move {
                    let path = path?;
                    bucket.fate(Verb::Delete, &path).await?;
                    bucket.0.objects.delete(&path).await?;
                    Ok(path)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let bucket = self.clone();
        let prefix = prefix.cloned();
        futures_util::stream::once(async move {
            bucket.fate(Verb::List, &prefix.clone().unwrap_or_default()).await?;
            let mut objects: Vec<ObjectMeta> = bucket.0.objects.list(prefix.as_ref()).try_collect().await?;
            objects.sort_by(|a, b| a.location.cmp(&b.location));
            let written = bucket.0.written.lock().unwrap();
            for object in &mut objects {
                let ms = written.get(&object.location).copied().unwrap_or(EPOCH_MS);
                // The type's own default is the epoch, and takes a duration.
                object.last_modified = Default::default();
                object.last_modified += Duration::from_millis(ms);
            }
            Ok::<_, object_store::Error>(futures_util::stream::iter(objects.into_iter().map(Ok)))
        })
        .try_flatten()
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.objects.copy_opts(from, to, options).await
    }
}

/// A node's publisher and folder, without a writer or reader of segments.
pub(crate) struct Node {
    pub shared: Arc<Shared>,
    pub time: TokioTime,
    pub state: SharedLogState,
    pub publisher: PublisherHandle,
    pub folder: FolderHandle,
    pub changes: ChangesReceiver,
    pub reports: UnboundedReceiver<Report>,
    pub tasks: Vec<JoinHandle<()>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(crate) fn config() -> ObjectConfig {
    ObjectConfig::new("s3://bucket/prefix", 1 << 40)
}

/// What a node has before its tasks run.
fn shared(bucket: &Bucket, name: u64, time: TokioTime, config: ObjectConfig) -> Arc<Shared> {
    let counters = Arc::<Counters>::default();
    let (clock, wall): (Arc<dyn Clock>, Arc<dyn WallClock>) = (Arc::new(time.clone()), Arc::new(time));
    let store = Arc::new(bucket.clone());
    let requests = Requests::new(store, &config, Arc::clone(&clock), Arc::clone(&wall), Arc::clone(&counters), name);
    Arc::new(Shared {
        tier: "object".to_owned(),
        node: format!("node {name}"),
        shape: SHAPE,
        names: Names::new("prefix", &SHAPE.namespace),
        label: None,
        one_thread: false,
        region: Region::null(1, 4_096, 4_096),
        clock,
        wall,
        requests,
        counters,
        config,
    })
}

impl Node {
    pub fn start(bucket: &Bucket, name: u64) -> Self {
        Self::start_with(bucket, name, 0, config())
    }

    pub fn start_with(bucket: &Bucket, name: u64, skew_ms: i64, config: ObjectConfig) -> Self {
        let time = bucket.time(skew_ms);
        let shared = shared(bucket, name, time.clone(), config);
        let state = SharedLogState::new(WriterId(name));
        let (changes_in, changes) = changes();
        let (reports_in, reports) = unbounded_channel();
        let (publisher, publishing) = publisher(Arc::clone(&shared), state.clone());
        let (folder, folding) = folder(Arc::clone(&shared), state.clone(), changes_in, reports_in);
        let tasks = vec![tokio::spawn(publishing), tokio::spawn(folding)];
        Self { shared, time, state, publisher, folder, changes, reports, tasks }
    }

    /// Starts a collector.
    pub fn collect(&mut self) -> CollectorHandle {
        let parts = (Arc::clone(&self.shared), self.state.clone(), self.folder.clone(), self.publisher.clone());
        let (handle, collecting) = collector(parts.0, parts.1, parts.2, parts.3);
        self.tasks.push(tokio::spawn(collecting));
        handle
    }

    /// A record of a new segment of `blocks` blocks that no object stands behind.
    pub fn record(&self, blocks: u32) -> Arc<SegmentRecord> {
        let (id, created) = self.publisher.next_segment();
        segment(id, created, blocks)
    }

    /// Publishes a new segment. `None`: it was not published.
    pub async fn store(&self, blocks: u32) -> Option<SegmentId> {
        let record = self.record(blocks);
        let id = record.id;
        (self.publisher.append(vec![LogRecord::Added(record)]).await == Ok(Ok(()))).then_some(id)
    }

    /// Publishes a new segment whose object is in the store, with any content.
    pub async fn store_object(&self, bucket: &Bucket, blocks: u32) -> SegmentId {
        let record = self.record(blocks);
        let id = record.id;
        bucket.put(&self.shared.names.segment(id), Bytes::from_static(b"a segment")).await;
        assert_eq!(self.publisher.append(vec![LogRecord::Added(record)]).await, Ok(Ok(())));
        id
    }

    pub fn live(&self) -> Vec<SegmentId> {
        let state = self.state.lock();
        let mut live: Vec<SegmentId> = state.fold.live().map(|live| live.record.id).collect();
        live.sort();
        live
    }

    pub fn stop(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
    }
}

/// A record that encodes.
pub(crate) fn segment(id: SegmentId, created: Stamp, blocks: u32) -> Arc<SegmentRecord> {
    let keys: Vec<u8> = (0..blocks).flat_map(|block| key_bytes(id, block)).collect();
    let crcs: Vec<u32> = (0..blocks).collect();
    Arc::new(SHAPE.record(id, created, keys.into(), crcs.into()).unwrap())
}

fn key_bytes(id: SegmentId, block: u32) -> [u8; 36] {
    let mut key = [0; 36];
    key[..8].copy_from_slice(&id.writer.0.to_le_bytes());
    key[8..16].copy_from_slice(&id.number.to_le_bytes());
    key[16..20].copy_from_slice(&block.to_le_bytes());
    key
}

pub(crate) async fn pause(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}
