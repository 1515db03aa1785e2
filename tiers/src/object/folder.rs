//! Follows the log: reads the newest snapshot and the log behind it once, then lists and folds what others append, and tells the
//! manager's side.
//!
//! Names begin with stamps, so a listing starts a few seconds before the newest name that was seen. What came late shows as a gap in its
//! writer's numbers, or at one of the regular listings that go back further ([`pace`]). A node that has not listed for half
//! the time that log objects are kept reads everything anew: what it missed may be in the snapshot only.
mod listing;
mod pace;
#[cfg(test)]
pub(crate) mod rig;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, oneshot};

pub(crate) use self::snapshot::{Unread, manifest_numbers, read_manifest, read_part};
pub(crate) use self::state::{Base, Complete, KnownPart, SharedLogState, scramble};

use self::listing::Read;
use self::pace::{OVERLAP, Pace, Reach, Reaches, WIDE};
use super::blocks::Blocks;
use super::id::Stamp;
use super::names::LogName;
use super::port::{Change, Changes, Report};
use super::requests::RequestError;
use super::shared::Shared;
use crate::clock::Time;

/// A first reading that takes longer is reported as failed, and goes on.
const FIRST_WITHIN: Duration = Duration::from_secs(2);
/// Pause before a reading of everything is tried again.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// What is listed and said not to be there was removed meanwhile, and is in a newer snapshot; or it comes a little later. So often everything
/// is read before that is believed.
const READINGS: u32 = 2;
/// One reading of snapshot and log.
const READING: Duration = Duration::from_secs(300);
/// Tombstones are kept for this many times the time that log objects are.
pub(crate) const TOMBSTONES: u32 = 2;

/// What a collector asks for.
enum Wish {
    /// A listing of all the log that is kept, begun from here on.
    Whole(oneshot::Sender<bool>),
    /// Everything read anew.
    Anew(oneshot::Sender<bool>),
}

#[derive(Default)]
struct Bell {
    /// When somebody last asked, in nanoseconds of the tier's clock; 0: never.
    asked: AtomicU64,
    ring: Notify,
}

/// The way to the folder.
#[derive(Clone)]
pub(crate) struct FolderHandle {
    shared: Arc<Shared>,
    bell: Arc<Bell>,
    wishes: UnboundedSender<Wish>,
}

impl FolderHandle {
    /// Somebody asks for blocks: for a second the log is listed as often as the configuration allows.
    pub fn asked(&self) {
        self.bell.asked.store(self.shared.clock.now().0.max(1), Ordering::Relaxed);
        self.bell.ring.notify_one();
    }

    /// Lists the whole log that is kept. True: done, and begun after this call.
    pub async fn list_whole(&self) -> bool {
        self.wish(Wish::Whole).await
    }

    /// Reads snapshot and log anew. True: done, and begun after this call.
    pub async fn read_anew(&self) -> bool {
        self.wish(Wish::Anew).await
    }

    async fn wish(&self, wish: fn(oneshot::Sender<bool>) -> Wish) -> bool {
        let (answer, done) = oneshot::channel();
        self.wishes.send(wish(answer)).is_ok() && done.await == Ok(true)
    }
}

/// The folder: a way to it, and the task, which never ends.
pub(crate) fn folder(
    shared: Arc<Shared>,
    state: SharedLogState,
    changes: Changes,
    reports: UnboundedSender<Report>,
) -> (FolderHandle, impl Future<Output = ()> + Send + 'static) {
    let (sender, wishes) = unbounded_channel();
    let bell = Arc::<Bell>::default();
    let handle = FolderHandle { shared: Arc::clone(&shared), bell: Arc::clone(&bell), wishes: sender };
    let now = shared.clock.now();
    let pace = Pace::new(shared.config.fold_interval, shared.config.fold_interval_max, now);
    let reaches = Reaches::new(shared.config.log_retention, now);
    (handle, Folder { shared, state, changes, reports, bell, wishes, pace, reaches }.run())
}

struct Folder {
    shared: Arc<Shared>,
    state: SharedLogState,
    changes: Changes,
    reports: UnboundedSender<Report>,
    bell: Arc<Bell>,
    wishes: UnboundedReceiver<Wish>,
    pace: Pace,
    reaches: Reaches,
}

impl Folder {
    async fn run(mut self) {
        self.read_first().await;
        loop {
            self.tell().await;
            let wish = self.wait().await;
            self.tell().await;
            match wish {
                Some(Wish::Whole(answer)) => {
                    let done = self.list(Some(Reach::Whole)).await;
                    let _ = answer.send(done);
                }
                Some(Wish::Anew(answer)) => {
                    let done = self.read_all().await;
                    let _ = answer.send(done);
                }
                None => {
                    self.list(None).await;
                }
            }
        }
    }

