//! Appends to the log: names new segments, removals and uses for all nodes.
//!
//! One log object at a time, numbered without a gap. What comes while one is on its way goes into the next. An object whose
//! PUT failed is tried again under the same number with a fresh stamp, so that it sorts behind what readers have listed; should
//! both arrive, it is folded once. When nothing could be published for a quarter of `orphan_age`, this node's life ends: what waits fails, and
//! a new name begins at 1, so that a number never stands for two objects.
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use object_store::PutPayload;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::folder::{SharedLogState, scramble};
use super::id::{SegmentId, Stamp, WriterId};
use super::log::{LOG_OVERHEAD_BYTES, LogObject, LogRecord, MAX_LOG_BYTES, record_bytes};
use super::names::LogName;
use super::requests::Class;
use super::shared::Shared;
use crate::clock::Time;

/// Of a log object, for records.
const RECORDS_BYTES: usize = MAX_LOG_BYTES - LOG_OVERHEAD_BYTES;
/// Encoded bytes of records that wait. Beyond, appending fails at once.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Segments whose use waits to be told. Beyond, uses are dropped: they only order eviction.
const MAX_USES: usize = 65_536;
/// Uses in one log object.
const MAX_USES_PER_OBJECT: usize = 8_192;
/// How long uses wait for an object that is written anyway.
const USES_LINGER: Duration = Duration::from_secs(10);
/// One try of a PUT, retries of its requests included.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Pauses between tries.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

enum Message {
    Append(Append),
    Used(Vec<SegmentId>),
}

struct Append {
    records: Vec<LogRecord>,
    bytes: usize,
    answer: oneshot::Sender<Result<(), ()>>,
}

/// The way to the publisher. It ends when all handles are gone and what they appended is done.
#[derive(Clone)]
pub(crate) struct PublisherHandle {
    shared: Arc<Shared>,
    state: SharedLogState,
    inbox: UnboundedSender<Message>,
    waiting_bytes: Arc<AtomicUsize>,
}

impl PublisherHandle {
    /// Appends records, all in one log object. The answer comes when that object is in the store and folded here, or was given up;
    /// given up, it may still be read by others. Fails at once when too much waits, or the records are too many for an object.
    pub fn append(&self, records: Vec<LogRecord>) -> oneshot::Receiver<Result<(), ()>> {
        let (answer, receiver) = oneshot::channel();
        let bytes: usize = records.iter().map(record_bytes).sum();
        let waiting = self.waiting_bytes.load(Ordering::Relaxed);
        if bytes > RECORDS_BYTES || waiting.saturating_add(bytes) > MAX_WAITING_BYTES {
            let _ = answer.send(Err(()));
            return receiver;
        }
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        // A publisher that is gone drops the answer, which says the same.
        let _ = self.inbox.send(Message::Append(Append { records, bytes, answer }));
        receiver
    }

    /// Takes segments out of the live set, from now.
    pub fn remove(&self, ids: Vec<SegmentId>) -> oneshot::Receiver<Result<(), ()>> {
        let at = self.stamp();
        self.append(ids.into_iter().map(|id| LogRecord::Removed { id, at }).collect())
    }

    /// Tells that segments were read or touched: with the next log object, within [`USES_LINGER`].
    pub fn used(&self, ids: Vec<SegmentId>) {
        let _ = self.inbox.send(Message::Used(ids));
    }

    /// A name for a new segment of this node's present life, and the time for its record.
    pub fn next_segment(&self) -> (SegmentId, Stamp) {
        let wall_ms = self.shared.wall.now_ms();
        let mut state = self.state.lock();
        (state.next_segment(), state.stamp(wall_ms))
    }

    /// Cluster time now.
    pub fn stamp(&self) -> Stamp {
        self.state.lock().stamp(self.shared.wall.now_ms())
    }
}

/// The publisher: a way to it, and the task.
pub(crate) fn publisher(
    shared: Arc<Shared>,
    state: SharedLogState,
) -> (PublisherHandle, impl Future<Output = ()> + Send + 'static) {
    let (inbox, messages) = unbounded_channel();
    let waiting_bytes = Arc::new(AtomicUsize::new(0));
    let handle = PublisherHandle {
        shared: Arc::clone(&shared),
        state: state.clone(),
        inbox,
        waiting_bytes: Arc::clone(&waiting_bytes),
    };
    let jitter = state.lock().writer().0;
    let publisher = Publisher {
        shared,
        state,
        messages,
        closed: false,
        waiting: VecDeque::new(),
        waiting_bytes,
        uses: BTreeMap::new(),
        uses_since: None,
        sequence: 0,
        last: None,
        jitter,
    };
    (handle, publisher.run())
}

struct Publisher {
    shared: Arc<Shared>,
    state: SharedLogState,
    messages: UnboundedReceiver<Message>,
    closed: bool,
    waiting: VecDeque<Append>,
    waiting_bytes: Arc<AtomicUsize>,
    uses: BTreeMap<SegmentId, Stamp>,
    uses_since: Option<Time>,
    /// Of the last log object of this life; 0 before the first.
    sequence: u64,
    /// When it was published.
    last: Option<Time>,
    jitter: u64,
}

impl Publisher {
    async fn run(mut self) {
        while self.wait_for_work().await {
            self.wait_for_turn().await;
            self.take_messages();
            self.publish_next().await;
        }
    }

    /// Until there is something to publish. False: there never will be.
    async fn wait_for_work(&mut self) -> bool {
        loop {
            self.take_messages();
            if !self.waiting.is_empty() || self.uses_are_due() {
                return true;
            }
            if self.closed {
                return false;
            }
            let message = match self.uses_since {
                None => self.messages.recv().await,
                Some(since) => {
                    let left = USES_LINGER.saturating_sub(self.shared.clock.now().since(since));
                    match tokio::time::timeout(left, self.messages.recv()).await {
                        Ok(message) => message,
                        Err(_) => continue,
                    }
                }
            };
            match message {
                Some(message) => self.take(message),
                None => self.closed = true,
            }
        }
    }

