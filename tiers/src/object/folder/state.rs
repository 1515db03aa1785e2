//! What this node knows of the log, shared by those who append to it, fold it and compact it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::clock::Time;
use crate::object::fold::{Fold, FoldChange};
use crate::object::id::{SegmentId, Stamp, WriterId};
use crate::object::log::LogObject;
use crate::object::names::LogName;
use crate::object::port::Change;
use crate::object::snapshot::PartRef;

/// Stamps go before this node's clock so far at most, but for being later than those seen: clocks that go wrong one after another, and are
/// set right, must not add up, for readers do not believe what is half an hour ahead.
const MAX_LEAD_MS: u64 = 15 * 60 * 1_000;
/// Former lives of this node that are remembered: more than a process has in a year without a store.
const MAX_LIVES: usize = 4_096;

/// Up to where the log was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Complete {
    /// All log objects that were visible and have stamps up to here are folded.
    pub upto: Stamp,
    /// When the listing began, by the monotonic clock.
    pub at: Time,
    /// The same by the wall clock, in milliseconds: it also goes on while a machine sleeps.
    pub wall_ms: u64,
}

/// A part of the snapshot that the fold stands on, and what is in it.
#[derive(Clone, Debug)]
pub(crate) struct KnownPart {
    pub reference: PartRef,
    /// Its segments, and when they were last used as the part has it.
    pub segments: Vec<(SegmentId, Stamp)>,
}

/// The snapshot that the fold stands on: read or written by this node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Base {
    /// Number of the manifest.
    pub number: u64,
    /// Where readers of the manifest begin to list the log.
    pub log_from: Stamp,
    /// Log objects that it covers: per writer, all up to this sequence.
    pub covered: HashMap<WriterId, u64>,
    pub parts: Vec<KnownPart>,
}

/// Fold, own name, cluster time, and what the manager's side has not been told yet. Never locked across an await.
pub(crate) struct LogState {
    pub fold: Fold,
    /// Names of this process's lives, the present one last.
    lives: Vec<WriterId>,
    segments: u64,
    /// Number of the last log object that the present life has published.
    published: u64,
    newest: Stamp,
    ahead_ms: u64,
    /// Changes of the fold in the order in which they happened, for the manager's side.
    pub outbox: VecDeque<Change>,
    /// Up to where the log was read; `None` before the first time.
    pub complete: Option<Complete>,
    /// `None`: there was no snapshot that could be read.
    pub base: Option<Base>,
    /// Own log objects that were published since a reading of the whole log began.
    meanwhile: Option<Vec<Arc<LogObject>>>,
}

impl LogState {
    fn new(writer: WriterId) -> Self {
        Self {
            fold: Fold::new(),
            lives: vec![writer],
            segments: 0,
            published: 0,
            newest: Stamp::default(),
            ahead_ms: 0,
            outbox: VecDeque::new(),
            complete: None,
            base: None,
            meanwhile: None,
        }
    }

    /// Name of this node's present life.
    pub fn writer(&self) -> WriterId {
        self.lives.last().copied().unwrap_or(WriterId(0))
    }

    /// Whether it is the name of this process, now or before.
    pub fn is_own(&self, writer: WriterId) -> bool {
        self.lives.contains(&writer)
    }

    /// Ends the present life. The next one has a name that is as random as the first.
    pub fn next_life(&mut self) -> WriterId {
        let next = WriterId(scramble(self.writer().0));
        if self.lives.len() >= MAX_LIVES {
            self.lives.remove(0);
        }
        self.lives.push(next);
        (self.segments, self.published) = (0, 0);
        next
    }

    /// A name for a new segment.
    pub fn next_segment(&mut self) -> SegmentId {
        self.segments += 1;
        SegmentId { writer: self.writer(), number: self.segments }
    }

    /// Cluster time, later than all stamps seen and given: by the fastest clock that was seen, within bounds, or this node's.
    pub fn stamp(&mut self, wall_ms: u64) -> Stamp {
        let now = wall_ms.saturating_add(self.ahead_ms.min(MAX_LEAD_MS));
        self.newest = Stamp(now.max(self.newest.0.saturating_add(1)));
        self.newest
    }

    /// Takes note of another's stamp.
    pub fn observe(&mut self, stamp: Stamp, wall_ms: u64) {
        self.newest = self.newest.max(stamp);
        self.ahead_ms = self.ahead_ms.max(stamp.0.saturating_sub(wall_ms));
    }

    /// How far the fastest clock seen is before this node's, in milliseconds.
    pub fn ahead_ms(&self) -> u64 {
        self.ahead_ms
    }

    /// Folds a log object. `own`: it is what this node has just published. False: it was folded before.
    pub fn apply(&mut self, object: &LogObject, own: bool) -> bool {
        let mut changes = Vec::new();
        let fresh = self.fold.apply(object, &mut changes);
        self.outbox.extend(changes.into_iter().map(|change| match change {
            FoldChange::Added(segment) => Change::Added { segment, own },
            FoldChange::Removed(id) => Change::Removed(id),
        }));
        fresh
    }

    /// Folds a log object that this node has just published.
    pub fn published(&mut self, object: Arc<LogObject>) {
        self.published = object.sequence;
        self.apply(&object, true);
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile.push(object);
        }
    }

    /// Whether a listed log object is to be read: one that is not folded, and that the publisher has not under way, for that it folds itself.
    pub fn wants(&self, name: &LogName) -> bool {
        !self.fold.has(name) && (name.writer != self.writer() || name.sequence <= self.published)
    }

    /// The whole log is about to be read: what is published from here on is kept for [`Self::replace`].
    pub fn begin_reading(&mut self) {
        self.meanwhile = Some(Vec::new());
    }

    /// It failed.
    pub fn give_up_reading(&mut self) {
        self.meanwhile = None;
    }

    /// Puts what was read in the place of what was known.
    pub fn replace(&mut self, mut fold: Fold, base: Option<Base>, complete: Complete) {
        for object in self.meanwhile.take().unwrap_or_default() {
            fold.apply(&object, &mut Vec::new());
        }
        self.fold = fold;
        self.base = base;
        self.complete = Some(complete);
        self.outbox.clear();
    }
}

/// [`LogState`], held by all tasks of one tier, on one thread: nobody waits for it.
#[derive(Clone)]
pub(crate) struct SharedLogState {
    state: Arc<Mutex<LogState>>,
    news: Arc<Notify>,
}

impl SharedLogState {
    /// Nothing known yet. `writer` is random, new with every start.
    pub fn new(writer: WriterId) -> Self {
        Self { state: Arc::new(Mutex::new(LogState::new(writer))), news: Arc::default() }
    }

    /// The state. Not to be held across an await.
    pub fn lock(&self) -> MutexGuard<'_, LogState> {
        // No holder leaves it half changed: what a panic leaves is what it was.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whoever empties the outbox that there is something in it.
    pub fn tell(&self) {
        self.news.notify_one();
    }

    /// Until [`Self::tell`] is called, or was since the last time.
    pub async fn told(&self) {
        self.news.notified().await;
    }
}

/// The next of a series of 64-bit numbers without a pattern (splitmix64's finaliser, Steele et al., 2014).
pub(crate) fn scramble(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
