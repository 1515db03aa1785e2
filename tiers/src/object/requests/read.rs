//! Whole objects, ends of objects, and what is known of an object.

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta};
use tokio::time::timeout_at;

use super::attempt::{Call, Tries};
use super::error::Failure;
use super::{Class, Direction, RequestError, Requests};
use crate::clock::Time;

impl Requests {
    /// Reads a whole object.
    ///
    /// # Errors
    /// [`RequestError::TooLarge`] if it has more than `max_bytes`; such an object is not read.
    pub async fn get(&self, class: Class, path: &Path, max_bytes: u64, deadline: Time) -> Result<Bytes, RequestError> {
        let outcome = self.fetch(class, path, None, max_bytes, deadline).await;
        self.ended(outcome.map(|(bytes, _)| bytes))
    }

    /// Reads the last `bytes` of an object, all of it if it has fewer, and tells the size of the whole.
    ///
    /// # Errors
    /// As [`Self::get`]. An empty object has no end to read: [`RequestError::Truncated`] with stores that follow HTTP.
    pub async fn get_tail(
        &self,
        class: Class,
        path: &Path,
        bytes: u64,
        deadline: Time,
    ) -> Result<(Bytes, u64), RequestError> {
        let outcome = self.fetch(class, path, Some(GetRange::Suffix(bytes)), bytes, deadline).await;
        self.ended(outcome)
    }

    /// What the store knows of an object.
    ///
    /// # Errors
    /// [`RequestError::NotFound`].
    pub async fn head(&self, path: &Path, deadline: Time) -> Result<ObjectMeta, RequestError> {
        let counter = &self.inner.counters.heads;
        let call = Call { class: Class::Sync, direction: Direction::Read, counter, deadline };
        let ask = || {
            let options = GetOptions { head: true, ..GetOptions::default() };
            self.inner.store.get_opts(path, options)
        };
        let outcome = self.attempts(&call, &mut Tries::default(), ask).await;
        self.ended(outcome.map(|(result, permit)| {
            permit.good();
            result.meta
        }))
    }

    async fn fetch(
        &self,
        class: Class,
        path: &Path,
        range: Option<GetRange>,
        max_bytes: u64,
        deadline: Time,
    ) -> Result<(Bytes, u64), RequestError> {
        let call = Call { class, direction: Direction::Read, counter: &self.inner.counters.gets, deadline };
        let mut tries = Tries::default();
        loop {
            let ask = || {
                let options = GetOptions { range: range.clone(), ..GetOptions::default() };
                self.inner.store.get_opts(path, options)
            };
            let (result, permit) = self.attempts(&call, &mut tries, ask).await?;
            let size = result.meta.size;
            let bytes = result.range.end.saturating_sub(result.range.start);
            if bytes > max_bytes {
                return Err(RequestError::TooLarge);
            }
            self.take_bytes(Direction::Read, bytes)?;
            let received = timeout_at(self.instant(deadline), self.collect(result.into_stream(), bytes)).await;
            let failure = match received {
                Ok(Ok(bytes)) => {
                    permit.good();
                    return Ok((bytes, size));
                }
                Ok(Err(failure)) => failure,
                Err(_) => {
                    self.inner.limiter.slow_down();
                    return Err(RequestError::Deadline);
                }
            };
            drop(permit);
            self.judge(&failure);
            self.again(&call, tries, failure).await?;
        }
    }

    /// Exactly so many bytes. Memory grows with what comes, not with what was announced.
    async fn collect(
        &self,
        mut stream: impl futures_util::Stream<Item = object_store::Result<Bytes>> + Unpin,
        bytes: u64,
    ) -> Result<Bytes, Failure> {
        let mut only = Bytes::new();
        let mut all = BytesMut::new();
        while let Some(frame) = stream.next().await {
            let frame = frame.map_err(|error| Failure::of(&error, true))?;
            self.inner.counters.read_bytes.add(frame.len() as u64);
            self.inner.pulse.heard();
            if (only.len() + all.len() + frame.len()) as u64 > bytes {
                return Err(Failure::truncated());
            }
            if only.is_empty() && all.is_empty() {
                only = frame;
                continue;
            }
            // The first of several.
            all.extend_from_slice(&std::mem::take(&mut only));
            all.extend_from_slice(&frame);
        }
        let whole = if all.is_empty() { only } else { all.freeze() };
        if whole.len() as u64 == bytes { Ok(whole) } else { Err(Failure::truncated()) }
    }
}
