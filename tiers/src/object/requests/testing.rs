//! For tests: a store in memory that does what it is told to do wrong, and clocks that follow tokio's.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{BoxStream, once};
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use terrace_config::ObjectConfig;
use tokio::time::{Instant, sleep};

use super::watch::status_error;
use crate::clock::{Clock, Time};
use crate::object::wall::WallClock;

/// A configuration with all defaults.
pub(crate) fn test_config() -> ObjectConfig {
    ObjectConfig::new("s3://bucket/prefix", 1 << 40)
}

/// Tokio's time, which tests pause. The wall clock begins in 2020.
#[derive(Clone, Debug)]
pub(crate) struct TokioClock(Instant);

impl TokioClock {
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Time {
        Time(self.0.elapsed().as_nanos() as u64)
    }
}

impl WallClock for TokioClock {
    fn now_ms(&self) -> u64 {
        1_577_836_800_000 + self.0.elapsed().as_millis() as u64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Get,
    Head,
    Put,
    List,
    Delete,
    Begin,
    Part,
    Complete,
    Abort,
}

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Not done; this status.
    Status(u16),
    /// Done, and this status all the same.
    StatusAfter(u16),
    /// Not done; the connection breaks.
    Reset,
    /// Done late.
    Late(Duration),
    /// Never answered.
    Hang,
    /// Half of the body, then its end.
    ShortBody,
    /// A byte more than there is.
    LongBody,
    /// Half of the body, then the connection breaks.
    BrokenBody,
    /// Half of the body, then nothing.
    StalledBody,
    /// A range that begins one byte later.
    OtherRange,
}

/// What a kind of server does not know.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ignores {
    pub create: bool,
    /// Says 501 to a conditional put.
    pub refuses_create: bool,
    pub ranges: bool,
    pub after: bool,
}

#[derive(Debug, Default)]
struct Plan {
    faults: Vec<(Op, Wrong, u32)>,
    seen: Vec<(Op, Instant)>,
    ignores: Ignores,
}

/// A store in memory. Faults are used up in the order they were planned in, each for its operation.
#[derive(Clone, Debug)]
pub(crate) struct FaultyStore {
    pub inner: Arc<InMemory>,
    plan: Arc<Mutex<Plan>>,
    active: Arc<AtomicU32>,
    peak: Arc<AtomicU32>,
}

impl FaultyStore {
    pub fn new() -> Self {
        Self { inner: Arc::default(), plan: Arc::default(), active: Arc::default(), peak: Arc::default() }
    }

    /// The next `times` operations of this kind go wrong.
    pub fn plan(&self, op: Op, wrong: Wrong, times: u32) {
        self.plan.lock().expect("no test panicked").faults.push((op, wrong, times));
    }

    /// Nothing goes wrong any more.
    pub fn unplan(&self) {
        self.plan.lock().expect("no test panicked").faults.clear();
    }

    pub fn ignore(&self, ignores: Ignores) {
        self.plan.lock().expect("no test panicked").ignores = ignores;
    }

    /// When operations of a kind were begun.
    pub fn seen(&self, op: Op) -> Vec<Instant> {
        let plan = self.plan.lock().expect("no test panicked");
        plan.seen.iter().filter(|(seen, _)| *seen == op).map(|(_, at)| *at).collect()
    }

    /// The most requests that were in flight at once, up to their headers.
    pub fn peak(&self) -> u32 {
        self.peak.load(Ordering::Relaxed)
    }

    fn ignores(&self) -> Ignores {
        self.plan.lock().expect("no test panicked").ignores
    }

    fn next(&self, op: Op) -> Option<Wrong> {
        let mut plan = self.plan.lock().expect("no test panicked");
        plan.seen.push((op, Instant::now()));
        let (_, wrong, times) = plan.faults.iter_mut().find(|(planned, _, times)| *planned == op && *times > 0)?;
        *times -= 1;
        Some(*wrong)
    }

    /// Does what goes wrong before the store is asked, and tells what is left to do after.
    async fn before(&self, op: Op) -> Result<(Active, Option<Wrong>)> {
        let active = Active::new(self);
        let wrong = self.next(op);
        match wrong {
            Some(Wrong::Status(status)) => Err(status_error(status)),
            Some(Wrong::Reset) => Err(reset()),
            Some(Wrong::Late(time)) => {
                sleep(time).await;
                Ok((active, None))
            }
            Some(Wrong::Hang) => std::future::pending().await,
            wrong => Ok((active, wrong)),
        }
    }
}

struct Active(Arc<AtomicU32>);

