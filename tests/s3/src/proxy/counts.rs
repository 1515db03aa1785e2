//! What passed by: requests, answers and bytes, by operation and by place.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::operation::{Operation, Seen};

/// Places that are counted apart; what comes later is counted under [`ELSEWHERE`].
const MAX_PLACES: usize = 4096;
const ELSEWHERE: &str = "...";

/// Requests of one kind, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Requests that arrived, whatever became of them.
    pub requests: u64,
    /// Answers 2xx, those whose body was spoiled too.
    pub ok: u64,
    /// Answers 3xx and 4xx.
    pub refused: u64,
    /// Answers 5xx.
    pub failed: u64,
    /// Without a complete answer: reset, hung until the client went, given up by the client, lost by the server.
    pub cut: u64,
    /// Faults that rules made.
    pub faults: u64,
    /// Bytes of request bodies that were passed on, or read and thrown away.
    pub received_bytes: u64,
    /// Bytes of response bodies.
    pub sent_bytes: u64,
}

impl Count {
    fn to_json(self) -> Value {
        json!({
            "requests": self.requests, "ok": self.ok, "refused": self.refused, "failed": self.failed, "cut": self.cut,
            "faults": self.faults, "received_bytes": self.received_bytes, "sent_bytes": self.sent_bytes,
        })
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.ok += other.ok;
        self.refused += other.refused;
        self.failed += other.failed;
        self.cut += other.cut;
        self.faults += other.faults;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
    }
}

/// A snapshot of what a proxy counted. A request is in it from its arrival; its answer and bytes follow as they pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By target up to its last `/`.
    places: BTreeMap<(String, Operation), Count>,
}

impl Counts {
    /// Everything.
    pub fn total(&self) -> Count {
        self.sum(|_| true)
    }

    /// One operation, on all keys.
    pub fn of(&self, operation: Operation) -> Count {
        self.sum(|of| of == operation)
    }

    /// The part whose targets have `part` in them: `/bucket/key` or, of a list, `/bucket/prefix`, up to the last `/`,
    /// as in `/segments/`. Beyond 4,096 such places they are no longer told apart, and are in no part.
    pub fn under(&self, part: &str) -> Self {
        let places = self.places.iter().filter(|((place, _), _)| place.contains(part));
        Self { places: places.map(|(key, count)| (key.clone(), *count)).collect() }
    }

    /// `{"total": COUNT, "operations": {"get": COUNT}, "places": {"/bucket/p/": {"get": COUNT}}}`.
    pub fn to_json(&self) -> Value {
        let mut operations = BTreeMap::<_, Count>::new();
        let mut places = BTreeMap::<_, BTreeMap<_, _>>::new();
        for ((place, operation), count) in &self.places {
            *operations.entry(operation.name()).or_default() += *count;
            places.entry(place).or_default().insert(operation.name(), count.to_json());
        }
        let operations: BTreeMap<_, _> = operations.into_iter().map(|(name, count)| (name, count.to_json())).collect();
        json!({ "total": self.total().to_json(), "operations": operations, "places": places })
    }

    fn sum(&self, wanted: impl Fn(Operation) -> bool) -> Count {
        let mut sum = Count::default();
        for ((_, operation), count) in &self.places {
            if wanted(*operation) {
                sum += *count;
            }
        }
        sum
    }
}

/// The live form of a [`Count`].
#[derive(Debug, Default)]
struct Tally {
    requests: AtomicU64,
    ok: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    cut: AtomicU64,
    faults: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

/// All live counts of a proxy.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    places: Mutex<BTreeMap<(String, Operation), Arc<Tally>>>,
}

impl Tallies {
    /// Counts a request that arrived.
    pub fn arrived(&self, seen: &Seen) -> Ticket {
        let place = seen.target.rfind('/').and_then(|end| seen.target.get(..=end)).unwrap_or_default();
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = (place.to_owned(), seen.operation);
        if places.len() >= MAX_PLACES && !places.contains_key(&key) {
            ELSEWHERE.clone_into(&mut key.0);
        }
        let tally = places.entry(key).or_default().clone();
        tally.requests.fetch_add(1, Relaxed);
        Ticket { tally, over: false }
    }

    pub fn counts(&self) -> Counts {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |tally: &Tally| Count {
            requests: tally.requests.load(Relaxed),
            ok: tally.ok.load(Relaxed),
            refused: tally.refused.load(Relaxed),
            failed: tally.failed.load(Relaxed),
            cut: tally.cut.load(Relaxed),
            faults: tally.faults.load(Relaxed),
            received_bytes: tally.received_bytes.load(Relaxed),
            sent_bytes: tally.sent_bytes.load(Relaxed),
        };
        Counts { places: places.iter().map(|(key, tally)| (key.clone(), count(tally))).collect() }
    }

    /// Requests that are under way now end in the old counts, which nobody sees any more.
    pub fn reset(&self) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// One request under way. Dropped before it was [`Ticket::complete`], it was cut.
#[derive(Debug)]
pub(super) struct Ticket {
    tally: Arc<Tally>,
    over: bool,
}

impl Ticket {
    pub fn answered(&self, status: u16) {
        let kind = match status {
            ..300 => &self.tally.ok,
            300..500 => &self.tally.refused,
            500.. => &self.tally.failed,
        };
        kind.fetch_add(1, Relaxed);
    }

    pub fn fault(&self) {
        self.tally.faults.fetch_add(1, Relaxed);
    }

    pub fn sent(&self, bytes: usize) {
        self.tally.sent_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub fn meter(&self) -> Meter {
        Meter { tally: self.tally.clone() }
    }

    pub fn complete(&mut self) {
        self.over = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.over {
            self.tally.cut.fetch_add(1, Relaxed);
        }
    }
}

/// Counts the bytes of a request's body, which may pass after its ticket is gone.
#[derive(Debug)]
pub(super) struct Meter {
    tally: Arc<Tally>,
}

impl Meter {
    pub fn received(&self, bytes: usize) {
        self.tally.received_bytes.fetch_add(bytes as u64, Relaxed);
    }
}
