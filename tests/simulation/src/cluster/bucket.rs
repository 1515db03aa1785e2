//! The bucket: objects, what its listings show of them, what is still on its way to it, and one ledger for each namespace.
//!
//! Every change is taken at one moment, in one order for all nodes. The first thing that contradicts a ledger is kept, and ends
//! the run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;

use super::faults::{Faults, Kind, Weather};
use super::ledger::Ledger;
use crate::failure::Reason;
use crate::rng::Rng;
use crate::trace::SharedTrace;

/// An object.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub bytes: Bytes,
    /// Time of the world at which it was written.
    pub written: Duration,
    /// Listings show it from then on.
    listed_from: Duration,
}

/// What a listing shows of an object.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub path: Path,
    pub size: u64,
    pub written: Duration,
}

/// A change that a node asked for.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Writes an object; `create`: only if there is none.
    Put { path: Path, bytes: Bytes, create: bool },
    /// Deletes an object.
    Delete { path: Path },
    /// Keeps a part of an upload.
    Part { upload: u64, index: usize, bytes: Bytes },
    /// Makes an object of the parts.
    Complete { upload: u64, path: Path },
    /// Forgets the parts.
    Abort { upload: u64 },
}

/// Why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    Exists,
    NoUpload,
}

/// The bucket. Clones share it.
#[derive(Clone)]
pub(crate) struct Bucket(Arc<Mutex<Inner>>);

pub(crate) struct Inner {
    objects: BTreeMap<Path, Object>,
    /// Deleted, and listed until then.
    ghosts: BTreeMap<Path, (Listed, Duration)>,
    uploads: BTreeMap<u64, BTreeMap<usize, Bytes>>,
    next_upload: u64,
    /// Changes that will be made then, whoever still waits.
    late: Vec<(Duration, Change)>,
    pub ledgers: Vec<Ledger>,
    pub faults: Faults,
    /// By node.
    pub weather: Vec<Weather>,
    pub rng: Rng,
    pub trace: SharedTrace,
    pub requests: u64,
    broken: Option<Reason>,
}

impl Bucket {
    pub fn new(faults: Faults, nodes: usize, ledgers: Vec<Ledger>, rng: Rng, trace: SharedTrace) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            objects: BTreeMap::new(),
            ghosts: BTreeMap::new(),
            uploads: BTreeMap::new(),
            next_upload: 1,
            late: Vec::new(),
            ledgers,
            faults,
            weather: vec![Weather::Fair; nodes],
            rng,
            trace,
            requests: 0,
            broken: None,
        })))
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first contradiction, if there was one.
    pub fn check(&self) -> Result<(), Reason> {
        self.lock().broken.clone().map_or(Ok(()), Err)
    }
}

impl Inner {
    fn contradicts(&mut self, text: String) {
        self.trace.add(format_args!("broken: {text}"));
        self.broken.get_or_insert(Reason::Contract(text));
    }

    fn ledger(&self, path: &Path) -> Option<usize> {
        self.ledgers.iter().position(|ledger| path.prefix_matches(ledger.names.root()))
    }

    /// The object of this name.
    pub fn object(&self, path: &Path) -> Option<&Object> {
        self.objects.get(path)
    }

    /// Whether it is of the log, or of a snapshot.
    pub fn tells_of_segments(&self, path: &Path) -> bool {
        self.ledgers.iter().any(|Ledger { names, .. }| {
            [names.logs(), names.snapshots(), names.parts()].into_iter().any(|prefix| path.prefix_matches(prefix))
        })
    }

    /// Names of all objects below a prefix.
    pub fn names(&self, prefix: &Path) -> Vec<Path> {
        self.objects.keys().filter(|path| path.prefix_matches(prefix)).cloned().collect()
    }