    /// Until a listing is due, or asked for. What others of this tier folded is passed on meanwhile.
    async fn wait(&mut self) -> Option<Wish> {
        loop {
            let now = self.shared.clock.now();
            let asked = self.bell.asked.load(Ordering::Relaxed);
            let asked = (asked > 0).then_some(Time(asked));
            let due = self.pace.due(asked, now);
            if due <= now {
                return None;
            }
            let folded = tokio::select! {
                biased;
                wish = self.wishes.recv() => match wish {
                    Some(wish) => return Some(wish),
                    // No handle is left: nobody asks.
                    None => {
                        tokio::time::sleep(due.since(now)).await;
                        false
                    }
                },
                () = self.bell.ring.notified() => false,
                () = self.state.told() => true,
                () = tokio::time::sleep(due.since(now)) => false,
            };
            if folded {
                self.tell().await;
            }
        }
    }

    /// Hands changes to the manager's side, in the order in which they were folded.
    async fn tell(&self) {
        loop {
            let Some(change) = self.state.lock().outbox.pop_front() else { return };
            self.changes.send(change).await;
        }
    }

    /// Until everything was read once. Says so when that fails or takes long.
    async fn read_first(&mut self) {
        let mut said = false;
        loop {
            let reports = self.reports.clone();
            let say = || {
                // The manager's side may be gone already.
                let _ = reports.send(Report::Unreachable);
            };
            let done = {
                let reading = self.read_all();
                tokio::pin!(reading);
                match tokio::time::timeout(FIRST_WITHIN, &mut reading).await {
                    Ok(done) => done,
                    Err(_) => {
                        if !said {
                            said = true;
                            say();
                        }
                        reading.await
                    }
                }
            };
            if done {
                return;
            }
            if !said {
                said = true;
                say();
            }
            tokio::time::sleep(READ_AGAIN).await;
        }
    }

    /// Reads snapshot and log, and puts them in the place of what was known. False: it failed, and nothing changed.
    async fn read_all(&mut self) -> bool {
        for left in (0..READINGS).rev() {
            let began = self.begin();
            self.state.lock().begin_reading();
            let outcome = self.read_everything(began, left == 0).await;
            if outcome != Err(RequestError::NotFound) || left == 0 {
                return self.has_read(began, outcome).await;
            }
            self.state.lock().give_up_reading();
            tokio::time::sleep(READ_AGAIN).await;
        }
        false
    }

    /// A reading of everything that began then is over. True: it is what is known now.
    async fn has_read(&mut self, began: Complete, outcome: Result<(), RequestError>) -> bool {
        match outcome {
            Ok(()) => {
                self.reaches.read(began.at);
                self.pace.listed(began.at, true);
                self.shared.counters.resyncs.bump();
                self.send_catalog().await;
                true
            }
            Err(error) => {
                tracing::warn!(tier = %self.shared.tier, %error, "the log of the cluster could not be read; it is tried again");
                self.state.lock().give_up_reading();
                self.pace.failed(began.at);
                false
            }
        }
    }

