//! Listing and deleting.

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::ObjectMeta;
use object_store::path::Path;
use tokio::time::timeout;

use super::attempt::{Call, Tries};
use super::error::Failure;
use super::{Class, Direction, RequestError, Requests};
use crate::clock::Time;

/// Objects in one answer to a listing, and names in one request to delete (S3: `MaxKeys`, `DeleteObjects`).
const PAGE: usize = 1_000;

impl Requests {
    /// Objects below a prefix whose path is behind `after`, in order of their paths, the first `limit` of them. A store that
    /// ignores `after` is asked all the same; what it gives too much is left out.
    ///
    /// # Errors
    /// As any request's.
    pub async fn list(
        &self,
        prefix: &Path,
        after: Option<&Path>,
        limit: usize,
        deadline: Time,
    ) -> Result<Vec<ObjectMeta>, RequestError> {
        let keep = |meta: &ObjectMeta| after.is_none_or(|after| meta.location > *after);
        let outcome = self.listing(prefix, after, limit, deadline, keep).await;
        self.ended(outcome)
    }

    /// What the store gives, whether it is behind `after` or not.
    pub(in crate::object) async fn list_as_given(
        &self,
        prefix: &Path,
        after: Option<&Path>,
        limit: usize,
        deadline: Time,
    ) -> Result<Vec<ObjectMeta>, RequestError> {
        let outcome = self.listing(prefix, after, limit, deadline, |_| true).await;
        self.ended(outcome)
    }

    async fn listing(
        &self,
        prefix: &Path,
        after: Option<&Path>,
        limit: usize,
        deadline: Time,
        keep: impl Fn(&ObjectMeta) -> bool,
    ) -> Result<Vec<ObjectMeta>, RequestError> {
        let call = self.list_call(deadline);
        let mut tries = Tries::default();
        let mut page = Page { first: Vec::new(), limit, ordered: self.inner.ordered };
        loop {
            let permit = self.admit(&call, &mut tries).await?;
            let gone_on = page.goes_on_after().or(after).cloned();
            let stream = match &gone_on {
                Some(after) => self.inner.store.list_with_offset(Some(prefix), after),
                None => self.inner.store.list(Some(prefix)),
            };
            match self.read_page(stream, &mut page, &gone_on, after, &keep, deadline).await {
                Ok(()) => {
                    permit.good();
                    return Ok(page.finish());
                }
                Err(failure) => {
                    drop(permit);
                    self.judge(&failure);
                    self.again(&call, tries, failure).await?;
                }
            }
        }
    }

    async fn read_page(
        &self,
        mut stream: BoxStream<'static, object_store::Result<ObjectMeta>>,
        page: &mut Page,
        gone_on: &Option<Path>,
        after: Option<&Path>,
        keep: impl Fn(&ObjectMeta) -> bool,
        deadline: Time,
    ) -> Result<(), Failure> {
        let mut seen = 0usize;
        while !page.is_full() {
            let patience = self.patience(deadline);
            let Ok(item) = timeout(patience, stream.next()).await else { return Err(self.silent(deadline, patience)) };
            let Some(item) = item else { break };
            let meta = item.map_err(|error| Failure::of(&error, false))?;
            seen += 1;
            if seen.is_multiple_of(PAGE) {
                // The store's client asks for the next answer by itself.
                self.inner.counters.lists.bump();
            }
            // Gone on with after a failure: what is there already may be given again.
            let again = gone_on.as_ref() != after && gone_on.as_ref().is_some_and(|last| meta.location <= *last);
            if keep(&meta) && !again {
                page.push(meta);
            }
        }
        Ok(())
    }

    /// The directories right below a prefix, in order.
    ///
    /// # Errors
    /// As any request's.
    pub async fn list_dirs(&self, prefix: &Path, deadline: Time) -> Result<Vec<Path>, RequestError> {
        let call = self.list_call(deadline);
        let ask = || self.inner.store.list_with_delimiter(Some(prefix));
        let outcome = self.attempts(&call, &mut Tries::default(), ask).await;
        self.ended(outcome.map(|(result, permit)| {
            permit.good();
            let mut dirs = result.common_prefixes;
            dirs.sort_unstable();
            dirs
        }))
    }

