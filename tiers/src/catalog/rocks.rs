//! The catalog on RocksDB, on a thread of its own.
//!
//! Write-ahead log on, no fsync: a killed process loses what was queued here, a power loss what the kernel had not written.
//! Both leave the last life unclean, and the files are scanned behind normal work.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, TrySendError};
use std::thread::JoinHandle;
use std::time::Duration;

use rocksdb::{BlockBasedOptions, Cache, DB, Options, ReadOptions, WriteBatch};

use super::record::{self, META_KEY, Meta};
use super::{CatalogEntry, CatalogState, CatalogStore, CatalogValue};
use crate::error::TierError;
use crate::nvme::BlockName;

/// Changes that wait for the thread.
const QUEUE_CHANGES: usize = 1 << 17;
/// Entries in one piece of the read.
const READ_ENTRIES: usize = 1024;
/// Pieces that wait for the tier.
const READ_PIECES: usize = 16;
/// How long the reading thread waits when the tier is behind and nothing is to be written.
const READ_PAUSE: Duration = Duration::from_millis(1);
/// How long dropping the catalog waits for its thread.
const DROP_WAIT: Duration = Duration::from_secs(5);
const WRITE_BUFFER_BYTES: usize = 8 << 20;
const BLOCK_CACHE_BYTES: usize = 8 << 20;
const READAHEAD_BYTES: usize = 1 << 20;
const OPEN_FILES: i32 = 64;

/// Where the catalog is and what it belongs to.
#[derive(Clone, Debug)]
pub struct RocksCatalogOptions {
    /// Name of the tier, for errors.
    pub tier: String,
    /// Its directory.
    pub directory: PathBuf,
    /// The tier's directories: a catalog of others, or of the same in another order, is stale.
    pub paths: Vec<PathBuf>,
    /// Whether to wait until it is open, and fail if it cannot be.
    pub require: bool,
}

enum Change {
    Put(Vec<u8>, [u8; record::VALUE_BYTES]),
    Delete(Vec<u8>),
}

enum Message {
    Changes(Vec<Change>),
    Rebuilt,
    Close { clean: bool },
}

enum Piece {
    Entries(Vec<CatalogEntry>),
    End(CatalogState),
}

#[derive(Default)]
struct Shared {
    queued: AtomicUsize,
    generation: AtomicU32,
    /// The thread writes it down as soon as it sees it.
    stale: AtomicBool,
}

/// Catalog entries in RocksDB. See the module.
pub struct RocksCatalog {
    shared: Arc<Shared>,
    /// `None` after the end.
    changes: Option<Sender<Message>>,
    pieces: Receiver<Piece>,
    piece: std::vec::IntoIter<CatalogEntry>,
    state: CatalogState,
    pending: Vec<Change>,
    lost: u64,
    ended: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl RocksCatalog {
    /// Starts the thread, which opens or rebuilds the database. A database that cannot be opened is removed and made anew; where
    /// that fails too there is no catalog in this life, which is an error only if it is required.
    pub fn open(options: RocksCatalogOptions) -> Result<Self, TierError> {
        let shared = Arc::new(Shared::default());
        let (changes, changes_out) = mpsc::channel();
        let (pieces_in, pieces) = mpsc::sync_channel(READ_PIECES);
        let (ready_in, ready) = mpsc::sync_channel::<Result<(), String>>(1);
        let (ended_in, ended) = mpsc::sync_channel(1);
        let (require, tier) = (options.require, options.tier.clone());
        let thread = std::thread::Builder::new().name("terrace-catalog".into()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                let _ended = ended_in;
                match open(&options) {
                    Ok((db, meta, lost)) => {
                        let _ = ready_in.try_send(Ok(()));
                        Writer { db, meta, shared }.run(lost, &changes_out, &pieces_in);
                    }
                    Err(why) => {
                        tracing::warn!(directory = %options.directory.display(), why, "no catalog in this life: files are scanned");
                        shared.stale.store(true, Ordering::Relaxed);
                        let _ = ready_in.try_send(Err(why));
                        let _ = pieces_in.send(Piece::End(CatalogState::Lost));
                    }
                }
            }
        });
        let thread = thread.map_err(|source| TierError::System { step: "starting the catalog thread", source })?;
        if require && let Ok(Err(why)) | Err(why) = ready.recv().map_err(|_| "its thread ended".to_owned()) {
            return Err(TierError::Required { tier, facility: "catalog", why });
        }
        Ok(Self {
            shared,
            changes: Some(changes),
            pieces,
            piece: Vec::new().into_iter(),
            state: CatalogState::Reading,
            pending: Vec::new(),
            lost: 0,
            ended,
            thread: Some(thread),
        })
    }

    fn change(&mut self, change: Change) {
        if self.changes.is_none() || self.shared.stale.load(Ordering::Relaxed) {
            self.lost += 1;
        } else if self.room() == 0 {
            self.lost += 1;
            self.distrust();
        } else {
            self.pending.push(change);
        }
    }

    /// Waits up to `within` for the thread to end, and lets it go otherwise.
    fn join(&mut self, within: Duration) {
        self.changes = None;
        let ended = !matches!(self.ended.recv_timeout(within), Err(RecvTimeoutError::Timeout));
        if let Some(thread) = self.thread.take() {
            if !ended {
                tracing::warn!("the catalog did not close in time; the next start scans the files");
            } else if thread.join().is_err() {
                tracing::error!("the catalog thread panicked; the next start scans the files");
            }
        }
    }
}