    /// Fails with [`RequestError::NotFound`] where something is listed that is not there, or the snapshot was removed meanwhile. `last`:
    /// log objects that are listed and not there are gaps from here on, which later listings try to fill.
    async fn read_everything(&self, began: Complete, last: bool) -> Result<(), RequestError> {
        let shared = &*self.shared;
        let (mut fold, base) = snapshot::read_snapshot(shared, began.at.plus(READING)).await?;
        let from = base.as_ref().map_or(Stamp(0), |base| base.log_from);
        let mut upto = fold.newest().min(from);
        let mut after = listing::start(shared, from);
        loop {
            let ahead_ms = self.state.lock().ahead_ms();
            let page = listing::page(shared, &after, ahead_ms).await?;
            upto = page.names.last().map_or(upto, |last| upto.max(last.stamp));
            self.observe(upto);
            let wanted: Vec<LogName> = page.names.into_iter().filter(|name| !fold.has(name)).collect();
            let mut gone = false;
            listing::read(shared, wanted, |read| match read {
                Read::Object(object) => {
                    if fold.apply(&object, &mut Vec::new()) {
                        shared.counters.logs_folded.bump();
                    }
                }
                Read::Bad(name) => {
                    shared.counters.logs_bad.bump();
                    fold.skip(&name);
                }
                // Never passed over for good: what it names would be nobody's for this node, and a collector deletes that.
                Read::Gone(name) => {
                    gone = true;
                    fold.miss(&name);
                }
            })
            .await?;
            if gone && !last {
                return Err(RequestError::NotFound);
            }
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        // A snapshot goes before the log behind it does: while it is there, nothing of the two was missed.
        if let Some(Base { number, .. }) = &base
            && !manifest_numbers(shared, began.at.plus(READING)).await?.contains(number)
        {
            return Err(RequestError::NotFound);
        }
        self.state.lock().replace(fold, base, Complete { upto, ..began });
        Ok(())
    }

    /// The whole catalog, made on a thread of its own: it takes a second for ten million blocks.
    async fn send_catalog(&self) {
        let segments: Vec<_> = {
            let state = self.state.lock();
            let live = state.fold.live();
            live.map(|live| (Arc::clone(&live.record), state.is_own(live.record.id.writer))).collect()
        };
        let made = self.shared.compute(move || {
            let blocks = segments.iter().map(|(segment, _)| segment.blocks() as usize).sum();
            let mut catalog = Blocks::with_capacity(blocks);
            catalog.add_all(segments);
            Box::new(catalog)
        });
        if let Some(catalog) = made.await {
            self.changes.send(Change::Catalog(catalog)).await;
        }
    }

    fn begin(&self) -> Complete {
        Complete { upto: Stamp(0), at: self.shared.clock.now(), wall_ms: self.shared.wall.now_ms() }
    }

    fn observe(&self, stamp: Stamp) {
        let mut state = self.state.lock();
        state.observe(stamp, self.shared.wall.now_ms());
        self.shared.counters.clock_behind_ms.set(state.ahead_ms());
    }

    /// Lists the log and folds what is new. False: it failed; what was missed is listed again.
    async fn list(&mut self, reach: Option<Reach>) -> bool {
        let began = self.begin();
        let Some(complete) = self.state.lock().complete else { return self.read_all().await };
        let retention = self.shared.config.log_retention;
        let away =
            began.at.since(complete.at).as_millis().max(u128::from(began.wall_ms.saturating_sub(complete.wall_ms)));
        if away >= (retention / 2).as_millis() {
            return self.read_all().await;
        }
        let reach = reach.unwrap_or_else(|| self.reaches.next(began.at));
        let back = match reach {
            Reach::Overlap => OVERLAP,
            Reach::Wide => WIDE,
            Reach::Whole => retention,
        };
        let mut from = complete.upto.minus_ms(back.as_millis() as u64);
        if reach == Reach::Whole {
            let missed = self.state.lock().fold.earliest_missed();
            from = missed.map_or(from, |missed| from.min(missed.minus_ms(1)));
        }
        self.shared.counters.folds.bump();
        match self.list_from(from, began, complete).await {
            Ok(Listed { news, gone }) => {
                let doubtful = self.note_gaps(reach, began.at);
                self.pace.listed(began.at, news || self.reaches.hurry());
                // What disappears between its listing and its reading was removed as old: this node lags.
                if gone || doubtful { self.read_all().await } else { true }
            }
            Err(error) => {
                tracing::debug!(tier = %self.shared.tier, %error, "the log could not be listed or read");
                self.pace.failed(began.at);
                false
            }
        }
    }

    async fn list_from(&self, from: Stamp, began: Complete, before: Complete) -> Result<Listed, RequestError> {
        let shared = &*self.shared;
        let mut listed = Listed { news: false, gone: false };
        let mut upto = before.upto;
        let mut after = listing::start(shared, from);
        loop {
            let ahead_ms = self.state.lock().ahead_ms();
            let page = listing::page(shared, &after, ahead_ms).await?;
            upto = page.names.last().map_or(upto, |last| upto.max(last.stamp));
            self.observe(upto);
            let wanted: Vec<LogName> = {
                let state = self.state.lock();
                page.names.into_iter().filter(|name| state.wants(name)).collect()
            };
            listed.news |= !wanted.is_empty();
            let outcome = listing::read(shared, wanted, |read| match read {
                Read::Object(object) => {
                    let mut state = self.state.lock();
                    // Its own are missing where a reading of everything had not come by them.
                    let own = object.writer == state.writer();
                    if state.apply(&object, own) {
                        shared.counters.logs_folded.bump();
                    }
                }
                Read::Bad(name) => {
                    shared.counters.logs_bad.bump();
                    self.state.lock().fold.skip(&name);
                }
                // What is a gap already has been looked for by reading everything.
                Read::Gone(name) => listed.gone |= !self.state.lock().fold.misses(&name),
            });
            outcome.await?;
            self.tell().await;
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        self.state.lock().complete = Some(Complete { upto, ..began });
        Ok(listed)
    }

    /// After a listing of that reach, begun then. True: what was listed is missing for so long that everything is to be read anew.
    fn note_gaps(&mut self, reach: Reach, began: Time) -> bool {
        let mut state = self.state.lock();
        let kept = self.shared.config.log_retention * TOMBSTONES;
        let mut doubtful = false;
        for (writer, age) in self.reaches.listed(reach, began, state.fold.gaps()) {
            // It is there, or was when it was listed: a reading of everything that does not find it listed shows that it is gone. A store that
            // goes on to list it and to deny it will not give it.
            if state.fold.missed(writer).is_some() && age < kept {
                doubtful |= self.reaches.may_read(began);
                continue;
            }
            // Never without having looked for it once more.
            if reach < Reach::Whole {
                continue;
            }
            tracing::warn!(tier = %self.shared.tier, %writer, "a log object never came; what it named is not known");
            self.shared.counters.logs_bad.bump();
            state.fold.close_gaps(writer);
        }
        self.shared.counters.log_gaps.set(state.fold.gaps().count() as u64);
        if reach == Reach::Whole {
            // A collector prunes by itself: it must know what snapshots still hold.
            if self.shared.counters.is_collector.get() == 0 {
                let before = state.fold.newest().minus_ms(kept.as_millis() as u64);
                state.fold.prune(before, |_| false);
            }
        }
        doubtful
    }
}

/// What a listing brought.
struct Listed {
    news: bool,
    gone: bool,
}