    fn list_call(&self, deadline: Time) -> Call<'_> {
        Call { class: Class::Sync, direction: Direction::Read, counter: &self.inner.counters.lists, deadline }
    }

    /// Deletes objects, as many with one request as the store takes. One outcome for each path, in their order; what is not there is
    /// deleted.
    pub async fn delete(&self, paths: Vec<Path>, deadline: Time) -> Vec<Result<(), RequestError>> {
        let mut outcomes = Vec::with_capacity(paths.len());
        for chunk in paths.chunks(PAGE) {
            outcomes.extend(self.delete_chunk(chunk, deadline).await);
        }
        outcomes
    }

    async fn delete_chunk(&self, paths: &[Path], deadline: Time) -> Vec<Result<(), RequestError>> {
        let counter = &self.inner.counters.deletes;
        let call = Call { class: Class::Sync, direction: Direction::Write, counter, deadline };
        let mut tries = Tries::default();
        let mut outcomes: Vec<Option<RequestError>> = vec![None; paths.len()];
        let mut left: Vec<usize> = (0..paths.len()).collect();
        while !left.is_empty() {
            let permit = match self.admit(&call, &mut tries).await {
                Ok(permit) => permit,
                Err(error) => {
                    set(&mut outcomes, &left, &error);
                    break;
                }
            };
            let batch: Vec<_> = left.iter().filter_map(|index| paths.get(*index)).cloned().map(Ok).collect();
            let answers = self.inner.store.delete_stream(futures_util::stream::iter(batch).boxed()).collect::<Vec<_>>();
            // One answer a path, or one for all of them.
            let (failed, worst) = match self.answer(&call, async { Ok(answers.await) }).await {
                Ok(answers) => self.sort_out(&left, answers, &mut outcomes),
                Err(failure) => {
                    set(&mut outcomes, &left, &failure.error);
                    (left.clone(), Some(failure))
                }
            };
            let Some(failure) = worst else {
                permit.good();
                break;
            };
            drop(permit);
            self.judge(&failure);
            left = failed;
            if self.again(&call, tries, failure).await.is_err() {
                break;
            }
        }
        outcomes.into_iter().map(|error| self.ended(error.map_or(Ok(()), Err))).collect()
    }

    /// Notes the answers; what may be tried again, and the failure that decides how.
    fn sort_out(
        &self,
        asked: &[usize],
        answers: Vec<object_store::Result<Path>>,
        outcomes: &mut [Option<RequestError>],
    ) -> (Vec<usize>, Option<Failure>) {
        let of = |answer: &object_store::Result<Path>| match answer {
            Ok(_) => None,
            Err(error) => Some(Failure::of(error, false)).filter(|failure| failure.error != RequestError::NotFound),
        };
        let mut worst: Option<Failure> = None;
        let mut again = Vec::new();
        for (place, index) in asked.iter().enumerate() {
            let failure = if answers.len() == asked.len() {
                answers.get(place).and_then(of)
            } else {
                answers.iter().find_map(of).or_else(|| Some(Failure::truncated()))
            };
            if let Some(outcome) = outcomes.get_mut(*index) {
                *outcome = failure.as_ref().map(|failure| failure.error.clone());
            }
            if let Some(failure) = failure.filter(|failure| failure.again) {
                again.push(*index);
                worst = Some(worst.filter(|worst| worst.slow_down).unwrap_or(failure));
            }
        }
        (again, worst)
    }
}

fn set(outcomes: &mut [Option<RequestError>], indices: &[usize], error: &RequestError) {
    for index in indices {
        if let Some(outcome) = outcomes.get_mut(*index) {
            *outcome = Some(error.clone());
        }
    }
}

/// The first `limit` objects of a listing.
struct Page {
    first: Vec<ObjectMeta>,
    limit: usize,
    /// They come in order: the first that come are the first there are.
    ordered: bool,
}

impl Page {
    fn push(&mut self, meta: ObjectMeta) {
        self.first.push(meta);
        // Out of order all have to be looked at, but not kept.
        if !self.ordered && self.first.len() >= self.limit.saturating_mul(2).max(PAGE) {
            self.cut();
        }
    }

    fn is_full(&self) -> bool {
        self.limit == 0 || (self.ordered && self.first.len() >= self.limit)
    }

    fn goes_on_after(&self) -> Option<&Path> {
        self.first.last().filter(|_| self.ordered).map(|meta| &meta.location)
    }

    fn cut(&mut self) {
        self.first.sort_unstable_by(|a, b| a.location.cmp(&b.location));
        self.first.dedup_by(|a, b| a.location == b.location);
        self.first.truncate(self.limit);
    }

    fn finish(mut self) -> Vec<ObjectMeta> {
        self.cut();
        self.first
    }
}
