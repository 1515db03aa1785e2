//! Writing one object in parts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use object_store::path::Path;
use object_store::retry::{RetryContext, RetryFailure, RetryPolicy};
use object_store::{MultipartUpload, PutMultipartOptions, PutPayload, UploadPart};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::attempt::{Call, Tries};
use super::error::Failure;
use super::watch::{REFUSED, THROTTLED};
use super::{Class, Direction, RequestError, Requests};
use crate::clock::Time;
use crate::object::counters::Counters;

/// So many uploads are given up at once; what is beyond is left to the store's lifecycle rule.
const ABORTING_MOST: usize = 16;
/// Giving an upload up takes no longer.
const ABORT_TIME: Duration = Duration::from_secs(30);

impl Requests {
    /// Writes an object in parts, all at once as far as there are places. All parts but the last should have the same size, 5 MiB or
    /// more. There is no conditional form: names of such objects must never be used twice. The object is there whole or not at all.
    ///
    /// An upload that fails, or whose future is dropped, is given up in the background: the store frees its parts. That is counted.
    ///
    /// # Errors
    /// After any error the object may be there all the same.
    pub async fn put_multipart(&self, path: &Path, parts: Vec<PutPayload>, deadline: Time) -> Result<(), RequestError> {
        let call =
            Call { class: Class::Store, direction: Direction::Write, counter: &self.inner.counters.puts, deadline };
        let mut tries = Tries::default();
        let outcome = loop {
            let failure = match self.upload(&call, path, &parts, &mut tries).await {
                Ok(()) => break Ok(()),
                Err(failure) => failure,
            };
            if let Err(error) = self.again(&call, tries, failure).await {
                break Err(error);
            }
        };
        self.ended(outcome)
    }

    /// One upload from its beginning to its end.
    async fn upload(
        &self,
        call: &Call<'_>,
        path: &Path,
        parts: &[PutPayload],
        tries: &mut Tries,
    ) -> Result<(), Failure> {
        let bytes = parts.iter().map(|part| part.content_length() as u64).sum();
        self.take_bytes(Direction::Write, bytes).map_err(Failure::last)?;
        let policy = PartPolicy { requests: self.clone(), deadline: call.deadline };
        let options = PutMultipartOptions::default().with_retry_policy(Arc::new(policy));
        let permit = self.admit(call, tries).await.map_err(Failure::last)?;
        let upload = self.answer(call, self.inner.store.put_multipart_opts(path, options)).await?;
        permit.good();
        let mut begun = Begun {
            upload: Some(upload),
            counters: Arc::clone(&self.inner.counters),
            aborting: Arc::clone(&self.inner.aborting),
        };
        let Some(upload) = begun.upload.as_mut() else { return Err(Failure::last(RequestError::Closed)) };
        let mut sending: FuturesUnordered<_> = parts
            .iter()
            .map(|part| self.part(call, upload.put_part(part.clone()), part.content_length() as u64))
            .collect();
        while let Some(sent) = sending.next().await {
            sent?;
        }
        drop(sending);
        let permit = self.admit(call, &mut Tries::default()).await.map_err(Failure::last)?;
        let completed = self.answer(call, upload.complete()).await;
        match completed {
            Ok(_) => permit.good(),
            Err(failure) => {
                drop(permit);
                // It may have been done and the answer lost. Nobody else writes an object of this name.
                let there = failure.error != RequestError::Deadline
                    && self.head(path, call.deadline).await.is_ok_and(|meta| meta.size == bytes);
                if !there {
                    return Err(failure);
                }
            }
        }
        begun.upload = None;
        Ok(())
    }

    /// One part. The store repeats it as [`PartPolicy`] says.
    async fn part(&self, call: &Call<'_>, part: UploadPart, bytes: u64) -> Result<(), Failure> {
        let permit = self.admit(call, &mut Tries::default()).await.map_err(Failure::last)?;
        self.inner.counters.written_bytes.add(bytes);
        self.answer(call, part).await?;
        permit.good();
        Ok(())
    }
}

/// Repeats a part by the rules of all requests. Its place is held meanwhile.
struct PartPolicy {
    requests: Requests,
    deadline: Time,
}

#[async_trait]
impl RetryPolicy for PartPolicy {
    async fn retry(&self, context: RetryContext) -> bool {
        let failure = match context.failure {
            RetryFailure::Transport(REFUSED) | RetryFailure::Status(_) => return false,
            RetryFailure::Transport(THROTTLED) => {
                Failure { error: RequestError::Throttled, again: true, slow_down: true }
            }
            _ => Failure::truncated(),
        };
        let inner = &self.requests.inner;
        self.requests.judge(&failure);
        let call = Call {
            class: Class::Store,
            direction: Direction::Write,
            counter: &inner.counters.puts,
            deadline: self.deadline,
        };
        let tries = Tries::after(context.attempt);
        if self.requests.again(&call, tries, failure).await.is_err() {
            return false;
        }
        let Some(wait) = inner.writes.slot(inner.clock.now(), self.deadline) else { return false };
        tokio::time::sleep(wait).await;
        inner.counters.puts.bump();
        inner.counters.retries.bump();
        true
    }
}

impl fmt::Debug for PartPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartPolicy").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// An upload that was begun and not completed: given up when dropped.
struct Begun {
    upload: Option<Box<dyn MultipartUpload>>,
    counters: Arc<Counters>,
    aborting: Arc<AtomicUsize>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        let Some(mut upload) = self.upload.take() else { return };
        self.counters.uploads_aborted.bump();
        // Without a runtime there is nobody to send it.
        let Ok(runtime) = Handle::try_current() else { return };
        let place = Aborting(Arc::clone(&self.aborting));
        if place.0.fetch_add(1, Ordering::Relaxed) >= ABORTING_MOST {
            tracing::warn!(
                "an upload was left in the bucket: too many are being given up; the bucket's lifecycle rule removes it"
            );
            return;
        }
        self.counters.deletes.bump();
        runtime.spawn(async move {
            let _place = place;
            match timeout(ABORT_TIME, upload.abort()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "an upload could not be given up"),
                Err(_) => tracing::debug!("an upload could not be given up: no answer"),
            }
        });
    }
}

struct Aborting(Arc<AtomicUsize>);

impl Drop for Aborting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
