//! One life's way to the bucket: each request takes its time, in the life's own runtime, and may go wrong on its way there, there, or on
//! its way back.

use std::fmt;
use std::io;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{BoxStream, iter, once};
use futures_util::{StreamExt, TryStreamExt};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use terrace_tiers::object::status_error;
use tokio::time::sleep;

use super::bucket::{Bucket, Change, Denied, Listed, changed, of};
use super::clock::{NodeClock, wall_ms};
use super::faults::{Kind, Weather};
use super::upload::Upload;

/// Changes that are made late are made within this.
const LATEST_MS: u64 = 60_000;
const DELETE: &str = "delete";

/// What one life sees of the bucket.
#[derive(Clone)]
pub(crate) struct View {
    pub bucket: Bucket,
    pub node: usize,
    /// Unique among the lives of all nodes.
    pub life: u64,
    pub clock: NodeClock,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Served,
    /// Not done.
    Refused(Kind),
    /// Done, and not said.
    Done(Kind),
}

struct Passage {
    /// Until it is there, and until the answer is here.
    there: Duration,
    back: Duration,
    fate: Fate,
}

fn reset() -> Error {
    let error = io::Error::from(io::ErrorKind::ConnectionReset);
    Error::Generic { store: "simulation", source: Box::new(HttpError::new(HttpErrorKind::Interrupted, error)) }
}

fn exists(path: &Path) -> Error {
    Error::AlreadyExists { path: path.to_string(), source: "If-None-Match".into() }
}

impl View {
    /// Draws what becomes of a request.
    fn depart(&self, verb: &'static str, path: &Path, kinds: &[Kind]) -> Passage {
        let world = self.clock.world();
        let inner = &mut *self.bucket.lock();
        // Deletions are asked for many at a time.
        if verb != DELETE {
            inner.asked(self.life, verb, path, world);
        }
        let rng = &mut inner.rng;
        let weather = inner.weather.get(self.node).copied().unwrap_or(Weather::Fair);
        let mut micros = || rng.skewed(20_000);
        let (mut there, mut back) = (micros(), micros());
        if weather == Weather::Crawling {
            (there, back) = (there + rng.skewed(10_000_000), back + rng.skewed(10_000_000));
        }
        if inner.faults.strikes(Kind::Slow, rng) {
            (there, back) = (there + rng.skewed(100_000_000), back + rng.skewed(100_000_000));
        }
        let fate = match weather {
            Weather::Cut => Fate::Refused(Kind::Hang),
            Weather::Deaf => Fate::Done(Kind::DoneHang),
            Weather::Refused => Fate::Refused(Kind::Reset),
            Weather::Throttled => Fate::Refused(Kind::SlowDown),
            Weather::Fair | Weather::Crawling => {
                let struck = kinds.iter().find(|kind| inner.faults.strikes(**kind, rng));
                match struck {
                    None => Fate::Served,
                    Some(kind @ (Kind::DoneServerError | Kind::DoneReset | Kind::DoneHang)) => Fate::Done(*kind),
                    Some(kind) => Fate::Refused(*kind),
                }
            }
        };
        inner.trace.add(format_args!("{} {world:?}: {verb} {path} {fate:?} {there} {back}", self.life));
        let times = |micros| if micros < 500 { Duration::ZERO } else { Duration::from_micros(micros) };
        Passage { there: times(there), back: times(back), fate }
    }

    /// Sends a request and does `act` where it arrives.
    async fn pass<T>(
        &self,
        verb: &'static str,
        path: &Path,
        kinds: &[Kind],
        act: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Passage { there, back, fate } = self.depart(verb, path, kinds);
        sleep(there).await;
        let answer = match fate {
            Fate::Served => act(),
            Fate::Refused(Kind::Hang) => return std::future::pending().await,
            Fate::Refused(Kind::NotFound | Kind::LogNotFound) => Err(status_error(404)),
            Fate::Refused(Kind::Exists) => Err(exists(path)),
            Fate::Refused(Kind::SlowDown) => Err(status_error(503)),
            Fate::Refused(Kind::Reset) => Err(reset()),
            Fate::Refused(_) => Err(status_error(500)),
            Fate::Done(kind) => {
                let _ = act();
                match kind {
                    Kind::DoneHang => return std::future::pending().await,
                    Kind::DoneReset => Err(reset()),
                    _ => Err(status_error(500)),
                }
            }
        };
        sleep(back).await;
        answer
    }