impl CatalogStore for RocksCatalog {
    fn poll(&mut self, most: usize, out: &mut Vec<CatalogEntry>) -> CatalogState {
        let mut left = most;
        while left > 0 && self.state == CatalogState::Reading {
            let before = out.len();
            out.extend(self.piece.by_ref().take(left));
            left -= out.len() - before;
            if left == 0 {
                break;
            }
            match self.pieces.try_recv() {
                Ok(Piece::Entries(entries)) => self.piece = entries.into_iter(),
                Ok(Piece::End(state)) => self.state = state,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.state = CatalogState::Lost,
            }
        }
        self.state
    }

    fn generation(&self) -> u32 {
        self.shared.generation.load(Ordering::Relaxed)
    }

    fn put(&mut self, name: &BlockName, value: &CatalogValue) {
        self.change(Change::Put(record::key_bytes(name), record::value_bytes(value)));
    }

    fn delete(&mut self, name: &BlockName) {
        self.change(Change::Delete(record::key_bytes(name)));
    }

    fn room(&self) -> usize {
        QUEUE_CHANGES.saturating_sub(self.shared.queued.load(Ordering::Relaxed) + self.pending.len())
    }

    fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let changes = std::mem::take(&mut self.pending);
        let count = changes.len();
        self.shared.queued.fetch_add(count, Ordering::Relaxed);
        if self.changes.as_ref().is_none_or(|to| to.send(Message::Changes(changes)).is_err()) {
            self.shared.queued.fetch_sub(count, Ordering::Relaxed);
            self.lost += count as u64;
        }
    }

    fn distrust(&mut self) {
        if !self.shared.stale.swap(true, Ordering::Relaxed) {
            tracing::warn!("the catalog is stale: the next start scans the files");
        }
    }

    fn rebuilt(&mut self) {
        self.flush();
        if let Some(to) = &self.changes {
            let _ = to.send(Message::Rebuilt);
        }
    }

    fn shutdown(&mut self, clean: bool, within: Duration) {
        self.flush();
        if let Some(to) = self.changes.take() {
            let _ = to.send(Message::Close { clean });
            self.join(within);
        }
    }

    fn lost(&self) -> u64 {
        self.lost
    }
}

impl Drop for RocksCatalog {
    /// Without a shutdown this is a crash as far as the files know: the last life stays unclean.
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.join(DROP_WAIT);
        }
    }
}

fn db_options() -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(BLOCK_CACHE_BYTES));
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(2);
    options.set_max_total_wal_size(4 * WRITE_BUFFER_BYTES as u64);
    options.set_max_open_files(OPEN_FILES);
    options.set_max_background_jobs(2);
    options.set_keep_log_file_num(2);
    options.set_log_level(rocksdb::LogLevel::Warn);
    options
}

/// Opens the database and says what the last life left: its record, and whether the entries are lost.
fn open(options: &RocksCatalogOptions) -> Result<(DB, Meta, bool), String> {
    let directory = &options.directory;
    let db = match DB::open(&db_options(), directory) {
        Ok(db) => db,
        // Another handle in this very process: destroying it would pull the files from under it.
        Err(error) if error.as_ref().contains("lock ") => return Err(error.into_string()),
        Err(error) => {
            tracing::warn!(directory = %directory.display(), %error, "the catalog cannot be read: it is made anew from the files");
            remake(directory)?
        }
    };
    let was = match db.get(META_KEY) {
        Ok(Some(bytes)) => Meta::from_bytes(&bytes),
        Ok(None) => None,
        Err(error) => {
            tracing::warn!(directory = %directory.display(), %error, "the catalog is damaged: it is made anew from the files");
            None
        }
    };
    let trusted = was.as_ref().is_some_and(|was| !was.stale && was.paths == options.paths);
    let generation = was.as_ref().map_or(0, |was| was.generation).wrapping_add(1);
    let db = if trusted {
        db
    } else {
        drop(db);
        remake(directory)?
    };
    let meta =
        Meta { clean: was.is_some_and(|was| was.clean), stale: !trusted, generation, paths: options.paths.clone() };
    Ok((db, meta, !trusted))
}

fn remake(directory: &Path) -> Result<DB, String> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            fs::remove_file(directory).map_err(|e| e.to_string())?
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.to_string()),
        _ => {}
    }
    DB::open(&db_options(), directory).map_err(rocksdb::Error::into_string)
}

