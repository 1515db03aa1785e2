//! Loads: few ranged GETs, their bytes checked on the way into the slots.
//!
//! [`plan`] says what to ask for; all ranges of a job are under way at once, as far as [`Requests`](super::requests::Requests)
//! lets them, the earliest blocks first. [`landing`] takes the bytes as they come: each is copied once, from the buffer of the
//! connection into the slot, and hashed while it is in the cache.
//!
//! **Doubt.** An object that is missing, or bytes that are not what they should be, are asked for once more, by a fresh
//! request, before that is believed. The same twice: the block, or the whole segment, is lost.

mod landing;
mod plan;
#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Context;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use terrace_primary::Key;

use super::id::SegmentId;
use super::port::LoadPlace;
use super::record::SegmentRecord;
use super::requests::RequestError;
use super::shared::Shared;
use crate::clock::Time;
use crate::tier::Fault;
use landing::{Landed, Landing};
use plan::{ReadRange, plan};

/// Bytes that a job lands before others run: some tenths of a millisecond at the speed of memory.
const LAND_AT_ONCE: usize = 2 << 20;
/// Bytes between two looks at that.
const LAND_PIECE: usize = 256 << 10;

/// Takes what becomes of the blocks of a load.
pub(crate) trait LoadSink: Send {
    /// A place is done, and its slot is not touched any more: it holds the verified bytes with this CRC32, or garbage.
    fn done(&mut self, index: u32, outcome: Result<u32, Fault>);
    /// A block was wrong twice.
    fn lost_block(&mut self, segment: SegmentId, position: u32, key: Key);
    /// An object was missing twice, or twice not the segment that it should be. Told once a load.
    fn lost_segment(&mut self, id: SegmentId);
}

/// Fills the slots of `places`. Each place is told to the sink exactly once, none later than the requests' own `deadline` lets them
/// be. Dropping the future ends every touch of a slot at once; nothing runs on beside it.
pub(crate) async fn load(shared: &Shared, places: &[LoadPlace], deadline: Time, sink: &mut impl LoadSink) {
    let state = State { sink, doubts: vec![None; places.len()], lost: BTreeSet::new() };
    let job = Job { shared, places, deadline, landed: AtomicUsize::new(0), state: Mutex::new(state) };
    let (sound, unsound): (Vec<u32>, Vec<u32>) = (0..places.len() as u32).partition(|pick| job.is_sound(*pick));
    job.end(&unsound, Err(Fault::Absent));
    let mut reading = pin!(job.read_all(&sound));
    let turn = |context: &mut Context<'_>| {
        job.landed.store(0, Ordering::Relaxed);
        reading.as_mut().poll(context)
    };
    poll_fn(turn).await;
}

/// What was seen once and is asked for again before it is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// No such object.
    Missing,
    /// An object of another size.
    Resized,
    /// The block of another segment.
    Foreign,
    /// Bytes that do not check out.
    Wrong,
}

struct State<'a, S> {
    sink: &'a mut S,
    /// By place.
    doubts: Vec<Option<Doubt>>,
    lost: BTreeSet<SegmentId>,
}

struct Job<'a, S> {
    shared: &'a Shared,
    places: &'a [LoadPlace],
    deadline: Time,
    /// Bytes landed in this turn of the task, by all ranges.
    landed: AtomicUsize,
    /// Held for moments, by one of the futures of one task.
    state: Mutex<State<'a, S>>,
}

