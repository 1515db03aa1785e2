//! One directory of a simulated disk, as the real shard drives it.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use terrace_tiers::nvme::{Cause, Completion, Device, DeviceError, DirEntry, FileOp, RelPath, Step};
use terrace_tiers::{Clock, Time};

use super::faults::{Kind, Weather};
use super::files::Errno;
use super::op::cause;
use super::{Disk, State};

const EIO: i32 = 5;

/// A device of a process that lives until the disk's next crash. After that it does nothing and ends every operation at
/// once, so that the dead process' memory can be let go of.
pub struct SimDevice {
    disk: Disk,
    root: usize,
    life: u64,
    depth: u32,
    unfinished: BTreeSet<u64>,
    listing: VecDeque<DirEntry>,
}

impl SimDevice {
    pub(super) fn new(disk: Disk, root: usize, life: u64, depth: u32) -> Self {
        Self { disk, root, life, depth, unfinished: BTreeSet::new(), listing: VecDeque::new() }
    }

    /// Does something with the disk; nothing after the process' end.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> Option<T> {
        let mut state = self.disk.lock();
        (state.life == self.life).then(|| act(&mut state))
    }
}

impl Device for SimDevice {
    fn depth(&self) -> u32 {
        self.depth
    }

    fn submit(&mut self, tag: u64, op: FileOp) {
        self.unfinished.insert(tag);
        self.with(|disk| disk.submit(self.root, tag, op));
    }

    fn flush(&mut self) {}

    fn cancel(&mut self, tag: u64) {
        self.with(|disk| {
            let found = disk.ops.iter().find(|(_, op)| op.root == self.root && op.tag() == tag).map(|(id, _)| *id);
            if let Some((id, mut op)) = found.and_then(|id| disk.ops.remove_entry(&id)) {
                op.cancel(disk);
                disk.ops.insert(id, op);
            }
        });
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        let first = out.len();
        let alive = self.with(|disk| {
            let now_ns = disk.clock.now().0;
            disk.run_until(now_ns);
            let root = self.root;
            disk.ops.retain(|_, op| {
                let completion = if op.root == root { op.completion(now_ns) } else { None };
                out.extend(completion);
                completion.is_none()
            });
            for at in (first + 1..out.len()).rev() {
                out.swap(at, first + disk.rng.index(at - first + 1));
            }
        });
        if alive.is_none() {
            let cancelled = Err(DeviceError::new(Step::Open, Cause::Cancelled));
            out.extend(self.unfinished.iter().map(|tag| Completion { tag: *tag, result: cancelled }));
        }
        for completion in out.iter().skip(first) {
            self.unfinished.remove(&completion.tag);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.with(|disk| {
            let now = disk.clock.now();
            let until = match (disk.next_due_ns(), timeout) {
                (Some(due_ns), Some(timeout)) => due_ns.min(now.plus(timeout).0),
                (Some(due_ns), None) => due_ns,
                (None, Some(timeout)) => now.plus(timeout).0,
                (None, None) => now.0,
            };
            disk.clock.advance(Time(until).since(now));
            disk.run_until(until);
        });
    }

    fn unfinished(&self) -> u32 {
        self.unfinished.len() as u32
    }

    fn make_dir(&mut self, path: &RelPath) -> Result<(), DeviceError> {
        let made = self.with(|disk| {
            disk.folder_weather(self.root, Step::MakeDir)?;
            match disk.weather[self.root] {
                Weather::ReadOnly => return Err(DeviceError::new(Step::MakeDir, Cause::ReadOnly)),
                Weather::Full => return Err(DeviceError::new(Step::MakeDir, Cause::NoSpace)),
                _ => {}
            }
            let path = format!("{}/{}", disk.roots[self.root], path.as_str());
            match disk.files.make_folder(&path) {
                Ok(()) | Err(Errno::Exists) => Ok(()),
                Err(errno) => Err(DeviceError::new(Step::MakeDir, cause(errno))),
            }
        });
        made.unwrap_or(Err(DeviceError::new(Step::MakeDir, Cause::Errno(EIO))))
    }

    fn list_start(&mut self, path: &RelPath) -> Result<(), DeviceError> {
        self.listing.clear();
        let listed = self.with(|disk| {
            disk.folder_weather(self.root, Step::List)?;
            let root = &disk.roots[self.root];
            let below = if *path == RelPath::root() { root.to_string() } else { format!("{root}/{}", path.as_str()) };
            disk.files.list(&below).map_err(|errno| DeviceError::new(Step::List, cause(errno)))
        });
        let names = listed.unwrap_or(Err(DeviceError::new(Step::List, Cause::Errno(EIO))))?;
        self.listing = names
            .into_iter()
            .filter_map(|(path, ino)| {
                let name = path.rsplit_once('/')?.1.to_owned();
                Some(DirEntry { name, is_dir: ino.is_none() })
            })
            .collect();
        Ok(())
    }

    fn list_next(&mut self, max: usize, out: &mut Vec<DirEntry>) -> Result<bool, DeviceError> {
        let weather = self.with(|disk| disk.folder_weather(self.root, Step::List));
        weather.unwrap_or(Err(DeviceError::new(Step::List, Cause::Errno(EIO))))?;
        out.extend(self.listing.drain(..max.min(self.listing.len())));
        Ok(!self.listing.is_empty())
    }
}

impl State {
    /// Whether directories can be worked with now.
    fn folder_weather(&mut self, root: usize, step: Step) -> Result<(), DeviceError> {
        match self.weather[root] {
            Weather::Failing | Weather::Hanging => Err(DeviceError::new(step, Cause::Errno(EIO))),
            Weather::Gone => {
                // Every file below it is denied.
                self.denied += self.files.all().count() as u64;
                Err(DeviceError::new(step, Cause::Missing))
            }
            _ if self.faults.strikes(Kind::FolderError, &mut self.rng) => {
                Err(DeviceError::new(step, Cause::Errno(EIO)))
            }
            _ => Ok(()),
        }
    }
}