    /// What a life asks for, before anything else becomes of it.
    pub fn asked(&mut self, life: u64, verb: &str, path: &Path, world: Duration) {
        self.requests += 1;
        let Some(ledger) = self.ledger(path).and_then(|at| self.ledgers.get_mut(at)) else { return };
        let names = ledger.names.clone();
        let below = |prefix: &Path| path.prefix_matches(prefix);
        if verb == "put"
            && let Some(term) = names.parse_lease(path)
        {
            ledger.term_asked(life, term, world);
        }
        let collects = match verb {
            "put" => below(names.snapshots()) || below(names.parts()),
            "delete" => [names.snapshots(), names.parts(), names.segments(), names.logs()].into_iter().any(below),
            _ => false,
        };
        if collects && !ledger.may_collect(life, world) {
            self.contradicts(format!("life {life} collects without the lease: {verb} {path}"));
        }
    }

    /// Makes a change now.
    pub fn make(&mut self, change: Change, world: Duration) -> Result<(), Denied> {
        match change {
            Change::Put { path, create: true, .. } if self.objects.contains_key(&path) => Err(Denied::Exists),
            Change::Put { path, bytes, .. } => {
                self.put(path, bytes, world);
                Ok(())
            }
            Change::Delete { path } => {
                self.delete(&path, world);
                Ok(())
            }
            Change::Part { upload, index, bytes } => {
                let parts = self.uploads.get_mut(&upload).ok_or(Denied::NoUpload)?;
                parts.insert(index, bytes);
                Ok(())
            }
            Change::Complete { upload, path } => {
                let parts = self.uploads.remove(&upload).ok_or(Denied::NoUpload)?;
                let bytes: Vec<u8> = parts.into_values().flatten().collect();
                self.put(path, bytes.into(), world);
                Ok(())
            }
            Change::Abort { upload } => self.uploads.remove(&upload).map(drop).ok_or(Denied::NoUpload),
        }
    }

    /// A new upload of several parts.
    pub fn begin_upload(&mut self) -> u64 {
        let upload = self.next_upload;
        self.next_upload += 1;
        self.uploads.insert(upload, BTreeMap::new());
        upload
    }

    /// Makes a change later, whatever becomes of who asked for it.
    pub fn make_late(&mut self, change: Change, due: Duration) {
        self.late.push((due, change));
    }

    /// Makes the changes that are due; all of them with `all`.
    pub fn make_due(&mut self, world: Duration, all: bool) {
        let (due, rest) = std::mem::take(&mut self.late).into_iter().partition(|(due, _)| all || *due <= world);
        self.late = rest;
        let due: Vec<(Duration, Change)> = due;
        for (_, change) in due {
            self.trace.add(format_args!("late: {}", of(&change)));
            let _ = self.make(change, world);
        }
    }

    fn put(&mut self, path: Path, bytes: Bytes, world: Duration) {
        if let Some(at) = self.ledger(&path) {
            let (ledger, objects) = (&mut self.ledgers[at], &self.objects);
            let there = |path: &Path| objects.get(path).map(|object| object.bytes.len() as u64);
            let names = ledger.names.clone();
            let outcome = match names.parse_segment(&path) {
                Some(id) => {
                    let other = objects.get(&path).is_some_and(|old| old.bytes != bytes) && !ledger.is_spoiled(id);
                    if other { Err(format!("{path} is written again, with other bytes")) } else { Ok(()) }
                }
                None if path.prefix_matches(names.logs()) => ledger.log_taken(&path, &bytes, world, there),
                None => match names.parse_manifest(&path) {
                    Some(number) => {
                        let there = |path: &Path| objects.get(path).map(|object| object.bytes.clone());
                        let logs = objects.keys().filter(|path| path.prefix_matches(names.logs()));
                        ledger.manifest_taken(number, &bytes, there, logs)
                    }
                    None => Ok(()),
                },
            };
            if let Err(text) = outcome {
                self.contradicts(text);
            }
        }
        let stale = self.faults.strikes(Kind::StaleList, &mut self.rng);
        let hidden = if stale { Duration::from_millis(self.rng.skewed(4_000)) } else { Duration::ZERO };
        self.objects.insert(path, Object { bytes, written: world, listed_from: world + hidden });
    }