impl<'a, S: LoadSink> Job<'a, S> {
    fn state(&self) -> MutexGuard<'_, State<'a, S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, pick: u32) -> Option<&'a LoadPlace> {
        self.places.get(pick as usize)
    }

    /// Whether a place names a block that its segment has.
    fn is_sound(&self, pick: u32) -> bool {
        self.place(pick).is_some_and(|place| place.segment.key_at(place.position) == Some(place.key.as_bytes()))
    }

    fn plan(&self, picks: &[u32]) -> Vec<ReadRange> {
        plan(&self.shared.shape, self.shared.config.range_bytes.into(), self.places, picks)
    }

    async fn read_all(&self, picks: &[u32]) {
        // First come, first served: an earlier range is in front of a later one in the queue of the requests.
        let mut reading: FuturesUnordered<_> = self.plan(picks).into_iter().map(|range| self.read(range)).collect();
        while let Some(again) = reading.next().await {
            reading.extend(self.plan(&again).into_iter().map(|range| self.read(range)));
        }
    }

    /// Reads one range. Answers the places that are to be asked for again.
    async fn read(&self, range: ReadRange) -> Vec<u32> {
        let mut again = Vec::new();
        let Some(segment) = range.picks().first().and_then(|pick| self.place(*pick)).map(|place| &place.segment) else {
            return again;
        };
        let Shared { shape, names, region, requests, counters, .. } = self.shared;
        let mut landing = Landing::new(shape, region, self.places, &range);
        let bytes = range.bytes(shape);
        let failed = match requests.get_range(&names.segment(segment.id), bytes, self.deadline).await {
            Ok(body) if body.object_bytes() != segment.bytes => Err(Doubt::Resized),
            Ok(mut body) => {
                counters.blocks_skipped.add(range.skipped(self.places).into());
                loop {
                    let chunk = match body.next().await {
                        Ok(Some(chunk)) => chunk,
                        Ok(None) => break Err(Doubt::Wrong),
                        Err(error) => break self.why(segment, error).await,
                    };
                    for piece in chunk.chunks(LAND_PIECE) {
                        while self.landed.load(Ordering::Relaxed) >= LAND_AT_ONCE {
                            tokio::task::yield_now().await;
                        }
                        self.landed.fetch_add(piece.len(), Ordering::Relaxed);
                        landing.take(piece, |pick, landed| self.decided(pick, landed, &mut again));
                    }
                }
            }
            Err(error) => self.why(segment, error).await,
        };
        // None is left where the range came whole.
        for pick in landing.undecided() {
            match failed {
                Ok(fault) => self.end(&[*pick], Err(fault)),
                Err(doubt) => self.doubt(*pick, doubt, &mut again),
            }
        }
        again
    }

    /// What a request that failed for good says of the segment; or of the store, and then asking again is of no use.
    async fn why(&self, segment: &SegmentRecord, error: RequestError) -> Result<Fault, Doubt> {
        match error {
            RequestError::NotFound => Err(Doubt::Missing),
            // Either the object ends before, or somebody on the way cuts answers. The first is lost for all nodes.
            RequestError::Truncated => {
                match self.shared.requests.head(&self.shared.names.segment(segment.id), self.deadline).await {
                    Ok(object) if object.size == segment.bytes => Err(Doubt::Wrong),
                    Ok(_) => Err(Doubt::Resized),
                    Err(RequestError::NotFound) => Err(Doubt::Missing),
                    Err(other) => Ok(other.into()),
                }
            }
            other => Ok(other.into()),
        }
    }

    fn decided(&self, pick: u32, landed: Landed, again: &mut Vec<u32>) {
        match landed {
            Landed::Sound(crc32) => {
                if self.state().doubts.get(pick as usize).is_some_and(Option::is_some) {
                    self.shared.counters.reread.bump();
                }
                self.end(&[pick], Ok(crc32));
            }
            Landed::Wrong => self.doubt(pick, Doubt::Wrong, again),
            Landed::Foreign => self.doubt(pick, Doubt::Foreign, again),
            Landed::Misfit => self.end(&[pick], Err(Fault::Io)),
        }
    }

    /// Asks again for a place, or believes what was seen.
    fn doubt(&self, pick: u32, doubt: Doubt, again: &mut Vec<u32>) {
        let Some(place) = self.place(pick) else { return };
        let id = place.segment.id;
        let mut state = self.state();
        let State { sink, doubts, lost } = &mut *state;
        let Some(before) = doubts.get_mut(pick as usize) else { return };
        let is_lost = lost.contains(&id);
        let seen = before.replace(doubt);
        if seen.is_none() && !is_lost {
            again.push(pick);
            return;
        }
        // Twice in two ways: a miss, and the next load asks anew.
        if seen == Some(doubt) && !is_lost {
            match doubt {
                Doubt::Wrong => sink.lost_block(id, place.position, place.key),
                Doubt::Missing | Doubt::Resized | Doubt::Foreign => {
                    lost.insert(id);
                    self.shared.counters.segments_lost.bump();
                    tracing::debug!(tier = %self.shared.tier, segment = %id, ?doubt, "a segment is gone");
                    sink.lost_segment(id);
                }
            }
        }
        let fault = if doubt == Doubt::Missing { Fault::Absent } else { Fault::Corrupt };
        sink.done(place.index, Err(fault));
    }

    fn end(&self, picks: &[u32], outcome: Result<u32, Fault>) {
        let mut state = self.state();
        for place in picks.iter().filter_map(|pick| self.place(*pick)) {
            state.sink.done(place.index, outcome);
        }
    }
}