    fn uses_are_due(&self) -> bool {
        self.uses_since.is_some_and(|since| self.closed || self.shared.clock.now().since(since) >= USES_LINGER)
    }

    /// At once if the last object is long ago; else at the end of the interval, with what comes until then.
    async fn wait_for_turn(&mut self) {
        let Some(last) = self.last.filter(|_| !self.closed) else { return };
        let left = self.shared.config.publish_interval.saturating_sub(self.shared.clock.now().since(last));
        if !left.is_zero() {
            tokio::time::sleep(left).await;
        }
    }

    fn take_messages(&mut self) {
        while !self.closed {
            match self.messages.try_recv() {
                Ok(message) => self.take(message),
                Err(tokio::sync::mpsc::error::TryRecvError::Empty) => return,
                Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => self.closed = true,
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Append(append) => self.waiting.push_back(append),
            Message::Used(ids) => {
                let at = self.state.lock().stamp(self.shared.wall.now_ms());
                for id in ids {
                    if self.uses.len() < MAX_USES || self.uses.contains_key(&id) {
                        self.uses.insert(id, at);
                    }
                }
                self.uses_since.get_or_insert(self.shared.clock.now());
            }
        }
    }

    async fn publish_next(&mut self) {
        if self.is_long_silent() {
            // Readers have forgotten this name by now: going on with it would look like a gap.
            self.end_life();
        }
        let (records, answers) = self.next_batch();
        if records.is_empty() {
            answer(answers, Ok(()));
            return;
        }
        let began = self.shared.clock.now();
        let (writer, stamp) = {
            let mut state = self.state.lock();
            (state.writer(), state.stamp(self.shared.wall.now_ms()))
        };
        let sequence = self.sequence.saturating_add(1);
        let object = LogObject { writer, sequence, stamp, node: self.shared.node.clone(), records };
        let bytes = match object.encode(&self.shared.shape) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(tier = %self.shared.tier, %error, "records that do not make a log object");
                return answer(answers, Err(()));
            }
        };
        if self.put(&object, PutPayload::from(bytes), began).await {
            self.sequence = sequence;
            self.last = Some(self.shared.clock.now());
            self.shared.counters.logs_published.bump();
            self.state.lock().published(Arc::new(object));
            self.state.tell();
            answer(answers, Ok(()));
        } else {
            tracing::warn!(
                tier = %self.shared.tier,
                "nothing could be published for {:?}: what waits fails, and this node begins anew",
                self.shared.clock.now().since(began)
            );
            answer(answers, Err(()));
            self.take_messages();
            while let Some(append) = self.waiting.pop_front() {
                self.waiting_bytes.fetch_sub(append.bytes, Ordering::Relaxed);
                let _ = append.answer.send(Err(()));
            }
            self.end_life();
        }
    }

    fn is_long_silent(&self) -> bool {
        let silent = self.last.map(|last| self.shared.clock.now().since(last));
        silent.is_some_and(|silent| silent >= self.shared.config.log_retention)
    }

    fn end_life(&mut self) -> WriterId {
        self.sequence = 0;
        self.last = None;
        self.state.lock().next_life()
    }

    /// What goes into the next object: what waited longest first, as much as fits.
    fn next_batch(&mut self) -> (Vec<LogRecord>, Vec<oneshot::Sender<Result<(), ()>>>) {
        let mut records = Vec::new();
        let mut answers = Vec::new();
        let mut bytes = 0;
        while let Some(append) = self.waiting.pop_front_if(|next| bytes + next.bytes <= RECORDS_BYTES) {
            self.waiting_bytes.fetch_sub(append.bytes, Ordering::Relaxed);
            bytes += append.bytes;
            records.extend(append.records);
            answers.push(append.answer);
        }
        let told: Vec<SegmentId> = self.uses.keys().take(MAX_USES_PER_OBJECT).copied().collect();
        for id in told {
            let Some(at) = self.uses.get(&id).copied() else { continue };
            let record = LogRecord::Used { id, at };
            bytes += record_bytes(&record);
            if bytes > RECORDS_BYTES {
                break;
            }
            self.uses.remove(&id);
            records.push(record);
        }
        if self.uses.is_empty() {
            self.uses_since = None;
        }
        (records, answers)
    }

    /// Until the object is in the store, or its time is over.
    async fn put(&mut self, object: &LogObject, payload: PutPayload, began: Time) -> bool {
        let mut stamp = object.stamp;
        let mut pause = FIRST_PAUSE;
        loop {
            let name = LogName { stamp, writer: object.writer, sequence: object.sequence };
            let path = self.shared.names.log(name);
            let deadline = self.shared.clock.now().plus(ATTEMPT);
            let outcome = self.shared.requests.put(Class::Sync, &path, payload.clone(), false, deadline).await;
            let Err(error) = outcome else { return true };
            tracing::debug!(tier = %self.shared.tier, %error, "a log object was not written");
            if self.shared.clock.now().since(began) >= self.shared.config.orphan_age / 4 {
                return false;
            }
            self.jitter = scramble(self.jitter);
            tokio::time::sleep(pause.mul_f64(0.75 + (self.jitter % 512) as f64 / 1_024.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            stamp = self.state.lock().stamp(self.shared.wall.now_ms());
        }
    }
}

fn answer(answers: Vec<oneshot::Sender<Result<(), ()>>>, outcome: Result<(), ()>) {
    for answer in answers {
        // Whoever asked may have gone.
        let _ = answer.send(outcome);
    }
}