    /// Makes a change.
    pub async fn change(&self, verb: &'static str, path: &Path, change: Change, more: &[Kind]) -> Result<()> {
        const KINDS: [Kind; 7] = [
            Kind::Hang,
            Kind::ServerError,
            Kind::SlowDown,
            Kind::Reset,
            Kind::DoneServerError,
            Kind::DoneReset,
            Kind::DoneHang,
        ];
        if let Some(answered) = self.send_late(verb, path, &change) {
            return if answered.await { Err(reset()) } else { std::future::pending().await };
        }
        let kinds: Vec<Kind> = KINDS.iter().chain(more).copied().collect();
        let made = self.pass(verb, path, &kinds, || {
            let world = self.clock.world();
            match self.bucket.lock().make(change, world) {
                Ok(()) => Ok(()),
                Err(Denied::Exists) => Err(exists(path)),
                Err(Denied::NoUpload) => Err(status_error(404)),
            }
        });
        made.await
    }

    /// Now and then a change is on its way for long, whoever waits for it. Then: whether the connection breaks meanwhile.
    fn send_late(
        &self,
        verb: &'static str,
        path: &Path,
        change: &Change,
    ) -> Option<impl Future<Output = bool> + use<>> {
        let (after, breaks) = {
            let inner = &mut *self.bucket.lock();
            if !inner.faults.strikes(Kind::DoneLate, &mut inner.rng) {
                return None;
            }
            (Duration::from_millis(inner.rng.skewed(LATEST_MS)), inner.rng.chance(500))
        };
        let Passage { there, .. } = self.depart(verb, path, &[]);
        let due = self.clock.world() + after;
        let inner = &mut *self.bucket.lock();
        inner.trace.add(format_args!("comes late, at {due:?}: {}", of(change)));
        inner.make_late(change.clone(), due);
        Some(async move {
            sleep(there).await;
            breaks
        })
    }

    fn meta(listed: Listed) -> ObjectMeta {
        let mut meta = ObjectMeta {
            location: listed.path,
            // The type's own default is the epoch, and takes a duration.
            last_modified: Default::default(),
            size: listed.size,
            e_tag: None,
            version: None,
        };
        meta.last_modified += Duration::from_millis(wall_ms(listed.written));
        meta
    }

    async fn listing(&self, prefix: Path, after: Option<Path>) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        const KINDS: [Kind; 4] = [Kind::Hang, Kind::ServerError, Kind::SlowDown, Kind::Reset];
        let (listed, breaks) = self
            .pass("list", &prefix, &KINDS, || {
                let world = self.clock.world();
                let inner = &mut *self.bucket.lock();
                let breaks = inner.faults.strikes(Kind::BrokenList, &mut inner.rng);
                Ok((inner.list(&prefix, after.as_ref(), world), breaks))
            })
            .await?;
        let shown = if breaks { listed.len() / 2 } else { listed.len() };
        let metas = iter(listed.into_iter().take(shown).map(|listed| Ok(Self::meta(listed))));
        Ok(if breaks { metas.chain(once(async { Err(reset()) })).boxed() } else { metas.boxed() })
    }

    fn list_stream(&self, prefix: Option<&Path>, after: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (view, prefix, after) = (self.clone(), prefix.cloned().unwrap_or_default(), after.cloned());
        once(async move { view.listing(prefix, after).await }).try_flatten().boxed()
    }

    /// The body of an answer: in pieces, and perhaps not the right one.
    fn body(
        &self,
        whole: &Bytes,
        range: &Range<u64>,
        segment: bool,
    ) -> (Range<u64>, BoxStream<'static, Result<Bytes>>) {
        let inner = &mut *self.bucket.lock();
        let mut strikes = |kind| inner.faults.strikes(kind, &mut inner.rng);
        let (short, broken, stalled) =
            (strikes(Kind::ShortBody), strikes(Kind::BrokenBody), strikes(Kind::StalledBody));
        let (wrong, other) = (segment && strikes(Kind::WrongByte), segment && strikes(Kind::OtherBytes));
        let shifted = segment && strikes(Kind::OtherRange);
        let cut = |range: &Range<u64>| whole.slice(range.start as usize..range.end as usize);
        let length = range.end - range.start;
        let mut told = range.clone();
        let mut bytes = cut(range);
        if (other || shifted) && length > 0 {
            let start = inner.rng.below(whole.len() as u64 - length + 1);
            bytes = cut(&(start..start + length));
            if shifted {
                told = start..start + length;
            }
        }
        if wrong {
            bytes = changed(&bytes, &mut inner.rng);
        }
        let shown = if short || broken || stalled { inner.rng.index(bytes.len()) } else { bytes.len() };
        let first = inner.rng.index(shown + 1);
        let pause = Duration::from_micros(inner.rng.skewed(20_000));
        let pieces = vec![bytes.slice(..first), bytes.slice(first..shown)];
        let pieces = iter(pieces.into_iter().filter(|piece| !piece.is_empty())).then(move |piece| async move {
            sleep(pause).await;
            Ok(piece)
        });
        let stream = if broken {
            pieces.chain(once(async { Err(reset()) })).boxed()
        } else if stalled {
            pieces.chain(once(std::future::pending())).boxed()
        } else {
            pieces.boxed()
        };
        (told, stream)
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("View")
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("View")
    }
}