/// The thread's side.
struct Writer {
    db: DB,
    meta: Meta,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(mut self, lost: bool, changes: &Receiver<Message>, pieces: &SyncSender<Piece>) {
        let was_clean = std::mem::take(&mut self.meta.clean);
        self.shared.generation.store(self.meta.generation, Ordering::Relaxed);
        self.write_meta();
        let going = if lost {
            pieces.send(Piece::End(CatalogState::Lost)).is_ok()
        } else {
            self.read(was_clean, changes, pieces)
        };
        if !going {
            return;
        }
        while let Ok(message) = changes.recv() {
            if !self.apply(message) {
                return;
            }
        }
    }

    /// Streams the entries, and writes changes meanwhile. False: closed.
    fn read(&mut self, clean: bool, changes: &Receiver<Message>, pieces: &SyncSender<Piece>) -> bool {
        let mut at: Option<Vec<u8>> = None;
        let mut piece = None;
        loop {
            if piece.is_none() {
                piece = Some(self.next_piece(&mut at, clean));
            }
            let mut waiting = false;
            if let Some(ready) = piece.take() {
                let end = matches!(ready, Piece::End(_));
                match pieces.try_send(ready) {
                    Ok(()) if end => return true,
                    Ok(()) => {}
                    Err(TrySendError::Full(back)) => {
                        piece = Some(back);
                        waiting = true;
                    }
                    Err(TrySendError::Disconnected(_)) => return false,
                }
            }
            let message = if waiting {
                changes.recv_timeout(READ_PAUSE)
            } else {
                changes.try_recv().map_err(|error| match error {
                    TryRecvError::Empty => RecvTimeoutError::Timeout,
                    TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                })
            };
            match message {
                Ok(message) => {
                    if !self.apply(message) {
                        return false;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The entries after `at`. One short iterator a piece: a block that is stored or evicted meanwhile is seen in either
    /// state, and the tier takes its own index over what it is told.
    fn next_piece(&self, at: &mut Option<Vec<u8>>, clean: bool) -> Piece {
        let mut read = ReadOptions::default();
        read.fill_cache(false);
        read.set_readahead_size(READAHEAD_BYTES);
        let mut iter = self.db.raw_iterator_opt(read);
        match at {
            Some(key) => {
                iter.seek(&key);
                if iter.key() == Some(key) {
                    iter.next();
                }
            }
            None => iter.seek_to_first(),
        }
        let mut entries = Vec::with_capacity(READ_ENTRIES);
        let mut damaged = 0_u64;
        while entries.len() < READ_ENTRIES
            && let Some((key, value)) = iter.item()
        {
            if key != META_KEY {
                match record::entry(key, value) {
                    Some(mut entry) => {
                        // After a crash a file may be newer than its entry. Its footer tells; the entry's CRC does not.
                        entry.value.crc32 = entry.value.crc32.filter(|_| clean);
                        entries.push(entry);
                    }
                    None => damaged += 1,
                }
            }
            let last = at.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
            iter.next();
        }
        if damaged > 0 {
            tracing::warn!(damaged, "catalog entries of no known form are skipped, their files will be scanned");
            self.shared.stale.store(true, Ordering::Relaxed);
        }
        if let Err(error) = iter.status() {
            tracing::warn!(%error, "the catalog is damaged: the files are scanned");
            self.shared.stale.store(true, Ordering::Relaxed);
            return Piece::End(CatalogState::Lost);
        }
        if entries.is_empty() { Piece::End(CatalogState::Read { clean }) } else { Piece::Entries(entries) }
    }

    /// False: closed.
    fn apply(&mut self, message: Message) -> bool {
        if self.shared.stale.load(Ordering::Relaxed) && !self.meta.stale {
            self.meta.stale = true;
            self.write_meta();
        }
        match message {
            Message::Changes(changes) => {
                let mut batch = WriteBatch::default();
                let count = changes.len();
                for change in changes {
                    match change {
                        Change::Put(key, value) => batch.put(key, value),
                        Change::Delete(key) => batch.delete(key),
                    }
                }
                if let Err(error) = self.db.write(batch)
                    && !self.shared.stale.swap(true, Ordering::Relaxed)
                {
                    tracing::warn!(%error, "the catalog cannot be written: the next start scans the files");
                }
                self.shared.queued.fetch_sub(count, Ordering::Relaxed);
                true
            }
            Message::Rebuilt => {
                self.meta.stale = self.shared.stale.load(Ordering::Relaxed);
                self.write_meta();
                true
            }
            Message::Close { clean } => {
                self.meta.stale |= self.shared.stale.load(Ordering::Relaxed);
                self.meta.clean = clean && !self.meta.stale;
                self.write_meta();
                if let Err(error) = self.db.flush_wal(true) {
                    tracing::warn!(%error, "the catalog cannot be made durable");
                }
                false
            }
        }
    }

    fn write_meta(&self) {
        if let Err(error) = self.db.put(META_KEY, self.meta.to_bytes()) {
            tracing::warn!(%error, "the catalog's state cannot be written: the next start may scan the files");
            self.shared.stale.store(true, Ordering::Relaxed);
        }
    }
}