impl Active {
    fn new(store: &FaultyStore) -> Self {
        let active = store.active.fetch_add(1, Ordering::Relaxed) + 1;
        store.peak.fetch_max(active, Ordering::Relaxed);
        Self(Arc::clone(&store.active))
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn after<T>(wrong: Option<Wrong>, done: T) -> Result<T> {
    match wrong {
        Some(Wrong::StatusAfter(status)) => Err(status_error(status)),
        _ => Ok(done),
    }
}

fn reset() -> Error {
    let error = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    Error::Generic { store: "test", source: Box::new(HttpError::new(HttpErrorKind::Interrupted, error)) }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyStore")
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        let (_active, wrong) = self.before(Op::Put).await?;
        if self.ignores().refuses_create && options.mode == PutMode::Create {
            return Err(status_error(501));
        }
        if self.ignores().create {
            options.mode = PutMode::Overwrite;
        }
        after(wrong, self.inner.put_opts(location, payload, options).await?)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let (_active, wrong) = self.before(Op::Begin).await?;
        let inner = after(wrong, self.inner.put_multipart_opts(location, options).await?)?;
        Ok(Box::new(FaultyUpload { inner, store: self.clone() }))
    }

    async fn get_opts(&self, location: &Path, mut options: GetOptions) -> Result<GetResult> {
        let (_active, wrong) = self.before(if options.head { Op::Head } else { Op::Get }).await?;
        if self.ignores().ranges && options.range.take().is_some() {
            // As the store's client says it.
            return Err(Error::Generic { store: "test", source: "not partial".into() });
        }
        if let (Some(Wrong::OtherRange), Some(GetRange::Bounded(range))) = (wrong, &mut options.range) {
            range.start += 1;
        }
        let result = after(wrong, self.inner.get_opts(location, options).await?)?;
        let half = (result.range.end - result.range.start) as usize / 2;
        let (meta, range) = (result.meta.clone(), result.range.clone());
        let (attributes, extensions) = (result.attributes.clone(), result.extensions.clone());
        let whole = result.into_stream();
        let beginning = whole.take(1).map_ok(move |bytes: Bytes| bytes.slice(..half.min(bytes.len())));
        let stream = match wrong {
            Some(Wrong::ShortBody) => beginning.boxed(),
            Some(Wrong::BrokenBody) => beginning.chain(once(async { Err(reset()) })).boxed(),
            Some(Wrong::StalledBody) => beginning.chain(once(std::future::pending())).boxed(),
            Some(Wrong::LongBody) => {
                let whole = beginning.collect::<Vec<_>>().await;
                futures_util::stream::iter(whole.into_iter().chain([Ok(Bytes::from(vec![0; half + 2]))])).boxed()
            }
            // In two pieces, so that there is something to put together.
            _ => {
                let whole = self.inner.get_opts(location, GetOptions::default()).await?.bytes().await?;
                let whole = whole.slice(range.start as usize..range.end as usize);
                let pieces = [whole.slice(..half), whole.slice(half..)];
                futures_util::stream::iter(pieces.map(Ok)).boxed()
            }
        };
        Ok(GetResult { payload: GetResultPayload::Stream(stream), meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let answers = async move {
            match store.before(Op::Delete).await {
                Err(error) => once(async { Err(error) }).boxed(),
                Ok((_active, Some(Wrong::StatusAfter(status)))) => {
                    // Of several, the first fails.
                    let mut answers: Vec<_> = store.inner.delete_stream(locations).collect().await;
                    answers[0] = Err(status_error(status));
                    futures_util::stream::iter(answers).boxed()
                }
                Ok(_) => store.inner.delete_stream(locations),
            }
        };
        answers.into_stream().flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(self.inner.list(prefix))
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        if self.ignores().after {
            return self.list(prefix);
        }
        self.listed(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let (_active, wrong) = self.before(Op::List).await?;
        after(wrong, self.inner.list_with_delimiter(prefix).await?)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

impl FaultyStore {
    fn listed(&self, inner: BoxStream<'static, Result<ObjectMeta>>) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = self.clone();
        let answer = async move {
            match store.before(Op::List).await {
                Err(error) => once(async { Err(error) }).boxed(),
                // The second page fails.
                Ok((_, Some(Wrong::BrokenBody))) => inner.take(3).chain(once(async { Err(reset()) })).boxed(),
                Ok(_) => inner,
            }
        };
        answer.into_stream().flatten().boxed()
    }
}

#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    store: FaultyStore,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, store) = (self.inner.put_part(data), self.store.clone());
        async move {
            let (_active, wrong) = store.before(Op::Part).await?;
            part.await?;
            after(wrong, ())
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let (_active, wrong) = self.store.before(Op::Complete).await?;
        after(wrong, self.inner.complete().await?)
    }

    async fn abort(&mut self) -> Result<()> {
        let (_active, wrong) = self.store.before(Op::Abort).await?;
        after(wrong, self.inner.abort().await?)
    }
}
