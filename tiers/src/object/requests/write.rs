//! Writing one object with one request.

use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, PutMode, PutOptions, PutPayload};
use tokio::time::timeout_at;

use super::attempt::{Call, Tries};
use super::{Class, Direction, RequestError, Requests};
use crate::clock::Time;

impl Requests {
    /// Writes an object. `create`: only if there is none of that name, where the store can tell
    /// ([`Abilities::conditional_create`](super::Abilities)). An object is there whole or not at all.
    ///
    /// An answer that was lost may hide that the object was written. The next attempt of a conditional put then finds an object;
    /// it is read, and if it holds these bytes, the put has succeeded.
    ///
    /// # Errors
    /// [`RequestError::Exists`]. After any other error the object may be there all the same.
    pub async fn put(
        &self,
        class: Class,
        path: &Path,
        payload: PutPayload,
        create: bool,
        deadline: Time,
    ) -> Result<(), RequestError> {
        let mode = if create && self.abilities().conditional_create { PutMode::Create } else { PutMode::Overwrite };
        self.put_mode(class, path, payload, mode, deadline).await
    }

    /// The same, whatever the store is known to be able to do.
    pub(in crate::object) async fn put_mode(
        &self,
        class: Class,
        path: &Path,
        payload: PutPayload,
        mode: PutMode,
        deadline: Time,
    ) -> Result<(), RequestError> {
        let mut tries = Tries::default();
        let outcome = self.send(class, path, &payload, mode, deadline, &mut tries).await;
        let ours = outcome == Err(RequestError::Exists)
            && tries.repeated()
            && self.holds(class, path, &payload, deadline).await;
        self.ended(if ours { Ok(()) } else { outcome })
    }

    async fn send(
        &self,
        class: Class,
        path: &Path,
        payload: &PutPayload,
        mode: PutMode,
        deadline: Time,
        tries: &mut Tries,
    ) -> Result<(), RequestError> {
        let bytes = payload.content_length() as u64;
        let call = Call { class, direction: Direction::Write, counter: &self.inner.counters.puts, deadline };
        loop {
            self.take_bytes(Direction::Write, bytes)?;
            let permit = self.admit(&call, tries).await.inspect_err(|_| self.inner.writes.give_back(bytes))?;
            self.inner.counters.written_bytes.add(bytes);
            let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
            match self.answer(&call, self.inner.store.put_opts(path, payload.clone(), options)).await {
                Ok(_) => {
                    permit.good();
                    return Ok(());
                }
                Err(failure) => {
                    drop(permit);
                    self.again(&call, *tries, failure.of_put()).await?;
                }
            }
        }
    }

    /// Whether the object has exactly these bytes. One attempt; false if that fails.
    async fn holds(&self, class: Class, path: &Path, payload: &PutPayload, deadline: Time) -> bool {
        let call = Call { class, direction: Direction::Read, counter: &self.inner.counters.gets, deadline };
        let Ok(permit) = self.admit(&call, &mut Tries::default()).await else { return false };
        let compare = async {
            let result = self.inner.store.get_opts(path, GetOptions::default()).await.ok()?;
            if result.meta.size != payload.content_length() as u64 {
                return Some(false);
            }
            let mut wanted = payload.iter().filter(|chunk| !chunk.is_empty()).cloned();
            let mut chunk = Bytes::new();
            let mut stream = result.into_stream();
            while let Some(frame) = stream.next().await {
                let mut frame = frame.ok()?;
                self.inner.counters.read_bytes.add(frame.len() as u64);
                while !frame.is_empty() {
                    if chunk.is_empty() {
                        let Some(next) = wanted.next() else { return Some(false) };
                        chunk = next;
                    }
                    let common = chunk.len().min(frame.len());
                    if chunk.get(..common) != frame.get(..common) {
                        return Some(false);
                    }
                    chunk.advance(common);
                    frame.advance(common);
                }
            }
            Some(chunk.is_empty() && wanted.next().is_none())
        };
        let same = timeout_at(self.instant(deadline), compare).await.ok().flatten();
        if same.is_some() {
            permit.good();
        }
        same.unwrap_or(false)
    }
}