#[async_trait]
impl ObjectStore for View {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let create = options.mode == PutMode::Create;
        let change = Change::Put { path: location.clone(), bytes: payload.into(), create };
        let more: &[Kind] = if create { &[Kind::Exists] } else { &[] };
        self.change("put", location, change, more).await?;
        Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn put_multipart_opts(&self, location: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        const KINDS: [Kind; 5] = [Kind::Hang, Kind::ServerError, Kind::SlowDown, Kind::Reset, Kind::DoneReset];
        let upload = self.pass("begin", location, &KINDS, || Ok(self.bucket.lock().begin_upload())).await?;
        Ok(Box::new(Upload::new(self.clone(), upload, location.clone())))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        const KINDS: [Kind; 4] = [Kind::Hang, Kind::ServerError, Kind::SlowDown, Kind::Reset];
        let segment = location.as_ref().ends_with(".seg");
        let mut kinds = KINDS.to_vec();
        if segment {
            kinds.push(Kind::NotFound);
        } else if self.bucket.lock().tells_of_segments(location) {
            kinds.push(Kind::LogNotFound);
        }
        let verb = if options.head { "head" } else { "get" };
        let read = || self.bucket.lock().object(location).cloned().ok_or_else(|| status_error(404));
        let object = self.pass(verb, location, &kinds, read).await?;
        let size = object.bytes.len() as u64;
        let range = match &options.range {
            _ if options.head => 0..0,
            None => 0..size,
            Some(GetRange::Bounded(range)) if range.start >= size => {
                return Err(Error::Generic { store: "simulation", source: "the range begins behind the end".into() });
            }
            Some(asked) => {
                asked.as_range(size).map_err(|error| Error::Generic { store: "simulation", source: Box::new(error) })?
            }
        };
        let (range, stream) = self.body(&object.bytes, &range, segment && !options.head);
        let listed = Listed { path: location.clone(), size, written: object.written };
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream),
            meta: Self::meta(listed),
            range,
            attributes: Default::default(),
            extensions: Default::default(),
        })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let view = self.clone();
        let one_request = async move {
            let paths: Vec<Path> = locations.try_collect().await?;
            let world = view.clock.world();
            for path in &paths {
                view.bucket.lock().asked(view.life, DELETE, path, world);
            }
            let one = move |path: Path| {
                let view = view.clone();
                async move {
                    view.change(DELETE, &path, Change::Delete { path: path.clone() }, &[]).await?;
                    Ok(path)
                }
            };
            Ok::<_, Error>(iter(paths).then(one))
        };
        once(one_request).try_flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_stream(prefix, None)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_stream(prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(Error::NotImplemented { operation: "list_with_delimiter".into(), implementer: "simulation".into() })
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(Error::NotImplemented { operation: "copy".into(), implementer: "simulation".into() })
    }
}