    fn delete(&mut self, path: &Path, world: Duration) {
        if let Some(at) = self.ledger(path) {
            let ledger = &self.ledgers[at];
            if let Some(id) = ledger.names.parse_segment(path)
                && ledger.lives(id)
                && !ledger.is_spoiled(id)
            {
                self.contradicts(format!("{path} is deleted, and the log says that it lives"));
            }
        }
        let Some(object) = self.objects.remove(path) else { return };
        if self.faults.strikes(Kind::GhostList, &mut self.rng) {
            let until = world + Duration::from_millis(self.rng.skewed(10_000));
            let listed = Listed { path: path.clone(), size: object.bytes.len() as u64, written: object.written };
            self.ghosts.insert(path.clone(), (listed, until));
        }
    }

    /// What a listing shows now, in order of names.
    pub fn list(&mut self, prefix: &Path, after: Option<&Path>, world: Duration) -> Vec<Listed> {
        self.ghosts.retain(|_, (_, until)| *until > world);
        let shown = |path: &Path| path.prefix_matches(prefix) && after.is_none_or(|after| path > after);
        let first = after.unwrap_or(prefix);
        let there = self.objects.range(first..).take_while(|(path, _)| path.as_ref().starts_with(prefix.as_ref()));
        let there = there.filter(|(path, object)| shown(path) && object.listed_from <= world).map(|(path, object)| {
            Listed { path: path.clone(), size: object.bytes.len() as u64, written: object.written }
        });
        let ghosts = self.ghosts.iter().filter(|(path, _)| shown(path) && !self.objects.contains_key(path));
        let mut all: Vec<Listed> = there.chain(ghosts.map(|(_, (listed, _))| listed.clone())).collect();
        all.sort_by(|a, b| a.path.cmp(&b.path));
        all
    }

    /// Now and then a segment is gone, or another, and nobody was asked.
    pub fn damage(&mut self) {
        for kind in [Kind::Vanish, Kind::Overwrite] {
            if !self.faults.strikes(kind, &mut self.rng) {
                continue;
            }
            let segments: Vec<(usize, Path)> = (0..)
                .zip(&self.ledgers)
                .flat_map(|(at, ledger)| self.names(ledger.names.segments()).into_iter().map(move |path| (at, path)))
                .collect();
            let Some((at, path)) = self.rng.pick(&segments).cloned() else { continue };
            let Some(id) = self.ledgers[at].names.parse_segment(&path) else { continue };
            self.ledgers[at].spoil(id);
            self.trace.add(format_args!("{kind:?} {path}"));
            if kind == Kind::Vanish {
                self.objects.remove(&path);
                continue;
            }
            // Another's bytes, or its own but for one: both look like a segment.
            let (_, other) = self.rng.pick(&segments).cloned().unwrap_or((at, path.clone()));
            let other = self.objects.get(&other).filter(|_| other != path).map(|other| other.bytes.clone());
            let Some(object) = self.objects.get_mut(&path) else { continue };
            object.bytes = other.unwrap_or_else(|| changed(&object.bytes, &mut self.rng));
        }
    }
}

/// The same bytes but for one.
pub(crate) fn changed(bytes: &[u8], rng: &mut Rng) -> Bytes {
    let mut bytes = bytes.to_vec();
    let spot = rng.index(bytes.len());
    if let Some(byte) = bytes.get_mut(spot) {
        *byte ^= 0x10;
    }
    bytes.into()
}

/// A change, for the trace.
pub(crate) fn of(change: &Change) -> String {
    match change {
        Change::Put { path, bytes, create } => format!("put {path} {} {create}", bytes.len()),
        Change::Delete { path } => format!("delete {path}"),
        Change::Part { upload, index, .. } => format!("part {index} of {upload}"),
        Change::Complete { upload, path } => format!("complete {upload} {path}"),
        Change::Abort { upload } => format!("abort {upload}"),
    }
}
